"""The tools with which a model delegates work to other agents, and asks a question.

Source: agentic_patterns (`delegate`, `submit_task`, `wait`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

from pydantic_ai import RunContext
from pydantic_ai.exceptions import ModelRetry, ToolFailed
from pydantic_ai.messages import ToolReturn
from pydantic_ai.tools import Tool
from pydantic_ai.toolsets import FunctionToolset

from bough.agents.context import ToolContext
from bough.agents.delegation_protocol import Asking, CallWaits, Child, Delegation, RunStopped
from bough.agents.writes import WRITES
from bough.errors import BoughError, Conflict, LimitExceeded, NotFound, Unavailable
from bough.types import Json, JsonObject

MAX_ENUM = 50
"""How many sub-agents the schema of the tools lists at most; the error for an unknown name also lists them."""

SHARED_BYTES = 256 << 10
"""Maximum total size of the results that `wait` returns at once."""

WHOLE_BYTES = (1 << 20) - (16 << 10)
"""Maximum size of a result that is returned whole; a log entry has 1 MiB, of which 16 KiB are for other fields."""

MAX_WAIT_SECONDS = 3600.0

Run = RunContext[ToolContext]


class ChildFailed(ToolFailed):
    """Raised if a child ended without a result.

    Attributes:
        tasks: Ids of the tasks whose end the message reports.
    """

    def __init__(self, message: str, *, tasks: tuple[str, ...]) -> None:
        super().__init__(message)
        self.tasks = tasks


async def submit_task(ctx: Run, agent_name: str, prompt: str) -> JsonObject:
    """Start work of another agent in the background and continue.

    For independent work: start all of it first, then call `wait`. The agent sees nothing but the prompt.
    """
    with _convert_errors():
        child = await _require_delegation(ctx).start(_describe_caller(ctx), agent_name, prompt, background=True)
    return {"task_id": child.task_id, "agent": child.agent, "state": child.state}


async def delegate(ctx: Run, agent_name: str, prompt: str) -> ToolReturn:
    """Give work to another agent and wait for its answer.

    For one answer that is needed now. The agent sees nothing but the prompt: put everything it needs into it.
    """
    asking, delegation = _describe_caller(ctx), _require_delegation(ctx)
    with _convert_errors():
        child = await delegation.start(asking, agent_name, prompt, background=False)
        if not child.is_ended and not child.is_asking:
            (child,) = await delegation.wait(asking, {child.task_id})
    if child.is_asking:
        # The call remains open until the child has ended, however long the person takes to answer.
        raise _make_waiting_call(child)
    if child.state == "completed":
        result = child.result if child.data is None else child.data
        if child.workspace is not None:
            result = {"result": result, **_describe_folder(child)}
        return _make_tool_return(result, (child,))
    failure: JsonObject = {
        "task_id": child.task_id,
        "state": child.state,
        "code": child.code,
        "error": child.error,
        "partial": child.result,
        **_describe_folder(child),
    }
    raise ChildFailed(json.dumps(failure, ensure_ascii=False), tasks=(child.task_id,))


async def wait(ctx: Run, timeout: float = 120) -> ToolReturn:
    """Wait until a background task ends, and return the state of all of them.

    Returns as soon as a task ends, or after `timeout` seconds. Allow the time the work may take; do not call it
    repeatedly with short timeouts. Once only tasks that wait for an answer are left, the person is asked.
    """
    if not 0 <= timeout <= MAX_WAIT_SECONDS:
        raise ModelRetry(f"timeout must be between 0 and {MAX_WAIT_SECONDS:g} seconds")
    asking, delegation = _describe_caller(ctx), _require_delegation(ctx)
    started_at = time.monotonic()
    with _convert_errors():
        children = await delegation.wait(asking, None, timeout)
        running = [child for child in children if not child.is_ended and not child.is_asking]
        if running and len(running) < len(children) and not any(child.is_ended for child in children):
            # The first wait returns at once while a task asks for input. So wait again, only for the running tasks.
            running_only = asking._replace(unreported=tuple(child.task_id for child in running))
            ended_or_running = await delegation.wait(
                running_only, None, max(0.0, timeout - (time.monotonic() - started_at))
            )
            children = (*(child for child in children if child.is_asking), *ended_or_running)
    ended = [child for child in children if child.is_ended]
    asking_children = [child for child in children if child.is_asking]
    running = [child for child in children if not child.is_ended and not child.is_asking]
    if asking_children and not ended and not running:
        raise _make_waiting_call(asking_children[0])
    max_bytes_per_child = SHARED_BYTES // max(len(ended) + len(asking_children), 1)
    states: JsonObject = {
        "finished": [describe_child(child, max_bytes=max_bytes_per_child) for child in ended],
        "waiting_for_answer": [describe_child(child, max_bytes=max_bytes_per_child) for child in asking_children],
        "running": [
            {
                "task_id": child.task_id,
                "agent": child.agent,
                "state": child.state,
                "seconds": round(child.seconds, 1),
                "last": child.last,
            }
            for child in running
        ],
        "timed_out": bool(running) and not ended,
    }
    return _make_tool_return(states, ended)


async def get_task_result(ctx: Run, task_id: str) -> ToolReturn:
    """Return the state of a task, with its whole result. `task_id` may be its first 8 characters."""
    with _convert_errors():
        child = await _require_delegation(ctx).result(_describe_caller(ctx), task_id)
    return _make_tool_return(describe_child(child, max_bytes=WHOLE_BYTES), (child,))


async def cancel_task(ctx: Run, task_id: str) -> ToolReturn:
    """Cancel a task whose result is no longer needed. `task_id` may be its first 8 characters."""
    with _convert_errors():
        child = await _require_delegation(ctx).cancel(_describe_caller(ctx), task_id)
    return _make_tool_return(describe_child(child, max_bytes=WHOLE_BYTES), (child,))


async def ask(ctx: Run, question: str, choices: list[str] | None = None) -> str:
    """Ask the person or the agent that gave you this work, and wait for the answer.

    Use it only for what you cannot find out or decide yourself. With `choices`, the answer is one of them.
    """
    raise CallWaits("question", {"question": question, "choices": choices})


DELEGATION_TOOLS: tuple[Callable[..., Awaitable[Any]], ...] = (
    delegate,
    submit_task,
    wait,
    get_task_result,
    cancel_task,
)


def delegation_toolset(agents: Sequence[str]) -> FunctionToolset[ToolContext]:
    """Return the delegation tools of an agent with these sub-agents.

    All tools may be run again after a crash, because a repeated call finds the task that it has already started.
    """
    tools: list[Tool[ToolContext]] = []
    metadata: JsonObject = {"idempotent": True, "tasks": True, WRITES: False}
    for function in DELEGATION_TOOLS:
        tool: Tool[ToolContext] = Tool(function, takes_ctx=True, metadata=metadata)
        agent_name_schema = tool.function_schema.json_schema["properties"].get("agent_name")
        if agent_name_schema and len(agents) <= MAX_ENUM:
            agent_name_schema["enum"] = list(agents)
        tools.append(tool)
    return FunctionToolset(tools)


def ask_toolset() -> FunctionToolset[ToolContext]:
    """Return the toolset with `ask`, which sends a question to the caller of the agent's task."""
    return FunctionToolset([Tool(ask, takes_ctx=True, metadata={"idempotent": True, WRITES: False})])


