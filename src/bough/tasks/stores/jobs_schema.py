"""Create and upgrade Procrastinate's tables, in a Postgres schema next to the store's. Tables of tasks: `tasks/sql`.

Procrastinate ships one script for a new schema, which cannot run twice, and numbered files for upgrades, but keeps no
record of what was applied. The table `applied` is that record. This module does not import Procrastinate.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from psycopg import Error, sql

from bough.errors import Unavailable
from bough.events.stores.postgres.connection import Db, connect, store_error


class JobsVersion(NamedTuple):
    """The schema version of the engine.

    Attributes:
        applied: The newest applied file; None if the schema does not exist.
        installed: The newest file of the installed package.
    """

    applied: str | None
    installed: str


def jobs_schema(schema: str) -> str:
    """Return the name of the schema with the engine's tables for a store's schema."""
    return f"{schema}_jobs"


def newest_step() -> str:
    """Return the newest schema file of the installed engine. Raises: see `migrate_jobs`."""
    return _list_steps(_find_package())[-1].stem


def migrate_jobs(address: str, schema: str) -> None:
    """Create or upgrade the engine's schema, one process at a time. Blocks.

    Raises:
        Unavailable: The engine is not installed, or its schema is newer than the installed package.
        StoreError: The server cannot be reached.
    """
    folder = _find_package()
    try:
        with connect(address, schema) as db:
            if (version := _read_version(db, schema, folder)).applied != version.installed:
                with db.transaction():
                    _migrate(db, schema, folder)
    except Error as error:
        raise store_error(address, error) from error


def read_jobs_version(address: str, schema: str) -> JobsVersion:
    """Return the applied and the installed version. Blocks. Raises: see `migrate_jobs`."""
    try:
        with connect(address, schema) as db:
            return _read_version(db, schema, _find_package())
    except Error as error:
        raise store_error(address, error) from error


def _find_package() -> Path:
    spec = find_spec("procrastinate")
    if spec is None or not spec.submodule_search_locations:
        raise Unavailable("tasks on Postgres need the package procrastinate", hint="pip install 'bough[postgres]'")
    return Path(spec.submodule_search_locations[0]) / "sql"


def _read_version(db: Db, schema: str, folder: Path) -> JobsVersion:
    installed = _list_steps(folder)[-1].stem
    jobs = jobs_schema(schema)
    row = db.execute("select to_regclass(%s)", (f"{jobs}.applied",)).fetchone()
    if row is None or row[0] is None:
        return JobsVersion(None, installed)
    statement = sql.SQL("select max(version) from {}.applied").format(sql.Identifier(jobs))
    row = db.execute(statement).fetchone()
    return JobsVersion(None if row is None else row[0], installed)


def _list_steps(folder: Path) -> list[Path]:
    return sorted((folder / "migrations").glob("[0-9]*.sql"))


def _migrate(db: Db, schema: str, folder: Path) -> None:
    jobs = jobs_schema(schema)
    db.execute("set local statement_timeout = 0; set local lock_timeout = 0")
    db.execute("select pg_advisory_xact_lock(hashtext(%s))", (f"bough migrate {jobs}",))
    # The engine's scripts name no schema, so they create their tables in the first schema of the search path.
    db.execute(sql.SQL("create schema if not exists {0}; set local search_path to {0}").format(sql.Identifier(jobs)))
    db.execute("create table if not exists applied (version text primary key, at timestamptz not null default now())")
    version = _read_version(db, schema, folder)  # again, under the lock: another process may have migrated meanwhile
    if version.applied is None:
        db.execute((folder / "schema.sql").read_bytes())
        db.execute("insert into applied (version) values (%s)", (version.installed,))
        return
    if version.applied > version.installed:
        raise Unavailable(
            f"the schema {jobs!r} has {version.applied}; the installed procrastinate knows up to {version.installed}",
            hint="upgrade procrastinate",
            details={"applied": version.applied, "known": version.installed},
        )
    for step in _list_steps(folder):
        if step.stem > version.applied:
            db.execute(step.read_bytes())
            db.execute("insert into applied (version) values (%s)", (step.stem,))
