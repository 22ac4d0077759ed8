"""Calls that wait for somebody: how PydanticAI's tools that need an approval, or run elsewhere, come to that.

PydanticAI would end its run with such a call, or fail. Here the run ends as every run that waits: parallel calls have
their results first, the wait is in the log, and any process that continues runs or answers the call.
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

_WAITS = "bough_waits"

_KINDS: dict[str, WaitKind] = {"unapproved": "approval", "external": "external"}


@dataclass
class ApprovedCalls(WrapperToolset[ToolContext]):
    """Tools that are told whether their call was approved, by the log."""

    state: State

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[ToolContext], tool: ToolsetTool[ToolContext]
    ) -> Any:
        """Call the tool."""
        call = self.state.calls.get(ctx.tool_call_id or "")
        if call is not None and call.approved:
            ctx = replace(ctx, tool_call_approved=True)
        return await self.wrapped.call_tool(name, tool_args, ctx, tool)


def run_here(tool: ToolDefinition) -> ToolDefinition:
    """Return the tool as one that PydanticAI hands to the recorder when it is called, which stops it if it has to."""
    if (kind := _KINDS.get(tool.kind)) is None:
        return tool
    return replace(tool, kind="function", metadata={**(tool.metadata or {}), _WAITS: kind})


def find_wait(tool: ToolDefinition, call: ToolCall | None) -> CallWaits | None:
    """Return why a call must not run yet, by what its tool says; None where it may run or has an outcome."""
    kind = (tool.metadata or {}).get(_WAITS)
    if kind is None or (call is not None and call.outcome is not None):
        return None
    if kind == "approval" and call is not None and call.approved:
        return None
    return CallWaits(kind, {}, reason="the tool asks for it" if kind == "approval" else "")


def wait_of(raised: CallWaits | CallDeferred | ApprovalRequired) -> CallWaits:
    """Return the wait that a tool raised."""
    match raised:
        case CallWaits():
            return raised
        case ApprovalRequired():
            return CallWaits("approval", _metadata(raised.metadata), reason="the tool asks for it")
        case _:
            return CallWaits("external", _metadata(raised.metadata))


def describe_wait(call: ToolCallPart, arguments: JsonObject, wait: CallWaits, risk: str | None) -> JsonObject:
    """Return what the log says of a call that waits for somebody."""
    described: JsonObject = {
        "kind": wait.kind,
        "tool": call.tool_name,
        "arguments": arguments,
        "risk": risk,
        "reason": wait.reason,
        "by": "tool",
        "request": wait.request,
    }
    return described if wait.task is None else {**described, "task": wait.task}


def _metadata(metadata: Any) -> JsonObject:
    value: Any = encode_result(metadata or {})
    return value if isinstance(value, dict) else {"_": value}  # pyright: ignore[reportUnknownVariableType]


def release_ended(state: State) -> JsonObject | None:
    """Return what a `StateChanged` says of calls that continue because their task has ended; None where none does.

    They run again and find the task that they had started.
    """
    still_waiting = {id: call for id, call in state.waiting.items() if not _is_over(state, call)}
    if len(still_waiting) == len(state.waiting):
        return None
    return {"status": "waiting_for_confirmation" if still_waiting else "idle", "waiting": still_waiting}


def _is_over(state: State, call: JsonObject) -> bool:
    link = state.tasks.get(str(call.get("task")))
    return call.get("kind") == "task" and (link is None or link.ended is not None)
