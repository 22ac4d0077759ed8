"""From a URL to a store."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from bough.errors import InvalidInput

if TYPE_CHECKING:
    from bough.events.store import StoreAdmin
    from bough.types import Clock

_SQLITE = "sqlite:///"
_POSTGRES = ("postgresql://", "postgres://")


async def open_store(url: str, *, clock: Clock | None = None, create: bool = True) -> StoreAdmin:
    """Return the store a URL names, created and brought up to date where needed.

    A file that cannot be written is read; every write raises `StoreError` then.

    Args:
        url: `memory:` (it ends with its use), `sqlite:///relative/path`, `sqlite:////absolute/path` or `postgresql://…`.
        clock: Where time comes from; the machine's by default.
        create: Whether a file is made where there is none; otherwise an empty store stands for it.

    Raises:
        InvalidInput: The URL names no kind of store.
        StoreError: It cannot be opened.
    """
    is_file = url.startswith(_SQLITE) and len(url) > len(_SQLITE)
    if url == "memory:" or (is_file and not create and _is_missing(_absolute(url.removeprefix(_SQLITE)))):
        from bough.events.stores.sqlite import SqliteEventStore

        return await SqliteEventStore.open_private(clock=clock)
    if is_file:
        from bough.events.stores.sqlite import SqliteEventStore

        return await SqliteEventStore.open(_absolute(url.removeprefix(_SQLITE)), clock=clock)
    if url.startswith(_POSTGRES):
        from bough.events.stores.postgres import PostgresEventStore

        return await PostgresEventStore.open(url, clock=clock)
    raise InvalidInput(
        f"invalid store URL {url!r}",
        hint="use memory:, sqlite:///relative/path.db, sqlite:////absolute/path.db or postgresql://…",
    )


def _is_missing(path: Path) -> bool:
    """Whether nothing has that name, and something could."""
    try:
        path.lstat()
    except FileNotFoundError:
        return True
    except OSError:  # opening it says why it cannot be
        return False
    return False


def _absolute(path: str) -> Path:
    return Path(os.path.abspath(path))
