"""The files of conversations at past events: reading them, and bringing them back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from bough.conversation.file_store import open_file_store, read_bounds
from bough.conversation.fork.file_changes import FileChanges, KeptEntry
from bough.conversation.fork.files import Conflicts, WorkspaceFolder
from bough.conversation.fork.past_files import PastWorkspace
from bough.conversation.log.journal import Journal
from bough.conversation.log.state import Fold
from bough.errors import Conflict, Unavailable
from bough.execution.base import NO_GUARDS
from bough.server.access import Access
from bough.server.conversations.conversation import open_conversation

_LOOK_SECONDS = 20.0
"""How long a look at the present files may take, because a request waits for it."""


class ListedFiles(NamedTuple):
    """Files of a tree from the one at `start` on, and the number of the next one; None at the end."""

    tree: str
    entries: Sequence[KeptEntry]
    next_start: int | None


@dataclass(frozen=True, kw_only=True)
class FileRestore:
    """What a request restores or applies; see `AsyncConversation.restore` and `apply`."""

    paths: tuple[str, ...] = ()
    conflicts: Conflicts = "refuse"
    dry_run: bool = False


@asynccontextmanager
async def open_past_workspace(access: Access, id: UUID) -> AsyncGenerator[PastWorkspace]:
    """Yield a conversation's workspace at its events, to read. The conversation itself is not opened.

    Raises:
        NotFound: The conversation does not exist, or belongs to another tenant.
        PermissionDenied: The workspace has become a link that leaves the tenant's folder.
        Unavailable: The store keeps no files.
    """
    services = access.services
    record = await access.store.get(id)
    state = await services.states.state_of(record)
    services.rules.require_workspace(record.owner, state.workspace)
    file_store = open_file_store(access.store, services.settings)
    if file_store is None:
        raise Unavailable("this store keeps no files", hint="use a SQLite or Postgres store")
    bounds = read_bounds(services.settings)
    # Nothing is written through this folder, so that nothing has to be guarded.
    folder = WorkspaceFolder(file_store, state.workspace, bounds, NO_GUARDS, look_seconds=_LOOK_SECONDS)
    try:
        yield PastWorkspace(Journal(access.store, id, fold=Fold(state.copy())), folder)
    finally:
        await asyncio.to_thread(file_store.close)


async def list_files(
    workspace: PastWorkspace, at: int | UUID | None, *, tree: str | None, start: int, limit: int
) -> ListedFiles:
    """Return a page of the files at a cut. O(files).

    Raises:
        Conflict: `tree` is given, and the files are others by now.
    """
    listing = await workspace.list(at)
    _require_tree(listing.tree, tree)
    stop = start + limit
    next_start = stop if stop < len(listing.entries) else None
    return ListedFiles(listing.tree, listing.entries[start:stop], next_start)


async def read_file(workspace: PastWorkspace, at: int | UUID | None, path: str, *, tree: str | None) -> bytes:
    """Return the content of a file at a cut.

    Raises:
        Conflict: `tree` is given, and the files are others by now.
        NotFound: There was no such file.
    """
    if tree is not None:
        _require_tree((await workspace.find(at)).tree, tree)
    return await workspace.read(at, path)


def _require_tree(tree: str, expected: str | None) -> None:
    # The id in a request is only compared: a caller gets no tree that its conversation does not name.
    if expected is not None and tree != expected:
        raise Conflict("the files have changed since they were listed", hint="list them again, or name an event")


async def compare_files(
    access: Access,
    id: UUID,
    start: int | UUID | None,
    stop: int | UUID | None,
    *,
    other: UUID | None,
    own: bool,
    paths: Sequence[str],
) -> FileChanges:
    """Return which files differ between two cuts; see `AsyncConversation.diff`."""
    async with open_past_workspace(access, id) as workspace:
        if own:
            return await workspace.compare_own(start, stop, paths=paths)
        if other is None:
            return await workspace.compare(start, stop, paths=paths)
        async with open_past_workspace(access, other) as other_workspace:
            return await workspace.compare(start, stop, other=other_workspace, paths=paths)


async def restore_files(
    access: Access, id: UUID, at: int | UUID, request: FileRestore, *, exact: bool = False
) -> FileChanges:
    """Take back what a conversation did to its files; see `AsyncConversation.restore`."""
    async with open_conversation(access, id) as conversation:
        return await conversation.restore(
            at, paths=request.paths, exact=exact, conflicts=request.conflicts, dry_run=request.dry_run
        )


async def redo_files(access: Access, id: UUID) -> FileChanges:
    """Bring back the files that the last restore changed; see `AsyncConversation.redo`."""
    async with open_conversation(access, id) as conversation:
        return await conversation.redo()


async def apply_files(
    access: Access,
    id: UUID,
    source: UUID,
    request: FileRestore,
    *,
    start: int | UUID | None = None,
    stop: int | UUID | None = None,
) -> FileChanges:
    """Apply the file changes of another conversation of the tenant; see `AsyncConversation.apply`."""
    async with open_conversation(access, id) as conversation, open_conversation(access, source) as other:
        return await conversation.apply(
            other,
            start=start,
            stop=stop,
            paths=request.paths,
            conflicts=request.conflicts,
            dry_run=request.dry_run,
        )
