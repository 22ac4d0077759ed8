"""What real failures of a model over HTTP are turned into."""

from __future__ import annotations

import socket
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.exceptions import AgentRunError, UnexpectedModelBehavior, UserError

from bough.agents.models.failure import model_error
from bough.agents.models.resolve import resolve_model
from bough.errors import ModelError
from bough.testing import Answer, Failure, OpenAIServer

pytestmark = pytest.mark.anyio


async def failure_at(url: str) -> ModelError:
    resolved = resolve_model("openai:test", base_url=url, env={})
    resolved.model.client.max_retries = 0  # pyright: ignore
    async with Agent(resolved.model) as agent:
        with pytest.raises(AgentRunError) as caught:
            async with agent.run_stream("hi") as stream:
                await stream.get_output()
    return model_error(caught.value)


@pytest.mark.parametrize(
    ("status", "headers", "what", "hint"),
    [
        (401, {}, "the model test rejected the key (HTTP 401): no luck", "check the provider's key"),
        (404, {}, "the model test is not known to its server (HTTP 404): no luck", "/models"),
        (429, {"retry-after": "7"}, "the model test is rate limited (HTTP 429): no luck", "wait a little"),
        (400, {}, "the model test rejected the request (HTTP 400): no luck", "another model"),
        (500, {}, "the model test failed (HTTP 500): no luck", "continue the conversation later"),
    ],
)
async def test_a_status_says_what_failed_in_the_servers_words(
    status: int, headers: dict[str, str], what: str, hint: str
) -> None:
    with OpenAIServer([Failure(status=status, message="no luck", headers=headers)]) as server:
        error = await failure_at(server.url)
    assert error.message == what
    assert hint in error.hint
    assert error.details["http_status"] == status
    assert error.details.get("retry_after_seconds") == (7 if headers else None)


async def test_a_server_that_is_not_there_is_told_with_the_way_on() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        error = await failure_at(f"http://127.0.0.1:{probe.getsockname()[1]}/v1")
    assert error.message == "the model test cannot be reached: Connection refused"
    assert "is its server running at that address (--base-url)?" in error.hint


async def test_a_stream_that_breaks_off_is_told_and_can_be_resumed() -> None:
    with OpenAIServer([Answer(text="half of an answer", break_after=2)]) as server:
        error = await failure_at(server.url)
    assert error.message.startswith("the model test ")
    assert "continue the conversation later" in error.hint


@pytest.mark.parametrize("error", [UnexpectedModelBehavior("odd\n  answer"), UserError("odd answer")])
def test_anything_else_keeps_its_own_words_in_one_line(error: Any) -> None:
    assert model_error(error).message == "odd answer"


def test_a_long_message_is_cut() -> None:
    assert len(model_error(UnexpectedModelBehavior("x" * 5000)).message) < 600
