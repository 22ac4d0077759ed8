"""Remote agents as tools. A remote agent's card provides the name and description of its tool.

Source: agentic_patterns (`a2a_clients` of an agent).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from pydantic_ai import RunContext
from pydantic_ai.messages import ToolReturn
from pydantic_ai.tools import Tool
from pydantic_ai.toolsets import AbstractToolset, FunctionToolset, ToolsetTool

from bough.agents.context import ToolContext
from bough.agents.writes import WRITES
from bough.cancellation import finish
from bough.connect.a2a import A2AClientExtended, TaskStatus
from bough.effects import find_effect_key
from bough.errors import BoughError, ConnectError
from bough.events.model import TaskEnded, TaskLinked
from bough.types import JsonObject

MAX_CARD_BYTES = 4 << 10
"""Maximum size of the text of a card in a tool description."""

_TEXT_KEYS = {TaskStatus.COMPLETED: "result", TaskStatus.INPUT_REQUIRED: "question"}
"""The key of the remote agent's text in the tool result, by status; `error` for other statuses."""

Report = Callable[[ToolContext, BoughError], Awaitable[None]]


class _RemoteAgent(NamedTuple):
    name: str
    description: str
    client: A2AClientExtended


class RemoteAgents(AbstractToolset[ToolContext]):
    """A tool for each remote agent of an agent. Their cards are read concurrently, at the first step.

    A remote agent that cannot be reached is reported once, and has no tool.

    Args:
        clients: The configuration of the remote agents; this toolset opens its own connections.
        report: Called with the deps and the error of each remote agent that cannot be reached.
    """

    def __init__(self, clients: Sequence[A2AClientExtended], *, report: Report) -> None:
        # New clients: all conversations share the clients of the spec, so `aclose` must not close those.
        self._clients = tuple(A2AClientExtended(client.config) for client in clients)
        self._report = report
        self._lock = asyncio.Lock()
        self._toolset: FunctionToolset[ToolContext] | None = None

    @property
    def id(self) -> str:
        """A name for logs."""
        return "remote-agents"

    async def get_tools(self, ctx: RunContext[ToolContext]) -> dict[str, ToolsetTool[ToolContext]]:
        """Return a tool for each agent that can be reached, in the order of the spec."""
        # Read only once, even if some agents failed: a tool that is added later would invalidate the provider's cached
        # prefix.
        async with self._lock:
            if self._toolset is None:
                self._toolset = await self._read_cards(ctx.deps)
        return await self._toolset.get_tools(ctx)

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[ToolContext], tool: ToolsetTool[ToolContext]
    ) -> Any:
        """Call a tool, which asks its remote agent."""
        return await tool.toolset.call_tool(name, tool_args, ctx, tool)

    async def aclose(self) -> None:
        """Close the connections."""
        for client in self._clients:
            await client.aclose()

    async def _read_cards(self, deps: ToolContext) -> FunctionToolset[ToolContext]:
        cards = await asyncio.gather(*(self._read_card(client, deps) for client in self._clients))
        tools: dict[str, Tool[ToolContext]] = {}
        for client, card in zip(self._clients, cards, strict=True):
            if card is None:
                continue
            name = _make_unique(_make_tool_name(str(card.get("name") or client.config.name)), tools)
            tools[name] = _make_tool(_RemoteAgent(name, _describe_agent(card), client))
        return FunctionToolset(list(tools.values()))

    async def _read_card(self, client: A2AClientExtended, deps: ToolContext) -> JsonObject | None:
        """Return the card of a remote agent; None, after a report, if it cannot be read."""
        try:
            return await client.get_agent_card()
        except BoughError as error:
            await self._report(deps, error)
        except Exception as error:  # noqa: BLE001 - any failure of a peer is reported, and affects no other agent
            message = f"cannot read the card of {client.config.name or client.config.url}: {type(error).__name__}"
            await self._report(deps, ConnectError(message, hint="check the log of that agent"))
        return None


