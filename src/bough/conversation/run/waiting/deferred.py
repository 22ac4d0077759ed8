"""Waiting calls of PydanticAI tools that require an approval or run elsewhere.

PydanticAI would end its run at such a call, or fail. Here the run ends like any run that waits: parallel calls end
first, the wait is recorded in the log, and the process that continues the run executes or answers the call.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from pydantic_ai import RunContext
from pydantic_ai.exceptions import ApprovalRequired, CallDeferred
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.toolsets import ToolsetTool, WrapperToolset

from bough.agents.context import ToolContext
from bough.agents.delegation_protocol import CallWaits, WaitKind
from bough.conversation.log.state import State, ToolCall
from bough.conversation.log.tool_result import encode_result
from bough.types import JsonObject

_WAIT_KEY = "bough_waits"

_KINDS: dict[str, WaitKind] = {"unapproved": "approval", "external": "external"}


@dataclass
class ApprovedCalls(WrapperToolset[ToolContext]):
    """Tools whose calls are marked as approved if the log has an approval for them."""

    state: State

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[ToolContext], tool: ToolsetTool[ToolContext]
    ) -> Any:
        """Call the tool, with `tool_call_approved` set if the log has an approval of the call."""
        call = self.state.calls.get(ctx.tool_call_id or "")
        if call is not None and call.approved:
            ctx = replace(ctx, tool_call_approved=True)
        return await self.wrapped.call_tool(name, tool_args, ctx, tool)


def pass_to_recorder(tool: ToolDefinition) -> ToolDefinition:
    """Return a deferred tool as a function tool, so that PydanticAI passes its calls to the recorder.

    The recorder calls `find_wait` before it runs the tool.
    """
    kind = _KINDS.get(tool.kind)
    if kind is None:
        return tool
    return replace(tool, kind="function", metadata={**(tool.metadata or {}), _WAIT_KEY: kind})


def find_wait(tool: ToolDefinition, call: ToolCall | None) -> CallWaits | None:
    """Return what a call must wait for, by the kind of its tool; None if the call may run or has an outcome."""
    kind = (tool.metadata or {}).get(_WAIT_KEY)
    if kind is None or (call is not None and call.outcome is not None):
        return None
    if kind == "approval" and call is not None and call.approved:
        return None
    return CallWaits(kind, {}, reason="the tool asks for it" if kind == "approval" else "")


def read_wait(raised: CallWaits | CallDeferred | ApprovalRequired) -> CallWaits:
    """Return what a call must wait for, by the exception that its tool raised."""
    match raised:
        case CallWaits():
            return raised
        case ApprovalRequired():
            return CallWaits("approval", _encode_metadata(raised.metadata), reason="the tool asks for it")
        case _:
            return CallWaits("external", _encode_metadata(raised.metadata))


def describe_wait(call: ToolCallPart, arguments: JsonObject, wait: CallWaits, risk: str | None) -> JsonObject:
    """Return the record of a waiting call for the log."""
    record: JsonObject = {
        "kind": wait.kind,
        "tool": call.tool_name,
        "arguments": arguments,
        "risk": risk,
        "reason": wait.reason,
        "by": "tool",
        "request": wait.request,
    }
    return record if wait.task is None else {**record, "task": wait.task}


def _encode_metadata(metadata: Any) -> JsonObject:
    value: Any = encode_result(metadata or {})
    return value if isinstance(value, dict) else {"_": value}  # pyright: ignore[reportUnknownVariableType]


def release_ended(state: State) -> JsonObject | None:
    """Return the changes of a `StateChanged` that release calls whose task has ended; None if there are none.

    A released call runs again and finds the task that it started.
    """
    still_waiting = {id: call for id, call in state.waiting.items() if not _has_task_ended(state, call)}
    if len(still_waiting) == len(state.waiting):
        return None
    return {"status": "waiting_for_confirmation" if still_waiting else "idle", "waiting": still_waiting}


def _has_task_ended(state: State, call: JsonObject) -> bool:
    link = state.tasks.get(str(call.get("task")))
    return call.get("kind") == "task" and (link is None or link.ended is not None)
