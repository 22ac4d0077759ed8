"""Long runs and long logs: they come to their end, cost the same at every length, and stay small."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.messages import ModelRequest, ModelResponse

import bough
from bough.conversation import AsyncConversation
from bough.conversation.log import view as view_module
from bough.conversation.log import write_buffer
from bough.conversation.log.condenser import KeepFirstCondenser
from bough.conversation.log.journal import Journal
from bough.conversation.log.state import State
from bough.conversation.log.view import View, encode_response
from bough.events import codec
from bough.events.model import Event, ModelResponded, ToolReturned, UserMessage
from bough.events.store import EventStore
from bough.guard import ConfirmRisky, Hook, HookKind, HookSet, Limits
from bough.testing import tool_call

pytestmark = pytest.mark.anyio

STEPS = 300
PACKAGE = str(Path(bough.__file__).parent)


@pytest.mark.slow
async def test_a_run_of_300_steps_with_condensation_hooks_and_a_policy(start: Any, scripted: Any) -> None:
    ran: list[int] = []
    told: list[str] = []

    def add(n: int) -> int:
        """Add one."""
        ran.append(n)
        return n + 1

    async def hook(payload: Any) -> None:
        told.append(payload["hook_event_name"])

    hooks = HookSet((Hook(kind=HookKind.PRE_TOOL_USE, function=hook), Hook(kind=HookKind.POST_TOOL_USE, function=hook)))
    spec = scripted(*[tool_call("add", n=n) for n in range(STEPS - 1)], "done", tools=(add,))
    conversation = await start(
        spec,
        hooks=hooks,
        confirmation_policy=ConfirmRisky(confirm_unknown=False),
        condenser=KeepFirstCondenser(max_events=40, keep_first=2),
        limits=Limits(requests=STEPS + 1),
    )
    await conversation.send_message("count")
    result = await conversation.run()
    assert (result.status, result.output, spec.model.requests) == ("finished", "done", STEPS)
    assert ran == list(range(STEPS - 1)), "each call ran once, in order"
    assert told == ["PreToolUse", "PostToolUse"] * (STEPS - 1)
    kinds = [stored.kind async for stored in conversation.events]
    assert kinds.count("HookRan") == 2 * (STEPS - 1)
    assert kinds.count("Condensed") > 5
    assert max(len(asked.messages) for asked in spec.model.asked) <= 43, "what the model sees stays short"
    for asked in spec.model.asked:
        assert isinstance(asked.messages[0], ModelRequest)
        assert_pairs(asked.messages)
    again = await AsyncConversation.open(
        conversation.id, store=conversation.store, agent=spec, settings=conversation.settings, hooks=hooks
    )
    assert (await again.messages()) == (await conversation.messages())


def assert_pairs(messages: Any) -> None:
    for before, after in itertools.pairwise(messages):
        if isinstance(before, ModelResponse):
            calls = [call.tool_call_id for call in before.tool_calls]
            assert calls == [part.tool_call_id for part in after.parts if part.part_kind == "tool-return"]


async def test_a_step_costs_the_same_however_many_came_before(
    start: Any, scripted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls of bough's own functions are counted, which no machine makes slower; PydanticAI's grow with its history."""
    monkeypatch.setattr(write_buffer, "LINGER_SECONDS", 60)

    async def add(n: int) -> int:
        """Add one."""
        return n + 1

    async def cost(steps: int) -> int:
        calls = 0

        def count(frame: Any, event: str, _: Any) -> None:
            nonlocal calls
            calls += event == "call" and frame.f_code.co_filename.startswith(PACKAGE)

        conversation = await start(
            scripted(*(tool_call("add", n=n) for n in range(steps - 1)), "done", tools=(add,)),
            confirmation_policy=ConfirmRisky(confirm_unknown=False),
        )
        await conversation.send_message("count")
        profiler = sys.getprofile()
        sys.setprofile(count)
        try:
            await conversation.run()
        finally:
            sys.setprofile(profiler)
        return calls

    short, middle, long = [await cost(steps) for steps in (10, 40, 100)]
    early, late = (middle - short) / 30, (long - middle) / 60
    assert late <= early * 1.05, f"a step took {early:.0f} calls at first and {late:.0f} later"


