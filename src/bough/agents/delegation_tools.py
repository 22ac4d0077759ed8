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
from bough.errors import BoughError, Conflict, LimitExceeded, NotFound, Unavailable
from bough.types import Json, JsonObject

MAX_ENUM = 50
"""Up to this number, sub-agents are an enum in the tools' schema; otherwise the error for a wrong name lists them."""

SHARED_BYTES = 256 << 10
"""Total size of the results in one answer of `wait`."""

WHOLE_BYTES = (1 << 20) - (16 << 10)
"""Size up to which `get_task_result` returns a whole result; a log entry has 1 MiB, with 16 KiB for other fields."""

MAX_WAIT_SECONDS = 3600.0

Run = RunContext[ToolContext]


class ChildFailed(ToolFailed):
    """A child ended without a result.

    Attributes:
        tasks: Ids of the tasks whose end the text reports.
    """

    def __init__(self, message: str, *, tasks: tuple[str, ...]) -> None:
        super().__init__(message)
        self.tasks = tasks


async def submit_task(ctx: Run, agent_name: str, prompt: str) -> JsonObject:
    """Start work of another agent in the background and continue.

    For independent work: start all of it first, then call `wait`. The agent sees nothing but the prompt.
    """
    with _answer_errors():
        child = await _delegation(ctx).start(_asking(ctx), agent_name, prompt, background=True)
    return {"task_id": child.task_id, "agent": child.agent, "state": child.state}


async def delegate(ctx: Run, agent_name: str, prompt: str) -> ToolReturn:
    """Give work to another agent and wait for its answer.

    For one answer that is needed now. The agent sees nothing but the prompt: put everything it needs into it.
    """
    asking, delegation = _asking(ctx), _delegation(ctx)
    with _answer_errors():
        child = await delegation.start(asking, agent_name, prompt, background=False)
        if not child.is_ended and not child.is_asking:
            (child,) = await delegation.wait(asking, {child.task_id})
    if child.is_asking:
        # The call stays open: it is answered when the child ends, however long the person takes.
        raise _wait_for_answer(child)
    if child.state == "completed":
        value = child.result if child.data is None else child.data
        return _report(value if child.workspace is None else {"result": value, **_name_folder(child)}, (child,))
    failure: JsonObject = {
        "task_id": child.task_id,
        "state": child.state,
        "code": child.code,
        "error": child.error,
        "partial": child.result,
        **_name_folder(child),
    }
    raise ChildFailed(json.dumps(failure, ensure_ascii=False), tasks=(child.task_id,))


