"""Connecting to Postgres: the pool, the schema, and the server's errors in bough's words."""

from __future__ import annotations

import re
from contextlib import nullcontext
from typing import Any, TypeAlias

from psycopg import Connection, Error, OperationalError, errors, sql
from psycopg.conninfo import conninfo_to_dict
from psycopg_pool import ConnectionPool, PoolTimeout

from bough.errors import BoughError, InvalidInput, StoreError, Unavailable
from bough.events.queries import Migration, log_upgrade, migrations
from bough.events.stores.postgres.bounds import ANSWER_SECONDS, CONNECT_SECONDS, Watchdog
from bough.events.url import hide_password

Db: TypeAlias = Connection[Any]
Pool: TypeAlias = ConnectionPool[Db]

_NAME = re.compile(r"[a-z_][a-z0-9_]{0,50}")
_SERVER_BOUNDS = "-c statement_timeout=10s -c lock_timeout=5s -c idle_in_transaction_session_timeout=60s"
_SOCKET_BOUNDS: dict[str, int] = {
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
}
"""A server that is gone is noticed by its socket, one that hangs by the bounds it was given itself. See `Watchdog`."""

_POOL_SIZE = 8


def open_pool(url: str, schema: str, watchdog: Watchdog) -> Pool:
    """Return an open pool whose connections work in a schema.

    Args:
        url: Where the server is.
        schema: Which schema of the database.
        watchdog: Ends connections that the server does not answer while they are made.

    Raises:
        InvalidInput: The schema's name is not a plain name.
        StoreError: The server cannot be reached.
    """
    if not _NAME.fullmatch(schema):
        raise InvalidInput(f"{schema!r} is not a name for a schema", hint="lower-case letters, digits and _")
    pool: Pool = ConnectionPool(
        _without_driver(url),
        kwargs=_options(url),
        configure=lambda db: configure(db, schema, watchdog),
        min_size=1,
        max_size=_POOL_SIZE,
        timeout=CONNECT_SECONDS,
        reconnect_timeout=CONNECT_SECONDS,
        open=False,
    )
    try:
        with connect(url, schema, watchdog):
            pool.open()
            pool.wait(CONNECT_SECONDS)
    except (Error, PoolTimeout) as error:
        pool.close()
        raise store_error(url, error) from error
    return pool


def connect(url: str, schema: str, watchdog: Watchdog | None = None) -> Db:
    """Return a connection outside the pool, in autocommit mode."""
    db: Db = Connection.connect(_without_driver(url), **_options(url))
    try:
        configure(db, schema, watchdog)
    except Error:
        db.close()
        raise
    return db


def configure(db: Db, schema: str, watchdog: Watchdog | None) -> None:
    """Make a connection work in a schema, and find rows by their keys.

    Plans are kept. One that was made while the tables were small would scan them, and keep doing so while they grow,
    until the server counts anew: appends would cost O(conversations). What must scan still does; it is not work for a
    compiler.

    A schema `<schema>_jobs` comes second: an engine that delivers work names its tables and types without a schema, and
    joins transactions of these connections. Where there is none, it is passed over.
    """
    path = sql.SQL(", ").join([sql.Identifier(schema), sql.Identifier(f"{schema}_jobs")])
    with nullcontext() if watchdog is None else watchdog.watch(db, CONNECT_SECONDS):
        db.execute(sql.SQL("set search_path to {}; set enable_seqscan = off; set jit = off").format(path))


def migrate(db: Db, url: str, schema: str) -> None:
    """Bring the schema up to date; one process at a time does it.

    Raises:
        StoreError: It is newer than this bough.
    """
    steps = migrations("postgres")
    with db.transaction():
        db.execute("set local statement_timeout = 0; set local lock_timeout = 0")  # a large store takes its time
        db.execute("select pg_advisory_xact_lock(hashtext(%s))", (f"bough migrate {schema}",))
        db.execute(sql.SQL("create schema if not exists {}").format(sql.Identifier(schema)))
        db.execute("create table if not exists migration (version int primary key, applied timestamptz default now())")
        row = db.execute("select coalesce(max(version), 0) from migration").fetchone()
        version = row[0] if row else 0
        if version > steps[-1].version:
            raise StoreError(
                f"{hide_password(url)} has schema {version}; this bough knows up to {steps[-1].version}",
                hint="upgrade bough, or export with the newer version and import here",
                details={"schema": version, "known": steps[-1].version},
            )
        for step in steps:
            if step.version > version:
                _apply(db, step)
    if 0 < version < steps[-1].version:
        log_upgrade(hide_password(url), version, steps[-1].version)


def store_error(url: str, error: BaseException) -> BoughError:
    """Return what an error of the server means, with what to do about it."""
    where = hide_password(url)
    match error:
        case errors.DiskFull():
            return StoreError(
                f"{where}: the server's disk is full, nothing was written", hint="free disk space, then retry"
            )
        case errors.LockNotAvailable() | errors.QueryCanceled() | errors.DeadlockDetected():
            return Unavailable(f"{where}: the server timed out ({error})", hint="repeat")
        case errors.ProgramLimitExceeded():
            return InvalidInput(
                f"{where}: an event is larger than the server stores", hint="keep large content in files"
            )
        case PoolTimeout():
            return Unavailable(
                f"{where}: no connection available", hint="is the server running?", details={"transient": True}
            )
        case OperationalError() | errors.AdminShutdown():
            return StoreError(
                f"{where}: the server cannot be reached, or the connection was lost ({str(error).strip()})",
                hint="check that it runs, then repeat: what was written is found by its event ids, none is doubled",
                details={"outcome": "unknown", "transient": True},
            )
        case _:
            return StoreError(f"{where}: {str(error).strip()}", hint="run `bough doctor`")


def make_timeout_error(url: str, seconds: float = ANSWER_SECONDS) -> Unavailable:
    """The server did not answer in time. Whether it did what it was asked to, nobody knows."""
    return Unavailable(
        f"{hide_password(url)}: the server did not answer within {seconds:.0f} s",
        hint="repeat: what was written is found by its event ids, none is doubled",
        details={"outcome": "unknown", "transient": True},
    )


def is_lost(error: BaseException, db: Db) -> bool:
    """Whether an error means that the connection is gone."""
    return db.closed or db.broken or isinstance(error, errors.AdminShutdown)


def _options(url: str) -> dict[str, Any]:
    """Return how every connection is made; options that the URL gives are kept and come last."""
    given = conninfo_to_dict(_without_driver(url)).get("options") or ""
    options = f"{_SERVER_BOUNDS} {given}".strip()
    plain = {"autocommit": True, "connect_timeout": int(CONNECT_SECONDS), "application_name": "bough"}
    return plain | _SOCKET_BOUNDS | {"options": options}


def _apply(db: Db, step: Migration) -> None:
    db.execute(step.sql.encode())
    db.execute("insert into migration (version) values (%s)", (step.version,))


def _without_driver(url: str) -> str:
    return "postgresql://" + url.split("://", 1)[1]
