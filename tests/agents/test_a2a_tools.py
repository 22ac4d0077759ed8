"""Remote agents as tools, against an agent of the a2a-sdk: its card names the tool, its answers are data."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.messages import ToolReturnPart
from tests.connect.a2a_server import serve_agent

from bough.agents.spec import AgentSpec
from bough.connect.a2a import A2AClientExtended
from bough.connect.config import A2AClientConfig
from bough.conversation import AsyncConversation
from bough.settings import Settings
from bough.testing import ScriptedModel, tool_call
from bough.testing.scripted import Asked

pytestmark = pytest.mark.anyio

ONE = ("JSONRPC", "1.0")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Settings of a home of its own."""
    return Settings.load(home=tmp_path / "home", env={}, cwd=tmp_path)


@pytest.fixture
async def converse(settings: Settings, tmp_path: Path) -> AsyncIterator[Any]:
    """Runs an agent that is scripted, and returns its conversation and its model."""
    opened: list[AsyncConversation] = []

    async def converse(*steps: Any, urls: list[str]) -> tuple[AsyncConversation, ScriptedModel]:
        clients = [
            A2AClientExtended(A2AClientConfig(url=url, poll_interval=0.01, max_retries=0, timeout=20)) for url in urls
        ]
        model = ScriptedModel(list(steps))
        spec = AgentSpec(name="asker", model=model, skills=(), a2a_clients=clients)
        conversation = await AsyncConversation.create(spec, workspace=tmp_path, store="memory:", settings=settings)
        opened.append(conversation)
        await conversation.send_message("go")
        return conversation, model

    yield converse
    for conversation in opened:
        await conversation.aclose()


def _answers(asked: Asked) -> list[Any]:
    """Return the results that the model was shown last, as JSON."""
    parts = [part for part in asked.messages[-1].parts if isinstance(part, ToolReturnPart)]
    return [json.loads(part.model_response_str()) for part in parts]


async def test_a_card_becomes_a_tool_and_a_clash_of_names_a_number(converse: Any) -> None:
    """Both are asked; the log names their tasks as started by their calls, and what was told is told once."""
    calls = [tool_call("shouter", prompt="hello"), tool_call("shouter_2", prompt="world")]
    with serve_agent(ONE) as first, serve_agent(ONE) as second:
        conversation, model = await converse(calls, "done", urls=[first, second])
        result = await conversation.run()
        kinds = [stored.kind async for stored in conversation.store.read(conversation.id)]
    assert result.output == "done"
    assert [(answer["status"], answer["result"]) for answer in _answers(model.asked[-1])] == [
        ("completed", "HELLO"),
        ("completed", "WORLD"),
    ]
    assert (kinds.count("TaskLinked"), kinds.count("TaskEnded")) == (2, 2)
    assert conversation.state.tasks == {}


async def test_a_question_is_answered_by_calling_again(converse: Any) -> None:
    """The answer goes to the task that asked."""

    def reply(asked: Asked) -> Any:
        [answer] = _answers(asked)
        assert (answer["status"], answer["question"]) == ("input-required", "how loud?")
        return tool_call("shouter", prompt="very", task_id=answer["task_id"])

    with serve_agent(ONE) as url:
        conversation, model = await converse(tool_call("shouter", prompt="ask"), reply, "done", urls=[url])
        await conversation.run()
    assert [answer["result"] for answer in _answers(model.asked[-1])] == ["VERY"]


async def test_an_agent_that_is_away_is_left_out_and_one_whose_card_leads_elsewhere_is_used_where_it_is(
    converse: Any,
) -> None:
    """A dead address is a recorded error. A card that names another host is used at the configured address."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        dead = f"http://127.0.0.1:{taken.getsockname()[1]}"
    with serve_agent(ONE, elsewhere="http://evil.example:1") as url:
        conversation, model = await converse(tool_call("shouter", prompt="hello"), "done", urls=[dead, url])
        await conversation.run()
        errors = [
            str(getattr(stored.event, "message", ""))
            async for stored in conversation.store.read(conversation.id)
            if stored.kind == "ErrorRaised"
        ]
    assert [answer["result"] for answer in _answers(model.asked[-1])] == ["HELLO"]
    assert len(errors) == 1


async def test_an_interrupted_call_cancels_the_remote_task(converse: Any) -> None:
    """The remote agent is told, so that it works for nobody."""
    with serve_agent(ONE) as url:
        conversation, _ = await converse(tool_call("shouter", prompt="hang"), urls=[url])
        running = asyncio.create_task(conversation.run())
        while not conversation.state.tasks:
            await asyncio.sleep(0.01)
        [remote] = conversation.state.tasks
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        watching = A2AClientExtended(A2AClientConfig(url=url))
        assert (await watching.poll(remote))["status"]["state"] == "TASK_STATE_CANCELED"
        await watching.aclose()


async def test_a_call_that_runs_again_polls_the_task_it_had(converse: Any) -> None:
    """A run that is left to others leaves the remote task running; the next one gets its result, and sends nothing."""
    with serve_agent(ONE) as url:
        conversation, model = await converse(tool_call("shouter", prompt="hang"), "done", urls=[url])
        runner = conversation._make_runner()  # pyright: ignore[reportPrivateUsage]
        running = asyncio.create_task(runner.run())
        while not conversation.state.tasks:
            await asyncio.sleep(0.01)
        [remote] = conversation.state.tasks
        runner.stop("hand_back")
        await asyncio.gather(running, return_exceptions=True)
        watching = A2AClientExtended(A2AClientConfig(url=url))
        assert (await watching.poll(remote))["status"]["state"] == "TASK_STATE_WORKING"
        await watching.cancel_task(remote)
        await watching.aclose()
        await conversation.run()
        kinds = [stored.kind async for stored in conversation.store.read(conversation.id)]
    [answer] = _answers(model.asked[-1])
    assert (answer["status"], answer["task_id"]) == ("cancelled", remote)
    assert kinds.count("TaskLinked") == 1
