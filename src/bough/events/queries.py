"""Named SQL statements and numbered migrations, kept in `.sql` files.

Statements that SQLite and Postgres share are in `queries.sql`, in Postgres' dialect with parameters as `:name`; for
SQLite what only Postgres needs is left out (`_FOR_SQLITE`). `sqlite/queries.sql` and `postgres/queries.sql` have the
others, each in the database's own dialect, and the numbered migrations. Either kind of file may be missing.
"""

from __future__ import annotations

import logging
import re
import sqlite3
from importlib.resources import files
from typing import Final, NamedTuple

_LOG = logging.getLogger("bough.events")

STORE = "bough.events.stores.sql"
"""The package with the store's own statements and migrations."""

_NAMED = re.compile(r"^-- (name|part): (\w+)[^\n]*\n", re.MULTILINE)
_BRACES = re.compile(r"\{(\w+)\}")
_PARAMETER = re.compile(r"(?<!:):([a-z]\w*)")
_FOR_SQLITE: Final = (
    (re.compile(r"::\w+"), ""),
    (re.compile(r"uuid_send\(([\w.]+)\)"), r"\1"),
    (re.compile(r"\bjson_array_elements_text\b"), "json_each"),
    (re.compile(r"\bis not distinct from\b"), "is"),  # older SQLite does not know it
    (re.compile(r"\s+for update( of \w+)? skip locked"), ""),  # it has one writer
)
"""Types, ids as bytes, elements of lists, comparisons with null and locks of rows."""


class Migration(NamedTuple):
    """One step of a schema: its number and the statements that lead there."""

    version: int
    sql: str


def queries(dialect: str, package: str = STORE) -> dict[str, str]:
    """Return the statements of `<package>/queries.sql` and `<package>/<dialect>/queries.sql` by name.

    What begins with `-- part: name` is not a statement: it stands wherever a statement, or another part, of either file
    has `{name}`. Descriptions are left out.
    """
    folder = files(package)
    statements: dict[str, str] = {}
    parts: dict[str, str] = {}
    for file, is_shared in ((folder / "queries.sql", True), (folder / dialect / "queries.sql", False)):
        if not file.is_file():
            continue
        _, *sections = _NAMED.split(file.read_text("utf-8"))
        for section, name, text in zip(sections[0::3], sections[1::3], sections[2::3], strict=True):
            sql = _translate(_bare(text), dialect) if is_shared else _bare(text)
            (parts if section == "part" else statements)[name] = sql

    # Parts of one file stand in statements of the other, so none is put in before both files are read.
    def expand(sql: str) -> str:
        return _BRACES.sub(lambda match: expand(parts[match[1]]) if match[1] in parts else match[0], sql)

    return {name: expand(sql) for name, sql in statements.items()}


def _translate(sql: str, dialect: str) -> str:
    """Return a shared statement as a database's driver takes it."""
    if dialect == "postgres":
        # Percent signs first: those of the parameters must stay single.
        return _PARAMETER.sub(r"%(\1)s", sql.replace("%", "%%"))
    for pattern, replacement in _FOR_SQLITE:
        sql = pattern.sub(replacement, sql)
    return sql


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
