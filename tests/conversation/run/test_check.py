"""Runs until a check passes: what the check judges, how its failure reaches the agent, and what bounds it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bough import Limits
from bough.agents.spec import AgentSpec
from bough.conversation import AsyncConversation
from bough.errors import InvalidInput, PermissionDenied
from bough.events import open_store
from bough.events.model import CheckRan, FilesKept, UserMessage
from bough.settings import Settings
from bough.testing import ScriptedModel, tool_call

pytestmark = [pytest.mark.anyio, pytest.mark.needs("bubblewrap")]


@pytest.fixture
async def begin(tmp_path: Path, settings: Settings) -> Any:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "answer.txt").write_text("41\n")
    opened: list[AsyncConversation[Any]] = []
    store = await open_store(f"sqlite:///{tmp_path / 'log.db'}")

    async def start(*steps: Any, **rules: Any) -> AsyncConversation[Any]:
        spec = AgentSpec(name="fixer", model=ScriptedModel(steps), skills=(), workspace_access="write")
        create: Any = AsyncConversation.create
        where: Any = {"store": store, "settings": replace(settings, keep_files=True), "workspace": folder}
        conversation = await create(spec, **where, **rules)
        opened.append(conversation)
        await conversation.send_message("make it 42")
        return conversation

    yield start
    for conversation in opened:
        await conversation.aclose()
    await store.aclose()


def answer(text: str) -> Any:
    return tool_call("write_file", path="answer.txt", content=text)


async def checks(conversation: AsyncConversation[Any]) -> list[CheckRan]:
    return [stored.event async for stored in conversation.events if isinstance(stored.event, CheckRan)]


async def test_a_failed_check_is_sent_to_the_agent_until_it_passes(begin: Callable[..., Any]) -> None:
    conversation = await begin(answer("43\n"), "done", answer("42\n"), "done now")
    result = await conversation.run(until="cat answer.txt; grep -q 42 answer.txt")
    assert (result.status, result.reason, result.output) == ("finished", "check_passed", "done now")
    first, second = await checks(conversation)
    assert (first.passed, first.exit_code, first.stdout, first.isolation) == (False, 1, "43\n", "namespaces")
    assert (second.passed, second.exit_code) == (True, 0)
    messages = [stored.event async for stored in conversation.events if isinstance(stored.event, UserMessage)]
    assert [message.sender for message in messages] == ["user", "bough"]
    assert "exit code 1" in messages[1].plain
    assert "43" in messages[1].plain
    trees = [stored.event.tree async for stored in conversation.events if isinstance(stored.event, FilesKept)]
    assert (first.tree, second.tree) == (trees[1], trees[2])


async def test_without_work_the_check_runs_first(begin: Callable[..., Any]) -> None:
    conversation = await begin("nothing to do", answer("42\n"), "done")
    await conversation.run()
    result = await conversation.run(until="grep -q 42 answer.txt")
    assert (result.reason, result.steps) == ("check_passed", 2)
    again = await conversation.run(until="grep -q 42 answer.txt")
    assert (again.reason, again.steps) == ("check_passed", 0)


async def test_limits_end_a_check_that_never_passes(begin: Callable[..., Any]) -> None:
    conversation = await begin(*[f"try {number}" for number in range(9)])
    result = await conversation.run(until="exit 3", limits=Limits(steps=3))
    assert (result.status, result.reason) == ("paused", "steps")
    assert [check.exit_code for check in await checks(conversation)] == [3, 3, 3]


async def test_a_check_is_bounded_and_cannot_leave_the_workspace(begin: Callable[..., Any], tmp_path: Path) -> None:
    conversation = await begin("a", "b", "c")
    endless = f"echo x > {tmp_path}/outside; echo y > ../beside; (sleep 600 &) ; sleep 600"
    await conversation.run(until=endless, check_timeout=0.5, limits=Limits(steps=1))
    (check,) = await checks(conversation)
    assert (check.passed, check.exit_code, check.timed_out, check.killed_by) == (False, None, True, "timeout")
    assert not (tmp_path / "outside").exists()
    assert not (tmp_path / "beside").exists()


async def test_what_a_check_writes_is_not_the_agents(begin: Callable[..., Any], tmp_path: Path) -> None:
    conversation = await begin(answer("42\n"), "done")
    await conversation.run(until="echo report > report.txt")
    events = [stored.event async for stored in conversation.events if isinstance(stored.event, FilesKept)]
    assert [(event.by, event.paths) for event in events] == [
        ("first", ()),
        ("tool", ("answer.txt",)),
        ("outside", ("report.txt",)),
    ]
    await conversation.restore(0)
    assert (tmp_path / "work/report.txt").read_text() == "report\n"
    assert (tmp_path / "work/answer.txt").read_text() == "41\n"


async def test_a_check_that_cannot_be_run_is_an_error(begin: Callable[..., Any]) -> None:
    conversation = await begin("done")
    for command in ("", "  ", "a\0b", "x" * 30_000, 7):
        with pytest.raises(InvalidInput):
            await conversation.run(until=command)
    for seconds in (0, -1, "1", float("nan")):
        with pytest.raises(InvalidInput):
            await conversation.run(until="true", check_timeout=seconds)
    fork = await conversation.fork(workspace="readonly")
    with pytest.raises(PermissionDenied, match="read-only"):
        await fork.run(until="true")
    await fork.aclose()
