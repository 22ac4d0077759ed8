"""Start a temporary Postgres server for tests and benchmarks."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

from bough.errors import Unavailable

FAST: Mapping[str, str] = {"fsync": "off", "full_page_writes": "off"}
"""Settings for tests: data survives a killed process, but not a power failure."""

DURABLE: Mapping[str, str] = {"fsync": "on"}
"""Settings for benchmarks."""

_START_SECONDS = 60


def missing() -> str:
    """Return why no server is available; empty if Postgres is installed or BOUGH_TEST_POSTGRES names a server."""
    return "" if os.environ.get("BOUGH_TEST_POSTGRES") or _find_bin_folder() else "Postgres is not installed"


@contextmanager
def postgres_server(settings: Mapping[str, str] = FAST) -> Generator[str]:
    """Run a server in a temporary folder and yield its URL.

    If the caller is root, the server runs as `postgres` or `nobody`, because Postgres refuses to run as root.

    Raises:
        Unavailable: Postgres is not installed.
    """
    bin_folder = _find_bin_folder()
    if bin_folder is None:
        raise Unavailable("Postgres is not installed", hint="apt-get install postgresql, or set BOUGH_TEST_POSTGRES")
    with tempfile.TemporaryDirectory(prefix="bough-postgres-") as name:
        folder, port, as_user = Path(name), _find_free_port(), _choose_user()
        if as_user:
            # Before initdb, because initdb runs as this user and writes to the folder.
            os.chown(folder, as_user["user"], as_user["group"])
        data = folder / "data"
        # -N does not sync the new cluster to disk, because that takes most of the start-up time.
        _run_checked(bin_folder / "initdb", "-D", data, "-U", "bough", "-A", "trust", "-E", "UTF8", "-N", **as_user)
        options = {**settings, "port": str(port), "listen_addresses": "127.0.0.1", "unix_socket_directories": name}
        lines = "".join(f"{key} = '{value}'\n" for key, value in options.items())
        with (data / "postgresql.conf").open("a") as file:
            file.write(lines)
        control = (bin_folder / "pg_ctl", "-D", data, "-w", "-t", str(_START_SECONDS))
        _run_checked(*control, "-l", folder / "log", "start", **as_user)
        try:
            yield f"postgresql://bough@127.0.0.1:{port}/postgres"
        finally:
            # Stopped without a checkpoint, because the data is deleted next.
            _run_checked(*control, "-m", "immediate", "stop", **as_user)


def restart_server(url: str) -> None:
    """Crash and restart a server that `postgres_server` started. Blocks until it accepts connections.

    Raises:
        Unavailable: The server cannot be restarted.
    """
    from psycopg import Connection

    with Connection.connect(url, autocommit=True) as db:
        row = db.execute("show data_directory").fetchone()
    bin_folder, data = _find_bin_folder(), Path(str(row[0] if row else ""))
    if bin_folder is None:
        raise Unavailable("Postgres is not installed", hint="apt-get install postgresql")
    control = (bin_folder / "pg_ctl", "-D", data, "-w", "-t", str(_START_SECONDS))
    _run_checked(*control, "-m", "immediate", "-l", data.parent / "log", "restart", **_choose_user())


def make_database(url: str) -> str:
    """Create a database and return its URL. Notifications and advisory locks of other databases are not shared."""
    from psycopg import Connection, sql

    name = f"t{uuid4().hex[-12:]}"
    with Connection.connect(url, autocommit=True) as db:
        # From template0, which accepts no connections, because a session in template1 would make the statement fail.
        db.execute(sql.SQL("create database {} template template0").format(sql.Identifier(name)))
    return urlunsplit(urlsplit(url)._replace(path=f"/{name}"))


def drop_schema(url: str, schema: str) -> None:
    """Drop a schema with its content, and the companion schema `<schema>_jobs`."""
    from psycopg import Connection, sql

    names = sql.SQL(", ").join([sql.Identifier(schema), sql.Identifier(f"{schema}_jobs")])
    with Connection.connect(url, autocommit=True) as db:
        db.execute(sql.SQL("drop schema if exists {} cascade").format(names))


def _find_bin_folder() -> Path | None:
    """Return the folder with Postgres's programs: that of `pg_ctl`, or of the newest version; None if missing."""
    pg_ctl = shutil.which("pg_ctl")
    folders = [Path(pg_ctl).resolve().parent] if pg_ctl else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: -float(path.parent.name))
    for folder in folders:
        if (folder / "initdb").exists() and (folder / "postgres").exists():
            return folder
    return None


def _choose_user() -> dict[str, Any]:
    """Return arguments for `subprocess.run` to run as an unprivileged user; empty unless this process is root."""
    if os.geteuid() != 0:
        return {}
    names = {entry.pw_name: entry for entry in pwd.getpwall()}
    entry = names.get("postgres") or names["nobody"]
    # `extra_groups` drops root's supplementary groups.
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


def _find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _run_checked(*command: object, **as_user: Any) -> None:
    result = subprocess.run(  # noqa: S603 a fixed command of ours
        [str(part) for part in command], cwd="/", stdin=subprocess.DEVNULL, capture_output=True, text=True, **as_user
    )
    if result.returncode:
        raise Unavailable(f"{command[0]} failed: {result.stderr.strip() or result.stdout.strip()}")
