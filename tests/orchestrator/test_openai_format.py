"""A coordinator with two sub-agents whose models are OpenAI-format servers: every tool, usage exact at every level."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import RunContext
from pydantic_ai.usage import RunUsage

from bough import AgentSpec, OrchestratorAgent, Settings
from bough.testing.openai_server import Answer, Hang, OpenAIServer, Received, ServerCall, Step

pytestmark = pytest.mark.anyio


def _call(tool: str, **arguments: Any) -> Answer:
    return Answer(calls=(ServerCall(tool=tool, arguments=arguments),))


def _last(received: Received) -> Any:
    """Return the result that the model was sent last, as JSON."""
    return json.loads(received.body["messages"][-1]["content"])


def _with_task(tool: str) -> Callable[[Received], Answer]:
    """Call a tool for the task that the last result names."""
    return lambda received: _call(tool, task_id=_last(received)["task_id"])


async def count(ctx: RunContext[Any]) -> str:
    """Use a model of its own, as a tool does that runs an agent."""
    ctx.usage.incr(RunUsage(requests=2, input_tokens=70, output_tokens=30))
    return "counted"


class _Servers:
    """A server for each agent, so that the order among agents does not matter."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.of: dict[str, OpenAIServer] = {}

    def agent(self, name: str, *steps: Step, **fields: Any) -> AgentSpec:
        server = self.of[name] = self._stack.enter_context(OpenAIServer(steps))
        return AgentSpec(
            name=name,
            model="openai-chat:test",
            base_url=server.url,
            api_key="key",
            skills=(),
            description=name,
            **fields,
        )


async def test_every_tool_on_the_openai_format_with_exact_sums(tmp_path: Path) -> None:
    """The ledger of the fold, the rows of the tree and what the servers answered are the same."""
    with ExitStack() as stack:
        servers = _Servers(stack)
        analyst = servers.agent("analyst", _call("count"), "the sum is 42", tools=[count])
        researcher = servers.agent("researcher", "found it", Hang(), "from the archive")
        steps = (
            _call("delegate", agent_name="analyst", prompt="sum up"),
            _call("submit_task", agent_name="researcher", prompt="search"),
            _call("wait", timeout=30),
            lambda received: _call("get_task_result", task_id=_last(received)["finished"][0]["task_id"][:8]),
            _call("submit_task", agent_name="researcher", prompt="search for ever"),
            _with_task("cancel_task"),
            "all done",
            _call("submit_task", agent_name="researcher", prompt="search on"),
            "it runs",
            "and that is it",
        )
        coordinator = servers.agent("coordinator", *steps, sub_agents=[analyst, researcher])
        settings = Settings.load(home=tmp_path / "home", env={}, cwd=tmp_path)
        store = f"sqlite:///{tmp_path / 'log.db'}"
        async with OrchestratorAgent(coordinator, store=store, workspace=tmp_path, settings=settings) as o:
            result = await o.run("begin")
            assert result.output == "all done"
            results = [
                m["content"] for m in servers.of["coordinator"].received[6].body["messages"] if m["role"] == "tool"
            ]
            assert results[0] == "the sum is 42"
            assert json.loads(results[3])["result"] == "found it"
            assert json.loads(results[5])["state"] == "cancelled"
            assert o.broker is not None
            spent = (await o.broker.store.read_spent(o.conversation.id)).usage
            used = result.usage()  # type: ignore[operator]
            assert used.requests == 7 + 2 + 2 + 1  # the coordinator, the analyst and its tool, the researcher
            assert (used.requests, used.input_tokens, used.output_tokens) == (
                spent.requests, spent.input_tokens, spent.output_tokens,
            )  # fmt: skip
            await _check_second_turn(o, servers)


async def _check_second_turn(o: OrchestratorAgent, servers: _Servers) -> None:
    """A result of a task in the background is told before the next prompt, once."""
    assert (await o.run("once more")).output == "it runs"
    assert o.broker is not None
    [open_task] = o.conversation.state.tasks
    await o.broker.wait(open_task, 30)
    assert (await o.run("and now")).output == "and that is it"
    sent = json.dumps(servers.of["coordinator"].received[-1].body["messages"])
    assert sent.count("from the archive") == 1
    assert o.conversation.state.tasks == {}
