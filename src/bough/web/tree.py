"""The drawing of a tree of forks: a branch a row, depth first, the children of a branch by their cuts, latest first.

In this order, the line from a branch to its fork passes only rows of later cuts, which begin right of it: no line
crosses another. O(branches * log(branches)).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from math import sqrt
from typing import Final
from uuid import UUID

from markupsafe import Markup

ROW_HEIGHT: Final = 40
WIDTH: Final = 1000
_LEFT, _LENGTH = 10.0, 875.0
_LINEAR_EVENTS: Final = 2000
_RADIUS: Final = 12
_AXIS_STEPS: Final = 5
PAGE_ROWS: Final = 200


@dataclass(frozen=True, kw_only=True)
class Branch:
    """One conversation of a tree.

    Attributes:
        parent: The conversation that it was forked from; None for the root, or if that is deleted.
        cut: How many events it shares with its parent.
        head: How many events it has.
        points: Seqs of events that are drawn as dots.
    """

    id: UUID
    parent: UUID | None
    cut: int
    head: int
    points: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TreeRow:
    """A branch in its row.

    Attributes:
        parent_row: The row of its parent; None without one.
    """

    branch: Branch
    depth: int
    parent_row: int | None


def order_rows(branches: Sequence[Branch]) -> list[TreeRow]:
    """Return all branches in rows, depth first, children by cut, the latest first. Of equal cuts, the newer id first.

    A branch whose parent is not among them begins a tree of its own.
    """
    by_id = {branch.id: branch for branch in branches}
    children: dict[UUID | None, list[Branch]] = {}
    for branch in branches:
        parent = None if branch.parent is None else by_id.get(branch.parent)
        # A fork that was cut before its source's own first event continues the branch that has that event.
        while parent is not None and parent.parent is not None and parent.parent in by_id and branch.cut < parent.cut:
            parent = by_id[parent.parent]
        children.setdefault(None if parent is None else parent.id, []).append(branch)
    for siblings in children.values():
        # Ascending: the last one is taken from the stack first.
        siblings.sort(key=lambda branch: (branch.cut, branch.id))
    rows: list[TreeRow] = []
    stack: list[tuple[Branch, int, int | None]] = [(root, 0, None) for root in children.get(None, [])]
    while stack:
        branch, depth, parent_row = stack.pop()
        rows.append(TreeRow(branch=branch, depth=depth, parent_row=parent_row))
        place = len(rows) - 1
        stack += [(child, depth + 1, place) for child in children.get(branch.id, [])]
    return rows


def select_rows(rows: Sequence[TreeRow], start: int, count: int = PAGE_ROWS) -> list[TreeRow]:
    """Return a page of rows, before it the ancestors of its first row. Parents are numbered within the result."""
    page = list(range(max(start, 0), min(start + count, len(rows))))
    ancestors: list[int] = []
    place = rows[page[0]].parent_row if page else None
    while place is not None:
        ancestors.append(place)
        place = rows[place].parent_row
    places = [*reversed(ancestors), *page]
    numbers = {place: number for number, place in enumerate(places)}
    return [
        replace(row, parent_row=None if row.parent_row is None else numbers[row.parent_row])
        for row in (rows[place] for place in places)
    ]


@dataclass(frozen=True)
class Axis:
    """The horizontal axis of a drawing: linear, or for long logs a square root.

    Attributes:
        top: The number of events at its last mark.
    """

    top: int
    is_linear: bool

    @classmethod
    def make(cls, longest: int) -> Axis:
        """Return the axis for logs of at most `longest` events: its last mark is the first round number beyond."""
        step, factors = 1, (2, 2.5, 2)
        for factor in cycle(factors):
            if step * _AXIS_STEPS >= longest:
                break
            step = int(step * factor)
        return cls(step * _AXIS_STEPS, is_linear=longest <= _LINEAR_EVENTS)

    @property
    def marks(self) -> list[int]:
        """The numbers of events at the marks, which have equal distances."""
        shares = (mark / _AXIS_STEPS for mark in range(_AXIS_STEPS + 1))
        return [round(self.top * (share if self.is_linear else share * share)) for share in shares]

    def place(self, events: float) -> float:
        """Return the place of a number of events. It grows with the number."""
        share = events / self.top
        return _LEFT + _LENGTH * (share if self.is_linear else sqrt(share))


def draw(rows: Sequence[TreeRow], current: UUID, faded: Collection[UUID] = ()) -> Markup:
    """Return the drawing of some rows as SVG, stretched to its box, whose rows have one height.

    Args:
        current: Drawn last and in the colour of the current item.
        faded: Branches that are drawn pale.
    """
    axis, height = make_axis(rows), ROW_HEIGHT * len(rows)
    grid = "".join(f"M{axis.place(events):.1f} 0V{height}" for events in axis.marks)
    groups = [f'<path class="grid" stroke-width="1" d="{grid}"/>']
    now = ""
    for place, row in enumerate(rows):
        line, dots = _draw_line(rows, place, axis), _draw_dots(row, place, axis)
        is_current = row.branch.id == current
        group = f'<path stroke-width="{2.5 if is_current else 1.5}" d="{line}"/>'
        if dots:
            group += f'<path stroke-width="7" d="{dots}"/>'
        if is_current:
            now = f'<g class="now">{group}</g>'
        else:
            pale = ' opacity=".5"' if row.branch.id in faded else ""
            groups.append(f"<g{pale}>{group}</g>")
    return Markup(  # noqa: S704 - numbers only
        f'<svg class="graph" viewBox="0 0 {WIDTH} {max(height, 1)}" preserveAspectRatio="none" fill="none" '
        f'stroke-linecap="round" aria-hidden="true">{"".join(groups)}{now}</svg>'
    )


def make_axis(rows: Sequence[TreeRow]) -> Axis:
    """Return the axis for some rows."""
    return Axis.make(max((row.branch.head for row in rows), default=1))


def find_line(rows: Sequence[TreeRow], place: int, axis: Axis) -> tuple[float, float]:
    """Return where the horizontal line of a row begins and ends; a fork's begins at its cut."""
    branch = rows[place].branch
    start = axis.place(branch.cut if rows[place].parent_row is not None else 0)
    return start, max(axis.place(branch.head), start + 1)


def _draw_line(rows: Sequence[TreeRow], place: int, axis: Axis) -> str:
    start, end = find_line(rows, place, axis)
    y = _middle(place)
    parent_row = rows[place].parent_row
    if parent_row is None:
        return f"M{start:.1f} {y}H{end:.1f}"
    bend = min(9.0, end - start)
    return f"M{start:.1f} {_middle(parent_row)}V{y - _RADIUS}q0 {_RADIUS} {bend:.1f} {_RADIUS}H{end:.1f}"


def _draw_dots(row: TreeRow, place: int, axis: Axis) -> str:
    own = [point for point in row.branch.points if point >= (row.branch.cut if row.parent_row is not None else 0)]
    return "".join(f"M{axis.place(point + 1):.1f} {_middle(place)}h0" for point in own)


def _middle(place: int) -> int:
    return place * ROW_HEIGHT + ROW_HEIGHT // 2
