"""The files of a conversation at a past event: looked at, forked, restored, and brought into another one."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Tool

from bough.agents.spec import AgentSpec
from bough.conversation import AsyncConversation, Turn
from bough.errors import Conflict, InvalidInput, NotFound, PermissionDenied
from bough.events.model import FilesKept
from bough.events.store import EventStore
from bough.settings import Settings
from bough.testing import ScriptedModel, tool_call

pytestmark = pytest.mark.anyio


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    workspace = tmp_path / "work"
    (workspace / "sub").mkdir(parents=True)
    (workspace / "a.txt").write_text("one\n")
    (workspace / "sub" / "b.txt").write_text("b\n")
    return workspace


class Shell:
    """An agent's tool that changes files on the host."""

    def __init__(self) -> None:
        self.folder = Path()

    def change(self, path: str, text: str = "") -> str:
        """Write a file, or remove it without a text."""
        target = self.folder / path
        if text:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
        elif target.is_dir():
            shutil.rmtree(target)
        else:
            target.unlink()
        return "done"


@pytest.fixture
def begin(store: EventStore, settings: Settings, folder: Path) -> Callable[..., Any]:
    async def start_conversation(*steps: Any) -> AsyncConversation[Any]:
        shell = Shell()
        shell.folder = folder
        spec: AgentSpec[str] = AgentSpec(name="keeper", model=ScriptedModel(steps), tools=(shell.change,), skills=())
        where: Any = {"store": store, "settings": replace(settings, keep_files=True), "workspace": folder}
        create: Any = AsyncConversation.create
        return await create(spec, **where)

    return start_conversation


def write(path: str, text: str) -> Any:
    return tool_call("change", path=path, text=text)


def remove(path: str) -> Any:
    return tool_call("change", path=path)


async def say(conversation: AsyncConversation, text: str = "go") -> int:
    await conversation.send_message(text)
    await conversation.run()
    return conversation.state.head


async def kept(conversation: AsyncConversation) -> list[FilesKept]:
    return [stored.event async for stored in conversation.events if isinstance(stored.event, FilesKept)]


def contents(folder: Path) -> dict[str, str]:
    """Return the text of each file below a folder, git's own files left out."""
    paths = [path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path): (folder / path).read_text() for path in paths if path.parts[0] != ".git"}


START = {"a.txt": "one\n", "sub/b.txt": "b\n"}


async def test_a_removal_is_taken_back_and_a_persons_edits_stay(begin: Any, folder: Path) -> None:
    conversation = await begin(write("a.txt", "two\n"), "done", remove("sub"), write("new.txt", "new"), "done")
    head = await say(conversation)
    (folder / "mine.txt").write_text("mine")
    await say(conversation)
    (folder / "later.txt").write_text("later")
    unchanged = (folder / "a.txt").stat().st_mtime_ns
    planned = await conversation.restore(head, dry_run=True)
    assert [(item.path, item.change) for item in planned.changes] == [("new.txt", "removed"), ("sub/b.txt", "added")]
    assert not (folder / "sub").exists()
    assert await conversation.restore(head) == planned
    mine = {"mine.txt": "mine", "later.txt": "later"}
    assert contents(folder) == {"a.txt": "two\n", "sub/b.txt": "b\n", **mine}
    assert (folder / "a.txt").stat().st_mtime_ns == unchanged
    assert [event.by for event in await kept(conversation)][-2:] == ["outside", "restore"]
    assert (await conversation.restore(head)).changes == ()
    await conversation.redo()
    assert contents(folder) == {"a.txt": "two\n", "new.txt": "new", **mine}
    await conversation.restore(0)
    assert contents(folder) == START | mine
    await conversation.aclose()


async def test_what_others_changed_is_a_conflict_that_can_be_left_or_forced(begin: Any, folder: Path) -> None:
    conversation = await begin(write("a.txt", "two\n"), write("c.txt", "c"), "done")
    await say(conversation)
    (folder / "a.txt").write_text("mine\n")
    with pytest.raises(Conflict) as caught:
        await conversation.restore(Turn(0))
    assert caught.value.details["paths"] == ["a.txt"]
    assert (folder / "c.txt").exists()
    changes = await conversation.restore(0, conflicts="leave")
    assert (changes.skipped, contents(folder)) == (("a.txt",), START | {"a.txt": "mine\n"})
    forced = await conversation.restore(0, conflicts="force")
    assert ([item.path for item in forced.changes], contents(folder)) == (["a.txt"], START)
    await conversation.redo()
    assert contents(folder)["a.txt"] == "mine\n"
    with pytest.raises(InvalidInput, match="conflicts"):
        await conversation.restore(0, conflicts="never")  # pyright: ignore[reportArgumentType]
    await conversation.aclose()


