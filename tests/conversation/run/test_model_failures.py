"""What real models do wrong, by a server that does it: how often it is asked, and what the run says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bough import AsyncConversation, RetryPolicy
from bough.agents.spec import AgentSpec
from bough.errors import InvalidInput, ModelError
from bough.events.model import RequestRetried
from bough.settings import Settings
from bough.testing import Answer, Failure, Hang, OpenAIServer, RawAnswer

pytestmark = pytest.mark.anyio

QUICK = RetryPolicy(attempts=4, base_seconds=0.001, jitter=False)
NO_QUOTA = Failure(status=429, message="no credit", kind="insufficient_quota", code="insufficient_quota")


def asking(url: str, **fields: Any) -> AgentSpec:
    return AgentSpec(name="t", model="openai:a", base_url=url, skills=(), retry=QUICK, **fields)


async def retries_of(conversation: AsyncConversation) -> list[RequestRetried]:
    return [stored.event async for stored in conversation.events if isinstance(stored.event, RequestRetried)]


async def fail(start: Any, spec: AgentSpec) -> tuple[ModelError, list[RequestRetried]]:
    async with await start(spec) as conversation:
        await conversation.send_message("go")
        with pytest.raises(ModelError) as failed:
            await conversation.run()
        return failed.value, await retries_of(conversation)


@pytest.mark.parametrize(
    ("failure", "text"),
    [
        (NO_QUOTA, "the model a at URL has no quota left (HTTP 429): no credit"),
        (Failure(status=401, message="bad key"), "the model a at URL rejected the key (HTTP 401): bad key"),
        (Failure(status=404, message="no a"), "the model a at URL is not known to its server (HTTP 404): no a"),
        (RawAnswer(), "the answer of URL is not an OpenAI-format answer (text/html)"),
        (
            RawAnswer(body="data: {oops\n\n", content_type="text/event-stream"),
            "the answer of URL is not an OpenAI-format answer (invalid JSON in the stream)",
        ),
        *(
            (
                RawAnswer(body=f"data: {event}\n\n", content_type="text/event-stream"),
                "the answer of URL is not an OpenAI-format answer (a malformed event in the stream)",
            )
            for event in (
                "[1, 2]",
                '"text"',
                "null",
                '{"choices": 3}',
                '{"choices": [3]}',
                '{"choices": [{"delta": 4}]}',
            )
        ),
    ],
)
async def test_what_no_repeat_can_cure_is_asked_for_once_and_names_the_address(
    start: Any, failure: Any, text: str
) -> None:
    with OpenAIServer([failure] * 9) as server:
        error, retries = await fail(start, asking(server.url))
        assert error.message == text.replace("URL", server.url)
        assert (len(server.received), retries) == (1, [])


async def test_without_quota_the_fallback_answers(start: Any) -> None:
    with OpenAIServer([NO_QUOTA, "from the other"]) as server:
        async with await start(asking(server.url, fallback=["openai:b"])) as conversation:
            await conversation.send_message("go")
            assert (await conversation.run()).output == "from the other"
            assert [event.next_model for event in await retries_of(conversation)] == ["openai:b"]


async def test_a_cut_stream_says_how_much_had_arrived(start: Any) -> None:
    with OpenAIServer([Answer(text="x" * 400, cut_after_chars=312)] * 4) as server:
        error, retries = await fail(start, asking(server.url))
        assert error.message == f"the connection to {server.url} was cut after 312 characters"
        assert [event.error for event in retries] == [error.message] * 3


@pytest.mark.parametrize("silent", [Hang(), Answer(text="abcdefghij", stall_after_chars=7)])
async def test_a_silent_server_is_given_up_recorded_and_asked_once_more(
    settings: Settings, tmp_path: Path, silent: Any
) -> None:
    with OpenAIServer([silent, silent, "too late"]) as server:
        conversation = await AsyncConversation.create(
            asking(server.url), settings=replace(settings, stream_idle_seconds=0.3), workspace=tmp_path
        )
        async with conversation:
            await conversation.send_message("go")
            with pytest.raises(ModelError) as failed:
                await conversation.run()
            (retry,) = await retries_of(conversation)
        assert failed.value.message.startswith(f"{server.url} sent nothing for 0.3 s")
        assert ("after 7 characters" in failed.value.message) == isinstance(silent, Answer)
        assert (retry.attempt, retry.attempts, retry.error) == (1, 2, failed.value.message)
        assert len(server.received) == 2


async def test_after_a_silence_the_answer_counts(start: Any) -> None:
    with OpenAIServer([Hang(), "here"]) as server:
        async with await start(asking(server.url, settings={"timeout": 0.3})) as conversation:
            await conversation.send_message("go")
            assert (await conversation.run()).output == "here"


async def test_a_missing_v1_is_tried_and_named(start: Any) -> None:
    with OpenAIServer(["found"]) as server:
        async with await start(asking(server.url_without_v1)) as conversation:
            await conversation.send_message("go")
            assert (await conversation.run()).output == "found"
            (retry,) = await retries_of(conversation)
        assert retry.error.endswith(f"; trying {server.url}")
        assert (retry.status, retry.wait_seconds) == (404, 0)


async def test_an_unknown_model_behind_a_missing_v1_names_the_address_with_it(start: Any) -> None:
    with OpenAIServer([Failure(status=404, message="no a")] * 9) as server:
        error, _ = await fail(start, asking(server.url_without_v1))
        assert error.message == f"the model a at {server.url} is not known to its server (HTTP 404): no a"
        assert len(server.received) == 1


@pytest.mark.parametrize("value", ["0", "-1", "soon", "nan"])
def test_an_idle_time_that_none_is_refused(tmp_path: Any, value: str) -> None:
    with pytest.raises(InvalidInput, match="stream_idle_seconds"):
        Settings.load(tmp_path, env={"BOUGH_STREAM_IDLE_SECONDS": value}, cwd=tmp_path)
