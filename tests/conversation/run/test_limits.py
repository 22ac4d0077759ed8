"""Bounds, pauses and circles: a run ends in a status that says why, and can continue."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

from bough.conversation import AsyncConversation
from bough.errors import InvalidInput
from bough.guard import AllowList, EnvSecret, Limits, Secrets
from bough.testing import tool_call

pytestmark = pytest.mark.anyio


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def test_steps_are_bounded_and_the_run_goes_on_later(start: Any, scripted: Any) -> None:
    calls = [tool_call("add", a=n, b=n) for n in range(4)]
    spec = scripted(*calls, "done", tools=(add,))
    conversation = await start(spec, limits=Limits(steps=2))
    await conversation.send_message("go")
    result = await conversation.run()
    assert (result.status, result.limit, spec.model.requests) == ("paused", "steps", 2)
    assert [s.event.limit async for s in conversation.events if s.kind == "LimitReached"] == ["steps"]
    result = await conversation.run()
    assert (result.status, spec.model.requests) == ("paused", 4)
    result = await conversation.run()
    assert (result.status, result.output, result.limit) == ("finished", "done", None)


async def test_requests_of_the_conversation_are_bounded(start: Any, scripted: Any) -> None:
    spec = scripted("one", "two")
    conversation = await start(spec, limits=Limits(requests=1, per="conversation"))
    for text in ("first", "second"):
        await conversation.send_message(text)
        result = await conversation.run()
    assert (result.status, result.limit, spec.model.requests) == ("paused", "requests", 1)
    assert (await conversation.run()).limit == "requests", "running again changes nothing"
    await conversation.set_limits(Limits(requests=2, per="conversation"))
    assert (await conversation.run()).output == "two"


async def test_a_run_counts_from_its_beginning(start: Any, scripted: Any) -> None:
    spec = scripted("one", "two")
    conversation = await start(spec, limits=Limits(requests=1))
    for text in ("first", "second"):
        await conversation.send_message(text)
        result = await conversation.run()
    assert (result.status, result.output, spec.model.requests) == ("finished", "two", 2)


@pytest.mark.parametrize("reset_metrics", [True, False])
async def test_what_is_left_of_a_conversation_is_what_its_forks_have(
    start: Any, scripted: Any, reset_metrics: bool
) -> None:
    spec = scripted(*(str(n) for n in range(9)))
    conversation = await start(spec, limits=Limits(requests=3, per="conversation"))
    for _ in range(5):
        await conversation.send_message("go")
        result = await conversation.run()
        conversation = await conversation.fork(reset_metrics=reset_metrics)
    assert (result.limit, spec.model.requests) == ("requests", 3)


async def test_a_run_that_nobody_bounded_ends(start: Any, scripted: Any) -> None:
    spec = scripted(*(tool_call("add", a=n, b=n) for n in range(510)), "done", tools=(add,))
    conversation = await start(spec)
    await conversation.send_message("go")
    result = await conversation.run()
    assert (result.limit, spec.model.requests) == ("steps", 500)


async def test_limits_that_another_sets_hold_from_the_next_step(start: Any, scripted: Any, store: Any) -> None:
    conversation: Any = None

    async def tighten() -> str:
        """Set limits as another object does."""
        other = await AsyncConversation.open(
            conversation.id, store=store, agent=conversation.agent, settings=conversation.settings
        )
        await other.set_limits(Limits(steps=2))
        return "set"

    spec = scripted(tool_call("tighten"), *(tool_call("add", a=n, b=n) for n in range(9)), tools=(tighten, add))
    conversation = await start(spec)
    await conversation.send_message("go")
    result = await conversation.run()
    assert (result.limit, spec.model.requests) == ("steps", 2)


@pytest.mark.parametrize("limits", [(), (Limits(), Limits(requests=1)), ("5",)])
async def test_limits_that_say_nothing_or_two_things_are_refused(start: Any, scripted: Any, limits: Any) -> None:
    conversation = await start(scripted("one"))
    with pytest.raises(InvalidInput):
        await conversation.set_limits(*limits)


async def test_a_cost_bound_that_could_not_stop_the_model_is_refused(start: Any, scripted: Any, store: Any) -> None:
    spec = scripted("never")
    with pytest.raises(InvalidInput, match="prices of scripted are unknown"):
        await start(spec, limits=Limits(cost_usd=1))
    assert (await store.list()).items == [], "a conversation that cannot run was left"
    conversation = await start(scripted("allowed"), limits=Limits(cost_usd=1, unpriced="allow"))
    await conversation.send_message("go")
    assert (await conversation.run()).output == "allowed"


async def test_a_model_that_is_changed_to_one_without_prices_is_not_asked(start: Any, scripted: Any) -> None:
    conversation = await start(scripted("never").model_copy(update={"model": "offline"}), limits=Limits(cost_usd=1))
    again = await AsyncConversation.open(
        conversation.id, store=conversation.store, agent=scripted("never"), settings=conversation.settings
    )
    await again.send_message("go")
    with pytest.raises(InvalidInput, match="prices of scripted"):
        await again.run()
    assert again.agent.model.requests == 0


async def test_a_pause_takes_effect_at_the_next_step(start: Any, scripted: Any) -> None:
    async def pause() -> str:
        """Pause."""
        await conversation.pause(by="me")
        return "paused"

    spec = scripted(tool_call("pause"), "continued", tools=(pause,))
    conversation = await start(spec)
    await conversation.send_message("go")
    result = await conversation.run()
    assert (result.status, spec.model.requests) == ("paused", 1)
    assert (await conversation.run()).output == "continued"


async def test_an_agent_in_a_circle_is_nudged_once_and_then_stopped(start: Any, scripted: Any) -> None:
    spec = scripted(*[tool_call("add", a=1, b=1) for _ in range(20)], tools=(add,))
    conversation = await start(spec)
    await conversation.send_message("go")
    result = await conversation.run()
    assert result.status == "stuck"
    assert spec.model.requests == 8
    nudges = [s.event async for s in conversation.events if s.kind == "UserMessage" and s.event.sender == "bough"]
    assert len(nudges) == 1
    assert [s.kind async for s in conversation.events][-2] == "StuckDetected"


async def test_asking_is_counted_and_leaves_what_the_model_sees_alone(start: Any, scripted: Any) -> None:
    spec = scripted("one", "it was about whales")
    conversation = await start(spec)
    await conversation.send_message("tell me of whales")
    await conversation.run()
    head, before, used = conversation.state.head, await conversation.messages(), conversation.usage
    assert await conversation.ask("what was it about?") == "it was about whales"
    added = [stored.event async for stored in conversation.store.read(conversation.id, head)]
    assert [(event.kind, event.purpose, event.model) for event in added] == [("UsageAdded", "ask", "scripted")]
    assert await conversation.messages() == before
    assert conversation.usage.requests == used.requests + 1
    assert spec.model.asked[1].tools == ()


async def test_no_secret_reaches_a_stored_byte(
    start: Any, scripted: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = "s3cr3t-value-of-mine"
    monkeypatch.setenv("MY_TOKEN", value)

    def leak() -> dict[str, str]:
        """Leak."""
        return {"env": os.environ["MY_TOKEN"]}

    spec = scripted(tool_call("leak"), f"the token is {value}", tools=(leak,))
    conversation = await start(spec, secrets=Secrets({"MY_TOKEN": EnvSecret("MY_TOKEN")}))
    await conversation.send_message(f"my token is {value}, use it")
    streamed = "".join([update.text async for update in conversation.run_stream() if hasattr(update, "text")])
    assert value not in streamed
    assert "<secret:MY_TOKEN>" in streamed
    for stored in [stored async for stored in conversation.events]:
        assert value.encode() not in stored.raw
    assert value not in str(spec.model.asked[1].messages)
    assert all(value.encode() not in file.read_bytes() for file in tmp_path.rglob("*.db*"))


def processes(mark: str) -> list[int]:
    """Processes of the whole machine with this mark among their arguments; a sandbox hides none from here."""
    found: list[int] = []
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            if mark.encode() in (folder / "cmdline").read_bytes().split(b"\0") and int(folder.name) != os.getpid():
                found.append(int(folder.name))
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
async def test_interrupting_a_script_that_will_not_end(start: Any, settings: Any, store: Any, tmp_path: Path) -> None:
    """It ignores every signal it can, and so do the daemons it left; afterwards none of them is there any more."""
    from bough.agents.spec import AgentSpec
    from bough.conversation import AsyncConversation
    from bough.testing import ScriptedModel

    mark = f"3{uuid.uuid4().int % 10**9:09}"
    stubborn = f'trap "" TERM INT HUP QUIT; exec sleep {mark}'
    command = f"""
        trap '' TERM INT HUP QUIT
        for n in 1 2 3; do setsid sh -c '{stubborn}' >/dev/null 2>&1 & done
        (sh -c '{stubborn}' &)
        touch started
        while :; do sleep {mark}; done
    """
    model = ScriptedModel([tool_call("run_command", command=command), "it was interrupted"])
    spec = AgentSpec(model=model, skills=(), workspace_access="run")
    workspace = tmp_path / "ws"
    workspace.mkdir()
    conversation = await AsyncConversation.create(spec, workspace=workspace, store=store, settings=settings)
    await conversation.send_message("go")
    run = asyncio.create_task(conversation.run())
    async with asyncio.timeout(30):
        while not (workspace / "started").exists() or len(processes(mark)) < 5:
            await asyncio.sleep(0.01)
    async with asyncio.timeout(5):  # it takes some milliseconds; this is against hanging for ever
        await conversation.interrupt()
    assert conversation.status == "paused"
    assert processes(mark) == [], "the script's processes were still there when its status was not"
    assert (await run).status == "paused"
    kinds = [s.kind async for s in conversation.events]
    assert kinds[-3:] == ["ToolCalled", "ToolInterrupted", "StateChanged"]
    assert (await conversation.run()).output == "it was interrupted"
    assert [s.kind async for s in conversation.events].count("ToolCalled") == 1, "it was not run again"


async def test_refused_calls_are_a_circle_too(start: Any, scripted: Any) -> None:
    spec = scripted(*(tool_call("add", a=1, b=1) for _ in range(50)), "done", tools=(add,))
    conversation = await start(spec, allow_list=AllowList.of("add(other:*)"))
    await conversation.send_message("go")
    result = await conversation.run()
    assert (result.status, spec.model.requests) == ("stuck", 5)
    rejected = [s async for s in conversation.events if s.kind == "ToolRejected"]
    assert len(rejected) == 5


async def test_an_unknown_tool_asked_for_again_and_again_is_a_circle(start: Any, scripted: Any) -> None:
    spec = scripted(*(tool_call("nothing", a=1) for _ in range(50)), "done", tools=(add,))
    conversation = await start(spec)
    await conversation.send_message("go")
    assert (await conversation.run()).status == "stuck"
    assert spec.model.requests == 5


async def test_a_tool_that_no_call_of_may_run_is_not_offered(start: Any, scripted: Any) -> None:
    def subtract(a: int, b: int) -> int:
        """Subtract."""
        return a - b

    spec = scripted("one", tools=(add, subtract))
    conversation = await start(spec, allow_list=AllowList.of("add"))
    await conversation.send_message("go")
    await conversation.run()
    offered = [tool.name for tool in spec.model.asked[0].parameters.function_tools]
    assert offered == ["add"]
