"""What is guarded in a workspace stays guarded, also when names change between the look at them and the start."""

# pyright: reportPrivateUsage=false
from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from bough.errors import Conflict, ExecutorError, InvalidInput, PermissionDenied
from bough.execution import CodeExecutionInput, Guards, LocalSandboxCodeExecutor, Mount
from bough.execution.process.guarded import MAX_GUARDED, find_guarded, set_aside
from bough.tree import open_descriptor

pytestmark = pytest.mark.anyio

LOOK = "open('ran', 'w'); print(open('/work/.agents/secret').read())"


@pytest.fixture(params=[pytest.param("bubblewrap", marks=pytest.mark.needs("bubblewrap")),
                        pytest.param("warm", marks=pytest.mark.needs("bubblewrap")),
                        pytest.param("stateful", marks=pytest.mark.needs("bubblewrap")),
                        pytest.param("landlock", marks=pytest.mark.needs("landlock"))])  # fmt: skip
def kind(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "landlock":
        monkeypatch.setenv("PATH", str(tmp_path))
    return request.param


@pytest.fixture
async def executor(kind: str) -> AsyncIterator[LocalSandboxCodeExecutor]:
    async with LocalSandboxCodeExecutor(stateful=kind == "stateful") as executor:
        yield executor


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    (folder / ".agents").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("a secret")
    return folder


@pytest.mark.parametrize("by", ["link", "folder"])
async def test_a_name_that_changes_before_the_start_is_not_shown(
    executor: LocalSandboxCodeExecutor, kind: str, workspace: Path, by: str
) -> None:
    lives_on = "a" if kind in ("warm", "stateful") else None
    request = CodeExecutionInput(code=LOOK, workspace=workspace, execution_id=lives_on)
    if kind == "warm":
        assert await executor.warm_up(request)
    rung: Any = await executor._get_rung()
    name = {"warm": "warm_configuration", "stateful": "session"}.get(kind, "launch")
    original = getattr(rung, name)

    def swap_first(*args: Any) -> Any:
        found = original(*args)
        (workspace / ".agents").rename(workspace / "was")
        if by == "link":
            (workspace / ".agents").symlink_to(workspace.parent / "outside")
        else:
            (workspace.parent / "outside").rename(workspace / ".agents")
        return found

    setattr(rung, name, swap_first)
    with pytest.raises(Conflict if by == "folder" else (Conflict, ExecutorError)):  # bwrap refuses the link itself
        await executor.execute(request)
    assert not (workspace / "ran").exists()


async def test_a_source_behind_a_link_of_the_workspace_is_refused(
    executor: LocalSandboxCodeExecutor, workspace: Path
) -> None:
    (workspace / "link").symlink_to(workspace.parent / "outside")
    for source in (workspace / "link", workspace / "link" / "secret"):
        mounts = (Mount(source=source, target="/shown"),)
        with pytest.raises(InvalidInput):
            await executor.execute(CodeExecutionInput(code=LOOK, workspace=workspace, mounts=mounts))


def test_folders_of_skills_are_guarded_by_their_paths(tmp_path: Path) -> None:
    (tmp_path / "tools" / "skills").mkdir(parents=True)
    guards = Guards().extend(tmp_path, [tmp_path / "tools" / "skills", tmp_path, Path("/elsewhere"), tmp_path / "new"])
    assert guards.paths == ("tools/skills", "new")
    assert guards.covers(("tools", "skills", "a", "SKILL.md"))
    assert not guards.covers(("tools", "other"))
    with open_descriptor(tmp_path) as root:
        before = find_guarded(root, guards)
        assert [entry.path for entry in before.entries] == ["tools/skills"]
        (tmp_path / "new").mkdir()
        assert [path for path, _ in set_aside(root, guards, before)] == ["new"]
    assert sorted(path.name.partition(".")[0] for path in tmp_path.iterdir()) == ["new", "tools"]


def test_more_repositories_than_can_be_shown_are_refused(tmp_path: Path) -> None:
    for number in range(MAX_GUARDED + 1):
        (tmp_path / str(number) / ".git").mkdir(parents=True)
    with open_descriptor(tmp_path) as root, pytest.raises(PermissionDenied, match="guarded names") as caught:
        find_guarded(root, Guards())
    assert caught.value.hint


@pytest.mark.needs("bubblewrap")
async def test_a_repository_that_a_person_makes_between_two_calls_is_guarded_from_then_on(workspace: Path) -> None:
    """A session stands still between its calls: what is new then is not its own, and is shown read-only next."""
    async with LocalSandboxCodeExecutor(stateful=True) as executor:
        code = (
            "import os, threading, time\n"
            "def go_on():\n"
            "    while True:\n"
            "        try: os.makedirs('made/.git')\n"
            "        except OSError: pass\n"
            "threading.Thread(target=go_on, daemon=True).start()\n"
            "while not os.path.exists('made/.git'): pass"
        )
        request = CodeExecutionInput(code=code, workspace=workspace, execution_id="a")
        assert (await executor.execute(request)).ok
        assert not (workspace / "made" / ".git").exists()
        (workspace / ".git").mkdir()
        code = "try: open('.git/config', 'w')\nexcept OSError as error: print(error.errno)"
        result = await executor.execute(CodeExecutionInput(code=code, workspace=workspace, execution_id="a"))
        assert (result.text, result.state_lost_reason) == ("30\n", "new guarded names in the workspace")
    assert os.listdir(workspace / ".git") == []
