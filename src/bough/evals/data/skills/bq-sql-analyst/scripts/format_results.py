#!/usr/bin/env python3
"""Print rows of JSON as an aligned table, as CSV or as Markdown."""

from __future__ import annotations

import argparse
import csv
import json
import sys
from typing import Any, cast


def read_rows(text: str) -> list[dict[str, Any]]:
    """Return the rows of a list of objects, or of a tool's result with `rows`.

    Raises:
        ValueError: The text is neither.
    """
    data: Any = json.loads(text)
    if isinstance(data, dict):
        data = cast("dict[str, Any]", data).get("rows")
    if not isinstance(data, list):
        raise ValueError("give a list of objects, or an object with `rows`")  # noqa: TRY004 - the text is wrong
    rows = cast("list[Any]", data)
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
    """Format rows as aligned columns."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    lines = [head, ["-" * width for width in widths], *rows]
    return "\n".join("  ".join(cell.ljust(widths[i]) for i, cell in enumerate(line)).rstrip() for line in lines)


def show_markdown(head: list[str], rows: list[list[str]]) -> str:
    """Format rows as a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def main() -> int:
    """Read rows and print them; return 2 if the input has no valid rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="?", help="the rows as JSON; read from standard input if missing")
    parser.add_argument("--format", choices=("table", "csv", "markdown"), default="table")
    parser.add_argument("--max-rows", type=int, default=50)
    options = parser.parse_args()
    try:
        rows = read_rows(sys.stdin.read() if options.rows is None else options.rows)
    except ValueError as error:
        print(f"no rows: {error}", file=sys.stderr)
        return 2
    head = list(dict.fromkeys(name for row in rows for name in row))
    cells = [[show_value(row.get(name)) for name in head] for row in rows[: options.max_rows]]
    if options.format == "csv":
        csv.writer(sys.stdout, lineterminator="\n").writerows([head, *cells])
    else:
        print((show_table if options.format == "table" else show_markdown)(head, cells))
    if len(rows) > len(cells):
        print(f"{len(rows) - len(cells)} more rows", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
