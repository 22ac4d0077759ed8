#!/usr/bin/env python3
"""Print rows of JSON as an aligned table, as CSV or as Markdown."""

from __future__ import annotations

import argparse
import csv
import json
import sys
from typing import Any, cast


def read_rows(text: str) -> list[dict[str, Any]]:
    """Return the rows of a list of objects, or of an answer with `rows`.

    Raises:
        ValueError: It is neither.
    """
    found: Any = json.loads(text)
    if isinstance(found, dict):
        found = cast("dict[str, Any]", found).get("rows")
    if not isinstance(found, list):
        raise ValueError("give a list of objects, or an object with `rows`")  # noqa: TRY004 - the text is wrong
    rows = cast("list[Any]", found)
    if not all(isinstance(row, dict) for row in rows):
        raise ValueError("every row must be an object")
    return rows


def show_value(value: Any) -> str:
    """Return a value as text on one line; nothing for null."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return " ".join(text.split())


def show_table(head: list[str], rows: list[list[str]]) -> str:
    """Return columns of one width each."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    lines = [head, ["-" * width for width in widths], *rows]
    return "\n".join("  ".join(cell.ljust(widths[i]) for i, cell in enumerate(line)).rstrip() for line in lines)


def show_markdown(head: list[str], rows: list[list[str]]) -> str:
    """Return a table of Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def main() -> int:
    """Read rows from the input and print them; 2 for input that holds none."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="?", help="the rows as JSON; read from the input where they are not given")
    parser.add_argument("--format", choices=("table", "csv", "markdown"), default="table")
    parser.add_argument("--max-rows", type=int, default=50)
    given = parser.parse_args()
    try:
        rows = read_rows(sys.stdin.read() if given.rows is None else given.rows)
    except ValueError as error:
        print(f"no rows: {error}", file=sys.stderr)
        return 2
    head = list(dict.fromkeys(name for row in rows for name in row))
    shown = [[show_value(row.get(name)) for name in head] for row in rows[: given.max_rows]]
    if given.format == "csv":
        csv.writer(sys.stdout, lineterminator="\n").writerows([head, *shown])
    else:
        print((show_table if given.format == "table" else show_markdown)(head, shown))
    if len(rows) > len(shown):
        print(f"{len(rows) - len(shown)} more rows", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
