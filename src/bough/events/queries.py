"""Named SQL statements and numbered migrations, kept in `.sql` files."""

from __future__ import annotations

import logging
import re
import sqlite3
from importlib.resources import files
from typing import NamedTuple

_LOG = logging.getLogger("bough.events")

STORE = "bough.events.stores.sql"
"""The package with the store's own statements and migrations."""

_NAMED = re.compile(r"^-- (name|part): (\w+)[^\n]*\n", re.MULTILINE)
_BRACES = re.compile(r"\{(\w+)\}")


class Migration(NamedTuple):
    """One step of a schema: its number and the statements that lead there."""

    version: int
    sql: str


def queries(dialect: str, package: str = STORE) -> dict[str, str]:
    """Return the statements of `<package>/<dialect>/queries.sql` by name, without their descriptions.

    What begins with `-- part: name` is not a statement: it stands wherever a statement, or a later part, has `{name}`.
    """
    _, *found = _NAMED.split((files(package) / dialect / "queries.sql").read_text("utf-8"))
    statements: dict[str, str] = {}
    parts: dict[str, str] = {}
    for what, name, sql in zip(found[0::3], found[1::3], found[2::3], strict=True):
        whole = _BRACES.sub(lambda match: parts.get(match[1], match[0]), _bare(sql))
        (parts if what == "part" else statements)[name] = whole
    return statements


def migrations(dialect: str, package: str = STORE) -> list[Migration]:
    """Return the migrations of `<package>/<dialect>/NNNN_*.sql` in their order."""
    found = (entry for entry in (files(package) / dialect).iterdir() if entry.name[:4].isdigit())
    return sorted(Migration(int(entry.name[:4]), entry.read_text("utf-8")) for entry in found)


def log_upgrade(place: str, before: int, now: int) -> None:
    """Warn that the schema of a store was upgraded, after which an older bough does not open it."""
    _LOG.warning("%s was upgraded from schema %d to %d; older versions of bough no longer open it", place, before, now)


def split_statements(sql: str) -> list[str]:
    """Return the statements of a script, triggers whole. SQLite runs one at a time inside a transaction."""
    found: list[str] = []
    part = ""
    for line in sql.splitlines(keepends=True):
        part += line
        if sqlite3.complete_statement(part):
            found.append(part)
            part = ""
    return found


def _bare(sql: str) -> str:
    lines = (line for line in sql.splitlines() if not line.lstrip().startswith("--"))
    return " ".join(" ".join(lines).split()).removesuffix(";")
