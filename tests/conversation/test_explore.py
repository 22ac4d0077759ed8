"""Trying variants in branches with files of their own, and the search for the step that broke the files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from bough import Variant
from bough.agents.spec import AgentSpec
from bough.conversation import AsyncConversation
from bough.conversation.bisect import Candidate, Verdict, search
from bough.conversation.explore import ExploreRequest, TriedBranch, read_branch
from bough.errors import ExecutorError, InvalidInput, NotFound
from bough.events import open_store
from bough.events.model import CheckRan, StateChanged, UserMessage
from bough.settings import Settings
from bough.testing import ScriptedModel, tool_call

pytestmark = pytest.mark.anyio

CHECK = "grep -qx 42 answer.txt && echo report > report.txt"


def answer(text: str) -> Any:
    return tool_call("write_file", path="answer.txt", content=text)


@pytest.fixture
async def begin(tmp_path: Path, settings: Settings) -> AsyncIterator[Callable[..., Any]]:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "answer.txt").write_text("41\n")
    opened: list[AsyncConversation[Any]] = []
    store = await open_store(f"sqlite:///{tmp_path / 'log.db'}")

    async def start(*steps: Any, **rules: Any) -> AsyncConversation[Any]:
        spec = AgentSpec(name="fixer", model=ScriptedModel(steps), skills=(), workspace_access="write")
        create: Any = AsyncConversation.create
        where: Any = {"store": store, "settings": replace(settings, keep_files=True), "workspace": folder}
        opened.append(await create(spec, **where, **rules))
        return opened[-1]

    yield start
    for conversation in opened:
        await conversation.aclose()
    await store.aclose()


def variants() -> list[Variant]:
    return [
        Variant("idle", model=ScriptedModel(["nothing"] * 9)),
        Variant("wrong", model=ScriptedModel([answer("43\n"), "done"] * 4)),
        Variant("right", "make it 42", model=ScriptedModel([answer("42\n"), "done"] * 4)),
    ]


@pytest.mark.needs("bubblewrap")
async def test_variants_run_in_branches_of_their_own_and_the_winner_is_applied(
    begin: Callable[..., Any], tmp_path: Path
) -> None:
    source = await begin()
    updates: list[TriedBranch] = []
    tried = await source.explore(variants(), message="go", check=CHECK, repeats=2, jobs=1, on_update=updates.append)
    assert [(v.name, v.passed, v.rate) for v in tried.variants] == [("idle", 0, 0), ("wrong", 0, 0), ("right", 2, 1)]
    assert [branch.files for branch in tried.branches] == [(0, 0, 0)] * 2 + [(0, 1, 0)] * 4
    assert all(branch.status == "finished" and branch.steps and not branch.error for branch in tried.branches)
    assert {(u.variant, u.repeat, u.status) for u in updates} >= {("right", 2, "running"), ("right", 2, "finished")}
    assert tried.winner is not None
    assert tried.winner.variant == "right"
    assert source.state.head == tried.at
    assert (tmp_path / "work/answer.txt").read_text() == "41\n"

    branch = await AsyncConversation.open(
        tried.winner.conversation, store=source.store, settings=source.settings, agent=source.agent
    )
    assert branch.tags == {"try": str(tried.session), "variant": "right", "repeat": str(tried.winner.repeat)}
    changes = await source.apply(branch)
    await branch.aclose()
    assert [(change.path, change.change) for change in changes.changes] == [("answer.txt", "changed")]
    assert (tmp_path / "work/answer.txt").read_text() == "42\n"


@pytest.mark.needs("bubblewrap")
async def test_the_same_session_runs_no_branch_twice_and_adds_repeats(begin: Callable[..., Any]) -> None:
    source = await begin()
    session, choices = uuid4(), variants()
    first = await source.explore(choices, message="go", check=CHECK, session=session)
    model: Any = choices[2].model
    asked = model.requests
    again = await source.explore(choices, message="go", check=CHECK, session=session, repeats=2)
    assert [branch.conversation for branch in again.branches][::2] == [b.conversation for b in first.branches]
    assert model.requests == 2 * asked
    for branch in again.branches:
        events = [stored.event async for stored in source.store.read(branch.conversation)]
        assert sum(isinstance(event, CheckRan) for event in events) == 1


async def test_a_branch_that_was_killed_right_after_its_check_is_finished(begin: Callable[..., Any]) -> None:
    source = await begin()
    request = ExploreRequest(variants=(Variant("only", "go"),), check=CHECK)
    ran = CheckRan(command=CHECK, passed=True, exit_code=0, session=str(request.session), variant="only", repeat=1)
    branch = await source.store.create(
        events=[StateChanged(changes={"status": "running"}), UserMessage.text("go"), ran],
    )
    tried = await read_branch(
        source.store, None, TriedBranch(conversation=branch.id, variant="only", repeat=1), request
    )
    assert tried is not None
    assert (tried.status, tried.passed) == ("finished", True)


async def test_a_cancelled_exploration_pauses_its_branches_and_continues(begin: Callable[..., Any]) -> None:
    source = await begin()
    session, started = uuid4(), asyncio.Event()

    async def hang() -> str:
        """Wait for the caller to cancel."""
        started.set()
        await asyncio.Event().wait()
        return "never"

    spec = AgentSpec(name="slow", model=ScriptedModel([tool_call("hang"), "done"]), skills=(), tools=(hang,))
    updates: list[TriedBranch] = []
    options: Any = {"message": "go", "session": session, "jobs": 1}
    quick = Variant("quick", model=ScriptedModel(["done"] * 2))
    choices = [quick, Variant("slow", agent=spec), Variant("last", model=ScriptedModel(["done"]))]
    exploring = asyncio.create_task(source.explore(choices, on_update=updates.append, **options))
    await started.wait()
    exploring.cancel()
    with pytest.raises(asyncio.CancelledError):
        await exploring
    latest = {update.variant: update.status for update in updates}
    assert latest == {"quick": "finished", "slow": "paused"}
    tried = await source.explore(choices, **options)
    assert [branch.status for branch in tried.branches] == ["finished"] * 3
    assert tried.branches[0].steps == 1


async def test_a_variant_that_cannot_run_is_a_branch_with_its_error(begin: Callable[..., Any]) -> None:
    source = await begin()
    choices = [
        Variant("none", model="openai:gpt-5"),
        Variant("empty", ""),
        Variant("skill", "/nothing-here", model=ScriptedModel(["fine"])),
        Variant("fine", model=ScriptedModel(["fine"])),
    ]
    tried = await source.explore(choices, message="go")
    errors = {branch.variant: branch.error for branch in tried.branches}
    assert "OPENAI_API_KEY" in errors["none"]
    assert errors["empty"]
    assert not errors["fine"]
    assert tried.winner is None
    for invalid in ([], [Variant("a"), Variant("a")], [Variant("")], [Variant("x" * 99)], [Variant("a\nb")]):
        with pytest.raises(InvalidInput):
            await source.explore(invalid)
    for options in ({"repeats": 0}, {"jobs": 0}, {"repeats": 2000}, {"check": ""}, {"check_timeout": 0, "check": "x"}):
        with pytest.raises(InvalidInput):
            await source.explore([Variant("a")], **options)
    with pytest.raises(InvalidInput):
        await source.explore([Variant("a")], at=99)


@pytest.mark.needs("bubblewrap")
async def test_bisect_finds_the_step_that_broke_the_files(begin: Callable[..., Any], tmp_path: Path) -> None:
    steps = [answer(f"{number}\n") for number in (42, 42_0, 42_1, 7, 8, 9)]
    source = await begin(*steps, "done")
    await source.send_message("go")
    await source.run()
    head = source.state.head
    found = await source.bisect("grep -q ^42 answer.txt; code=$?; touch junk; exit $code", good=0)
    assert found.seq is not None
    assert (found.tool, found.checks, found.start_checked) == ("write_file", 3, False)
    assert [(change.path, change.change) for change in found.changes.changes] == [("answer.txt", "changed")]
    assert "+7" in found.changes.patch
    assert source.state.head == head
    assert sorted(path.name for path in (tmp_path / "work").iterdir()) == ["answer.txt"]
    assert not list((source.settings.home / "workspaces").iterdir())
    nothing = await source.bisect("true")
    assert (nothing.seq, nothing.checks) == (None, 1)
    with pytest.raises(InvalidInput, match="before the first step"):
        await source.bisect("false")
    with pytest.raises(ExecutorError, match="127"):
        await source.bisect("no-such-command")
    with pytest.raises(NotFound, match="no step"):
        await source.bisect("true", bad=1)


@pytest.mark.parametrize("first_bad", [0, 1, 2, 99, 100, 137, 198, 199])
async def test_bisect_needs_at_most_nine_checks_for_200_steps(first_bad: int) -> None:
    candidates = [Candidate(number, None, str(number - 1), str(number)) for number in range(200)]
    judged: list[int] = []

    async def judge(tree: str) -> Verdict:
        judged.append(int(tree))
        return "bad" if int(tree) >= first_bad else "good"

    found = await search(candidates, judge)
    assert (found.first_bad, found.start_checked) == (first_bad, first_bad == 0)
    assert len(judged) <= 9
    assert len(set(judged)) == len(judged)


async def test_bisect_takes_the_neighbour_of_a_step_that_cannot_be_judged() -> None:
    candidates = [Candidate(number, None, str(number - 1), str(number)) for number in range(20)]

    def judging(*unjudged: int) -> Any:
        async def judge(tree: str) -> Verdict:
            return "skip" if int(tree) in unjudged else "bad" if int(tree) >= 12 else "good"

        return judge

    assert (await search(candidates, judging(9, 10))).first_bad == 12
    found = await search(candidates, judging(10, 11, 12, 13))
    assert (found.first_bad, found.unjudged) == (14, (10, 11, 12, 13))
    with pytest.raises(InvalidInput, match="cannot judge the last"):
        await search(candidates, judging(19))