async def test_an_event_costs_the_same_whatever_came_before() -> None:
    """Only new events are looked at: what is rendered stays as it is, the same objects."""
    view, state = View(), State()
    response = encode_response(ModelResponse(parts=[tool_call("t")]))
    call = response["parts"][0]["tool_call_id"]
    for step in range(500):
        shown = list(view.shown)
        events: list[Event] = [
            UserMessage.text(f"{step}"),
            ModelResponded(response=response, seen=3 * step + 1),
            ToolReturned(tool_call_id=call, tool="t", result=step),
        ]
        for seq, event in enumerate(events, 3 * step):
            view.apply(seq, event)
            state.apply(seq, event)
        assert len(view.shown) == len(shown) + 2
        assert all(a is b for a, b in zip(shown, view.shown, strict=False))
        assert len(state.calls) == 1
        assert len(view._outcomes) <= 1, "nothing but the open end is kept aside"


async def test_what_others_append_to_a_long_log_is_read_decoded_and_rendered_once(
    store: EventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catching up costs as much as there is to catch up with, however long the log is."""
    decoded, rendered = Counted(codec.decode), Counted(view_module.decode_response)
    monkeypatch.setattr(codec, "decode", decoded)
    monkeypatch.setattr(view_module, "decode_response", rendered)
    cid = (await store.create()).id
    await store.append(cid, turns(400))
    journal = Journal(store, cid)
    await journal.catch_up()
    assert (decoded.calls, rendered.calls) == (1200, 0), "what the model is shown is made when it is asked for"
    await journal.render()
    assert (decoded.calls, rendered.calls) == (2400, 400)
    for _ in range(3):
        shown, decoded.calls, rendered.calls = list((await journal.render()).shown), 0, 0
        await store.append(cid, turns(10))
        await journal.catch_up()
        assert (decoded.calls, rendered.calls) == (30, 10)
        assert len((await journal.render()).shown) == len(shown) + 20
        assert all(a is b for a, b in zip(shown, (await journal.render()).shown, strict=False))
    decoded.calls = rendered.calls = 0
    await journal.catch_up()
    assert (await journal.render()).messages()
    assert (decoded.calls, rendered.calls) == (0, 0), "what is there is asked for again and nothing is done again"


class Counted:
    """A function that is called as before, and how often."""

    def __init__(self, function: Any) -> None:
        self.function, self.calls = function, 0

    def __call__(self, *arguments: Any) -> Any:
        self.calls += 1
        return self.function(*arguments)


def turns(count: int) -> list[Event]:
    response = encode_response(ModelResponse(parts=[tool_call("t")]))
    call = response["parts"][0]["tool_call_id"]
    return [
        event
        for n in range(count)
        for event in (
            UserMessage.text(f"{n}"),
            ModelResponded(response=response),
            ToolReturned(tool_call_id=call, tool="t", result=n),
        )
    ]


SIZE = """
import asyncio, gc, resource, sys
from bough.conversation.log.journal import Journal
from bough.events import open_store
from bough.events.model import ModelResponded, ToolCalled, ToolReturned, UserMessage
from bough.conversation.log.view import encode_response
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart

def rss():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()

async def main(url, write):
    store = await open_store(url)
    if write:
        cid = (await store.create()).id
        events = []
        for n in range(2000):
            call = ToolCallPart("look", {"at": f"file {n}"}, tool_call_id=f"c{n}")
            answer = ModelResponse(parts=[TextPart("There is some text in it. " * 10)])
            events += [
                UserMessage.text(f"What is in file {n}? " * 5),
                ModelResponded(response=encode_response(ModelResponse(parts=[call])), seen=5 * n + 1),
                ToolCalled(tool_call_id=f"c{n}", tool="look", arguments={"at": f"file {n}"}),
                ToolReturned(tool_call_id=f"c{n}", tool="look", result="some lines of text " * 20),
                ModelResponded(response=encode_response(answer), seen=5 * n + 4),
            ]
        await store.append(cid, events)
    else:
        cid = await store.resolve("-")
        gc.collect()
        before = rss()
        journal = Journal(store, cid)
        await journal.catch_up()
        assert journal.state.head == 10_000 and len((await journal.render()).messages()) == 8_000
        gc.collect()
        print(rss() - before)
    await store.aclose()

asyncio.run(main(sys.argv[1], sys.argv[2] == "write"))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_conversation_of_10000_events_in_use_stays_under_60_mb(tmp_path: Any) -> None:
    def run(what: str) -> str:
        command = [sys.executable, "-c", SIZE, f"sqlite:///{tmp_path / 'log.db'}", what]
        done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    run("write")
    assert int(run("read")) < 60 << 20
