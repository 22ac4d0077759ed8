"""The MCP tools: their arguments, their descriptions, and the methods of `McpConversations` that they call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mcp_types import Tool, ToolAnnotations

from bough.server.mcp.arguments import (
    ApplyFilesArguments,
    CompareArguments,
    DecideArguments,
    DelegateArguments,
    DiffFilesArguments,
    ForkArguments,
    ListArguments,
    ListFilesArguments,
    ReadFileArguments,
    RestoreFilesArguments,
    RunArguments,
    SendArguments,
    StartArguments,
    TaskArguments,
    ToolArguments,
    TurnsArguments,
)
from bough.server.mcp.conversations import McpConversations, Progress
from bough.types import JsonObject

DELEGATE = "delegate"
_MAX_LISTED_AGENTS = 50


@dataclass(frozen=True)
class ServedTool:
    """A tool of the MCP server.

    Attributes:
        method: The name of the method of `McpConversations` that it calls.
        description: What it changes; never a text of a conversation.
        reads_only: Whether it changes nothing.
    """

    name: str
    arguments: type[ToolArguments]
    method: str
    description: str
    reads_only: bool = False

    async def call(
        self, conversations: McpConversations[Any], arguments: ToolArguments, progress: Progress
    ) -> JsonObject:
        """Call the tool, and return its result."""
        return await getattr(conversations, self.method)(arguments, progress)

    def declare(self, agents: Sequence[str] = ()) -> Tool:
        """Return the description of the tool that clients get.

        Args:
            agents: The agents that `delegate` accepts; the schema lists the first 50.
        """
        schema = self.arguments.model_json_schema()
        if self.name == DELEGATE and agents:
            schema["properties"]["agent"]["enum"] = list(agents)[:_MAX_LISTED_AGENTS]
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
          "Start a conversation. With a message, its agent runs until it has answered, and may change files of the "
          "workspace as far as its rules allow."),
    ServedTool("send_message", SendArguments, "send",
          "Append a message to a conversation and run its agent until it has answered."),
    ServedTool("run_conversation", RunArguments, "run",
          "Continue a conversation that was paused, interrupted or approved."),
    ServedTool("fork_conversation", ForkArguments, "fork",
          "Start a new conversation that shares the events up to a point. The source is not changed."),
    ServedTool("compare_conversations", CompareArguments, "compare",
          "Return what two conversations share, and where they diverge. Changes nothing.", reads_only=True),
    ServedTool("list_conversations", ListArguments, "list",
          "List conversations, most recently updated first. Changes nothing.", reads_only=True),
    ServedTool("list_turns", TurnsArguments, "turns",
          "Return what was said, called and answered in a conversation, turn by turn. Changes nothing.",
          reads_only=True),
    ServedTool("list_files", ListFilesArguments, "list_files",
          "List the files of a conversation's workspace as they were at an event. Changes nothing.", reads_only=True),
    ServedTool("read_file", ReadFileArguments, "read_file",
          "Return the content of a file as it was at an event. Changes nothing.", reads_only=True),
    ServedTool("diff_files", DiffFilesArguments, "diff_files",
          "Return what changed in the files between two events, with a patch. Changes nothing.", reads_only=True),
    ServedTool("restore_files", RestoreFilesArguments, "restore_files",
          "Take back what a conversation did to its files after an event. What others changed stays."),
    ServedTool("apply_files", ApplyFilesArguments, "apply_files",
          "Bring what another conversation did to its files, for example a fork, into the files of a conversation."),
    ServedTool("decide", DecideArguments, "decide",
          "Approve, reject or answer a tool call that waits for a person, and continue the run."),
    ServedTool(DELEGATE, DelegateArguments, "delegate",
          "Delegate work to a named agent, as a task in a new conversation. It may change files of its workspace as "
          "far as its rules allow."),
    ServedTool("get_task", TaskArguments, "get_task",
          "Return the state of a task, and its result. Changes nothing.", reads_only=True),
    ServedTool("cancel_task", TaskArguments, "cancel_task",
          "Cancel a task and the tasks that it started."),
)  # fmt: skip

TOOLS: Mapping[str, ServedTool] = {tool.name: tool for tool in _ALL}
"""All tools, by name."""
