"""The drawing of a tree: every branch in one row, ancestors before it, and no line crosses another."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from bough.web.tree import PAGE_ROWS, Axis, Branch, TreeRow, draw, find_line, make_axis, order_rows, select_rows


@st.composite
def trees(draw_value: st.DrawFn) -> list[Branch]:
    branches = [Branch(id=UUID(int=1), parent=None, cut=0, head=draw_value(st.integers(1, 5000)))]
    for number in range(2, draw_value(st.integers(1, 25)) + 1):
        parent = draw_value(st.sampled_from(branches))
        cut = draw_value(st.integers(0, parent.head))
        head = cut + draw_value(st.integers(1, 3000))
        branches.append(Branch(id=UUID(int=number), parent=parent.id, cut=cut, head=head))
    return draw_value(st.permutations(branches))


def list_verticals(rows: list[TreeRow], axis: Axis) -> list[tuple[int, int, float]]:
    """Return the vertical lines as (row of the source, row of the fork, place)."""
    return [
        (row.parent_row, place, find_line(rows, place, axis)[0])
        for place, row in enumerate(rows)
        if row.parent_row is not None
    ]


@given(trees())
def test_no_line_crosses_another(branches: list[Branch]) -> None:
    rows = order_rows(branches)
    axis = make_axis(rows)
    for start, stop, x in list_verticals(rows, axis):
        assert start < stop
        begin, end = find_line(rows, start, axis)
        assert begin <= x <= end, "a fork begins on the line of its source"
        for place in range(start + 1, stop):
            assert find_line(rows, place, axis)[0] >= x


@given(trees())
def test_each_branch_has_one_row_below_its_source(branches: list[Branch]) -> None:
    rows = order_rows(branches)
    assert sorted(row.branch.id for row in rows) == sorted(branch.id for branch in branches)
    for place, row in enumerate(rows):
        if row.parent_row is not None:
            assert row.parent_row < place
            assert rows[row.parent_row].depth == row.depth - 1


@given(trees(), st.integers(0, 30), st.integers(1, 10))
def test_a_page_shows_the_ancestors_of_its_rows(branches: list[Branch], start: int, count: int) -> None:
    rows = order_rows(branches)
    page = select_rows(rows, start, count)
    asked = rows[start : start + count]
    assert [row.branch for row in page][len(page) - len(asked) :] == [row.branch for row in asked]
    for row in page:
        if row.depth:
            assert row.parent_row is not None
            assert page[row.parent_row].depth == row.depth - 1


def test_siblings_are_drawn_with_the_latest_cut_first() -> None:
    root = Branch(id=UUID(int=1), parent=None, cut=0, head=50)
    forks = [Branch(id=UUID(int=2 + cut), parent=root.id, cut=cut, head=60) for cut in (8, 33, 20)]
    assert [row.branch.cut for row in order_rows([root, *forks])] == [0, 33, 20, 8]


def test_a_fork_cut_before_its_source_began_continues_the_branch_that_it_shares() -> None:
    root = Branch(id=UUID(int=1), parent=None, cut=0, head=50)
    fork = Branch(id=UUID(int=2), parent=root.id, cut=30, head=60)
    early = Branch(id=UUID(int=3), parent=fork.id, cut=10, head=12)
    rows = order_rows([root, fork, early])
    assert [(row.branch.id.int, row.parent_row) for row in rows] == [(1, None), (2, 0), (3, 0)]


def test_a_branch_whose_source_is_deleted_begins_a_tree() -> None:
    rows = order_rows([Branch(id=UUID(int=2), parent=UUID(int=1), cut=30, head=60)])
    assert [(row.parent_row, row.depth) for row in rows] == [(None, 0)]


def test_a_thousand_branches_are_drawn_in_pages() -> None:
    branches = [Branch(id=UUID(int=1), parent=None, cut=0, head=1000)]
    branches += [Branch(id=UUID(int=n), parent=UUID(int=n // 2), cut=n // 2, head=1000 + n) for n in range(2, 1001)]
    rows = order_rows(branches)
    page = select_rows(rows, 400)
    assert len(rows) == 1000
    assert PAGE_ROWS <= len(page) <= PAGE_ROWS + 12
    assert len(draw(page, branches[0].id)) < 60_000


@given(st.integers(1, 10**9))
def test_the_axis_covers_the_longest_log(longest: int) -> None:
    axis = Axis.make(longest)
    assert axis.top >= longest
    assert len(axis.marks) == 6
    assert axis.marks == sorted(axis.marks)
    assert axis.place(longest) <= axis.place(axis.top) <= 1000