def describe_child(child: Child, *, max_bytes: int) -> JsonObject:
    """Return a task's state for the model: its result, its error, or its request.

    Args:
        max_bytes: Maximum size of a text; a longer text is shortened in the middle.
    """
    description: JsonObject = {"task_id": child.task_id, "agent": child.agent, "state": child.state}
    if child.state == "completed":
        description["result"] = shorten_middle(child.result if child.data is None else child.data, max_bytes)
    elif child.is_ended:
        description |= {"code": child.code, "error": shorten_middle(child.error, max_bytes // 4)}
        if child.result:
            description["partial"] = shorten_middle(child.result, max_bytes // 2)
    elif child.is_asking:
        description["request"] = child.request
    else:
        description |= {"seconds": round(child.seconds, 1), "last": child.last}
    description |= _describe_folder(child)
    description["usage"] = child.usage.model_dump(mode="json", exclude_none=True)
    return description


def _make_waiting_call(child: Child) -> CallWaits:
    """Return the exception that keeps a call open until the child, which now asks for input, has ended."""
    return CallWaits("task", {"task_id": child.task_id, "request": child.request}, task=child.task_id)


def _describe_folder(child: Child) -> JsonObject:
    """Return the child's folder unless it is the parent's. The model must know it, because no file is copied back."""
    return {} if child.workspace is None else {"workspace": child.workspace}


def _make_tool_return(value: Json, children: Sequence[Child]) -> ToolReturn:
    """Return a tool result with the ids of the ended tasks in its metadata, so that no end is reported twice."""
    ended = [child.task_id for child in children if child.is_ended]
    return ToolReturn(value, metadata={"tasks": ended})


def shorten_middle(value: Json, max_bytes: int) -> Json:
    """Return a value; if it is longer than `max_bytes` as text, that text with a note in place of its middle."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    data = text.encode("utf-8", "replace")
    if len(data) <= max_bytes:
        return value
    half = max_bytes // 2
    head, tail = data[:half].decode("utf-8", "ignore"), data[-half:].decode("utf-8", "ignore")
    return f"{head}\n[… {len(data) - 2 * half:,} of {len(data):,} bytes left out …]\n{tail}"


def _describe_caller(ctx: Run) -> Asking:
    """Return what the broker must know about the conversation and its call."""
    deps = ctx.deps
    if deps.conversation is None:
        raise Unavailable("delegation needs a conversation", hint="run the agent in a conversation")
    tool_call_id = ctx.tool_call_id or ""
    return Asking(
        deps.conversation,
        tool_call_id,
        deps.lease,
        deps.rules(),
        deps.bounds(),
        deps.unreported_tasks(),
        deps.readonly,
        frozenset(deps.changed_rules()),
    )


def _require_delegation(ctx: Run) -> Delegation:
    if ctx.deps.delegation is None:
        raise Unavailable("no broker runs sub-agents here", hint="use OrchestratorAgent, or pass broker=")
    return ctx.deps.delegation


@contextmanager
def _convert_errors() -> Generator[None]:
    """Convert the errors of a broker to errors for the model or the run."""
    try:
        yield
    except NotFound as error:
        raise ModelRetry(_format_error(error)) from error  # the model can correct the name
    except LimitExceeded as error:
        raise ToolFailed(_format_error(error)) from error  # other arguments would fail as well
    except (Conflict, Unavailable) as error:
        # Not sent to the model, which would take a lost lease or a missing database for the result of its call.
        raise RunStopped(error) from error


def _format_error(error: BoughError) -> str:
    known_names = error.details.get("known")
    suffix = f"; known: {', '.join(map(str, known_names))}" if known_names else ""
    hint = f"; {error.hint}" if error.hint else ""
    return f"{error.message}{hint}{suffix}"