async def test_some_paths_or_the_exact_folder_are_restored(begin: Any, folder: Path) -> None:
    conversation = await begin(write("a.txt", "two\n"), write("sub/b.txt", "c\n"), "done")
    await say(conversation)
    (folder / "mine.txt").write_text("mine")
    await conversation.restore(0, paths=["sub"])
    assert contents(folder) == START | {"a.txt": "two\n", "mine.txt": "mine"}
    with pytest.raises(NotFound):
        await conversation.restore(0, paths=["nothing"])
    with pytest.raises(PermissionDenied):
        await conversation.restore(0, paths=[".git/config"])
    await conversation.restore(0, exact=True)
    assert contents(folder) == START
    await conversation.redo()
    assert contents(folder) == START | {"a.txt": "two\n", "mine.txt": "mine"}
    await conversation.aclose()


async def test_past_files_are_read_and_compared(begin: Any, folder: Path) -> None:
    conversation = await begin(write("a.txt", "two\n"), "done")
    await say(conversation)
    past = await conversation.files(0)
    assert (past.paths, past.read("a.txt")) == (("a.txt", "sub/b.txt"), b"one\n")
    assert (await conversation.files()).read("a.txt") == b"two\n"
    changes = await conversation.diff()
    assert changes.patch == "--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n-one\n+two\n"
    assert changes.stat == {"changed": 1}
    assert (await conversation.diff(Turn(1))).changes == ()
    await conversation.aclose()


async def test_files_that_were_not_kept_are_named(begin: Any, settings: Settings) -> None:
    conversation = await begin(write("a.txt", "two\n"), "done")
    environment: Any = conversation._parts.environment  # pyright: ignore[reportPrivateUsage]
    environment.settings = replace(settings, keep_files=False)
    await say(conversation)
    for refused in (conversation.restore(0), conversation.files(0), conversation.diff()):
        with pytest.raises(NotFound, match="not kept"):
            await refused
    await conversation.aclose()


@pytest.mark.parametrize("policy", ["copy", "worktree"])
async def test_a_fork_has_the_files_at_its_cut_and_the_source_keeps_its_own(
    begin: Any, folder: Path, policy: Any
) -> None:
    if policy == "worktree":
        for arguments in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "start"]):
            identity = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
            subprocess.run(["git", *identity, *arguments], cwd=folder, check=True)
    (folder / ".gitignore").write_text("cache\n")
    (folder / "cache").write_text("ignored")
    conversation = await begin(write("a.txt", "two\n"), "done", remove("sub"), "done")
    head = await say(conversation)
    await say(conversation)
    before, events = contents(folder), conversation.state.head
    fork = await conversation.fork(at=head, workspace=policy)
    unkept = {} if policy == "worktree" else {"cache": "ignored"}
    assert contents(fork.workspace) == {".gitignore": "cache\n", "a.txt": "two\n", "sub/b.txt": "b\n", **unkept}
    assert (contents(folder), (await conversation.store.get(conversation.id)).head) == (before, events)
    assert [event.by for event in await kept(fork)] == ["first", "tool", "fork"]
    start = await conversation.fork(at=0, workspace=policy)
    assert (start.workspace / "a.txt").read_text() == "one\n"
    now = await conversation.fork(at=head, workspace=policy, moment="now")
    assert not (now.workspace / "sub").exists()
    await fork.apply(conversation)
    assert not (fork.workspace / "sub").exists()
    assert (await fork.apply(conversation)).changes == ()
    for opened in (fork, start, now, conversation):
        await opened.aclose()


async def test_a_fork_at_the_head_is_applied_after_a_call_that_writes_nothing(
    store: EventStore, settings: Settings, folder: Path
) -> None:
    shell = Shell()

    def read_manual() -> str:
        return "the manual"

    steps = [tool_call("read_manual"), write("c.txt", "c\n"), "done"]
    tools = (Tool(read_manual, metadata={"writes": False}), shell.change)
    spec: AgentSpec[str] = AgentSpec(name="keeper", model=ScriptedModel(steps), tools=tools, skills=())
    where: Any = {"store": store, "settings": replace(settings, keep_files=True), "workspace": folder}
    async with await AsyncConversation.create(spec, **where) as source, await source.fork(workspace="copy") as fork:
        shell.folder = fork.state.workspace
        await say(fork)
        called = [row.event async for row in fork.events if row.event.kind == "ToolCalled"]
        assert [call.may_write for call in called] == [False, True]
        changes = await source.apply(fork)
        assert [change.path for change in changes.changes] == ["c.txt"]
    assert (folder / "c.txt").read_text() == "c\n"


@pytest.mark.needs("bubblewrap")
async def test_a_cancelled_check_ends_and_the_apply_is_taken_back(begin: Any, folder: Path) -> None:
    async with await begin(write("a.txt", "two\n"), "done") as source:
        await say(source)
        async with await source.fork(workspace="copy") as fork:
            (fork.state.workspace / "c.txt").write_text("c\n")
            os.mkfifo(folder / "started")
            task = asyncio.create_task(source.apply(fork, check="echo > started; sleep 600"))
            await asyncio.to_thread((folder / "started").read_bytes)
            assert (folder / "c.txt").exists()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
    assert not (folder / "c.txt").exists()
