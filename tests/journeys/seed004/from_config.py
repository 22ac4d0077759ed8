"""A spec of `config.yaml`, with values of the program's own before those of the file."""

import asyncio
from pathlib import Path

from bough.orchestrator import AgentSpec, OrchestratorAgent

Path("prompts").mkdir()
Path("prompts/coordinator.md").write_text("You coordinate.\n{skills_catalog}\n")
for name in ("code-review", "other"):
    Path("skills", name).mkdir(parents=True)
    Path("skills", name, "SKILL.md").write_text(f"---\nname: {name}\ndescription: The skill {name}.\n---\nDo it.\n")
Path("config.yaml").write_text(
    """models:
  house:
    model: openai-chat:test
agents:
  coordinator:
    model: nobody:nothing
    description: From the file
"""
)


async def main() -> None:
    spec = AgentSpec.from_config(
        "coordinator",
        model_name="house",
        system_prompt_path=Path("prompts/coordinator.md"),
        tool_names=[],
        mcp_server_names=[],
        a2a_client_names=[],
        skill_roots=[Path("skills/")],
        skill_names=["code-review"],
    )
    print(spec.name, spec.description)
    async with OrchestratorAgent(spec) as orchestrator:
        print((await orchestrator.run("Hello")).output)
        text = orchestrator.system_prompt
        print("The skill code-review." in text, "The skill other." in text)


asyncio.run(main())
