"""Events of skills: activated, skipped, and scripts run."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from bough.events.kinds.event import BaseEvent


class SkillActivated(BaseEvent):
    """A skill's text entered the conversation.

    Attributes:
        trigger: What activated it: `keyword`, `task`, `path`, `always`, `slash` or `tool`.
        keyword: The matching word, as the message spelled it.
        content_hash: sha256 of the skill's text, hexadecimal.
        rendered: The text as the model sees it.
        allowed_tools: Tools that may be called while the skill is in use; None if it does not restrict them.
        tree: Digest of the skill's folder at activation. Its scripts and resources use this snapshot.
    """

    VERSION: ClassVar[int] = 2

    kind: Literal["SkillActivated"] = "SkillActivated"
    schema_version: int = 2
    name: str
    content_hash: str
    trigger: Literal["keyword", "task", "path", "always", "slash", "tool"]
    keyword: str | None = None
    rendered: str = ""
    inputs: dict[str, str] = Field(default={})
    allowed_tools: tuple[str, ...] | None = None
    tree: str = ""


class SkillSkipped(BaseEvent):
    """A skill could not be activated; the run continues without it.

    Attributes:
        code: Error code, for example `limit_exceeded`.
    """

    kind: Literal["SkillSkipped"] = "SkillSkipped"
    name: str
    code: str
    message: str
    hint: str = ""


class ScriptRan(BaseEvent):
    """A skill's script ran in an executor. Output sizes are in bytes, before any truncation."""

    kind: Literal["ScriptRan"] = "ScriptRan"
    tool_call_id: str | None = None
    skill: str
    script: str
    argv: tuple[str, ...] = ()
    status: str = "success"
    exit_code: int | None = None
    signal: int | None = None
    timed_out: bool = False
    killed_by: str | None = None
    isolation: str = "none"
    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0
    max_rss_bytes: int = 0
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    output_files: tuple[str, ...] = ()
    error: str | None = None
