"""The methods for the files of a workspace, which servers do not offer over HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from bough.conversation.fork.file_changes import FileChanges, FileTree
from bough.conversation.fork.files import Conflicts
from bough.conversation.log.turns import Turn
from bough.errors import NotSupported
from bough.events.store import Cut


class RemoteFiles:
    """The methods of `FileMethods`; each raises `NotSupported`. A fork on the server can have the files of its cut."""

    async def files(self, at: Cut | Turn | None = None) -> FileTree:
        """Raise `NotSupported`."""
        _refuse()

    async def diff(
        self, start: Cut | Turn | None = None, stop: Cut | Turn | None = None, *, paths: Sequence[str] = ()
    ) -> FileChanges:
        """Raise `NotSupported`."""
        _refuse()

    async def restore(
        self,
        at: Cut | Turn,
        *,
        paths: Sequence[str] = (),
        exact: bool = False,
        conflicts: Conflicts = "refuse",
        dry_run: bool = False,
    ) -> FileChanges:
        """Raise `NotSupported`."""
        _refuse()

    async def redo(self) -> FileChanges:
        """Raise `NotSupported`."""
        _refuse()

    async def apply(
        self,
        source: Any,
        *,
        start: Cut | Turn | None = None,
        stop: Cut | Turn | None = None,
        paths: Sequence[str] = (),
        conflicts: Conflicts = "refuse",
        dry_run: bool = False,
    ) -> FileChanges:
        """Raise `NotSupported`."""
        _refuse()


def _refuse() -> NoReturn:
    raise NotSupported(
        "past files are not read or restored over HTTP", hint='fork with workspace="copy" to get the files at an event'
    )
