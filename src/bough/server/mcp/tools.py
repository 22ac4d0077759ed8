"""The tools: what their arguments are, what they change, and which method of the conversations they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mcp_types import Tool, ToolAnnotations

from bough.server.mcp.arguments import (
    CompareArguments,
    DecideArguments,
    DelegateArguments,
    ForkArguments,
    ListArguments,
    RunArguments,
    SendArguments,
    StartArguments,
    TaskArguments,
    ToolArguments,
)
from bough.server.mcp.conversations import McpConversations, Progress
from bough.types import JsonObject

DELEGATE = "delegate"
_NAMED_AGENTS = 50


@dataclass(frozen=True)
class ServedTool:
    """A tool that is served.

    Attributes:
        description: What it changes; never a text of a conversation.
        reads_only: Whether it changes nothing.
        method: What does it, of `McpConversations`.
    """

    name: str
    arguments: type[ToolArguments]
    method: str
    description: str
    reads_only: bool = False

    async def call(
        self, conversations: McpConversations[Any], arguments: ToolArguments, progress: Progress
    ) -> JsonObject:
        """Do it, and return its result."""
        return await getattr(conversations, self.method)(arguments, progress)

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


_ALL = (
    ServedTool("start_conversation", StartArguments, "start",
          "Start a conversation; with a message, its agent runs until it has answered, and may change files of the "
          "workspace as its rules allow."),
    ServedTool("send_message", SendArguments, "send",
          "Append a message to a conversation and run its agent until it has answered."),
    ServedTool("run_conversation", RunArguments, "run",
          "Continue with a conversation that was paused, interrupted or approved."),
    ServedTool("fork_conversation", ForkArguments, "fork",
          "Make a new conversation that shares the events up to a point; the source is not changed."),
    ServedTool("compare_conversations", CompareArguments, "compare",
          "Say what two conversations share and where they part. Changes nothing.", reads_only=True),
    ServedTool("list_conversations", ListArguments, "list",
          "List conversations, most recently updated first. Changes nothing.", reads_only=True),
    ServedTool("decide", DecideArguments, "decide",
          "Approve or reject a tool call that waits for a person, and continue with the run."),
    ServedTool(DELEGATE, DelegateArguments, "delegate",
          "Have a named agent do something in a conversation of its own, as a task; it may change files of its "
          "workspace as its rules allow."),
    ServedTool("get_task", TaskArguments, "get_task",
          "Say where a task stands, and its result. Changes nothing.", reads_only=True),
    ServedTool("cancel_task", TaskArguments, "cancel_task",
          "Cancel a task and those it started."),
)  # fmt: skip

TOOLS: Mapping[str, ServedTool] = {tool.name: tool for tool in _ALL}
"""All that are served, by name."""