async def wait(ctx: Run, timeout: float = 120) -> ToolReturn:
    """Wait until a background task ends, and return the state of all of them.

    Returns as soon as a task ends, or after `timeout` seconds. Allow the time the work may take; do not call it
    repeatedly with short timeouts. Once only tasks that wait for an answer are left, the person is asked.
    """
    if not 0 <= timeout <= MAX_WAIT_SECONDS:
        raise ModelRetry(f"timeout must be between 0 and {MAX_WAIT_SECONDS:g} seconds")
    asking, delegation = _asking(ctx), _delegation(ctx)
    start = time.monotonic()
    with _answer_errors():
        children = await delegation.wait(asking, None, timeout)
        running = [child for child in children if not child.is_ended and not child.is_asking]
        if running and len(running) < len(children) and not any(child.is_ended for child in children):
            # A task that asks ends the first wait at once, every time: wait again, for the running ones only.
            remaining = asking._replace(untold=tuple(child.task_id for child in running))
            others = await delegation.wait(remaining, None, max(0.0, timeout - (time.monotonic() - start)))
            children = (*(child for child in children if child.is_asking), *others)
    ended = [child for child in children if child.is_ended]
    waiting = [child for child in children if child.is_asking]
    running = [child for child in children if not child.is_ended and not child.is_asking]
    if waiting and not ended and not running:
        raise _wait_for_answer(waiting[0])
    share = SHARED_BYTES // max(len(ended) + len(waiting), 1)
    answer: JsonObject = {
        "finished": [describe_child(child, max_bytes=share) for child in ended],
        "waiting_for_answer": [describe_child(child, max_bytes=share) for child in waiting],
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
    return _report(answer, ended)


async def get_task_result(ctx: Run, task_id: str) -> ToolReturn:
    """Return the state of a task, with its whole result. `task_id` may be its first 8 characters."""
    with _answer_errors():
        child = await _delegation(ctx).result(_asking(ctx), task_id)
    return _report(describe_child(child, max_bytes=WHOLE_BYTES), (child,))


async def cancel_task(ctx: Run, task_id: str) -> ToolReturn:
    """Cancel a task whose result is no longer needed. `task_id` may be its first 8 characters."""
    with _answer_errors():
        child = await _delegation(ctx).cancel(_asking(ctx), task_id)
    return _report(describe_child(child, max_bytes=WHOLE_BYTES), (child,))


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
    """Return the tools of an agent with these sub-agents.

    All of them may run again after a crash: a repeated call finds the task it started before.
    """
    tools: list[Tool[ToolContext]] = []
    for function in DELEGATION_TOOLS:
        tool: Tool[ToolContext] = Tool(function, takes_ctx=True, metadata={"idempotent": True, "tasks": True})
        if agent_name := tool.function_schema.json_schema["properties"].get("agent_name"):
            agent_name |= {"enum": list(agents)} if len(agents) <= MAX_ENUM else {}
        tools.append(tool)
    return FunctionToolset(tools)


def ask_toolset() -> FunctionToolset[ToolContext]:
    """Return the toolset with `ask`, which asks the agent or person that started the work."""
    return FunctionToolset([Tool(ask, takes_ctx=True, metadata={"idempotent": True})])


def describe_child(child: Child, *, max_bytes: int) -> JsonObject:
    """Return a task's state for the model: its result, its error, or its request.

    Args:
        max_bytes: Longer texts are cut in the middle, with a note of their size.
    """
    description: JsonObject = {"task_id": child.task_id, "agent": child.agent, "state": child.state}
    if child.state == "completed":
        description["result"] = _cut(child.result if child.data is None else child.data, max_bytes)
    elif child.is_ended:
        description |= {"code": child.code, "error": _cut(child.error, max_bytes // 4)}
        if child.result:
            description["partial"] = _cut(child.result, max_bytes // 2)
    elif child.is_asking:
        description["request"] = child.request
    else:
        description |= {"seconds": round(child.seconds, 1), "last": child.last}
    description |= _name_folder(child)
    description["usage"] = child.usage.model_dump(mode="json", exclude_none=True)
    return description


def _wait_for_answer(child: Child) -> CallWaits:
    """Return the exception that keeps a call open until the task of a child that asks has ended."""
    return CallWaits("task", {"task_id": child.task_id, "request": child.request}, task=child.task_id)


def _name_folder(child: Child) -> JsonObject:
    """Return the child's folder unless it is the parent's; the model must know it, as no file is merged back."""
    return {} if child.workspace is None else {"workspace": child.workspace}


def _report(value: Json, children: Sequence[Child]) -> ToolReturn:
    """Return a result with the ids of the ended tasks in its metadata, so that no end is reported twice."""
    ended = [child.task_id for child in children if child.is_ended]
    return ToolReturn(value, metadata={"tasks": ended})


def _cut(value: Json, max_bytes: int) -> Json:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    data = text.encode("utf-8", "replace")
    if len(data) <= max_bytes:
        return value
    half = max_bytes // 2
    head, tail = data[:half].decode("utf-8", "ignore"), data[-half:].decode("utf-8", "ignore")
    return f"{head}\n[… {len(data) - 2 * half:,} of {len(data):,} bytes left out …]\n{tail}"


def _asking(ctx: Run) -> Asking:
    deps = ctx.deps
    if deps.conversation is None:
        raise Unavailable("delegation needs a conversation", hint="run the agent in a conversation")
    call = ctx.tool_call_id or ""
    return Asking(
        deps.conversation,
        call,
        deps.lease,
        deps.rules(),
        deps.bounds(),
        deps.untold_tasks(),
        deps.readonly,
        frozenset(deps.changed_rules()),
    )


def _delegation(ctx: Run) -> Delegation:
    if ctx.deps.delegation is None:
        raise Unavailable("no broker runs sub-agents here", hint="use OrchestratorAgent, or pass broker=")
    return ctx.deps.delegation


@contextmanager
def _answer_errors() -> Generator[None]:
    """Convert the errors of a broker into errors for the model or the run."""
    try:
        yield
    except NotFound as error:
        raise ModelRetry(_text(error)) from error  # a wrong name, which the model can correct
    except LimitExceeded as error:
        raise ToolFailed(_text(error)) from error  # no other argument would help
    except (Conflict, Unavailable) as error:
        # Not the model's concern: it would take a lost lease or a missing database for the result of its call.
        raise RunStopped(error) from error


def _text(error: BoughError) -> str:
    known_names = error.details.get("known")
    suffix = f"; known: {', '.join(map(str, known_names))}" if known_names else ""
    return f"{error.message}{f'; {error.hint}' if error.hint else ''}{suffix}"
