"""A conversation with a model behind an OpenAI-format server: real HTTP, streamed tool calls, skills and sandbox."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from bough.agents.retry_policy import RetryPolicy
from bough.agents.spec import AgentSpec
from bough.conversation import AsyncConversation, Delta
from bough.errors import ModelError
from bough.events import open_store
from bough.events.store import EventStore
from bough.settings import Settings
from bough.testing import Answer, Failure, OpenAIServer, Received, ServerCall

pytestmark = pytest.mark.anyio

ONCE = RetryPolicy(attempts=1)
"""A failure ends the run: what a repeat does is tested elsewhere."""

EXAMPLES = Path(__file__).parents[2] / "examples"
LOAD = Answer(text="I will load it.", calls=(ServerCall(tool="load_skill", arguments={"skill_name": "word-count"}),))
COUNT = {"skill_name": "word-count", "script_path": "scripts/count.sh", "args": ["README.md"]}
RUN = Answer(calls=(ServerCall(tool="run_skill_script", arguments=COUNT),))

Start: TypeAlias = Callable[[OpenAIServer], Awaitable[AsyncConversation]]


def quote(received: Received) -> str:
    """Answer with what the script printed, as the request carries it, so that the answer is right only if it ran."""
    return f"It printed {json.loads(received.body['messages'][-1]['content'])['stdout']!r}"


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[EventStore]:
    opened = await open_store(f"sqlite:///{tmp_path / 'log.db'}")
    yield opened
    await opened.aclose()


@pytest.fixture
async def start(store: EventStore, tmp_path: Path) -> AsyncIterator[Start]:
    made: list[AsyncConversation] = []
    settings = Settings.load(home=tmp_path / "home", env={}, cwd=tmp_path)

    async def start(server: OpenAIServer) -> AsyncConversation:
        agent = AgentSpec(model="openai:test", base_url=server.url, skill_roots=(EXAMPLES / "skills",), retry=ONCE)
        workspace = EXAMPLES / "workspace"
        made.append(await AsyncConversation.create(agent, workspace=workspace, store=store, settings=settings))
        return made[-1]

    yield start
    for conversation in made:
        await conversation.aclose()


@contextmanager
def served(*steps: Any) -> Iterator[OpenAIServer]:
    with OpenAIServer(steps) as server:
        yield server


async def kinds(conversation: AsyncConversation) -> list[str]:
    return [stored.kind async for stored in conversation.events]


async def test_streamed_tool_calls_load_a_skill_run_its_script_and_are_answered(start: Start) -> None:
    with served(LOAD, RUN, quote) as server:
        conversation = await start(server)
        await conversation.send_message("How many words has README.md?")
        updates = [update async for update in conversation.run_stream()]
    words = str(len((EXAMPLES / "workspace" / "README.md").read_text().split()))
    assert conversation.status == "finished"
    assert [len(received.body["messages"]) for received in server.received] == [2, 4, 6]
    assert all(received.streamed for received in server.received)
    assert "<available_skills>" in server.received[0].body["messages"][0]["content"]
    assert '<skill name="word-count">' in server.received[1].body["messages"][-1]["content"]
    assert words in json.loads(server.received[2].body["messages"][-1]["content"])["stdout"].split()
    deltas = [update.text for update in updates if isinstance(update, Delta) and update.kind == "text"]
    assert "".join(deltas).startswith("I will load it.It printed ")
    assert len(deltas) > 4
    recorded = await kinds(conversation)
    assert recorded.count("ModelResponded") == 3
    assert recorded.count("ToolCalled") == recorded.count("ToolReturned") == 2
    assert recorded.count("ScriptRan") == 1
    assert conversation.usage.input_tokens > 0


async def test_a_run_that_nobody_watches_records_calls_and_results_in_order(start: Start) -> None:
    with served(LOAD, RUN, quote) as server:
        conversation = await start(server)
        await conversation.send_message("How many words has README.md?")
        result = await conversation.run()
    assert result.output.startswith("It printed ")
    recorded = await kinds(conversation)
    assert [kind for kind in recorded if kind.startswith(("Model", "Tool", "Script"))] == [
        "ModelResponded", "ToolCalled", "ToolReturned",
        "ModelResponded", "ToolCalled", "ScriptRan", "ToolReturned",
        "ModelResponded",
    ]  # fmt: skip


async def test_an_unknown_skill_is_answered_with_its_error_code_and_the_model_may_go_on(start: Start) -> None:
    wrong = Answer(calls=(ServerCall(tool="load_skill", arguments={"skill_name": "wrod-count"}),))
    with served(wrong, lambda received: received.body["messages"][-1]["content"]) as server:
        conversation = await start(server)
        await conversation.send_message("How many words has README.md?")
        result = await conversation.run()
    assert "word-count" in result.output, "the error names the nearest skill"


async def test_a_server_error_fails_the_run_and_a_second_run_goes_on_where_it_ended(start: Start) -> None:
    broken = Failure(status=500, message="out of order", headers={"x-should-retry": "false"})
    with served(LOAD, broken, RUN, quote) as server:
        conversation = await start(server)
        await conversation.send_message("How many words has README.md?")
        with pytest.raises(ModelError, match="out of order"):
            await conversation.run()
        assert conversation.status == "error"
        result = await conversation.run()
    assert result.output.startswith("It printed ")
    recorded = await kinds(conversation)
    assert recorded.count("ToolCalled") == 2, "the skill was loaded once"
    assert len(server.received) == 4


async def test_a_stream_that_breaks_off_is_not_recorded_as_an_answer(start: Start) -> None:
    with served(Answer(text="half of an answer", break_after=3), "a whole answer") as server:
        conversation = await start(server)
        await conversation.send_message("Say something.")
        with pytest.raises(ModelError):
            async for _ in conversation.run_stream():
                pass
        assert "ModelResponded" not in await kinds(conversation)
        result = await conversation.run()
    assert result.output == "a whole answer"


async def test_malformed_arguments_are_returned_to_the_model_and_nothing_runs(start: Start) -> None:
    broken = Answer(calls=(ServerCall(tool="run_skill_script", arguments='{"skill_name": "word-'),))
    with served(broken, "I give up.") as server:
        conversation = await start(server)
        await conversation.send_message("How many words has README.md?")
        result = await conversation.run()
    assert result.output == "I give up."
    recorded = await kinds(conversation)
    assert "ScriptRan" not in recorded
    assert server.received[1].body["messages"][-1]["role"] == "tool"
