"""The tools that hand work to other agents, called by a real agent, answered by a small broker of this file."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid5

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ModelRequest, ToolReturnPart

from bough.agents.context import ToolContext
from bough.agents.delegation_protocol import Asking, CallWaits, Child, Delegation, RunStopped, Spent
from bough.agents.delegation_tools import DELEGATION_TOOLS, ask_toolset, delegation_toolset
from bough.connect.mcp_pool import McpPool
from bough.errors import Conflict, LimitExceeded, NotFound, Unavailable
from bough.events.model import Usage
from bough.events.store import EventStore
from bough.testing import ScriptedModel
from bough.testing.scripted import tool_call
from bough.types import JsonObject, new_id

pytestmark = pytest.mark.anyio

PARENT = new_id()


@dataclass
class TableBroker:
    """Knows what becomes of each agent's task from a table; an error in the table is raised at the start."""

    outcomes: dict[str, dict[str, Any] | Exception]
    log: EventStore = None  # pyright: ignore[reportAssignmentType] - nothing here reads a log
    pool: McpPool = field(default_factory=McpPool)
    children: dict[str, Child] = field(default_factory=dict[str, Child])
    asked: list[tuple[str, Asking, bool]] = field(default_factory=list[tuple[str, Asking, bool]])

    async def start(self, asking: Asking, agent: str, prompt: str, *, background: bool) -> Child:
        self.asked.append((agent, asking, background))
        outcome = self.outcomes.get(agent)
        if isinstance(outcome, Exception):
            raise outcome
        if outcome is None:
            raise NotFound(
                f"no sub-agent named {agent!r}",
                hint="did you mean 'good'?",
                details={"known": list(self.outcomes), "nearest": "good"},
            )
        id = str(uuid5(asking.conversation, asking.call))
        child = Child(id, UUID(id), agent, "pending", None, None, None, None, Usage(requests=2), None, 1.25, "began")
        return self.children.setdefault(id, child)

    async def wait(
        self, asking: Asking, tasks: Collection[str] | None = None, timeout: float | None = None
    ) -> tuple[Child, ...]:
        for id in self.children if tasks is None else tasks:
            outcome = self.outcomes[self.children[id].agent]
            assert isinstance(outcome, dict)
            self.children[id] = self.children[id]._replace(**outcome)
        return tuple(child for id, child in self.children.items() if tasks is None or id in tasks)

    async def result(self, asking: Asking, task_id: str) -> Child:
        found = [child for id, child in self.children.items() if id.startswith(task_id)]
        if len(found) != 1:
            raise NotFound(f"no task {task_id!r} here")
        return found[0]

    async def cancel(self, asking: Asking, task_id: str) -> Child:
        child = await self.result(asking, task_id)
        self.children[child.task_id] = child._replace(state="cancelled", code="interrupted", error="cancelled")
        return self.children[child.task_id]

    async def read_spent(self, conversation: UUID) -> Spent:
        return Spent(Usage(requests=2 * len(self.children)), len(self.children))

    async def run(self, conversation: UUID, message: str | None, key: str, check: JsonObject | None) -> Child:
        raise Conflict("a live task runs it")


async def called(broker: TableBroker, *steps: Any, agents: tuple[str, ...] = ("good", "bad")) -> list[ToolReturnPart]:
    """Run an agent with the tools and return what they returned."""
    agent = Agent(
        ScriptedModel([*steps, "done"]),
        deps_type=ToolContext,
        toolsets=[delegation_toolset(agents), ask_toolset()],
        retries=9,
    )
    assert isinstance(broker, Delegation)
    deps = ToolContext(conversation=PARENT, delegation=broker, rules=lambda: {"limits": 7})
    ran = await agent.run("go", deps=deps)
    requests = [message for message in ran.all_messages() if isinstance(message, ModelRequest)]
    return [part for message in requests for part in message.parts if isinstance(part, ToolReturnPart)]


