"""Connect to Postgres: the pool, the schema, and the translation of the server's errors."""

from __future__ import annotations

import re
from contextlib import nullcontext
from typing import Any, TypeAlias

from psycopg import Connection, Error, OperationalError, errors, sql
from psycopg.conninfo import conninfo_to_dict
from psycopg.errors import Diagnostic
from psycopg_pool import ConnectionPool, PoolTimeout

from bough.errors import BoughError, InvalidInput, StoreError, Unavailable
from bough.events.queries import Migration, log_upgrade, migrations
from bough.events.stores.faults import hide_password
from bough.events.stores.postgres.bounds import ANSWER_SECONDS, CONNECT_SECONDS, Watchdog

Db: TypeAlias = Connection[Any]
Pool: TypeAlias = ConnectionPool[Db]

_NAME = re.compile(r"[a-z_][a-z0-9_]{0,50}")
_SERVER_TIMEOUTS = "-c statement_timeout=10s -c lock_timeout=5s -c idle_in_transaction_session_timeout=60s"
_SOCKET_OPTIONS: dict[str, int] = {
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
}
"""Socket options that detect a dead server. A server that hangs is detected by `_SERVER_TIMEOUTS` and `Watchdog`."""

_POOL_SIZE = 8


def open_pool(url: str, schema: str, watchdog: Watchdog) -> Pool:
    """Return an open pool whose connections work in a schema.

    Args:
        url: URL of the database.
        schema: The schema.
        watchdog: Ends connection attempts that the server does not answer.

    Raises:
        InvalidInput: The schema is not a plain name.
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
    """Open a connection outside the pool, in autocommit mode."""
    db: Db = Connection.connect(_without_driver(url), **_options(url))
    try:
        configure(db, schema, watchdog)
    except Error:
        db.close()
        raise
    return db


def configure(db: Db, schema: str, watchdog: Watchdog | None) -> None:
    """Set the schema of a connection, and make it use indexes.

    Query plans are cached. A plan made for small tables would scan them sequentially, also while they grow, until the
    server updates its statistics, and appends would cost O(conversations). So sequential scans are disabled (queries
    without an index still scan), and so is compilation.

    The schema `<schema>_jobs` comes second in the search path, since an engine that joins transactions of these
    connections names its tables without a schema. Postgres ignores it if it does not exist.
    """
    path = sql.SQL(", ").join([sql.Identifier(schema), sql.Identifier(f"{schema}_jobs")])
    with nullcontext() if watchdog is None else watchdog.watch(db, CONNECT_SECONDS):
        db.execute(sql.SQL("set search_path to {}; set enable_seqscan = off; set jit = off").format(path))


def migrate(db: Db, url: str, schema: str) -> None:
    """Create or upgrade the schema, one process at a time.

    Raises:
        StoreError: The schema comes from a newer bough.
    """
    steps = migrations("postgres")
    with db.transaction():
        db.execute("set local statement_timeout = 0; set local lock_timeout = 0")  # upgrading a large store takes long
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


_COMPACTION_TIMEOUT = "set statement_timeout = '60s'"
"""Other sessions wait while a table is rewritten, so this is bounded."""

_OWN_TABLES = """
select quote_ident(relname), pg_has_role(relowner, 'usage') from pg_class
where relnamespace = current_schema()::text::regnamespace and relkind = 'r' order by relname
"""


def compact_tables(db: Db) -> str | None:
    """Rewrite the tables of the schema without dead rows, each under an exclusive lock, at most 60 s in all.

    Returns:
        None, or why dead rows may remain.
    """
    tables = db.execute(_OWN_TABLES).fetchall()
    if foreign := [name for name, is_own in tables if not is_own]:
        return f"the role does not own {', '.join(foreign)}; their owner runs VACUUM FULL"
    notes: list[str] = []

    def note(diagnostic: Diagnostic) -> None:
        notes.append(diagnostic.message_detail or "")

    db.add_notice_handler(note)
    try:
        db.execute(_COMPACTION_TIMEOUT)
        db.execute(f"vacuum (full, analyze, verbose) {', '.join(name for name, _ in tables)}".encode())
    except Error as error:
        if is_lost(error, db):
            raise
        return f"VACUUM FULL failed: {str(error).strip()}"
    finally:
        db.remove_notice_handler(note)
        # Otherwise the pooled connection would keep the longer limit.
        if not db.closed:
            db.execute("reset statement_timeout")
    # The detail begins with the dead rows that an open transaction still sees, in every language of the server.
    counts = [re.search(r"\d+", detail) for detail in notes]
    dead_rows = sum(int(count[0]) for count in counts if count is not None)
    return f"{dead_rows} dead rows are still visible to an open transaction" if dead_rows else None


def store_error(url: str, error: BaseException) -> BoughError:
    """Translate an error of the server, with a hint."""
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
                hint="check that it runs, then repeat: written events are found by their ids, and not written twice",
                details={"outcome": "unknown", "transient": True},
            )
        case _:
            return StoreError(f"{where}: {str(error).strip()}", hint="run `bough doctor`")


def make_timeout_error(url: str, seconds: float = ANSWER_SECONDS) -> Unavailable:
    """Return the error for a missing answer: the statement may or may not have been applied."""
    return Unavailable(
        f"{hide_password(url)}: the server did not answer within {seconds:.0f} s",
        hint="repeat: written events are found by their ids, and not written twice",
        details={"outcome": "unknown", "transient": True},
    )


def is_lost(error: BaseException, db: Db) -> bool:
    """Whether an error means that the connection was lost."""
    return db.closed or db.broken or isinstance(error, errors.AdminShutdown)


def _options(url: str) -> dict[str, Any]:
    """Return the arguments of every connection. Options of the URL come last, so that they take precedence."""
    url_options = conninfo_to_dict(_without_driver(url)).get("options") or ""
    options = f"{_SERVER_TIMEOUTS} {url_options}".strip()
    arguments = {"autocommit": True, "connect_timeout": int(CONNECT_SECONDS), "application_name": "bough"}
    return arguments | _SOCKET_OPTIONS | {"options": options}


def _apply(db: Db, step: Migration) -> None:
    db.execute(step.sql.encode())
    db.execute("insert into migration (version) values (%s)", (step.version,))


def _without_driver(url: str) -> str:
    return "postgresql://" + url.split("://", 1)[1]
