"""Orphans: folders that were made for forks, and that no conversation uses any more.

Either the process that made the folder was killed, or the folder was not removed with its conversation.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from bough.conversation.fork.workspace import (
    NONCE_KEY,
    UNFINISHED_PREFIX,
    ForkedWorkspace,
    make_owner_path,
    remove_workspace,
)
from bough.events.check import every_record
from bough.events.owner import is_gone
from bough.events.record import ConversationFilter, ConversationRecord
from bough.events.store import EventStore

_DAY_SECONDS = 86_400
_UNFINISHED_NAME = re.compile(rf"\.?{re.escape(UNFINISHED_PREFIX)}([0-9a-f]{{32}})(\..+)?")
_PAGE = 500


class _Candidate(NamedTuple):
    """A folder that may be an orphan.

    Attributes:
        is_unfinished: Whether it is a copy for a fork whose row was not yet written when the copy began.
    """

    path: Path
    is_unfinished: bool


async def find_orphans(store: EventStore, home: Path) -> list[Path]:
    """Return the folders below `workspaces` of a home that no conversation of the store uses. O(rows).

    An unfinished copy is an orphan if its process has ended or if it is a day old. Folders with other names, such as
    the folders of tenants, are ignored. If several stores share a home, a folder is an orphan only if this function
    returns it for each of them.
    """
    # Folders first: a folder that is made between the two reads would look as if it had no row.
    candidates = await asyncio.to_thread(_list_candidates, home / "workspaces")
    if not candidates:
        return []
    async for record in every_record(store):
        if not record.deleted:
            for name in _list_folder_names(record, home):
                candidates.pop(name, None)
    orphans = [
        candidate
        for candidate in candidates.values()
        if not candidate.is_unfinished or await asyncio.to_thread(_is_abandoned, candidate.path)
    ]
    return sorted(candidate.path for candidate in orphans)


async def remove_made(store: EventStore, home: Path, records: Sequence[ConversationRecord]) -> list[Path]:
    """Remove the folders that were made for deleted conversations, and return them.

    A folder that another conversation of the same tree uses is not removed.

    Args:
        records: The rows of the deleted conversations.
    """
    folders = {
        str(record.id): home / "workspaces" / str(record.id) for record in records if _has_own_folder(record, home)
    }
    for root in {record.root for record in records if str(record.id) in folders}:
        cursor, has_more = None, True
        while folders and has_more:
            page = await store.list(ConversationFilter(root=root), cursor, _PAGE)
            for record in page.items:
                for name in _list_folder_names(record, home):
                    folders.pop(name, None)
            cursor, has_more = page.next_cursor, page.next_cursor is not None
    for folder in folders.values():
        await remove_workspace(folder)
    return list(folders.values())


async def remove_temporary(
    store: EventStore, home: Path, record: ConversationRecord, workspace: ForkedWorkspace
) -> None:
    """Delete an ephemeral fork, and the folder made for it unless another conversation uses that folder."""
    await store.delete(record.id)
    if workspace.own_folder is not None:
        await remove_made(store, home, [record])


def _list_candidates(workspaces: Path) -> dict[str, _Candidate]:
    """Return the folders that may be orphans, by the id of their conversation or the nonce of their unfinished copy."""
    candidates: dict[str, _Candidate] = {}
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(workspaces) as entries:
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                continue
            if match := _UNFINISHED_NAME.fullmatch(entry.name):
                candidates[match[1]] = _Candidate(Path(entry.path), is_unfinished=True)
            elif _is_id(entry.name):
                candidates[entry.name] = _Candidate(Path(entry.path), is_unfinished=False)
    return candidates


def _is_id(name: str) -> bool:
    try:
        return str(UUID(name)) == name
    except ValueError:
        return False


def _has_own_folder(record: ConversationRecord, home: Path) -> bool:
    """Whether the folder that is named by a conversation's id was made for it, as a fork or as a sub-agent."""
    own_folder = home / "workspaces" / str(record.id)
    return NONCE_KEY in record.config or Path(str(record.config.get("workspace", ""))).is_relative_to(own_folder)


def _list_folder_names(record: ConversationRecord, home: Path) -> list[str]:
    """Return the names of the folders that a conversation may use: its own, its unfinished copy, its source's."""
    names = [str(record.id), str(record.config.get(NONCE_KEY))]
    workspace = Path(str(record.config.get("workspace", "")))
    if workspace.is_relative_to(home / "workspaces"):
        names += workspace.relative_to(home / "workspaces").parts[:1]
    return names


def _is_abandoned(unfinished: Path) -> bool:
    """Whether the process that makes an unfinished copy has ended, or the copy is more than a day old."""
    match = _UNFINISHED_NAME.fullmatch(unfinished.name)
    with suppress(OSError, UnicodeDecodeError):
        if match and is_gone(make_owner_path(unfinished.parent / f"{UNFINISHED_PREFIX}{match[1]}").read_text("utf-8")):
            return True
    with suppress(OSError):
        return time.time() - unfinished.stat().st_mtime > _DAY_SECONDS
    return False