async def test_delegate_answers_with_the_childs_text_or_its_value() -> None:
    broker = TableBroker(
        {
            "good": {"state": "completed", "result": "42"},
            "typed": {"state": "completed", "result": "x", "data": {"n": 1}},
        }
    )
    text, value = await called(
        broker,
        [tool_call("delegate", agent_name="good", prompt="p"), tool_call("delegate", agent_name="typed", prompt="p")],
    )
    assert (text.content, value.content) == ("42", {"n": 1})
    assert text.metadata == {"tasks": [next(iter(broker.children))]}
    assert [(agent, background) for agent, _, background in broker.asked] == [("good", False), ("typed", False)]
    asking = broker.asked[0][1]
    assert (asking.conversation, asking.lease, asking.rules) == (PARENT, None, {"limits": 7})


async def test_a_child_that_failed_is_told_with_its_code_and_what_it_had() -> None:
    failed = {"state": "failed", "code": "limit_exceeded", "error": "3 requests", "result": "so far"}
    (part,) = await called(TableBroker({"bad": failed}), tool_call("delegate", agent_name="bad", prompt="p"))
    told = json.loads(str(part.content))
    assert part.outcome == "failed"
    assert {key: told[key] for key in ("state", "code", "error", "partial")} == {
        "state": "failed", "code": "limit_exceeded", "error": "3 requests", "partial": "so far",
    }  # fmt: skip


async def test_an_unknown_agent_is_told_with_the_names_there_are() -> None:
    (part,) = await called(TableBroker({"good": {}}), tool_call("submit_task", agent_name="goood", prompt="p"))
    assert part.outcome == "retried"
    assert "did you mean 'good'?" in str(part.content)
    assert "known: good" in str(part.content)


async def test_a_bound_is_a_failure_that_is_not_retried() -> None:
    broker = TableBroker({"good": LimitExceeded("100 tasks are enough", details={"limit": "tasks"})})
    (part,) = await called(broker, tool_call("submit_task", agent_name="good", prompt="p"))
    assert (part.outcome, part.content) == ("failed", "100 tasks are enough")


async def test_a_lost_lease_ends_the_run() -> None:
    with pytest.raises(RunStopped) as stopped:
        await called(
            TableBroker({"good": Conflict("taken over")}), tool_call("delegate", agent_name="good", prompt="p")
        )
    assert isinstance(stopped.value.error, Conflict)


async def test_wait_tells_what_ended_what_asks_and_what_runs() -> None:
    broker = TableBroker(
        {
            "good": {"state": "completed", "result": "42"},
            "failed-checker": {"state": "running"},
            "curious": {"state": "input_required", "request": {"kind": "question", "question": "which?"}},
        }
    )
    submitted = [tool_call("submit_task", agent_name=name, prompt="p") for name in broker.outcomes]
    *_, waited = await called(broker, submitted, tool_call("wait", timeout=5))
    answer: Any = waited.content
    assert [(child["agent"], child["state"]) for child in answer["finished"]] == [("good", "completed")]
    assert answer["finished"][0]["result"] == "42"
    (curious,) = answer["waiting_for_answer"]
    assert (curious["agent"], curious["state"]) == ("curious", "input_required")
    assert curious["request"] == {"kind": "question", "question": "which?"}
    assert [each | {"task_id": ""} for each in answer["running"]] == [
        {"task_id": "", "agent": "failed-checker", "state": "running", "seconds": 1.2, "last": "began"}
    ]
    assert answer["timed_out"] is False
    assert waited.metadata == {"tasks": [each["task_id"] for each in answer["finished"]]}


@pytest.mark.parametrize(("outcomes", "timed_out"), [({}, False), ({"slow": {"state": "running"}}, True)])
async def test_wait_with_nothing_open_and_with_nothing_new(outcomes: Any, timed_out: bool) -> None:
    steps = [tool_call("submit_task", agent_name=name, prompt="p") for name in outcomes]
    *_, waited = await called(
        TableBroker(outcomes), [*steps, tool_call("get_task_result", task_id="x")], tool_call("wait")
    )
    answer: Any = waited.content
    assert (answer["finished"], answer["timed_out"]) == ([], timed_out)


