"""Folders that were made for forks and belong to no conversation any more.

Whoever made one was killed, or nobody removed it when its conversation was deleted.
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

from bough.conversation.fork.workspace import MADE, MAKING, name_owner, remove_workspace
from bough.events.check import every_record
from bough.events.owner import is_gone
from bough.events.record import ConversationFilter, ConversationRecord
from bough.events.store import EventStore

_DAY_SECONDS = 86_400
_MAKING = re.compile(rf"\.?{re.escape(MAKING)}([0-9a-f]{{32}})(\..+)?")
_PAGE = 500


class _Candidate(NamedTuple):
    """A folder by the name that a row would know it by: a conversation's id, or the nonce of a copy in the making."""

    path: Path
    is_making: bool


async def find_orphans(store: EventStore, home: Path) -> list[Path]:
    """Return folders below `workspaces` of a home that no conversation of the store works in. O(rows), if there is any.

    A copy in the making is one when its maker's process is gone, or it is a day old. Folders of other names, such as
    those of tenants, are nobody's business here. Where several stores share a home, each has to be asked.
    """
    # Folders first: one that is made after this has a row by the time the rows are read.
    candidates = await asyncio.to_thread(_list_candidates, home / "workspaces")
    if not candidates:
        return []
    async for record in every_record(store):
        if not record.deleted:
            for name in _name_folders(record, home):
                candidates.pop(name, None)
    orphans = [
        candidate
        for candidate in candidates.values()
        if not candidate.is_making or await asyncio.to_thread(_is_left, candidate.path)
    ]
    return sorted(candidate.path for candidate in orphans)


async def remove_made(store: EventStore, home: Path, records: Sequence[ConversationRecord]) -> list[Path]:
    """Remove the folders that were made for conversations which are deleted now, and return them.

    One that a living conversation of the same tree works in stays.
    """
    folders = {str(record.id): home / "workspaces" / str(record.id) for record in records if _has_made(record, home)}
    for root in {record.root for record in records if str(record.id) in folders}:
        cursor, more = None, True
        while folders and more:
            page = await store.list(ConversationFilter(root=root), cursor, _PAGE)
            for record in page.items:
                for name in _name_folders(record, home):
                    folders.pop(name, None)
            cursor, more = page.next_cursor, page.next_cursor is not None
    for folder in folders.values():
        await remove_workspace(folder)
    return list(folders.values())


def _list_candidates(place: Path) -> dict[str, _Candidate]:
    candidates: dict[str, _Candidate] = {}
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(place) as entries:
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                continue
            if making := _MAKING.fullmatch(entry.name):
                candidates[making[1]] = _Candidate(Path(entry.path), is_making=True)
            elif (name := _parse_id(entry.name)) is not None:
                candidates[name] = _Candidate(Path(entry.path), is_making=False)
    return candidates


def _parse_id(name: str) -> str | None:
    try:
        id = str(UUID(name))
    except ValueError:
        return None
    return id if id == name else None


def _has_made(record: ConversationRecord, home: Path) -> bool:
    """Whether the folder that is named after a conversation was made for it: as a fork's, or as a sub-agent's."""
    own = home / "workspaces" / str(record.id)
    return MADE in record.config or Path(str(record.config.get("workspace", ""))).is_relative_to(own)


def _name_folders(record: ConversationRecord, home: Path) -> list[str]:
    """Return the names of folders that a conversation may work in: its own, one in the making, its source's."""
    names = [str(record.id), str(record.config.get(MADE))]
    workspace = Path(str(record.config.get("workspace", "")))
    if workspace.is_relative_to(home / "workspaces"):
        names += workspace.relative_to(home / "workspaces").parts[:1]
    return names


def _is_left(making: Path) -> bool:
    """Whether nobody makes this copy any more."""
    name = _MAKING.fullmatch(making.name)
    with suppress(OSError, UnicodeDecodeError):
        if name and is_gone(name_owner(making.parent / f"{MAKING}{name[1]}").read_text("utf-8")):
            return True
    with suppress(OSError):
        return time.time() - making.stat().st_mtime > _DAY_SECONDS
    return False
