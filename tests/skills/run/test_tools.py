"""The names of seed 004, with their meaning there."""

from __future__ import annotations

from pathlib import Path

import pytest

from bough.errors import NotFound
from bough.execution.local import LocalSandboxCodeExecutor
from bough.skills import SkillRegistry
from bough.skills.run.tools import (
    create_skill_sandbox_manager,
    get_all_tools,
    get_skill_instructions,
    list_available_skills,
    run_named_script,
    run_skill_script,
)


@pytest.fixture
def registry(tmp_path: Path) -> SkillRegistry:
    folder = tmp_path / "skills" / "code-review"
    (folder / "scripts").mkdir(parents=True)
    (folder / "SKILL.md").write_text(
        "---\nname: code-review\ndescription: Reviews\n  code.\n---\n# Code Review\n\nLook.\n"
    )
    (folder / "scripts" / "analyze.py").write_text(
        "import sys\nprint('analyzed', *sys.argv[1:])\nprint('note', file=sys.stderr)\n"
    )
    (folder / "scripts" / "fail.py").write_text("raise SystemExit(5)\n")
    registry = SkillRegistry()
    registry.discover([tmp_path / "skills"])
    return registry


def test_the_three_tiers_of_the_seed(registry: SkillRegistry) -> None:
    assert list_available_skills(registry) == "code-review: Reviews code."
    assert get_skill_instructions(registry, "code-review") == "# Code Review\n\nLook."
    with pytest.raises(NotFound):
        get_skill_instructions(registry, "absent")


def test_the_tool_activates_and_says_what_is_not_there(registry: SkillRegistry) -> None:
    [activate_skill] = get_all_tools(registry)
    assert activate_skill.__name__ == "activate_skill"
    assert "Look." in activate_skill("code-review") and "scripts/analyze.py" in activate_skill("code-review")
    assert activate_skill("code-reviw").startswith("Error: no skill") and "code-review" in activate_skill("code-reviw")


def test_a_script_runs_in_the_sandbox_of_the_registry(registry: SkillRegistry) -> None:
    manager = create_skill_sandbox_manager(registry)
    assert isinstance(manager.executor, LocalSandboxCodeExecutor)
    run = {"skill_name": "code-review", "script_name": "analyze.py", "args": "main.py"}
    assert run_skill_script(manager, registry, "me", "one", **run) == (0, "analyzed main.py\nnote\n")
    assert run_skill_script(manager, registry, "me", "one", skill_name="code-review", script_name="fail.py") == (5, "")
    code, output = run_skill_script(manager, registry, "me", "one", skill_name="absent", script_name="x.py")
    assert code == -1 and output.startswith("SKILL_NOT_FOUND")


@pytest.mark.anyio
async def test_it_works_inside_a_running_loop_and_without_a_name(registry: SkillRegistry) -> None:
    manager = create_skill_sandbox_manager(registry)
    code, output = run_skill_script(manager, registry, "u", "s", skill_name="code-review", script_name="analyze.py")
    assert (code, output) == (0, "analyzed\nnote\n")
    assert (await run_named_script(registry, manager.executor, "", "x.py")).error_code == "MISSING_SKILL_NAME"
    missing = await manager.run("code-reviw", "x.py")
    assert missing.error_code == "SKILL_NOT_FOUND" and "code-review" in (missing.error or "")
    await manager.executor.aclose()
