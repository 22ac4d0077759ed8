#!/usr/bin/env python3
"""Print what is in a delimited text file: rows, columns, types, missing values, ranges, frequent values."""

from __future__ import annotations

import argparse
import csv
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import date, datetime
from itertools import islice
from math import isfinite
from pathlib import Path

MISSING = {"", "na", "n/a", "null", "none", "nan", "-"}
DELIMITERS = ",;\t|"
MAX_DISTINCT = 50_000
MAX_SHOWN = 40


class Refused(Exception):
    """The file cannot be profiled; the message says why."""


def as_number(text: str) -> float | None:
    """Return a finite number, None for anything else. `1_000` and `infinity` are not numbers here."""
    try:
        number = float(text) if "_" not in text else None
    except ValueError:
        return None
    return number if number is not None and isfinite(number) else None


def as_date(text: str) -> date | None:
    """Return an ISO 8601 date or time, None for anything else."""
    if len(text) < 10 or text[4:5] != "-":
        return None
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


@dataclass
class Column:
    """What was seen in one column; memory is bounded by `MAX_DISTINCT` values."""

    name: str
    filled: int = 0
    missing: int = 0
    integers: int = 0
    numbers: int = 0
    dates: int = 0
    booleans: int = 0
    total: float = 0.0
    low: float | None = None
    high: float | None = None
    first: str = ""
    last: str = ""
    values: Counter[str] = field(default_factory=Counter)
    overflowed: bool = False

    def add(self, cell: str) -> None:
        """Take one cell into account."""
        text = cell.strip()
        if text.lower() in MISSING:
            self.missing += 1
            return
        self.filled += 1
        self._measure(text)
        self.first = min(self.first, text) if self.first else text
        self.last = max(self.last, text)
        if text in self.values or len(self.values) < MAX_DISTINCT:
            self.values[text] += 1
        else:
            self.overflowed = True

    def _measure(self, text: str) -> None:
        self.booleans += text.lower() in {"true", "false", "yes", "no"}
        number = as_number(text)
        if number is None:
            self.dates += as_date(text) is not None
            return
        self.numbers += 1
        self.integers += text.lstrip("+-").isdigit()
        self.total += number
        self.low = number if self.low is None else min(self.low, number)
        self.high = number if self.high is None else max(self.high, number)

    @property
    def type(self) -> str:
        """The narrowest type that fits every filled cell."""
        kinds = [("integer", self.integers), ("number", self.numbers), ("date", self.dates), ("boolean", self.booleans)]
        return next(
            (kind for kind, count in kinds if self.filled and count == self.filled), "text" if self.filled else "empty"
        )

    def lines(self, top: int) -> Iterator[str]:
        """Yield the report of this column."""
        distinct = f"more than {MAX_DISTINCT}" if self.overflowed else str(len(self.values))
        yield f"{self.name}: {self.type}"
        yield f"  filled {self.filled}, missing {self.missing}, distinct {distinct}"
        if self.type in {"integer", "number"} and self.low is not None and self.high is not None:
            yield f"  min {plain(self.low)}, max {plain(self.high)}, mean {plain(self.total / self.numbers)}"
        elif self.type == "date":
            yield f"  first {self.first}, last {self.last}"
        if self.filled and not self.overflowed:
            yield f"  top {', '.join(f'{shortened(value)} ({count})' for value, count in self.most(top))}"

    def most(self, top: int) -> list[tuple[str, int]]:
        """Return the most frequent values; equal counts in alphabetical order."""
        return sorted(self.values.items(), key=lambda item: (-item[1], item[0]))[:top]


def plain(number: float) -> str:
    """Return a number without a useless fraction, with at most four decimals."""
    return f"{number:.0f}" if number == int(number) else f"{number:.4f}".rstrip("0").rstrip(".")


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural where it must be."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def shortened(text: str) -> str:
    """Return a value that fits on a line."""
    one_line = " ".join(text.split())
    return one_line if len(one_line) <= MAX_SHOWN else one_line[: MAX_SHOWN - 1] + "…"


