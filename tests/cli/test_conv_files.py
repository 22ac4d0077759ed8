"""`bough conv restore`, `bough conv apply` and forks with the files at their cut, as a person uses them."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from bough.agents.spec import AgentSpec
from bough.conversation import AsyncConversation
from bough.settings import Settings
from bough.testing import ScriptedModel, tool_call


@pytest.fixture
def changed(bough_home: Path, tmp_path: Path) -> tuple[Path, UUID]:
    """A folder in which an agent changed `a.txt` and added `b.txt`, and the conversation."""
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "a.txt").write_text("one\n")

    async def main() -> UUID:
        steps = [tool_call("write_file", path=name, content=f"new {name}\n") for name in ("a.txt", "b.txt")]
        spec: AgentSpec[str] = AgentSpec(
            name="writer", model=ScriptedModel([*steps, "done"]), workspace_access="write", discover_skills=False
        )
        settings = Settings.load(home=bough_home, env={}, cwd=folder, keep_files=True)
        async with await AsyncConversation.create(spec, workspace=folder, settings=settings) as conversation:
            await conversation.send_message("go")
            await conversation.run()
            await conversation.set_model("offline")
            return conversation.id

    return folder, asyncio.run(main())


def test_files_are_taken_back_and_brought_back(cli: Any, changed: tuple[Path, UUID]) -> None:
    folder, id = changed
    (folder / "mine.txt").write_text("mine")
    refused = cli("conv", "restore", f"{id}@1")
    assert (refused.returncode, (folder / "b.txt").exists()) == (2, True)
    assert "--yes" in refused.stderr
    plan = cli.data("conv", "restore", f"{id}@1", "--dry-run")
    files = [{"path": "a.txt", "change": "changed"}, {"path": "b.txt", "change": "removed"}]
    assert plan == {"files": files, "left": []}
    answer = cli("conv", "restore", f"{id}@1", "--yes")
    assert answer.stdout.splitlines()[:3] == ["  ~ a.txt", "  - b.txt", "2 files written"]
    assert sorted(path.name for path in folder.iterdir()) == ["a.txt", "mine.txt"]
    assert (folder / "a.txt").read_text() == "one\n"
    assert cli("conv", "restore", str(id), "--redo").returncode == 0
    assert (folder / "b.txt").read_text() == "new b.txt\n"
    assert cli("conv", "restore", str(id)).returncode == 2


def test_files_of_an_event_are_listed_and_compared(cli: Any, changed: tuple[Path, UUID]) -> None:
    _, id = changed
    assert cli("conv", "show", f"{id}@1", "--files").stdout.splitlines()[0] == "    4 B  a.txt"
    assert [item["path"] for item in cli.data("conv", "show", str(id), "--files")["files"]] == ["a.txt", "b.txt"]
    shown = cli("conv", "diff", str(id), "--files").stdout
    assert shown.splitlines()[:3] == ["  ~ a.txt  +1 -1", "  + b.txt  +1", "--- a/a.txt"]
    compared = cli.data("conv", "diff", f"{id}@1", str(id), "--files")
    assert compared["files"][0] == {"path": "a.txt", "change": "changed", "lines_added": 1, "lines_removed": 1}
    assert cli.data("conv", "diff", f"{id}@1", "--files")["files"] == []
    refused = cli("conv", "show", str(id), "--files", "--full")
    assert (refused.returncode, "--files takes the event only" in refused.stderr) == (2, True)


def test_a_fork_has_the_files_at_its_cut_and_is_applied(cli: Any, changed: tuple[Path, UUID]) -> None:
    folder, id = changed
    fork = cli.data("fork", f"{id}@1", "--files", "copy")["conversation"]
    copy = Path(fork["workspace"])
    assert [path.name for path in copy.iterdir()] == ["a.txt"]
    (copy / "c.txt").write_text("c\n")
    assert cli.data("conv", "apply", fork["id"], "--yes")["files"] == [{"path": "c.txt", "change": "added"}]
    assert (folder / "c.txt").read_text() == "c\n"
    now = cli.data("fork", f"{id}@1", "--files", "copy", "--moment", "now")["conversation"]
    assert (Path(now["workspace"]) / "b.txt").exists()


def test_erasure_removes_kept_files_and_leaves_those_of_others(
    cli: Any, changed: tuple[Path, UUID], bough_home: Path, tmp_path: Path
) -> None:
    _, id = changed
    other = tmp_path / "other"
    other.mkdir()
    (other / "o.txt").write_text("theirs\n")

    async def write(name: str, *, workspace: Path) -> UUID:
        steps = [tool_call("write_file", path=name, content=f"{name} {'x' * 90}\n"), "done"]
        spec: AgentSpec[str] = AgentSpec(
            name="writer", model=ScriptedModel(steps), workspace_access="write", discover_skills=False
        )
        settings = Settings.load(home=bough_home, env={}, cwd=workspace, keep_files=True)
        async with await AsyncConversation.create(spec, workspace=workspace, settings=settings) as conversation:
            await conversation.send_message("go")
            await conversation.run()
            await conversation.set_model("offline")
            return conversation.id

    later = asyncio.run(write("z.txt", workspace=other))
    kept = Path(f"{bough_home / 'bough.db'}.files")
    before = _count_objects(kept)
    erasure = cli.data("conv", "delete", str(id), "--mode", "erase", "--yes")["erasure"]
    assert not any("kept files" in reason for reason in erasure["not_covered"])
    assert 0 < _count_objects(kept) < before
    collected = cli.data("conv", "collect", "--dry-run")
    assert (collected["freed_bytes"], collected["missing"]) == (0, [])
    fork = cli.data("fork", f"{later}@1", "--files", "copy")["conversation"]
    assert (Path(fork["workspace"]) / "o.txt").read_text() == "theirs\n"


def test_what_a_deleted_conversation_kept_is_collected(cli: Any, changed: tuple[Path, UUID], bough_home: Path) -> None:
    _, id = changed
    kept = Path(f"{bough_home / 'bough.db'}.files")
    assert cli("conv", "delete", str(id), "--yes").returncode == 0
    before = _count_objects(kept)
    planned = cli.data("conv", "collect", "--dry-run")
    assert (planned["freed_bytes"] > 0, _count_objects(kept)) == (True, before)
    assert cli.data("conv", "collect")["freed_bytes"] >= planned["freed_bytes"]  # and what a pack adds
    assert _count_objects(kept) == 0
    assert cli("conv", "collect").stdout == "0 B freed, 0 B of kept files remain\n"


def _count_objects(kept: Path) -> int:
    """Return how many objects git finds in the folder of kept files."""
    listing = subprocess.run(
        ["git", f"--git-dir={kept / 'objects.git'}", "cat-file", "--batch-all-objects", "--batch-check"],
        capture_output=True,
        text=True,
        check=True,
    )
    return len(listing.stdout.splitlines())


@pytest.mark.needs("bubblewrap")
def test_an_apply_whose_check_fails_changes_nothing(cli: Any, changed: tuple[Path, UUID]) -> None:
    folder, id = changed
    fork = cli.data("fork", f"{id}@1", "--files", "copy")["conversation"]
    (Path(fork["workspace"]) / "c.txt").write_text("c\n")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    head = len(cli.data("conv", "show", str(id))["events"])
    apply = ("conv", "apply", fork["id"], "--yes", "--check")
    failed = cli(*apply, "cat c.txt; echo no good >&2; exit 3")
    assert failed.returncode == 1
    assert failed.stdout.splitlines()[0] == "check failed with exit code 3; the files are as they were"
    assert "no good" in failed.stdout
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    events = cli.data("conv", "show", str(id))["events"][head:]
    assert [(event["kind"], event["passed"]) for event in events] == [("CheckRan", False)]
    passed = cli.data(*apply, "test -f c.txt")
    assert passed["files"] == [{"path": "c.txt", "change": "added"}]
    assert (passed["check"]["passed"], (folder / "c.txt").read_text()) == (True, "c\n")
    assert cli.data(*apply, "test -f c.txt")["files"] == [], "applied twice, judged twice"
    refused = cli("conv", "apply", fork["id"], "--dry-run", "--check", "true")
    assert refused.returncode == 2
