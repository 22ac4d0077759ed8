"""Conversion of the steps of a conversation to the session updates of ACP."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, cast

from acp import schema

from bough.guard.request import CODE_NAMES, COMMAND_NAMES, PATH_NAMES, join_command
from bough.server.live.steps import CallStep, ResultStep, Step, TextStep, ThinkingStep
from bough.types import Json, JsonObject

Update: TypeAlias = schema.AgentMessageChunk | schema.AgentThoughtChunk | schema.ToolCallStart | schema.ToolCallProgress
ToolKind: TypeAlias = Literal["read", "edit", "search", "execute", "other"]

_KINDS: Final[Mapping[str, ToolKind]] = {
    "read_file": "read",
    "load_skill": "read",
    "read_skill_file": "read",
    "write_file": "edit",
    "edit_file": "edit",
    "list_files": "search",
    "search_files": "search",
    "list_skills": "search",
    "search_skills": "search",
    "run_command": "execute",
    "python": "execute",
    "run_skill_script": "execute",
}
_TITLE_CHARACTERS: Final = 100
_SHOWN_CHARACTERS: Final = 20_000
"""Maximum length of a result in an editor; the log has the complete result."""


def convert_step(step: Step, workspace: Path, calls: set[str]) -> Iterator[Update]:
    """Yield the updates of a step; none for a step that ACP shows otherwise, or not at all.

    Args:
        calls: Ids of the calls that were sent to the client. Calls of the step are added.
    """
    match step:
        case TextStep(response=response, text=text):
            content = schema.TextContentBlock(type="text", text=text)
            yield schema.AgentMessageChunk(session_update="agent_message_chunk", content=content, message_id=response)
        case ThinkingStep(response=response, text=text):
            content = schema.TextContentBlock(type="text", text=text)
            yield schema.AgentThoughtChunk(session_update="agent_thought_chunk", content=content, message_id=response)
        case CallStep(id=id, is_running=is_running):
            fields = describe_call(step.tool, step.arguments, workspace)
            status = "in_progress" if is_running else "pending"
            if id in calls:
                yield schema.ToolCallProgress(
                    session_update="tool_call_update", tool_call_id=id, status=status, **fields
                )
            else:
                yield schema.ToolCallStart(session_update="tool_call", tool_call_id=id, status=status, **fields)
            calls.add(id)
        case ResultStep(call=id) if id in calls:
            yield schema.ToolCallProgress(
                session_update="tool_call_update",
                tool_call_id=id,
                status="completed" if step.outcome == "returned" else "failed",
                content=[_text_content(show_value(step.value))],
                raw_output=step.value,
            )
        case _:
            return


def describe_call(tool: str, arguments: JsonObject, workspace: Path) -> dict[str, Any]:
    """Return the title, kind, places and content of a call, as fields of a tool call of ACP."""
    fields: dict[str, Any] = {
        "title": name_call(tool, arguments),
        "kind": _KINDS.get(tool, "other"),
        "raw_input": arguments,
    }
    path = arguments.get("path")
    if isinstance(path, str) and tool in _KINDS:
        fields["locations"] = [schema.ToolCallLocation(path=str(workspace / path))]
        if (diff := _show_change(tool, arguments, workspace / path)) is not None:
            fields["content"] = [diff]
    return fields


def name_call(tool: str, arguments: JsonObject) -> str:
    """Return a call on one line: the tool, and its command or path."""
    names = (*COMMAND_NAMES, "script_path", "expression", *CODE_NAMES, *PATH_NAMES)
    subject = next((arguments[name] for name in names if name in arguments), None)
    text = "" if subject is None else join_command(subject)
    title = " ".join(f"{tool} {text}".split())
    return title if len(title) <= _TITLE_CHARACTERS else title[: _TITLE_CHARACTERS - 1] + "…"


def show_value(value: Json) -> str:
    """Return the result of a tool as text, with the output of a command as it was written."""
    if isinstance(value, dict):
        result = cast("JsonObject", value)
        streams = [str(result[name]) for name in ("stdout", "stderr") if result.get(name)]
        if streams:
            return _cut("\n".join(streams))
    return _cut(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2))


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}\n… {len(text)} characters"


def _text_content(text: str) -> schema.ContentToolCallContent:
    return schema.ContentToolCallContent(type="content", content=schema.TextContentBlock(type="text", text=text))


def _show_change(tool: str, arguments: JsonObject, path: Path) -> schema.FileEditToolCallContent | None:
    """Return the change that a call makes to a file; None if it changes no file or lacks arguments."""
    names = {"write_file": (None, "content"), "edit_file": ("old", "new")}.get(tool)
    if names is None:
        return None
    old, new = (arguments.get(name) if name else None for name in names)
    if not isinstance(new, str) or not (old is None or isinstance(old, str)):
        return None
    return schema.FileEditToolCallContent(type="diff", path=str(path), old_text=old, new_text=new)