def _make_tool(agent: _RemoteAgent) -> Tool[ToolContext]:
    async def ask_agent(ctx: RunContext[ToolContext], prompt: str, task_id: str | None = None) -> ToolReturn:
        return await _ask_agent(agent, ctx.deps, ctx.tool_call_id or "", prompt, task_id)

    return Tool(
        ask_agent,
        takes_ctx=True,
        name=agent.name,
        description=agent.description,
        metadata={"idempotent": True, "tasks": True, WRITES: False},
    )


async def _ask_agent(
    agent: _RemoteAgent, deps: ToolContext, tool_call_id: str, prompt: str, task_id: str | None
) -> ToolReturn:
    """Send a prompt, and wait until the task ends or asks a question. A repeated call waits for its earlier task."""
    client, linked_task = agent.client, deps.task_of_call(tool_call_id)
    task: JsonObject = {"id": linked_task or ""}
    try:
        if linked_task is not None:
            task = await client.poll(linked_task)
        else:
            # A repeated call has the same key, so the remote agent recognizes the message.
            task = await client.submit(prompt, task_id, message_id=find_effect_key())
            if task["id"]:  # recorded before the wait, so that a crash during it does not lose the task
                await deps.emit(TaskLinked(task_id=task["id"], agent=agent.name, tool_call_id=tool_call_id))
        status, task = await client.observe(task)
    except asyncio.CancelledError:
        if task["id"] and not deps.leaves_calls_open():  # otherwise the next run waits for the task
            with suppress(BoughError):
                await finish(client.cancel_task(task["id"]))
        raise
    if task["id"] and status not in (TaskStatus.INPUT_REQUIRED, TaskStatus.TIMEOUT):
        await deps.emit(TaskEnded(task_id=task["id"], state=status.value))
    result: JsonObject = {"status": status.value, "task_id": task["id"] or None}
    default_text = None if status in _TEXT_KEYS else status.value
    result[_TEXT_KEYS.get(status, "error")] = _read_result(task) or default_text
    return ToolReturn(result, metadata={"tasks": [task["id"]] if task["id"] else []})


def _read_result(task: JsonObject) -> Any:
    """Return the text of a task's artifacts, else of its last message; for a single data part, the data."""
    artifacts = [part for artifact in task.get("artifacts", []) for part in artifact.get("parts", [])]
    status_parts = task.get("status", {}).get("message", {}).get("parts", [])
    # fasta2a servers put the last message only into the history.
    replies = [message for message in task.get("history", []) if message.get("role") == "ROLE_AGENT"]
    parts: list[JsonObject] = artifacts or status_parts or (replies[-1].get("parts", []) if replies else [])
    if len(parts) == 1 and "data" in parts[0]:
        return parts[0]["data"]
    return "\n".join(str(part.get("text") or part.get("data") or part.get("url") or "") for part in parts)


def _describe_agent(card: JsonObject) -> str:
    """Return the tool description of a remote agent: its card, truncated, and how to answer its questions."""
    skills = [f"- {skill.get('name', '')}: {skill.get('description', '')}" for skill in card.get("skills", [])]
    text = "\n".join([str(card.get("description") or "A remote agent."), *skills])
    truncated = text.encode("utf-8", "replace")[:MAX_CARD_BYTES].decode("utf-8", "ignore")
    return f"{truncated}\nIf the result has a question, call this tool again with its task_id and your reply as prompt."


def _make_tool_name(name: str) -> str:
    """Return a name as a valid tool name: lowercase letters, digits and underscores."""
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")[:48] or "remote_agent"


def _make_unique(name: str, tools: dict[str, Any]) -> str:
    """Return a name with a number appended if another tool already has the name."""
    number, candidate = 1, name
    while candidate in tools:
        number += 1
        candidate = f"{name}_{number}"
    return candidate
