"""Open a store by its URL."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from bough.errors import InvalidInput
from bough.extras import explain_missing_package
from bough.portal import portal

if TYPE_CHECKING:
    from bough.events.store import EventStore, StoreAdmin
    from bough.types import Clock

StoreT = TypeVar("StoreT", bound="EventStore")

_SQLITE = "sqlite:///"
_POSTGRES = ("postgresql://", "postgres://")


async def open_store(
    url: str, *, clock: Clock | None = None, create: bool = True, keep_copy: bool = True
) -> StoreAdmin:
    """Open the store at a URL. Creates or upgrades it if needed.

    A file that is not writable is opened for reading; every write then raises `StoreError`.

    Args:
        url: `memory:` (removed when closed), `sqlite:///relative/path`, `sqlite:////absolute/path` or `postgresql://…`.
        clock: The clock; the machine's by default.
        create: Whether to create a missing file. If False, a missing file is opened as an empty store.
        keep_copy: Whether to keep a copy of a SQLite file with an older schema, named `<file>.schema-<version>`. The
            upgrade is logged as a warning.

    Raises:
        InvalidInput: The URL has an unknown scheme.
        StoreError: The store cannot be opened.
        Unavailable: The packages for Postgres are not installed.
    """
    is_file = url.startswith(_SQLITE) and len(url) > len(_SQLITE)
    if url == "memory:" or (is_file and not create and _is_missing(_absolute(url.removeprefix(_SQLITE)))):
        from bough.events.stores.sqlite import SqliteEventStore

        return await SqliteEventStore.open_private(clock=clock)
    if is_file:
        from bough.events.stores.sqlite import SqliteEventStore

        return await SqliteEventStore.open(_absolute(url.removeprefix(_SQLITE)), clock=clock, keep_copy=keep_copy)
    if url.startswith(_POSTGRES):
        try:
            from bough.events.stores.postgres import PostgresEventStore
        except ModuleNotFoundError as error:
            raise explain_missing_package(error, "a Postgres store") from error

        return await PostgresEventStore.open(url, clock=clock)
    raise InvalidInput(
        f"invalid store URL {url!r}",
        hint="use memory:, sqlite:///relative/path.db, sqlite:////absolute/path.db or postgresql://…",
    )


@asynccontextmanager
async def use_store(
    store: StoreT | str, *, create: bool = True, keep_copy: bool = True
) -> AsyncGenerator[StoreT | StoreAdmin]:
    """Yield a store. One that is given by its URL is opened as `open_store` does, and closed after the block."""
    if not isinstance(store, str):
        yield store
        return
    opened = await open_store(store, create=create, keep_copy=keep_copy)
    try:
        yield opened
    finally:
        await opened.aclose()


@contextmanager
def open_store_sync(url: str, *, create: bool = True, keep_copy: bool = True) -> Generator[StoreAdmin]:
    """Yield a store that several `Conversation` objects share, and close it at the end of the block.

    It is opened on bough's own event loop, like the conversations. The arguments and errors are those of `open_store`.
    """
    store = portal().call(open_store, url, create=create, keep_copy=keep_copy)
    try:
        yield store
    finally:
        portal().close(store)


def _is_missing(path: Path) -> bool:
    """Whether the file does not exist; False if that cannot be determined."""
    try:
        path.lstat()
    except FileNotFoundError:
        return True
    except OSError:  # opening the file then raises the proper error
        return False
    return False


def _absolute(path: str) -> Path:
    return Path(os.path.abspath(path))
