"""The MCP tools for the files of a conversation at an event: list, read, compare, restore, apply."""

from __future__ import annotations

import asyncio
import base64
from abc import ABC, abstractmethod
from contextlib import AbstractAsyncContextManager
from typing import Any
from uuid import UUID

from bough.conversation import AsyncConversation
from bough.conversation.fork.file_changes import FileChanges
from bough.errors import InvalidInput, LimitExceeded
from bough.server.mcp.arguments import (
    ApplyFilesArguments,
    DiffFilesArguments,
    ListFilesArguments,
    ReadFileArguments,
    RestoreFilesArguments,
)
from bough.types import JsonObject

_MAX_BYTES = 256 << 10
"""The largest file that a tool returns, and the longest patch: a client shows both to a model."""


class McpFiles(ABC):
    """The methods that the tools for files call; `progress` is not used, because each is one step."""

    @abstractmethod
    def open_files(self, id: UUID, *, writes: bool) -> AbstractAsyncContextManager[AsyncConversation[Any]]:
        """Open a conversation to read or to change its files. Raises `PermissionDenied` if the client may not."""

    async def list_files(self, arguments: ListFilesArguments, progress: object) -> JsonObject:
        """Return a page of the files at an event."""
        async with self.open_files(arguments.conversation, writes=False) as conversation:
            tree = await conversation.files(arguments.at)
        stop = arguments.start + arguments.limit
        items = [
            {"path": entry.path, "kind": entry.kind, "size": entry.size}
            for entry in tree.entries[arguments.start : stop]
        ]
        return {"items": items, "tree": tree.tree, "next": stop if stop < len(tree.entries) else None}

    async def read_file(self, arguments: ReadFileArguments, progress: object) -> JsonObject:
        """Return the content of a file at an event: `text`, or `base64` if it is not UTF-8."""
        async with self.open_files(arguments.conversation, writes=False) as conversation:
            tree = await conversation.files(arguments.at)
            size = next((entry.size for entry in tree.entries if entry.path == arguments.path), 0)
            if size > _MAX_BYTES:
                raise LimitExceeded(f"the file has {size} bytes", hint=f"a tool returns at most {_MAX_BYTES}")
            content = await asyncio.to_thread(tree.read, arguments.path)
        try:
            return {"text": content.decode()}
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(content).decode()}

    async def diff_files(self, arguments: DiffFilesArguments, progress: object) -> JsonObject:
        """Return which files differ between two events, with a patch."""
        async with self.open_files(arguments.conversation, writes=False) as conversation:
            options: Any = {"own": arguments.own, "paths": arguments.paths}
            return _describe(await conversation.diff(arguments.start, arguments.stop, **options))

    async def restore_files(self, arguments: RestoreFilesArguments, progress: object) -> JsonObject:
        """Undo what a conversation did to its files after an event, or take back the last restore."""
        if arguments.redo == (arguments.at is not None):
            raise InvalidInput("give `at` or `redo`", hint="`redo` brings back what the last restore changed")
        async with self.open_files(arguments.conversation, writes=True) as conversation:
            if arguments.at is None:
                return _describe(await conversation.redo())
            options: Any = arguments.model_dump(include={"paths", "exact", "conflicts", "dry_run"})
            return _describe(await conversation.restore(arguments.at, **options))

    async def apply_files(self, arguments: ApplyFilesArguments, progress: object) -> JsonObject:
        """Apply the changes of another conversation's files to the files of a conversation."""
        options: Any = arguments.model_dump(include={"paths", "conflicts", "dry_run"})
        async with (
            self.open_files(arguments.conversation, writes=True) as conversation,
            self.open_files(arguments.source, writes=False) as source,
        ):
            return _describe(await conversation.apply(source, **options))


def _describe(changes: FileChanges) -> JsonObject:
    if len(changes.patch) <= _MAX_BYTES:
        return {**changes.to_json(), "patch": changes.patch}
    return {**changes.to_json(), "patch": "", "patch_chars": len(changes.patch)}
