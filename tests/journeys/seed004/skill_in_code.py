"""A `Skill` that a program makes itself, with the fields of one that was read from a folder."""

import asyncio
from pathlib import Path

from bough.orchestrator import AgentSpec, OrchestratorAgent
from bough.skills import Skill
from bough.testing import ScriptedModel, tool_call

folder = Path("notes").absolute()
(folder / "scripts").mkdir(parents=True)
(folder / "scripts/count.py").write_text("print(3)\n")
text = "---\nname: notes\ndescription: Counts the notes.\n---\nRun scripts/count.py.\n"
(folder / "SKILL.md").write_text(text)
skill = Skill(
    name="notes",
    description="Counts the notes.",
    path=folder / "SKILL.md",
    frontmatter={"name": "notes", "description": "Counts the notes."},
    body="Run scripts/count.py.",
    script_paths=[folder / "scripts/count.py"],
    reference_paths=[],
    asset_paths=[],
)
print(skill.body, skill.content, [path.name for path in skill.script_paths], skill.reference_paths, skill.asset_paths)
print(Skill(name="plain", description="Says how.", body="Do it.").body)


async def main() -> None:
    model = ScriptedModel([tool_call("load_skill", skill_name="notes"), lambda request: str(request.messages[-1])])
    async with OrchestratorAgent(AgentSpec(name="writer", model=model, skills=[skill])) as orchestrator:
        output = (await orchestrator.run("How?")).output
        print("Run scripts/count.py." in output, "SKILL_CHANGED" not in output)


asyncio.run(main())