def decoded_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a file: UTF-8 (with or without a mark), UTF-16 with a mark."""
    with path.open("rb") as raw:
        head = raw.read(4096)
    encoding = "utf-16" if head[:2] in {b"\xff\xfe", b"\xfe\xff"} else "utf-8-sig"
    if encoding != "utf-16" and b"\0" in head:
        raise Refused(f"{path} is a binary file")
    try:
        with path.open(encoding=encoding, newline="") as file:
            yield from file
    except UnicodeError as error:
        raise Refused(f"{path} is not {'UTF-16' if encoding == 'utf-16' else 'UTF-8'}: {error}") from error


def delimiter_of(lines: list[str]) -> str:
    """Return the delimiter that splits most lines into as many cells as the header; a comma when none does."""
    best, score = ",", (0.0, 0)
    for candidate in DELIMITERS:
        widths = [len(row) for row in csv.reader(lines, delimiter=candidate) if row]
        if widths[0] > 1 and (found := (widths.count(widths[0]) / len(widths), widths[0])) > score:
            best, score = candidate, found
    return best


def unique(names: Iterable[str]) -> list[str]:
    """Return column names, numbered where they are empty and marked where they repeat."""
    seen: Counter[str] = Counter()
    result: list[str] = []
    for number, name in enumerate(names, 1):
        name = name.strip() or f"column {number}"
        seen[name] += 1
        result.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return result


def profile(path: Path, *, delimiter: str | None, top: int) -> Iterator[str]:
    """Yield the report, line by line; one pass over the file in bounded memory."""
    lines = decoded_lines(path)
    head = list(islice(lines, 20))
    if not any(line.strip() for line in head):
        raise Refused(f"{path} is empty")
    delimiter = delimiter or delimiter_of(head)
    rows = (row for row in csv.reader((line for part in (head, lines) for line in part), delimiter=delimiter) if row)
    columns = [Column(name) for name in unique(next(rows))]
    count = ragged = 0
    for row in rows:
        count += 1
        ragged += len(row) != len(columns)
        for index, column in enumerate(columns):
            column.add(row[index] if index < len(row) else "")
    shown = {"\t": "tab"}.get(delimiter, f"'{delimiter}'")
    yield f"{path}: {counted(count, 'row')}, {counted(len(columns), 'column')}, separated by {shown}"
    if ragged:
        yield f"with too few or too many cells: {counted(ragged, 'row')}"
    for column in columns:
        yield ""
        yield from column.lines(top)


def arguments(argv: list[str] | None) -> argparse.Namespace:
    """Return the parsed arguments; ends with exit code 2 and the usage when they are wrong."""
    parser = argparse.ArgumentParser(description="Profile a CSV or TSV file.")
    parser.add_argument("file", type=Path, help="the file to profile")
    parser.add_argument("--delimiter", help="one character; told from the first lines when left out")
    parser.add_argument("--top", type=int, default=3, help="how many of the most frequent values to show")
    args = parser.parse_args(argv)
    if args.delimiter is not None and (len(args.delimiter) != 1 or args.delimiter in '\r\n"'):
        parser.error("--delimiter takes one character")
    if args.top < 1:
        parser.error("--top takes a number from 1")
    return args


def main(argv: list[str] | None = None) -> int:
    """Print the profile and return the exit code: 0, 1 when the file cannot be profiled, 2 for wrong arguments."""
    args = arguments(argv)
    try:
        for line in profile(args.file, delimiter=args.delimiter, top=args.top):
            print(line)
    except OSError as error:
        print(f"{args.file}: {error.strerror}", file=sys.stderr)
    except (Refused, csv.Error) as error:
        print(error, file=sys.stderr)
    else:
        return 0
    return 1


if __name__ == "__main__":
    sys.exit(main())
