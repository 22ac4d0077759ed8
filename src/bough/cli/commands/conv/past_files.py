"""`--files` of `bough conv show` and `diff`: the files of a workspace at an event, and what changed in them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from uuid import UUID

from bough.cli import options
from bough.cli.render import Report
from bough.cli.target import Target, short
from bough.cli.text import Line, Style, harmless, line
from bough.errors import Unavailable
from bough.settings import Settings

if TYPE_CHECKING:
    from bough.conversation.fork.file_changes import FileChanges, FileTree, PathChange
    from bough.conversation.fork.past_files import PastWorkspace
    from bough.events import StoreAdmin

_MARKS: dict[str, tuple[str, Style]] = {
    "added": ("+", "good"),
    "changed": ("~", ""),
    "removed": ("-", "bad"),
    "mode": ("x", ""),
}
_KINDS = {"file": " ", "executable": "x", "link": "l"}


def show_files(target: Target, settings: Settings) -> Report:
    """Return the report of the files of a conversation at an event."""

    async def main() -> tuple[UUID, FileTree]:
        async with options.open_settings_store(settings, create=False) as store:
            id = await store.resolve(target.name)
            async with open_past_workspace(store, id, settings) as workspace:
                return id, await workspace.list(target.at)

    from bough.html.numbers import format_bytes

    id, tree = asyncio.run(main())
    items = [{"path": entry.path, "kind": entry.kind, "size": entry.size} for entry in tree.entries]
    sizes = [format_bytes(entry.size) for entry in tree.entries]
    width = max((len(size) for size in sizes), default=0)
    rows = [
        line(
            (f"  {_KINDS[entry.kind]} {size:>{width}}  ", "dim"),
            harmless(entry.path),
            hang=width + 6,
        )
        for entry, size in zip(tree.entries, sizes, strict=True)
    ]
    return Report(
        command="conv show",
        data={"conversation": str(id), "tree": tree.tree, "files": items},
        blocks=rows or [line(("no files", "dim"))],
        next=(f"bough conv diff {short(id)} --files",),
    )


def diff_files(a: Target, b: Target | None, settings: Settings) -> Report:
    """Return the report of what changed in the files.

    Args:
        a: The start if there is a `b`; else the end, and the start is that of the conversation.
    """

    async def main() -> FileChanges:
        async with options.open_settings_store(settings, create=False) as store:
            id = await store.resolve(a.name)
            async with open_past_workspace(store, id, settings) as workspace:
                if b is None:
                    return await workspace.compare(None, a.at)
                other = await store.resolve(b.name)
                async with open_past_workspace(store, other, settings) as other_workspace:
                    return await workspace.compare(a.at, b.at, other=other_workspace)

    changes = asyncio.run(main())
    return Report(
        command="conv diff",
        data={**changes.to_json(), "patch": changes.patch},
        blocks=[*list_changes(changes), *list_patch(changes)],
    )


@asynccontextmanager
async def open_past_workspace(store: StoreAdmin, id: UUID, settings: Settings) -> AsyncGenerator[PastWorkspace]:
    """Yield the workspace of a conversation at its events, without opening the conversation."""
    from bough.conversation.file_store import open_file_store, read_bounds
    from bough.conversation.fork.files import WorkspaceFolder
    from bough.conversation.fork.past_files import PastWorkspace
    from bough.conversation.log.journal import Journal
    from bough.execution.base import NO_GUARDS

    file_store = open_file_store(store, settings)
    if file_store is None:
        raise Unavailable("this store keeps no files", hint="use a SQLite or Postgres store")
    journal = Journal(store, id)
    try:
        await journal.catch_up()
        # Only read through this folder, so that nothing has to be guarded.
        folder = WorkspaceFolder(file_store, journal.state.workspace, read_bounds(settings), NO_GUARDS)
        yield PastWorkspace(journal, folder)
    finally:
        await asyncio.to_thread(file_store.close)


def list_changes(changes: FileChanges) -> list[Line]:
    """Return a line for each file that differs, and one for each that stayed as it is."""
    rows = [_describe_change(change) for change in changes.changes]
    unchanged = [line((f"  left: {harmless(path)}", "warn"), hang=4) for path in changes.skipped]
    return [*(rows or ([] if unchanged else [line(("no file differs", "dim"))])), *unchanged]


def _describe_change(change: PathChange) -> Line:
    mark, style = _MARKS[change.change]
    signs = (("+", change.lines_added), ("-", change.lines_removed))
    counts = " ".join(f"{sign}{count}" for sign, count in signs if count)
    return line((f"  {mark} ", style), harmless(change.path), (f"  {counts}" if counts else "", "dim"), hang=4)


def list_patch(changes: FileChanges) -> Iterator[Line]:
    """Yield the lines of the patch, which a workspace wrote: what controls a terminal is escaped."""
    styles: dict[str, Style] = {"+": "good", "-": "bad", "@": "id"}
    for text in changes.patch.splitlines():
        is_head = text.startswith(("--- ", "+++ "))
        yield line((harmless(text), "strong" if is_head else styles.get(text[:1], "")), hang=0)
