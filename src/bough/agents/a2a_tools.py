"""Remote agents as tools: an agent's card provides name and description of its tool; its answers are data.

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
from bough.cancellation import finish
from bough.connect.a2a import A2AClientExtended, TaskStatus
from bough.effects import find_effect_key
from bough.errors import BoughError, ConnectError
from bough.events.model import TaskEnded, TaskLinked
from bough.types import JsonObject

MAX_CARD_BYTES = 4 << 10
"""Maximum size of a card's text in the prompt."""

_TEXTS = {TaskStatus.COMPLETED: "result", TaskStatus.INPUT_REQUIRED: "question"}
"""The key of the agent's text in the answer, by status; for any other status, the text is an error."""

Report = Callable[[ToolContext, BoughError], Awaitable[None]]


class _RemoteAgent(NamedTuple):
    name: str
    description: str
    client: A2AClientExtended


class RemoteAgents(AbstractToolset[ToolContext]):
    """The tools that ask an agent's remote agents; their cards are read concurrently at the first step.

    An agent that cannot be reached is reported once and omitted; the others work.

    Args:
        clients: Configuration of the agents; this toolset opens its own connections.
        report: Called with the deps and the error of each omitted agent.
    """

    def __init__(self, clients: Sequence[A2AClientExtended], *, report: Report) -> None:
        # New clients: those of the spec are shared by all its conversations, and `aclose` must not close theirs.
        self._clients = tuple(A2AClientExtended(client.config) for client in clients)
        self._report = report
        self._reading = asyncio.Lock()
        self._tools: FunctionToolset[ToolContext] | None = None

    @property
    def id(self) -> str:
        """A name for logs."""
        return "remote-agents"

    async def get_tools(self, ctx: RunContext[ToolContext]) -> dict[str, ToolsetTool[ToolContext]]:
        """Return a tool for each agent that can be reached, in the order of the spec."""
        # Read once and then kept, also without the agents that failed: a tool that appears later would invalidate the
        # provider's cached prefix.
        async with self._reading:
            if self._tools is None:
                self._tools = await self._read_cards(ctx.deps)
        return await self._tools.get_tools(ctx)

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[ToolContext], tool: ToolsetTool[ToolContext]
    ) -> Any:
        """Ask an agent."""
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
            name = _find_free(_slug(str(card.get("name") or client.config.name)), tools)
            tools[name] = _make_tool(_RemoteAgent(name, _describe(card), client))
        return FunctionToolset(list(tools.values()))

    async def _read_card(self, client: A2AClientExtended, deps: ToolContext) -> JsonObject | None:
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
        return await _ask(agent, ctx.deps, ctx.tool_call_id or "", prompt, task_id)

    return Tool(
        ask_agent,
        takes_ctx=True,
        name=agent.name,
        description=agent.description,
        metadata={"idempotent": True, "tasks": True},
    )


async def _ask(agent: _RemoteAgent, deps: ToolContext, call: str, prompt: str, task_id: str | None) -> ToolReturn:
    """Send a prompt and wait until its task ends or asks a question; a call repeated after a crash resumes its task."""
    client, linked_task = agent.client, deps.task_of_call(call)
    task: JsonObject = {"id": linked_task or ""}
    try:
        if linked_task is not None:
            task = await client.poll(linked_task)
        else:
            # A repeated call has the same key, so the peer can recognise the message.
            task = await client.submit(prompt, task_id, message_id=find_effect_key())
            if task["id"]:  # recorded before waiting, so that a crash from here on loses nothing
                await deps.emit(TaskLinked(task_id=task["id"], agent=agent.name, tool_call_id=call))
        status, task = await client.observe(task)
    except asyncio.CancelledError:
        if task["id"] and not deps.leaves_calls_open():  # the next run finds the task
            with suppress(BoughError):
                await finish(client.cancel_task(task["id"]))
        raise
    if task["id"] and status not in (TaskStatus.INPUT_REQUIRED, TaskStatus.TIMEOUT):
        await deps.emit(TaskEnded(task_id=task["id"], state=status.value))
    answer: JsonObject = {"status": status.value, "task_id": task["id"] or None}
    answer[_TEXTS.get(status, "error")] = _read_text(task) or (None if status in _TEXTS else status.value)
    return ToolReturn(answer, metadata={"tasks": [task["id"]] if task["id"] else []})


def _read_text(task: JsonObject) -> Any:
    """Return the result of a task: its artifacts, else its last message; a single data part as data."""
    artifacts = [part for artifact in task.get("artifacts", []) for part in artifact.get("parts", [])]
    status_parts = task.get("status", {}).get("message", {}).get("parts", [])
    # Servers of fasta2a put the last message into the history alone.
    replies = [message for message in task.get("history", []) if message.get("role") == "ROLE_AGENT"]
    parts: list[JsonObject] = artifacts or status_parts or (replies[-1].get("parts", []) if replies else [])
    if len(parts) == 1 and "data" in parts[0]:
        return parts[0]["data"]
    return "\n".join(str(part.get("text") or part.get("data") or part.get("url") or "") for part in parts)


def _describe(card: JsonObject) -> str:
    """Return the tool description of an agent: its card, truncated, and how to answer its questions."""
    skills = [f"- {skill.get('name', '')}: {skill.get('description', '')}" for skill in card.get("skills", [])]
    text = "\n".join([str(card.get("description") or "A remote agent."), *skills])
    cut = text.encode("utf-8", "replace")[:MAX_CARD_BYTES].decode("utf-8", "ignore")
    return f"{cut}\nWhen it answers with a question, call it again with that task_id and the answer as prompt."


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")[:48] or "remote_agent"


def _find_free(name: str, tools: dict[str, Any]) -> str:
    """Return the name, with a number appended if another tool has it."""
    number, candidate = 1, name
    while candidate in tools:
        number += 1
        candidate = f"{name}_{number}"
    return candidate
