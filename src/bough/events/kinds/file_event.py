"""Events about the files of a conversation's workspace."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from bough.events.kinds.event import BaseEvent
from bough.types import JsonObject


class RulesChanged(BaseEvent):
    """Files with rules for agents changed during a run. Files with these digests are ignored until a person agrees.

    Attributes:
        paths: Relative to the workspace; empty if the digests were inherited from another conversation.
        hashes: sha256 of each file, hexadecimal, in the order of `paths`.
    """

    kind: Literal["RulesChanged"] = "RulesChanged"
    paths: tuple[str, ...]
    hashes: tuple[str, ...]


class FilesKept(BaseEvent):
    """A snapshot of the workspace's files was stored, or could not be. Never shown to the model.

    Attributes:
        tree: Digest of the stored tree; None if nothing was stored, with the `reason`.
        before: Digest of the previous tree, whoever stored it.
        of: For `restore` `{"at"}`; for `apply` `{"conversation", "start", "stop"}`.
        files: Number of files in the tree; `bytes` is their size.
        added: Number of files added since `before`; `changed` and `removed` likewise.
        paths: The first of these files, with secrets masked.
        skipped: Newly omitted paths, each with the reason.
    """

    kind: Literal["FilesKept"] = "FilesKept"
    tree: str | None
    before: str | None
    by: Literal["first", "outside", "tool", "restore", "apply", "fork"]
    tool_call_id: str | None = None
    of: JsonObject = Field(default={})
    files: int = 0
    bytes: int = 0
    added: int = 0
    changed: int = 0
    removed: int = 0
    paths: tuple[str, ...] = ()
    skipped: tuple[tuple[str, str], ...] = ()
    skipped_count: int = 0
    unsettled: int = 0
    reason: str = ""
    place: str = ""
    seconds: float = 0.0


class CheckRan(BaseEvent):
    """A command checked the files of a run. Never shown to the model.

    Attributes:
        passed: Whether the exit code was 0.
        stdout: The last 4 KiB, with secrets masked; `stderr` likewise.
        tree: Digest of the checked files.
        session: Session of an attempt; `variant` and `repeat` likewise.
    """

    kind: Literal["CheckRan"] = "CheckRan"
    command: str
    passed: bool
    exit_code: int | None
    timed_out: bool = False
    killed_by: str | None = None
    stdout: str = ""
    stderr: str = ""
    tree: str | None = None
    isolation: str = "none"
    seconds: float = 0.0
    session: str | None = None
    variant: str | None = None
    repeat: int | None = None
