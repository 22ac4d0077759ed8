"""When a run keeps the files of its workspace, and what that costs."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import RunContext
from pydantic_ai.tools import Tool

from bough.agents.context import ToolContext
from bough.agents.spec import AgentSpec
from bough.conversation import AsyncConversation
from bough.conversation.run import keeper
from bough.events import open_store
from bough.events.model import FilesKept
from bough.events.store import EventStore
from bough.settings import Settings
from bough.testing import ScriptedModel, tool_call

pytestmark = pytest.mark.anyio


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    workspace = tmp_path / "work"
    workspace.mkdir()
    (workspace / "a.txt").write_text("one\n")
    return workspace


@pytest.fixture
def begin(store: EventStore, settings: Settings, folder: Path) -> Callable[..., Any]:
    async def start_conversation(*steps: Any, tools: tuple[Any, ...] = (), **rules: Any) -> AsyncConversation[Any]:
        spec: AgentSpec[str] = AgentSpec(name="keeper", model=ScriptedModel(steps), tools=tools, skills=())
        where: Any = {"store": store, "settings": replace(settings, keep_files=True), "workspace": folder}
        create: Any = AsyncConversation.create
        return await create(spec, **where, **rules)

    return start_conversation


async def say(conversation: AsyncConversation, text: str = "go") -> None:
    await conversation.send_message(text)
    await conversation.run()


async def kept(conversation: AsyncConversation) -> list[FilesKept]:
    return [stored.event async for stored in conversation.events if isinstance(stored.event, FilesKept)]


async def test_files_are_kept_before_the_first_write_and_after_each(begin: Any, folder: Path) -> None:
    def change(text: str) -> str:
        """Change files."""
        (folder / "a.txt").write_text(text)
        return "changed"

    conversation = await begin(
        tool_call("change", text="two\n"), tool_call("change", text="two\n"), "done", tools=(change,)
    )
    await say(conversation)
    first, step = await kept(conversation)
    assert (first.by, first.before, first.files, first.paths) == ("first", None, 1, ())
    assert (step.by, step.before, step.paths, step.changed) == ("tool", first.tree, ("a.txt",), 1)
    assert conversation.state.files is not None
    assert conversation.state.files.tree == step.tree
    kinds = [stored.kind async for stored in conversation.events]
    assert kinds.index("FilesKept") < kinds.index("ToolCalled")
    assert kinds[kinds.index("ToolReturned") - 1] == "FilesKept"
    await conversation.aclose()


async def test_what_a_person_changes_between_runs_is_theirs(begin: Any, folder: Path) -> None:
    def change() -> str:
        """Change files."""
        (folder / "b.txt").write_text("of the tool")
        return "changed"

    conversation = await begin(tool_call("change"), "done", tool_call("change"), "done", "read", tools=(change,))
    await say(conversation)
    (folder / "mine.txt").write_text("mine")
    await say(conversation)
    assert [event.by for event in await kept(conversation)] == ["first", "tool", "outside"]
    (folder / "mine.txt").write_text("mine again")
    await say(conversation)  # calls no tool, so nothing is looked at
    assert [event.by for event in await kept(conversation)] == ["first", "tool", "outside"]
    await conversation.aclose()


async def test_a_step_without_writes_looks_at_nothing(
    begin: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read() -> str:
        """Read."""
        return "read"

    def tell(ctx: RunContext[ToolContext]) -> str:
        """Write a file and report it."""
        (folder / "told.txt").write_text("told")
        ctx.deps.wrote("told.txt")
        return "told"

    tools = (Tool(read, metadata={"writes": False}), Tool(tell, takes_ctx=True, metadata={"writes": "told"}))
    (folder / "sub").mkdir()
    for number in range(20):
        (folder / "sub" / f"{number}.txt").write_text("text")
    conversation = await begin(tool_call("tell"), "done", tool_call("read"), "done", tools=tools)
    await say(conversation)
    looked: list[str] = []
    for name in ("stat", "scandir", "open", "lstat"):
        real = getattr(os, name)

        def count(path: Any, *args: Any, real: Any = real, name: str = name, **kwargs: Any) -> Any:
            below = isinstance(path, str | Path) and str(path).startswith(str(folder / "sub"))
            if below or kwargs.get("dir_fd") is not None or (name == "scandir" and isinstance(path, int)):
                looked.append(f"{name} {path}")
            return real(path, *args, **kwargs)

        monkeypatch.setattr(os, name, count)
    await say(conversation)
    assert looked == []
    monkeypatch.undo()
    assert [event.paths for event in await kept(conversation)] == [(), ("told.txt",)]
    await conversation.aclose()


async def test_nothing_is_kept_where_it_is_switched_off(begin: Any, folder: Path, settings: Settings) -> None:
    def change() -> str:
        """Change files."""
        (folder / "b.txt").write_text("b")
        return "changed"

    conversation = await begin(tool_call("change"), "done", tools=(change,), keep_files=False)
    await say(conversation)
    assert await kept(conversation) == []
    assert conversation.state.policies["keep_files"] is False
    fork = await conversation.fork()
    assert fork.state.policies["keep_files"] is False
    await fork.aclose()
    await conversation.aclose()


async def test_a_folder_that_is_no_workspace_fails_no_run(
    store: EventStore, settings: Settings, tmp_path: Path
) -> None:
    def change() -> str:
        """Change files."""
        return "changed"

    store = await open_store(f"sqlite:///{tmp_path / 'inside.db'}")
    spec = AgentSpec(name="k", model=ScriptedModel([tool_call("change"), tool_call("change"), "done"]), tools=(change,))
    settings = replace(settings, keep_files=True)
    conversation = await AsyncConversation.create(spec, store=store, settings=settings, workspace=tmp_path)
    await say(conversation)
    (event,) = await kept(conversation)
    assert (event.tree, event.reason) == (None, "not a workspace")
    assert conversation.status == "finished"
    await conversation.aclose()


async def test_an_interrupted_call_is_recorded_with_what_it_wrote(begin: Any, folder: Path) -> None:
    started = asyncio.Event()

    async def change() -> str:
        """Change files, and wait."""
        (folder / "half.txt").write_text("half")
        started.set()
        await asyncio.Event().wait()
        return "never"

    conversation = await begin(tool_call("change"), "done", tools=(change,))
    await conversation.send_message("go")
    run = asyncio.create_task(conversation.run())
    await started.wait()
    await conversation.interrupt()
    await asyncio.gather(run, return_exceptions=True)
    assert [(event.by, event.paths) for event in await kept(conversation)] == [("first", ()), ("tool", ("half.txt",))]
    await conversation.aclose()


async def test_a_run_that_has_ended_holds_no_lease_while_its_first_look_ends(
    begin: Any, store: EventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change() -> str:
        """Change files."""
        return "changed"

    look_may_go_on = threading.Event()
    real_look = keeper.look

    def look_later(*args: Any, **kwargs: Any) -> Any:
        look_may_go_on.wait(timeout=60)
        return real_look(*args, **kwargs)

    monkeypatch.setattr(keeper, "look", look_later)
    conversation = await begin("done", tools=(change,))
    await conversation.send_message("go")
    run = asyncio.create_task(conversation.run())
    try:
        async with asyncio.timeout(30):
            while conversation.status != "finished" or await store.lease_owner(conversation.id) is not None:
                await asyncio.sleep(0)
        assert not run.done(), "the look has not ended yet"
    finally:
        look_may_go_on.set()
        await run
    await conversation.aclose()
