"""Skills: a cheap catalogue, instructions on demand, and an agent that activates one."""

import asyncio
from pathlib import Path

from bough.agents import get_agent, run_agent
from bough.skills import (
    Skill,
    SkillMetadata,
    SkillRegistry,
    get_all_tools,
    get_skill_instructions,
    list_available_skills,
)
from bough.testing import ScriptedModel, tool_call

folder = Path("skills/code-review")
for part in ("scripts", "references", "assets"):
    (folder / part).mkdir(parents=True)
(folder / "SKILL.md").write_text(
    """---
name: code-review
description: Review code for quality, bugs, and security issues.
compatibility: Works with Python, JavaScript, and TypeScript files.
metadata:
  author: example-org
  version: "1.0"
---

# Code Review

Analyze the provided code and return structured feedback.
"""
)
(folder / "scripts/analyze.py").write_text("print('no issues')\n")
(folder / "references/rules.md").write_text("Names are words.\n")
(folder / "assets/report.txt").write_text("Report\n")

registry = SkillRegistry()
metadata = registry.discover([Path("skills/")])
assert all(isinstance(entry, SkillMetadata) for entry in metadata)
print([(entry.name, entry.path.name) for entry in metadata])
print([entry.name for entry in registry.list_all()])
catalog = list_available_skills(registry)
print(catalog)

skill = registry.get("code-review")
assert isinstance(skill, Skill)
print(skill.frontmatter["metadata"]["author"], skill.body == get_skill_instructions(registry, "code-review"))
for paths in (skill.script_paths, skill.reference_paths, skill.asset_paths):
    print([path.name for path in paths], all(path.is_file() for path in paths))

model = ScriptedModel(
    [
        tool_call("activate_skill", skill_name="code-review"),
        tool_call("activate_skill", skill_name="code-revue"),
        lambda request: "\n".join(str(part.content) for part in request.messages[-1].parts),
    ]
)
agent = get_agent(model=model, tools=get_all_tools(registry), system_prompt=f"Available skills:\n{catalog}")
agent_run, _ = asyncio.run(run_agent(agent, "Review main.py"))
print(catalog in str(model.asked[0].messages), "structured feedback" in str(model.asked[0].messages))
print("structured feedback" in str(model.asked[1].messages[-1]))
print(agent_run.result.output)
