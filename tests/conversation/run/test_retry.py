"""Requests that fail for a while, against a real server: repeated, waited for, told, handed to another model."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bough import AsyncConversation, RetryPolicy
from bough.agents.spec import AgentSpec
from bough.conversation.run.retry import is_temporary_failure
from bough.errors import InvalidInput, ModelError
from bough.events.model import RequestRetried, UserMessage
from bough.testing.openai_server import Answer, Failure, OpenAIServer

pytestmark = pytest.mark.anyio

QUICK = RetryPolicy(attempts=4, base_seconds=0.001, jitter=False)


def served(server: OpenAIServer, *, retry: RetryPolicy = QUICK, **fields: Any) -> AgentSpec:
    return AgentSpec(name="t", model="openai:a", base_url=server.url, skills=(), retry=retry, **fields)


async def waits(conversation: AsyncConversation) -> list[RequestRetried]:
    return [stored.event async for stored in conversation.events if isinstance(stored.event, RequestRetried)]


async def test_passing_failures_are_repeated_and_told(start: Any) -> None:
    failures = [Failure(status=status) for status in (429, 503, 529)]
    with OpenAIServer([*failures, "done"]) as server:
        async with await start(served(server)) as conversation:
            await conversation.send_message("go")
            updates = [update async for update in conversation.run_stream()]
            assert conversation.state.output == "done"
            told = await waits(conversation)
    assert [(event.attempt, event.attempts, event.status, event.next_model) for event in told] == [
        (1, 4, 429, None), (2, 4, 503, None), (3, 4, 529, None),
    ]  # fmt: skip
    assert [event.wait_seconds for event in told] == [0.001, 0.002, 0.004]
    seen = [event for update in updates if isinstance(event := getattr(update, "event", None), RequestRetried)]
    assert len(seen) == 3


async def test_a_stream_that_broke_off_is_asked_for_again(start: Any) -> None:
    with OpenAIServer([Answer(text="a long answer that breaks", break_after=3), "whole"]) as server:
        async with await start(served(server)) as conversation:
            await conversation.send_message("go")
            assert (await conversation.run()).output == "whole"
            assert len(await waits(conversation)) == 1


async def test_a_server_that_never_recovers_ends_the_run_after_the_attempts(start: Any) -> None:
    with OpenAIServer([Failure(status=500)] * 50) as server:
        async with await start(served(server)) as conversation:
            await conversation.send_message("go")
            with pytest.raises(ModelError):
                await conversation.run()
            assert len(server.received) == 4
            assert conversation.status == "error"


@pytest.mark.parametrize("status", [400, 413, 422, 401, 404])
async def test_what_is_the_requests_own_fault_is_not_repeated(start: Any, status: int) -> None:
    with OpenAIServer([Failure(status=status)] * 9) as server:
        async with await start(served(server)) as conversation:
            await conversation.send_message("go")
            with pytest.raises(ModelError):
                await conversation.run()
            assert len(server.received) == 1


async def test_a_wait_that_is_too_long_ends_the_attempts_at_once(start: Any) -> None:
    with OpenAIServer([Failure(status=429, headers={"retry-after": "999"})] * 9) as server:
        async with await start(served(server)) as conversation:
            await conversation.send_message("go")
            with pytest.raises(ModelError):
                await conversation.run()
            assert len(server.received) == 1


async def test_fallback_models_are_tried_in_order_and_the_next_run_begins_with_the_first(start: Any) -> None:
    asked: list[str] = []

    def by_model(request: Any) -> Any:
        asked.append(request.body["model"])
        return "done" if request.body["model"] == "c" else Failure(status=401 if request.body["model"] == "b" else 500)

    with OpenAIServer([by_model] * 20) as server:
        spec = served(server, retry=RetryPolicy(attempts=2, base_seconds=0.001), fallback=["openai:b", "openai:c"])
        async with await start(spec) as conversation:
            await conversation.send_message("go")
            assert (await conversation.run()).output == "done"
            assert asked == ["a", "a", "b", "c"]
            assert [event.next_model for event in await waits(conversation)] == [None, "openai:b", "openai:c"]
            await conversation.send_message("again")
            await conversation.run()
            assert asked[4] == "a"


async def test_a_fallback_that_cannot_be_made_is_told_and_passed_over(start: Any) -> None:
    with OpenAIServer([Failure(status=404), "done"]) as server:
        async with await start(served(server, fallback=["nonsense:x", "openai:b"])) as conversation:
            await conversation.send_message("go")
            assert (await conversation.run()).output == "done"
            first, second = await waits(conversation)
    assert (first.model, second.next_model) == ("nonsense:x", "openai:b")
    assert "unknown provider" in first.error


@pytest.mark.parametrize("how", ["pause", "interrupt", "elsewhere"])
async def test_a_wait_ends_at_once_when_somebody_stops_the_run(start: Any, store: Any, settings: Any, how: str) -> None:
    slow = RetryPolicy(attempts=3, base_seconds=3600, max_wait_seconds=3600, max_seconds=9999)
    with OpenAIServer([Failure(status=503)] * 3) as server:
        spec = served(server, retry=slow)
        async with await start(spec) as conversation:
            await conversation.send_message("go")
            run = asyncio.create_task(conversation.run())
            async for stored in store.subscribe(conversation.id):
                if isinstance(stored.event, RequestRetried):
                    break
            if how == "interrupt":
                await conversation.interrupt()
            elif how == "pause":
                await conversation.pause()
            else:
                async with await AsyncConversation.open(conversation.id, store=store, settings=settings) as other:
                    await other.pause()
            async with asyncio.timeout(5):
                assert (await run).status == "paused"
            assert len(server.received) == 1


async def test_what_was_said_during_a_wait_is_in_the_repeated_request(start: Any) -> None:
    with OpenAIServer([Failure(status=503), "done"]) as server:
        async with await start(served(server)) as conversation:
            await conversation.send_message("go")
            async for update in conversation.run_stream():
                if isinstance(getattr(update, "event", None), RequestRetried):
                    await conversation.append(UserMessage.text("and this"))
    texts = [str(message.get("content")) for message in server.received[-1].body["messages"]]
    assert any("and this" in text for text in texts)


@pytest.mark.parametrize(
    "fields", [{"attempts": 0}, {"attempts": True}, {"max_seconds": -1}, {"base_seconds": float("nan")}]
)
def test_a_policy_of_nonsense_is_refused(fields: Any) -> None:
    with pytest.raises(InvalidInput):
        RetryPolicy(**fields)


def test_how_long_a_wait_is() -> None:
    policy = RetryPolicy()
    assert [policy.wait_seconds(n, retry_after=None, random=1.0) for n in (1, 2, 3, 9, 5000)] == [0.5, 1, 2, 60, 60]
    assert policy.wait_seconds(3, retry_after=None, random=0.0) == 1.0
    assert policy.wait_seconds(1, retry_after=10, random=1.0) == pytest.approx(11)
    assert is_temporary_failure(ConnectionResetError())
    assert not is_temporary_failure(ValueError("a mistake in a model's code"))


async def test_the_key_of_an_agent_is_used_and_never_recorded(start: Any) -> None:
    with OpenAIServer(["done"]) as server:
        async with await start(served(server, api_key=lambda: "sk-very-secret")) as conversation:
            await conversation.send_message("go")
            await conversation.run()
            raw = [stored.raw async for stored in conversation.events]
    assert server.received[0].headers["authorization"] == "Bearer sk-very-secret"
    assert b"sk-very-secret" not in b"".join(raw)


async def test_settings_of_a_spec_reach_the_request(start: Any) -> None:
    with OpenAIServer(["done"]) as server:
        async with await start(served(server, settings={"temperature": 0.25, "max_tokens": 9})) as conversation:
            await conversation.send_message("go")
            await conversation.run()
    assert server.received[0].body["temperature"] == 0.25
