"""Writes the tables of docs/reference/performance.md from figures. Each table is between two markers."""

from __future__ import annotations

import os
import platform
import re
import sqlite3
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from harness import Figure
from targets import TARGETS

OWN = "| figure | measured | floor | ratio | target | reached |\n|---|---:|---:|---:|---:|---|"
PEERS = "| operation | peer and what was called | peer | bough | times | when, load |\n|---|---|---:|---:|---:|---|"
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}


def rewrite(path: Path, part: str, text: str) -> None:
    """Replace the text between the markers of a part. Nothing else changes.

    Raises:
        ValueError: The page lacks the markers, or has them twice.
    """
    page = path.read_text("utf-8")
    begin, end = f"<!-- begin {part} -->\n", f"<!-- end {part} -->"
    if page.count(begin) != 1 or page.count(end) != 1 or page.index(end) < page.index(begin):
        raise ValueError(f"{path} needs the lines {begin.strip()} and {end}, once and in this order")
    before, rest = page.split(begin)
    path.write_text(f"{before}{begin}{text}\n{end}{rest.split(end)[1]}", "utf-8")


def part_of(path: Path, part: str) -> str:
    """Return the text between the markers of a part, or an empty string if there are none."""
    found = re.search(rf"<!-- begin {part} -->\n(.*?)<!-- end {part} -->", path.read_text("utf-8"), re.DOTALL)
    return found[1] if found else ""


def own(figures: Sequence[Figure], *, failed: Sequence[str], loads: tuple[float, float]) -> str:
    """Return bough's own part: the machine, and a row for each figure.

    Args:
        failed: Benchmarks that failed.
        loads: The load average before and after.
    """
    reached_count = sum(reached(figure) == "yes" for figure in figures)
    lines = [
        f"{format_today()}, {describe_machine()}. "
        f"Load average {loads[0]:.1f} before, {loads[1]:.1f} after. Each value is a median of",
        f"at least five rounds, in turns with its floor. {reached_count} of {len(TARGETS)} targets were reached.",
        "",
        OWN,
        *map(_make_own_row, figures),
    ]
    if failed:
        lines += ["", f"Came to no end: {', '.join(failed)}."]
    if unmeasured := [name for name in TARGETS if name not in {figure.name for figure in figures}]:
        lines += ["", "Not measured, and not reached: " + "; ".join(unmeasured) + "."]
    return "\n".join(lines)


def reached(figure: Figure) -> str:
    """Return yes, no, or a dash where there is no target."""
    target = TARGETS.get(figure.name)
    if target is None:
        return "–"
    return "yes" if target.reached(figure) else "**no**"


def peers(figures: Iterable[Figure], before: str) -> str:
    """Return the peers' part: the rows of these figures, and those of `before` that were not measured again."""
    when = f"{format_today()}, {os.getloadavg()[0]:.1f}"
    rows = {_find_key(row): row for row in re.findall(r"^\| (?!operation).*$", before, re.MULTILINE)}
    for figure in figures:
        row = _make_peer_row(figure, when)
        rows[_find_key(row)] = row
    return "\n".join([PEERS, *rows.values()])


def describe_machine() -> str:
    """Return a description of the machine that the figures depend on."""
    return (
        f"{os.cpu_count()} cores ({_find_processor()}), Linux {platform.release()}, "
        f"Python {platform.python_version()}, "
        f"SQLite {sqlite3.sqlite_version}"
    )


def format_today() -> str:
    """Return the date in words."""
    now = datetime.now(UTC)
    return f"{now.day} {now:%B %Y}"


def format_quantity(value: float, unit: str) -> str:
    """Return a measured value for a person: three digits, and times in the unit that fits."""
    if unit == "1/s":
        return f"{value:,.0f}/s"
    if unit not in _SECONDS:
        return f"{value:,.4g} {unit}"
    seconds = value * _SECONDS[unit]
    best_unit = next((name for name, size in _SECONDS.items() if seconds >= size), "us")
    shown = seconds / _SECONDS[best_unit]
    return f"{shown:,.0f} {best_unit}" if shown >= 100 else f"{shown:.3g} {best_unit}"


def _make_own_row(figure: Figure) -> str:
    floor = "–" if figure.floor is None else format_quantity(figure.floor, figure.unit)
    ratio = "–" if figure.ratio is None else f"{figure.ratio:.2f}"
    target = TARGETS.get(figure.name, "–")
    cells = (figure.name, format_quantity(figure.value, figure.unit), floor, ratio, target, reached(figure))
    return f"| {' | '.join(map(str, cells))} |"


def _make_peer_row(figure: Figure, when: str) -> str:
    operation, _, called = figure.name.partition(", ")
    floor = format_quantity(figure.floor or 0, figure.unit)
    times = figure.ratio or 0
    shown = f"{times:,.0f}" if times >= 10 else f"{times:.2g}"
    return f"| {operation} | {called} | {format_quantity(figure.value, figure.unit)} | {floor} | {shown} | {when} |"


def _find_key(row: str) -> str:
    """Return the operation and call of a peer's row, without version numbers."""
    operation, called = row.split(" | ")[:2]
    return re.sub(r" \d+(\.\w+)+", "", f"{operation} | {called}")


def _find_processor() -> str:
    info = Path("/proc/cpuinfo")
    match = re.search(r"^model name\s*: (.*)$", info.read_text(), re.MULTILINE) if info.exists() else None
    return match[1] if match else platform.machine()
