"""Named SQL statements and numbered migrations, kept in `.sql` files."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import NamedTuple

_NAMED = re.compile(r"^-- name: (\w+)[^\n]*\n", re.MULTILINE)


class Migration(NamedTuple):
    """One step of a schema: its number and the statements that lead there."""

    version: int
    sql: str


def queries(dialect: str) -> dict[str, str]:
    """Return the statements of `sql/<dialect>/queries.sql` by name, without their descriptions."""
    parts = _NAMED.split((files("bough.events") / "sql" / dialect / "queries.sql").read_text("utf-8"))
    return {name: _bare(sql) for name, sql in zip(parts[1::2], parts[2::2], strict=True)}


def migrations(dialect: str) -> list[Migration]:
    """Return the migrations of `sql/<dialect>/NNNN_*.sql` in their order."""
    found = (entry for entry in (files("bough.events") / "sql" / dialect).iterdir() if entry.name[:4].isdigit())
    return sorted(Migration(int(entry.name[:4]), entry.read_text("utf-8")) for entry in found)


def _bare(sql: str) -> str:
    lines = (line for line in sql.splitlines() if not line.lstrip().startswith("--"))
    return " ".join(" ".join(lines).split()).removesuffix(";")
