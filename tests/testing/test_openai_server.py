"""The OpenAI-format server, talked to by PydanticAI's own client over real sockets."""

from __future__ import annotations

import json
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import anyio
import pytest
from pydantic_ai import Agent, ModelHTTPError
from pydantic_ai.exceptions import ModelAPIError, UnexpectedModelBehavior
from pydantic_ai.messages import PartDeltaEvent, PartStartEvent, TextPartDelta, ToolCallPart, ToolCallPartDelta

from bough.agents.models.resolve import resolve_model
from bough.testing import Answer, Failure, Hang, OpenAIServer, Received, ServerCall

pytestmark = pytest.mark.anyio

ADD = Answer(calls=(ServerCall(tool="add", arguments={"a": 20, "b": 22}),))
NO_RETRY = {"x-should-retry": "false"}


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def say_result(received: Received) -> str:
    """Answer with what the tool returned, so that the answer cannot be right unless it was really run."""
    return f"the sum is {received.body['messages'][-1]['content']}"


@contextmanager
def served(*steps: object) -> Iterator[tuple[OpenAIServer, Agent[None, str]]]:
    with OpenAIServer(steps) as server:  # pyright: ignore[reportArgumentType]
        model = resolve_model("openai:test", base_url=server.url, env={}).model
        yield server, Agent(model, instructions="be brief", tools=[add], retries=0)


async def test_a_tool_call_and_its_result_go_over_the_wire() -> None:
    with served(ADD, say_result) as (server, agent):
        async with agent:
            result = await agent.run("20 + 22?")
    assert result.output == "the sum is 42"
    first, second = server.received
    assert first.body["model"] == "test"
    assert first.body["messages"][0] == {"role": "system", "content": "be brief"}
    assert first.body["tools"][0]["function"]["name"] == "add"
    assert not first.streamed
    call = second.body["messages"][-2]["tool_calls"][0]
    assert json.loads(call["function"]["arguments"]) == {"a": 20, "b": 22}
    assert second.body["messages"][-1] == {"role": "tool", "tool_call_id": call["id"], "content": "42"}
    assert result.usage.input_tokens > 0


async def test_tool_calls_stream_as_deltas_over_the_wire() -> None:
    names: list[str] = []
    arguments: list[str] = []
    text: list[str] = []
    two = Answer(text="Let me add.", calls=(*ADD.calls, ServerCall(tool="add", arguments={"a": 1, "b": 1})))
    with served(two, say_result) as (server, agent):
        async with agent, agent.iter("20 + 22?") as run:
            async for node in run:
                if not Agent.is_model_request_node(node):
                    continue
                async with node.stream(run.ctx) as stream:
                    async for event in stream:
                        if isinstance(event, PartStartEvent) and isinstance(event.part, ToolCallPart):
                            names.append(event.part.tool_name)
                        if isinstance(event, PartDeltaEvent) and isinstance(event.delta, ToolCallPartDelta):
                            arguments.append(str(event.delta.args_delta))
                        if isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
                            text.append(event.delta.content_delta)
    assert run.result is not None
    assert run.result.output == "the sum is 2"
    assert names == ["add", "add"]
    assert len(arguments) > 4
    assert "".join(arguments) == '{"a": 20, "b": 22}{"a": 1, "b": 1}'
    assert len(text) >= 2
    assert all(received.streamed for received in server.received)
    ids = [call["id"] for call in server.received[1].body["messages"][-3]["tool_calls"]]
    assert len(set(ids)) == 2
    assert run.result.usage.output_tokens > 0


async def test_a_scripted_error_arrives_with_its_status_and_message() -> None:
    with served(Failure(status=401, message="wrong key", kind="invalid_request_error")) as (_, agent):
        async with agent:
            with pytest.raises(ModelHTTPError, match="wrong key") as caught:
                await agent.run("hi")
    assert caught.value.status_code == 401


async def test_a_request_beyond_the_script_fails_once() -> None:
    with served() as (server, agent):
        async with agent:
            with pytest.raises(ModelHTTPError, match="the script has 0 answers"):
                await agent.run("hi")
    assert len(server.received) == 1


async def test_a_stream_that_breaks_off_is_an_error_after_the_first_deltas() -> None:
    got: list[str] = []
    with served(Answer(text="a long answer that never ends", break_after=3)) as (_, agent):
        async with agent:
            with pytest.raises(ModelAPIError):
                async with agent.run_stream("hi") as stream:
                    got.extend([piece async for piece in stream.stream_text(delta=True, debounce_by=None)])
                    pytest.fail("a broken stream must not look finished")
    assert "".join(got) in "a long answer that never ends"


async def test_malformed_arguments_reach_the_client_as_they_are() -> None:
    broken = Answer(calls=(ServerCall(tool="add", arguments='{"a": 20,'),))
    with served(broken) as (_, agent):
        async with agent:
            with pytest.raises(UnexpectedModelBehavior):
                await agent.run("20 + 22?")


async def test_a_hanging_answer_can_be_cancelled_and_the_server_still_closes() -> None:
    with served(Hang()) as (server, agent):
        async with agent, anyio.create_task_group() as tasks:
            tasks.start_soon(agent.run, "hi")
            while not server.received:
                await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()
        assert len(server.received) == 1
    assert not [thread for thread in threading.enumerate() if thread.name == "openai-server"]


async def test_closing_frees_the_port_and_ends_every_thread() -> None:
    before = threading.active_count()
    with OpenAIServer(["x"]) as server:
        port = int(server.url.rsplit(":", 1)[1].split("/")[0])
    assert threading.active_count() == before
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", port))


def test_models_are_listed_and_other_paths_and_bodies_are_refused_in_openai_shape() -> None:
    with OpenAIServer([], model="tiny") as server:
        with urllib.request.urlopen(f"{server.url}/models") as response:
            assert json.load(response)["data"][0]["id"] == "tiny"
        for path, body, status in [("/nowhere", b"{}", 404), ("/chat/completions", b"{", 400)]:
            with pytest.raises(urllib.error.HTTPError) as caught:
                urllib.request.urlopen(urllib.request.Request(f"{server.url}{path}", body, method="POST"))
            with caught.value as error:
                assert (error.status, set(json.load(error))) == (status, {"error"})
        assert server.received == []
