"""An orchestrator with a tool, a skill and two sub-agents: delegation, background work, hooks, several turns."""

import asyncio
from pathlib import Path
from typing import Any

from bough.orchestrator import AgentSpec, OrchestratorAgent
from bough.skills import SkillRegistry
from bough.testing import ScriptedModel, tool_call

folder = Path("skills/report")
folder.mkdir(parents=True)
(folder / "SKILL.md").write_text("---\nname: report\ndescription: Write a report.\n---\nWrite three sentences.\n")
prompt = Path("coordinator.md")
prompt.write_text("You coordinate.\nAgents:\n{sub_agents_catalog}\nSkills:\n{skills_catalog}\n")


def read_revenue(quarter: str) -> int:
    """Return the revenue of a quarter."""
    return {"Q3": 100, "Q4": 120}[quarter]


async def main() -> None:
    registry = SkillRegistry()
    registry.discover([Path("skills")])
    analyst = AgentSpec(name="analyst", description="Reads numbers.", model=ScriptedModel(["It grew.", "By 20."]))
    researcher = AgentSpec(name="researcher", description="Reads texts.", model=ScriptedModel(["Nothing new."]))
    model = ScriptedModel(
        [
            tool_call("read_revenue", quarter="Q4"),
            tool_call("delegate", agent_name="analyst", prompt="Compare"),
            "Q4 was 120.",
            [
                tool_call("submit_task", agent_name="analyst", prompt="By how much?"),
                tool_call("submit_task", agent_name="researcher", prompt="Any news?"),
            ],
            tool_call("wait", timeout=60),
            tool_call("wait", timeout=60),
            "20 more.",
        ]
    )
    spec = AgentSpec(
        name="coordinator",
        description="Coordinates analysis tasks",
        model=model,
        system_prompt_path=prompt,
        tools=[read_revenue],
        mcp_servers=[],
        a2a_clients=[],
        skills=[registry.get("report")],
        sub_agents=[analyst, researcher],
    )
    nodes: list[str] = []

    def on_node(node: Any) -> None:
        nodes.append(type(node).__name__)

    async with OrchestratorAgent(spec, verbose=True, on_node=on_node) as orchestrator:
        result = await orchestrator.run("Analyze Q4 revenue data")
        print(result.output)
        result = await orchestrator.run("Now compare with Q3")
        print(result.output)
        print(len(orchestrator.runs), len(nodes) > 5)
        text = orchestrator.system_prompt
        print("analyst" in text, "Reads texts." in text, "Write a report." in text, "{" in text)
        print(sorted({"delegate", "submit_task", "wait", "load_skill", "read_revenue"} - set(model.asked[0].tools)))
        print(any("It grew." in str(message) for message in model.asked[2].messages))
        print("Nothing new." in str(model.asked[-1].messages))


asyncio.run(main())