async def test_a_wait_of_nonsense_is_refused() -> None:
    (part,) = await called(TableBroker({}), tool_call("wait", timeout=-1))
    assert part.outcome == "retried"


async def test_results_of_one_answer_share_its_room_and_one_alone_comes_whole() -> None:
    long = {name: {"state": "completed", "result": name[0] * 200_000} for name in ("a", "b")}
    broker = TableBroker(long)
    submitted = [tool_call("submit_task", agent_name=name, prompt="p") for name in long]
    *_, waited = await called(broker, submitted, tool_call("wait"))
    answer: Any = waited.content
    for name, each in zip("ab", answer["finished"], strict=True):
        assert each["result"].startswith(name * 1000)
        assert each["result"].endswith(name * 1000)
        assert "68,928 of 200,000 bytes left out" in each["result"]
    (*_, whole) = await called(broker, tool_call("get_task_result", task_id=next(iter(broker.children))[:8]))
    assert whole.content["result"] == "a" * 200_000  # pyright: ignore


async def test_cancel_answers_how_it_ended() -> None:
    broker = TableBroker({"good": {"state": "running"}})
    steps: list[Any] = [
        tool_call("submit_task", agent_name="good", prompt="p"),
        lambda _: tool_call("cancel_task", task_id=next(iter(broker.children))),
    ]
    *_, cancelled = await called(broker, *steps)
    answer: Any = cancelled.content
    assert (answer["state"], answer["code"], answer["error"]) == ("cancelled", "interrupted", "cancelled")


async def test_a_child_that_asks_and_a_question_make_their_calls_wait() -> None:
    request = {"kind": "question", "question": "which?"}
    broker = TableBroker({"curious": {"state": "input_required", "request": request}})
    with pytest.raises(CallWaits) as waits:
        await called(broker, tool_call("delegate", agent_name="curious", prompt="p"))
    (task,) = broker.children
    assert (waits.value.kind, waits.value.task) == ("task", task)
    assert waits.value.request == {"task_id": task, "request": request}
    with pytest.raises(CallWaits) as waits:
        await called(broker, tool_call("ask", question="red?", choices=["yes", "no"]))
    assert (waits.value.kind, waits.value.request) == ("question", {"question": "red?", "choices": ["yes", "no"]})


async def test_without_a_broker_the_tools_say_so() -> None:
    agent = Agent(
        ScriptedModel([tool_call("delegate", agent_name="good", prompt="p"), "done"]),
        deps_type=ToolContext,
        toolsets=[delegation_toolset(["good"])],
    )
    with pytest.raises(Unavailable, match="no broker runs sub-agents here"):
        await agent.run("go", deps=ToolContext(conversation=PARENT))


@pytest.mark.parametrize(("count", "enum"), [(50, True), (51, False)])
def test_few_names_are_an_enum_and_every_tool_may_run_again(count: int, enum: bool) -> None:
    names = [f"agent{number}" for number in range(count)]
    tools = delegation_toolset(names).tools
    assert list(tools) == [function.__name__ for function in DELEGATION_TOOLS]
    assert all((tool.metadata or {}).get("idempotent") is True for tool in tools.values())
    schema: Any = tools["delegate"].function_schema.json_schema["properties"]["agent_name"]
    assert (schema.get("enum") == names) is enum


async def test_a_repeated_call_finds_its_task() -> None:
    broker = TableBroker({"good": {"state": "completed", "result": "42"}})
    call = tool_call("delegate", agent_name="good", prompt="p")
    first, second = await asyncio.gather(called(broker, call), called(broker, call))
    assert first[0].content == second[0].content == "42"
    assert len(broker.children) == 1
