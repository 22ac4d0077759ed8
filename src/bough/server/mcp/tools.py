"""The tools: what their arguments are, what they change, and which method of the conversations they are."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar
from uuid import UUID

from mcp_types import Tool, ToolAnnotations
from pydantic import BaseModel, ConfigDict, Field

from bough.conversation import ForkOverrides
from bough.events.record import Status
from bough.server.mcp.conversations import McpConversations, Progress, cut_of
from bough.types import JsonObject

DELEGATE = "delegate"
_NAMED_AGENTS = 50


class ToolArguments(BaseModel):
    """Arguments of a tool; unknown ones are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class StartArguments(ToolArguments):
    """Of `start_conversation`."""

    message: str | None = None
    agent: str | None = Field(default=None, description="An agent of config.yaml; the default one where left out.")
    title: str | None = None
    tags: dict[str, str] = Field(default_factory=dict[str, str])
    workspace: str = Field(default=".", description="The working folder of its tools, on the server's machine.")
    run: bool = True


class SendArguments(ToolArguments):
    """Of `send_message`."""

    conversation: UUID
    message: str
    run: bool = True


class RunArguments(ToolArguments):
    """Of `run_conversation`."""

    conversation: UUID


class ForkArguments(ToolArguments):
    """Of `fork_conversation`."""

    conversation: UUID
    event: UUID | None = Field(default=None, description="The last event that the fork keeps.")
    at: int | None = Field(default=None, ge=0, description="How many events the fork keeps; all where left out.")
    message: str | None = None
    title: str | None = None
    model: str | None = None
    system_prompt: str | None = None
    reason: str | None = None
    run: bool = False


class CompareArguments(ToolArguments):
    """Of `compare_conversations`."""

    a: UUID
    b: UUID


class ListArguments(ToolArguments):
    """Of `list_conversations`."""

    text: str | None = Field(default=None, description="Occurs in the title.")
    status: Status | None = None
    limit: int = Field(default=20, ge=1, le=100)
    cursor: str | None = None


class DecideArguments(ToolArguments):
    """Of `decide`."""

    conversation: UUID
    call: str = Field(description="The id of a waiting call.")
    decision: Literal["approve", "reject"]
    reason: str = Field(default="", description="Why it is rejected; the model is told.")


class DelegateArguments(ToolArguments):
    """Of `delegate`."""

    agent: str
    prompt: str
    wait: bool = Field(default=True, description="Answer when it has ended; else at once, and ask by `get_task`.")


class TaskArguments(ToolArguments):
    """Of `get_task` and `cancel_task`."""

    task: UUID


async def _start(to: McpConversations, given: StartArguments, progress: Progress) -> JsonObject:
    return await to.start(
        given.message,
        agent=given.agent,
        title=given.title,
        tags=given.tags,
        workspace=given.workspace,
        run=given.run,
        progress=progress,
    )


async def _send(to: McpConversations, given: SendArguments, progress: Progress) -> JsonObject:
    return await to.send(given.conversation, given.message, run=given.run, progress=progress)


async def _run(to: McpConversations, given: RunArguments, progress: Progress) -> JsonObject:
    return await to.send(given.conversation, None, run=True, progress=progress)


async def _fork(to: McpConversations, given: ForkArguments, progress: Progress) -> JsonObject:
    overrides = ForkOverrides()
    if given.model is not None:
        overrides["model"] = given.model
    if given.system_prompt is not None:
        overrides["system_prompt"] = given.system_prompt
    return await to.fork(
        given.conversation,
        at=cut_of(given.at, given.event),
        message=given.message,
        title=given.title,
        overrides=overrides,
        reason=given.reason,
        run=given.run,
        progress=progress,
    )


async def _compare(to: McpConversations, given: CompareArguments, progress: Progress) -> JsonObject:
    return await to.compare(given.a, given.b)


async def _list(to: McpConversations, given: ListArguments, progress: Progress) -> JsonObject:
    return await to.list(text=given.text, status=given.status, limit=given.limit, cursor=given.cursor)


async def _decide(to: McpConversations, given: DecideArguments, progress: Progress) -> JsonObject:
    return await to.decide(
        given.conversation,
        given.call,
        approve=given.decision == "approve",
        reason=given.reason,
        run=True,
        progress=progress,
    )


async def _delegate(to: McpConversations, given: DelegateArguments, progress: Progress) -> JsonObject:
    return await to.delegate(given.agent, given.prompt, wait=given.wait, progress=progress)


async def _get_task(to: McpConversations, given: TaskArguments, progress: Progress) -> JsonObject:
    return await to.get_task(given.task)


async def _cancel_task(to: McpConversations, given: TaskArguments, progress: Progress) -> JsonObject:
    return await to.cancel_task(given.task)


@dataclass(frozen=True, kw_only=True)
class ServedTool:
    """A tool that is served.

    Attributes:
        description: What it changes; never a text of a conversation.
        reads_only: Whether it changes nothing.
    """

    name: str
    description: str
    arguments: type[ToolArguments]
    call: Callable[[McpConversations, Any, Progress], Awaitable[JsonObject]]
    reads_only: bool = False

    def declare(self, agents: Sequence[str] = ()) -> Tool:
        """Return it as a client is told of it.

        Args:
            agents: What `delegate` may be given; the first 50 are named.
        """
        schema = self.arguments.model_json_schema()
        if self.name == DELEGATE and agents:
            schema["properties"]["agent"]["enum"] = list(agents)[:_NAMED_AGENTS]
        return Tool(
            name=self.name,
            description=self.description,
            input_schema=schema,
            annotations=ToolAnnotations(
                read_only_hint=self.reads_only,
                destructive_hint=not self.reads_only,
                idempotent_hint=self.reads_only,
                open_world_hint=not self.reads_only,
            ),
        )


_A = TypeVar("_A", bound=ToolArguments)


def _tool(
    name: str,
    arguments: type[_A],
    call: Callable[[McpConversations, _A, Progress], Awaitable[JsonObject]],
    description: str,
    *,
    reads_only: bool = False,
) -> ServedTool:
    return ServedTool(name=name, description=description, arguments=arguments, call=call, reads_only=reads_only)


_ALL = (
    _tool("start_conversation", StartArguments, _start,
          "Start a conversation; with a message, its agent runs until it has answered, and may change files of the "
          "workspace as its rules allow."),
    _tool("send_message", SendArguments, _send,
          "Append a message to a conversation and run its agent until it has answered."),
    _tool("run_conversation", RunArguments, _run,
          "Continue with a conversation that was paused, interrupted or approved."),
    _tool("fork_conversation", ForkArguments, _fork,
          "Make a new conversation that shares the events up to a point; the source is not changed."),
    _tool("compare_conversations", CompareArguments, _compare,
          "Say what two conversations share and where they part. Changes nothing.", reads_only=True),
    _tool("list_conversations", ListArguments, _list,
          "List conversations, most recently updated first. Changes nothing.", reads_only=True),
    _tool("decide", DecideArguments, _decide,
          "Approve or reject a tool call that waits for a person, and continue with the run."),
    _tool(DELEGATE, DelegateArguments, _delegate,
          "Have a named agent do something in a conversation of its own, as a task; it may change files of its "
          "workspace as its rules allow."),
    _tool("get_task", TaskArguments, _get_task,
          "Say where a task stands, and its result. Changes nothing.", reads_only=True),
    _tool("cancel_task", TaskArguments, _cancel_task,
          "Cancel a task and those it started."),
)  # fmt: skip

TOOLS: Mapping[str, ServedTool] = {tool.name: tool for tool in _ALL}
"""All that are served, by name."""
