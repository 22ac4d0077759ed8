"""Named SQL statements and numbered migrations, kept in `.sql` files.

Statements that SQLite and Postgres share are in `queries.sql`, in Postgres' dialect with parameters as `:name`; for
SQLite, `_FOR_SQLITE` replaces what it does not know. `sqlite/queries.sql` and `postgres/queries.sql` have the
others, each in the database's own dialect, and the numbered migrations. Either kind of file may be missing.
"""

from __future__ import annotations

import logging
import re
import sqlite3
from importlib.resources import files
from pathlib import Path
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
    (re.compile(r"\bis not distinct from\b"), "is"),  # older SQLite lacks it
    (re.compile(r"\s+for update( of \w+)? skip locked"), ""),  # it has a single writer
)
"""Replacements that turn Postgres' syntax into SQLite's: types, ids, list elements, comparisons, row locks."""


class Migration(NamedTuple):
    """A step of a schema: its version and its statements."""

    version: int
    sql: str


def queries(dialect: str, package: str = STORE) -> dict[str, str]:
    """Return the statements of `<package>/queries.sql` and `<package>/<dialect>/queries.sql` by name.

    A section that begins with `-- part: name` is not a statement: it replaces `{name}` in statements and other parts of
    both files. Descriptions are removed.
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

    # After both files are read: statements of one file use parts of the other.
    def expand(sql: str) -> str:
        return _BRACES.sub(lambda match: expand(parts[match[1]]) if match[1] in parts else match[0], sql)

    return {name: expand(sql) for name, sql in statements.items()}


def _translate(sql: str, dialect: str) -> str:
    """Translate a shared statement to the syntax of a database's driver."""
    if dialect == "postgres":
        # Percent signs first, so that those of the parameters are not doubled.
        return _PARAMETER.sub(r"%(\1)s", sql.replace("%", "%%"))
    for pattern, replacement in _FOR_SQLITE:
        sql = pattern.sub(replacement, sql)
    return sql


def migrations(dialect: str, package: str = STORE) -> list[Migration]:
    """Return the migrations of `<package>/<dialect>/NNNN_*.sql` in order."""
    entries = (entry for entry in (files(package) / dialect).iterdir() if entry.name[:4].isdigit())
    return sorted(Migration(int(entry.name[:4]), entry.read_text("utf-8")) for entry in entries)


def log_upgrade(store: str, old_version: int, new_version: int, *, copy: Path | None = None) -> None:
    """Warn that the schema of a store was upgraded, so that older versions of bough can no longer open it.

    Args:
        copy: The file with the old schema, if one was kept.
    """
    _LOG.warning(
        "%s was upgraded from schema %d to %d; older versions of bough no longer open it%s",
        store,
        old_version,
        new_version,
        f" (they open the copy {copy})" if copy else "",
    )


def split_statements(sql: str) -> list[str]:
    """Split a script into statements, without splitting triggers. SQLite runs one at a time inside a transaction."""
    statements: list[str] = []
    pending = ""
    for line in sql.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            statements.append(pending)
            pending = ""
    return statements


def _bare(sql: str) -> str:
    """Return a statement on one line, without comments and the final semicolon."""
    lines = (line for line in sql.splitlines() if not line.lstrip().startswith("--"))
    return " ".join(" ".join(lines).split()).removesuffix(";")
