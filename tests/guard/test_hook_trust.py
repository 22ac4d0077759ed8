"""A project's hooks are asked when a person trusted these very files, and only as long as they stay as they were."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bough.errors import InvalidInput
from bough.guard import CallRules, Guard, ToolRequest, find_hooks
from bough.guard import hook_trust as hook_trust_module
from bough.guard.hook_trust import list_project_hooks, trust_hooks
from bough.guard.hooks import HookInput, HookKind
from bough.skills import TrustStore

pytestmark = pytest.mark.anyio


def write(folder: Path, name: str, command: str, **more: Any) -> Path:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"hooks": {"PreToolUse": [{"hooks": [{"command": command, **more}]}]}}))
    return file


class Project:
    """A project, a home folder, and what a person has agreed to."""

    def __init__(self, folder: Path) -> None:
        self.home, self.folder = folder / "home", folder / "project"
        self.folder.mkdir()
        self.store = TrustStore(self.home)

    def trust(self) -> None:
        trust_hooks(self.folder, list_project_hooks(self.folder), home=self.home, trust=self.store)

    @property
    def found(self) -> Any:
        return find_hooks(home=self.home, project=self.folder, trust=self.store)

    @property
    def commands(self) -> list[str]:
        return [hook.command for hook in self.found.hooks]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def test_files_count_one_by_one_when_they_are_trusted(project: Project) -> None:
    write(project.home, "hooks.json", "mine")
    write(project.folder, ".openhands/hooks.json", "theirs")
    write(project.folder, ".claude/settings.json", "claude")
    assert project.commands == ["mine"]
    assert len(project.found.notes) == 2
    project.trust()
    assert (project.commands, project.found.notes) == (["mine", "theirs", "claude"], ())
    write(project.folder, ".bough/hooks.json", "own")
    write(project.folder, ".claude/settings.json", "other")
    assert project.commands == ["mine", "theirs"]
    assert len(project.found.notes) == 2
    project.store.revoke(project.folder)
    assert project.commands == ["mine"]


@pytest.mark.parametrize(
    ("command", "file"),
    [
        ("tools/check.sh", "tools/check.sh"),
        ("sh ./tools/check.sh --all", "tools/check.sh"),
        ('"$CLAUDE_PROJECT_DIR"/tools/check.sh', "tools/check.sh"),
        ("${CLAUDE_PROJECT_DIR}/tools/check.sh || true", "tools/check.sh"),
        ("python -m check tools", "tools/deep/inside.py"),
        ("cat<tools/check.sh|sh", "tools/check.sh"),
        ("make lint", "Makefile"),
        ("npm run lint", "package.json"),
    ],
)
def test_what_a_command_names_is_part_of_what_is_trusted(project: Project, command: str, file: str) -> None:
    write(project.folder, ".bough/hooks.json", command)
    program = project.folder / file
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text("one")
    project.trust()
    assert project.commands == [command]
    program.write_text("two")
    assert project.commands == []
    program.write_text("one")
    assert project.commands == [command]
    program.unlink()
    assert project.commands == []


def test_a_file_that_joins_a_folder_is_noticed(project: Project) -> None:
    write(project.folder, ".bough/hooks.json", "python tools")
    (project.folder / "tools").mkdir()
    (project.folder / "tools" / "__main__.py").write_text("")
    project.trust()
    (project.folder / "tools" / "json.py").write_text("an import of the program")
    assert project.commands == []


def test_more_files_than_anyone_can_look_at_cannot_be_trusted(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hook_trust_module, "MAX_FILES", 3)
    write(project.folder, ".bough/hooks.json", "tools/run")
    (project.folder / "tools" / "run").mkdir(parents=True)
    for n in range(4):
        (project.folder / "tools" / "run" / str(n)).write_text("")
    project.trust()
    assert project.commands == []


def test_settings_without_hooks_are_not_asked_about(project: Project) -> None:
    (project.folder / ".claude").mkdir()
    (project.folder / ".claude" / "settings.json").write_text('{"permissions": {}}')
    assert project.found.notes == ()


def test_a_broken_file_stops_nobody_before_it_is_trusted(project: Project) -> None:
    (project.folder / ".openhands").mkdir()
    (project.folder / ".openhands" / "hooks.json").write_text("{")
    assert (project.commands, len(project.found.notes)) == ([], 1)
    project.trust()
    with pytest.raises(InvalidInput):
        _ = project.found


@pytest.mark.parametrize(("failure", "decision"), [("deny", "reject"), ("continue", "run")])
async def test_a_hook_that_is_changed_in_mid_run_does_not_run(project: Project, failure: str, decision: str) -> None:
    """An agent may write where a hook's program lies; what it writes there must not run outside the sandbox."""
    program, ran = project.folder / "check.sh", project.folder / "ran"
    program.write_text("exit 0")
    write(project.folder, ".bough/hooks.json", "sh check.sh", onFailure=failure)
    project.trust()
    guard = Guard(CallRules(hooks=project.found), conversation_id="c", workspace=project.folder)
    call = ToolRequest(id="c", tool="act", arguments={}, workspace=project.folder)
    assert (await guard.review(call)).decision == "run"
    program.write_text(f"touch {ran}")
    review = await guard.review(call)
    assert review.decision == decision
    assert "have changed since they were trusted" in review.events[0].output + review.reason
    assert not ran.exists()


@pytest.mark.parametrize("command", ["sh tools/check.sh", "sh check.sh", "python3 check.py", "python3 -m check"])
async def test_a_program_that_is_swapped_after_the_check_does_not_run(project: Project, command: str) -> None:
    """Between the comparison and the start, a script may put another program in its place, or a module beside it."""
    (project.folder / "tools").mkdir()
    files = {"tools/check.sh": "echo trusted", "check.sh": "echo trusted", "check.py": "import json, helper"}
    files["helper.py"] = "print('trusted')"
    for name, text in files.items():
        (project.folder / name).write_text(text)
    write(project.folder, ".bough/hooks.json", command)
    project.trust()
    [hook] = project.found.hooks
    (project.folder / "tools" / "check.sh").write_text("echo swapped")
    for name in ("check.sh", "tools/check.sh"):
        (project.folder / name).write_text("echo swapped")
    for name in ("check.py", "helper.py", "json.py"):
        (project.folder / name).write_text("print('swapped')")
    given = HookInput(kind=HookKind.PRE_TOOL_USE, conversation_id="c", workspace=project.folder, tool="act")
    ran = await hook.agreement.run(command, given.payload(), workspace=project.folder, timeout_seconds=30)
    assert (ran.stdout, ran.stderr, ran.exit_code) == ("trusted\n", "", 0)
