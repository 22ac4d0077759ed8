"""An effect happens once, however often the process of its call dies: keys, and functions that find what happened."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from pydantic_ai import RunContext, Tool

from bough import AgentSpec, AsyncConversation, LostCall, ToolContext, effect_key
from bough.conversation import Conversation
from bough.conversation.run import reconcile
from bough.errors import Unavailable
from bough.events import open_store
from bough.events.model import ModelResponded, ToolCalled
from bough.events.store import EventStore
from bough.settings import Settings
from bough.testing import ScriptedModel, tool_call
from bough.types import new_id

pytestmark = pytest.mark.anyio

PAYMENTS = '''
"""Pays orders. Dies in each payment: some times before the money has gone, and once before that is recorded."""
import os, signal, sys
from pathlib import Path
from pydantic_ai import Tool
from bough import AgentSpec, Conversation, LostCall, effect_key
from bough.testing import ScriptedModel, tool_call

store, ledger, id, starts = sys.argv[1], Path(sys.argv[2]), sys.argv[3], Path(sys.argv[4])
early_deaths = [int(count) for count in sys.argv[5:]]

def pay(order: int) -> str:
    "Pay an order."
    with starts.open("a") as file:
        file.write(f"{effect_key()} {order}\\n")
    if starts.read_text().count(effect_key()) <= early_deaths[order]:
        os.kill(os.getpid(), signal.SIGKILL)
    with ledger.open("a") as file:
        file.write(f"{effect_key()} {order}\\n")
    os.kill(os.getpid(), signal.SIGKILL)
    return "never"

def find_payment(call: LostCall) -> str | None:
    paid = [line.split() for line in ledger.read_text().splitlines()] if ledger.exists() else []
    return next((f"paid {order}" for key, order in paid if key == call.effect_key), None)

def run() -> None:
    steps = [tool_call("pay", order=n) for n in range(len(early_deaths))] + ["all paid"]
    with Conversation(store=store, id=id, exist_ok=True, agent=AgentSpec(model=ScriptedModel([]))) as opened:
        recorded = sum(stored.kind == "ModelResponded" for stored in opened.events)
        if opened.state.head < 2 or opened.status == "idle":
            opened.send_message("pay", id=id)
    agent = AgentSpec(
        model=ScriptedModel(steps[recorded:]), tools=(Tool(pay, metadata={"reconcile": find_payment}),), skills=()
    )
    with Conversation.open(id, store=store, agent=agent) as conversation:
        print(conversation.run().output, flush=True)

# Each run is a process of its own. It is forked before anything is opened, so that it need not import everything again.
kills = 0
while not (child := os.fork()) or (status := os.waitpid(child, 0)[1]):
    if not child:
        run()
        os._exit(0)
    assert os.WTERMSIG(status) == signal.SIGKILL, status
    kills += 1
    assert kills <= len(early_deaths) + sum(early_deaths)
print(kills, "kills")
'''


def choose_deaths(orders: int, seed: int) -> list[int]:
    chance = random.Random(seed)
    return [chance.choice((0, 0, 1, 2, 5)) for _ in range(orders)]


@pytest.mark.parametrize(
    "early_deaths",
    [
        pytest.param([0, 2], id="quick"),
        pytest.param([0] * 50, id="50 payments", marks=pytest.mark.slow),
        *[pytest.param(choose_deaths(8, seed), id=f"seed {seed}", marks=pytest.mark.slow) for seed in range(3)],
    ],
)
async def test_a_payment_whose_process_is_killed_again_and_again_is_made_once(
    early_deaths: list[int], tmp_path: Path
) -> None:
    """Every start of a payment has the same key, however often its process has died before."""
    url, ledger, starts, id = f"sqlite:///{tmp_path / 'log.db'}", tmp_path / "ledger", tmp_path / "starts", new_id()
    arguments = [url, ledger, id, starts, *early_deaths]
    environment = {"HOME": str(tmp_path), "PYTHONPATH": ":".join(path for path in sys.path if path)}
    ended = subprocess.run(
        [sys.executable, "-c", PAYMENTS, *map(str, arguments)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    orders = len(early_deaths)
    assert ended.stdout == f"all paid\n{orders + sum(early_deaths)} kills\n", ended.stderr
    paid = [line.split() for line in ledger.read_text().splitlines()]
    assert [int(order) for _, order in paid] == list(range(orders))
    assert len({key for key, _ in paid}) == orders
    started = Counter(tuple(line.split()) for line in starts.read_text().splitlines())
    assert started == {(key, order): early_deaths[int(order)] + 1 for key, order in paid}
    store = await open_store(url)
    events = [stored async for stored in store.read(id)]
    await store.aclose()
    results = [stored.as_json() for stored in events if stored.kind == "ToolReturned"]
    assert [(result["result"], result["by"]) for result in results] == [
        (f"paid {n}", "reconcile") for n in range(orders)
    ]


class Shop:
    """A tool that counts its effects by key, in a conversation whose run is stopped as if its process had died."""

    def __init__(self, store: EventStore, settings: Settings, workspace: Path) -> None:
        self._given: Any = {"store": store, "settings": settings}
        self._workspace = workspace
        self.keys: list[str] = []

    def pay(self, amount: int) -> str:
        """Pay."""
        self.keys.append(effect_key())
        return f"paid {amount}"

    def agent(self, *steps: Any, reconcile: Any = None) -> AgentSpec:
        metadata = {} if reconcile is None else {"reconcile": reconcile}
        return AgentSpec(model=ScriptedModel(steps), tools=(Tool(self.pay, metadata=metadata),), skills=())

    async def die_in_a_call(self) -> AsyncConversation:
        """Return a conversation whose log ends with a call that has started."""
        create: Any = AsyncConversation.create
        conversation = await create(self.agent(), workspace=self._workspace, **self._given)
        await conversation.send_message("pay")
        part = {"part_kind": "tool-call", "tool_name": "pay", "tool_call_id": "c1", "args": {"amount": 5}}
        response = {"kind": "response", "model_name": "m", "timestamp": "2026-01-01T00:00:00Z", "parts": [part]}
        called = ToolCalled(tool_call_id="c1", tool="pay", arguments={"amount": 5})
        await conversation.append(ModelResponded(response=response, model="m"), called)
        await conversation.aclose()
        return conversation

    async def resume(self, conversation: AsyncConversation, reconcile: Any) -> tuple[str, list[dict[str, Any]]]:
        """Run it in another object, and return its output and the outcomes of its calls."""
        agent = self.agent("done", reconcile=reconcile)
        async with await AsyncConversation.open(conversation.id, agent=agent, **self._given) as opened:
            output = (await opened.run()).output
            events = [stored async for stored in opened.events]
        return output, [stored.as_json() | {"kind": stored.kind} for stored in events if stored.kind.startswith("Tool")]


@pytest.fixture
def shop(store: EventStore, settings: Settings, tmp_path: Path) -> Shop:
    return Shop(store, settings, tmp_path)


async def test_an_effect_that_did_not_happen_is_made_with_the_same_key(shop: Shop) -> None:
    asked: list[LostCall] = []

    def find_nothing(call: LostCall) -> None:
        asked.append(call)

    output, calls = await shop.resume(await shop.die_in_a_call(), find_nothing)
    assert output == "done"
    assert [call["kind"] for call in calls] == ["ToolCalled", "ToolCalled", "ToolReturned"]
    assert calls[-1]["result"] == "paid 5"
    assert [(call.id, call.tool, call.arguments) for call in asked] == [("c1", "pay", {"amount": 5})]
    assert shop.keys == [asked[0].effect_key]


async def test_an_effect_that_happened_is_not_repeated(shop: Shop) -> None:
    async def find(call: LostCall) -> dict[str, Any]:
        await asyncio.sleep(0)
        return {"receipt": 7}

    _, calls = await shop.resume(await shop.die_in_a_call(), find)
    assert [call["kind"] for call in calls] == ["ToolCalled", "ToolReturned"]
    assert (calls[-1]["result"], calls[-1]["by"]) == ({"receipt": 7}, "reconcile")
    assert shop.keys == []


def raises(_: LostCall) -> str:
    raise ValueError("the bank is closed")


def hangs(_: LostCall) -> str:
    threading.Event().wait(5)
    return "too late"


def lies(_: LostCall) -> Any:
    return iter(())


@pytest.mark.parametrize(
    ("function", "reason"),
    [(raises, "the bank is closed"), (hangs, "more than"), (lies, ""), ("text", "the run ended")],
)
async def test_a_function_that_cannot_tell_leaves_the_effects_unknown(
    shop: Shop, function: Any, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconcile, "SECONDS", 0.05)
    output, calls = await shop.resume(await shop.die_in_a_call(), function)
    assert output == "done"
    assert [call["kind"] for call in calls] == ["ToolCalled", "ToolInterrupted"]
    assert reason in calls[-1]["reason"]
    assert shop.keys == [], "a call whose effects are unknown never runs again"


async def test_keys_differ_by_call_and_by_fork_and_are_known_in_threads(shop: Shop, store: EventStore) -> None:
    keys: Counter[str] = Counter()

    def note(ctx: RunContext[ToolContext]) -> str:
        """Note."""
        keys[ctx.deps.effect_key] += 1
        assert effect_key() == ctx.deps.effect_key
        return "noted"

    async def note_later(ctx: RunContext[ToolContext]) -> str:
        """Note."""
        return await asyncio.to_thread(note, ctx)

    steps = [[tool_call("note"), tool_call("note_later")], [tool_call("note")], "done"]
    agent = AgentSpec(model=ScriptedModel([*steps, *steps]), tools=(note, note_later), skills=())
    async with await AsyncConversation.create(agent, store=store) as conversation:
        await conversation.send_message("go")
        async with await conversation.fork() as fork:
            await conversation.run()
            await fork.run()
    assert len(keys) == 6
    assert set(keys.values()) == {1}
    assert all(UUID(key) for key in keys)


async def test_outside_of_a_call_there_is_no_key() -> None:
    with pytest.raises(Unavailable, match="no tool call"):
        effect_key()
    with pytest.raises(Unavailable):
        _ = ToolContext().effect_key


def test_the_sync_twin_has_keys(settings: Settings, tmp_path: Path) -> None:
    keys: list[str] = []

    def act() -> str:
        """Act."""
        keys.append(effect_key())
        return "acted"

    agent = AgentSpec(model=ScriptedModel([tool_call("act"), "done"]), tools=(act,), skills=())
    make: Callable[..., Conversation[Any]] = Conversation
    with make(agent, store="memory:", settings=settings, workspace=tmp_path) as conversation:
        conversation.send_message("go")
        assert conversation.run().output == "done"
    assert len(keys) == 1
