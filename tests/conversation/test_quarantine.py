"""What came by import runs nothing, widens nothing and names no place here until a person adopts it."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Tool

from bough.agents.spec import AgentSpec
from bough.conversation import AsyncConversation
from bough.errors import Conflict
from bough.events import open_store
from bough.events.model import (
    ConversationStarted,
    Event,
    Imported,
    ModelResponded,
    StateChanged,
    ToolCalled,
    ToolReturned,
    Usage,
)
from bough.events.store import EventStore
from bough.execution import Isolation, UnsafeLocalCodeExecutor
from bough.guard import AlwaysConfirm, NeverConfirm, Secrets
from bough.settings import Settings
from bough.testing import tool_call

pytestmark = pytest.mark.anyio

CALLS = [
    {"part_kind": "tool-call", "tool_name": "act", "tool_call_id": "c1", "args": "{}"},
    {"part_kind": "tool-call", "tool_name": "act", "tool_call_id": "c2", "args": "{}"},
]


@pytest.fixture
async def elsewhere() -> AsyncIterator[EventStore]:
    opened = await open_store("memory:")
    yield opened
    await opened.aclose()


def foreign(*more: Event, agent: dict[str, Any] | None = None) -> list[Event]:
    """A log of somebody who has prepared two calls, approved them, and chosen the folder they act in."""
    response = {"kind": "response", "model_name": "m", "parts": CALLS, "timestamp": "2026-01-01T00:00:00Z"}
    return [
        ConversationStarted(agent=agent or {"name": "theirs"}, workspace="/etc", policies=rules()),
        ModelResponded(response=response, usage=Usage(requests=1), model="m", finish_reason="tool_call"),
        StateChanged(changes={"status": "paused", "approved": ["c1", "c2"]}),
        *more,
    ]


def rules() -> dict[str, Any]:
    return {"policy": NeverConfirm().to_json(), "executor": "unsafe-local", "secrets": ["TOKEN"]}


async def carry(elsewhere: EventStore, store: EventStore, events: list[Event]) -> Any:
    """Write a log elsewhere and import it here."""
    made = await elsewhere.create(events=events)
    file = io.BytesIO()
    await elsewhere.export(made.id, file)
    file.seek(0)
    return await store.import_(file)


@pytest.fixture
def acting(scripted: Any) -> tuple[list[str], Any]:
    ran: list[str] = []

    def act() -> str:
        """Act."""
        ran.append("ran")
        return "acted"

    return ran, lambda *steps: scripted(*steps, tools=(act,))


async def test_nothing_that_was_approved_elsewhere_runs(
    elsewhere: EventStore, store: EventStore, settings: Settings, acting: Any
) -> None:
    ran, spec = acting
    record = await carry(elsewhere, store, foreign())
    opened = await AsyncConversation.open(
        record.id,
        store=store,
        agent=spec("done"),
        settings=settings,
        executor=UnsafeLocalCodeExecutor(),
        secrets=Secrets({"TOKEN": lambda: "swordfish"}),
        confirmation_policy=NeverConfirm(),
    )
    async with opened:
        assert opened.state.quarantined
        assert (opened.status, set(opened.state.waiting)) == ("waiting_for_confirmation", {"c1", "c2"})
        assert (await store.get(record.id)).status == "waiting_for_confirmation"
        assert opened.workspace == settings.home / "workspaces" / str(record.id)
        assert opened.executor.isolation > Isolation.NONE
        assert opened._rules_in_force().policy == AlwaysConfirm()
        assert opened._rules_in_force().secrets.names == ()
        assert (await opened.run()).status == "waiting_for_confirmation"
        assert ran == []
        await opened.approve("c1")
        await opened.reject("c2", reason="no")
        assert (await opened.run()).status == "finished"
        assert ran == ["ran"], "what a person here approves runs"


async def test_no_function_here_is_asked_what_became_of_a_call_of_another_s_log(
    elsewhere: EventStore, store: EventStore, settings: Settings, scripted: Any
) -> None:
    calls: list[Any] = []

    def act() -> str:
        """Act."""
        calls.append("ran")
        return "acted"

    started = [ToolCalled(tool_call_id=id, tool="act", arguments={}) for id in ("c1", "c2")]
    record = await carry(elsewhere, store, foreign(*started))
    agent = scripted("done", tools=(Tool(act, metadata={"reconcile": calls.append}),))
    async with await AsyncConversation.open(record.id, store=store, agent=agent, settings=settings) as opened:
        await opened.approve()
        assert (await opened.run()).status == "finished"
        kinds = [stored.kind async for stored in opened.events]
    assert calls == [], "its arguments come from whoever made the bundle"
    assert kinds.count("ToolInterrupted") == 2


async def test_a_new_call_asks_until_it_is_adopted(
    elsewhere: EventStore, store: EventStore, settings: Settings, acting: Any
) -> None:
    ran, spec = acting
    record = await carry(elsewhere, store, [foreign()[0]])
    opened = await AsyncConversation.open(
        record.id, store=store, agent=spec(tool_call("act"), tool_call("act"), "done"), settings=settings
    )
    async with opened:
        await opened.send_message("go")
        assert (await opened.run()).status == "waiting_for_confirmation"
        assert ran == []
        fork = await opened.fork()
        assert fork.state.quarantined, "a fork is no way out"
        await fork.aclose()
        await opened.adopt(by="ann")
        with pytest.raises(Conflict, match="quarantine"):
            await opened.adopt()
        assert (await opened.run()).status == "waiting_for_confirmation", "what waited still waits"
        await opened.approve()
        assert (await opened.run()).status == "finished"
        assert ran == ["ran", "ran"], "the second call asked nobody: the recorded rules hold"


async def test_what_a_log_says_of_its_own_adoption_counts_for_nothing(
    elsewhere: EventStore, store: EventStore, settings: Settings, acting: Any
) -> None:
    _, spec = acting
    said = [Imported(count=1, workspace="/etc"), StateChanged(changes={"adopted": {"by": "me"}})]
    record = await carry(elsewhere, store, foreign(*said))
    for _ in range(2):
        opened = await AsyncConversation.open(record.id, store=store, agent=spec("x"), settings=settings)
        assert opened.state.quarantined
        await opened.aclose()
    imported = [stored async for stored in store.read(record.id, kinds=["Imported"])]
    assert [stored.seq >= record.head for stored in imported] == [False, True]
    assert imported[-1].event.signer == record.config["signed_by"]


async def test_a_fork_before_the_import_was_said_is_set_apart_as_well(
    elsewhere: EventStore, store: EventStore, settings: Settings, acting: Any
) -> None:
    _, spec = acting
    record = await carry(elsewhere, store, foreign())
    bare = await store.fork(record.id, at=2)
    opened = await AsyncConversation.open(record.id, store=store, agent=spec("x"), settings=settings)
    await opened.adopt()
    fork = await opened.fork(at=2)
    for cid in (bare.id, fork.id):
        again = await AsyncConversation.open(cid, store=store, agent=spec("x"), settings=settings)
        assert again.state.quarantined
        assert again.workspace != Path("/etc")
        await again.aclose()
    await fork.aclose()
    await opened.aclose()


async def test_places_of_the_recorded_agent_are_left_out(
    elsewhere: EventStore, store: EventStore, settings: Settings
) -> None:
    agent = {"name": "theirs", "model": "offline", "base_url": "http://elsewhere.invalid/v1", "skill_roots": ["/tmp"]}
    record = await carry(elsewhere, store, foreign(agent=agent)[:1])
    opened = await AsyncConversation.open(record.id, store=store, settings=settings)
    assert (opened.agent.base_url, tuple(opened.agent.skill_roots)) == (None, ())
    await opened.adopt()
    await opened.aclose()
    again = await AsyncConversation.open(record.id, store=store, settings=settings)
    assert again.agent.base_url == agent["base_url"]
    await again.aclose()


async def test_what_the_program_gives_is_used_where_the_record_says_the_same(
    elsewhere: EventStore, store: EventStore, settings: Settings, tmp_path: Path
) -> None:
    prompt = tmp_path / "prompt.md"
    prompt.write_text("be brief")
    places: dict[str, Any] = {"system_prompt_path": prompt, "skill_roots": (tmp_path,), "base_url": "http://house/v1"}
    spec = AgentSpec(model="openai:x", api_key="k", **places)
    record = await carry(elsewhere, store, foreign(agent=spec.snapshot())[:1])
    opened = await AsyncConversation.open(record.id, store=store, agent=spec, settings=settings)
    assert {name: getattr(opened.agent, name) for name in places} == places
    await opened.aclose()


async def test_an_agent_with_a_prompt_file_is_opened_from_its_record(start: Any, tmp_path: Path) -> None:
    prompt = tmp_path / "prompt.md"
    prompt.write_text("be brief")
    made = await start(AgentSpec(model="offline", system_prompt_path=prompt))
    again = await AsyncConversation.open(made.id, store=made.store, settings=made.settings)
    assert again.agent.prompt() == "be brief"
    await again.aclose()
    await made.aclose()


async def test_a_workspace_is_chosen_once(
    elsewhere: EventStore, store: EventStore, settings: Settings, acting: Any, tmp_path: Path
) -> None:
    _, spec = acting
    record = await carry(elsewhere, store, foreign())
    opened = await AsyncConversation.open(
        record.id, store=store, agent=spec("x"), settings=settings, workspace=tmp_path
    )
    assert opened.workspace == tmp_path
    await opened.aclose()
    with pytest.raises(Conflict, match="workspace"):
        await AsyncConversation.open(record.id, store=store, agent=spec("x"), settings=settings, workspace=tmp_path)


async def test_what_was_made_here_is_never_set_apart(store: EventStore, start: Any, scripted: Any) -> None:
    made = await start(scripted("x"))
    file = io.BytesIO()
    await store.export(made.id, file)
    file.seek(0)
    await store.import_(file)
    again = await AsyncConversation.open(made.id, store=store, agent=scripted("x"), settings=made.settings)
    assert (again.state.quarantined, again.state.import_seq) == (False, None)
    await again.aclose()
    await made.aclose()


async def test_results_that_came_along_are_kept(
    elsewhere: EventStore, store: EventStore, settings: Settings, acting: Any
) -> None:
    _, spec = acting
    done = [ToolReturned(tool_call_id=id, tool="act", result="theirs") for id in ("c1", "c2")]
    record = await carry(elsewhere, store, foreign(*done))
    opened = await AsyncConversation.open(record.id, store=store, agent=spec("read"), settings=settings)
    assert (opened.status, opened.state.waiting) == ("idle", {})
    assert "theirs" in str(await opened.messages())
    await opened.aclose()
