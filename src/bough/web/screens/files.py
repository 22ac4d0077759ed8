"""What a conversation did to its files between two events, and taking it back."""

from __future__ import annotations

from typing import Any

from bough.errors import Conflict
from bough.html.numbers import count_of
from bough.html.patch import render_patch
from bough.server.routes.past_files import (
    FileChangesInfo,
    RestoreForm,
    compare_past_files,
    redo_restored_files,
    restore_past_files,
)
from bough.types import JsonObject
from bough.web.head import read_head
from bough.web.screen import Action, Visit, WebScreen, parse_body

_MAX_FILES = 500
"""How many files a page names."""


async def _read_diff(visit: Visit) -> dict[str, Any]:
    record = await visit.access.store.get(visit.read_id())
    start, stop = visit.read_seq("from"), visit.read_seq("to")
    start, stop = (None if seq is None else min(seq, record.head) for seq in (start, stop))
    changes = await compare_past_files(record.id, visit.access, start, stop, own=True)
    return {
        "title": f"Files of {record.title or 'Untitled'}",
        "head": await read_head(visit, record),
        "start": start or 0,
        "stop": record.head if stop is None else stop,
        "patches": render_patch(changes.patch),
        **_describe(changes),
    }


async def _read_restore(visit: Visit) -> dict[str, Any]:
    """Return what a restore would write; nothing is written."""
    record = await visit.access.store.get(visit.read_id())
    start = min(visit.read_seq("from") or 0, record.head)
    stop = min(visit.read_seq("to") or record.head, record.head)
    cut = "after" if visit.read_field("cut") == "after" else "before"
    at = stop if cut == "after" else start
    changes, conflicts = await _preview(visit, at)
    return {
        "title": f"Restore files of {record.title or 'Untitled'}",
        "head": await read_head(visit, record),
        "start": start,
        "stop": stop,
        "cut": cut,
        "at": at,
        "conflicts": conflicts,
        "restored": _read_count(visit, "restored"),
        "redone": _read_count(visit, "redone"),
        **_describe(changes),
    }


async def _preview(visit: Visit, at: int) -> tuple[FileChangesInfo, list[str]]:
    """Return what a restore would write, and the files that others changed too."""
    id = visit.read_id()
    try:
        return await restore_past_files(id, parse_body(RestoreForm, {"at": at, "dry_run": True}), visit.access), []
    except Conflict as error:
        paths: Any = (error.details or {}).get("paths")
        if not paths:
            raise  # a run uses the folder
    choices: JsonObject = {"at": at, "dry_run": True, "conflicts": "leave"}
    return await restore_past_files(id, parse_body(RestoreForm, choices), visit.access), [str(path) for path in paths]


def _describe(changes: FileChangesInfo) -> dict[str, Any]:
    counts = [(file.lines_added or 0, file.lines_removed or 0) for file in changes.files]
    return {
        "files": [file.model_dump(mode="json") for file in changes.files[:_MAX_FILES]],
        "count": count_of(len(changes.files), "file"),
        "more": max(len(changes.files) - _MAX_FILES, 0),
        "added": sum(added for added, _ in counts),
        "removed": sum(removed for _, removed in counts),
        "left": changes.skipped[:_MAX_FILES],
    }


def _read_count(visit: Visit, name: str) -> str:
    """Return how many files an action wrote, which the address tells; empty if it tells none."""
    count = visit.read_seq(name)
    return "" if count is None else count_of(count, "file")


async def _restore(visit: Visit) -> str:
    """Restore the files, and return the address of the screen that offers to take it back."""
    body = parse_body(RestoreForm, {"at": visit.read_seq("at"), "conflicts": visit.read_text("conflicts") or "refuse"})
    changes = await restore_past_files(visit.read_id(), body, visit.access)
    return _address(visit, "restored", changes)


async def _redo(visit: Visit) -> str:
    return _address(visit, "redone", await redo_restored_files(visit.read_id(), visit.access))


def _address(visit: Visit, word: str, changes: FileChangesInfo) -> str:
    start, stop = visit.read_seq("from") or 0, visit.read_seq("to") or 0
    cut = "after" if visit.read_field("cut") == "after" else "before"
    return f"/c/{visit.read_id()}/restore?from={start}&to={stop}&cut={cut}&{word}={len(changes.files)}"


DIFF = WebScreen(path="/c/{id}/files", template="files.html", data=_read_diff, scopes=("files",), place="conversations")
_SCOPES = ("conversations", "files")
RESTORE = WebScreen(
    path="/c/{id}/restore",
    template="restore.html",
    data=_read_restore,
    role="write",
    scopes=_SCOPES,
    place="conversations",
)
ACTIONS = (
    Action(verb="restore", handle=_restore, screen=RESTORE, scopes=_SCOPES),
    Action(verb="redo", handle=_redo, screen=RESTORE, scopes=_SCOPES),
)
