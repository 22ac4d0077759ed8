"""Lines and tables before they are painted: widths in cells, breaks between words, nothing lost, nothing harmful."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bough.cli.text import Line, Span, Table, cells, harmless, layout, line, paragraph, shorten


@given(st.text(max_size=60), st.integers(1, 40))
def test_a_shortened_text_fits_and_begins_like_the_whole(text: str, width: int) -> None:
    cut = shorten(text, width)
    assert cells(cut) <= width
    assert cut == text or text.startswith(cut[:-1])


@given(st.lists(st.text("abcdé漢", min_size=1, max_size=9), min_size=1, max_size=30), st.integers(20, 60))
def test_a_broken_line_fits_and_loses_no_word(words: list[str], width: int) -> None:
    (whole,) = paragraph(" ".join(words), indent=4)
    parts = [part.plain for part in layout(whole, width)]
    assert " ".join(parts).split() == words
    assert all(cells(part) <= width for part in parts)
    assert all(part.startswith("    ") for part in parts)


def test_a_line_without_a_hang_and_a_line_in_a_pipe_stay_whole() -> None:
    long = "word " * 40
    assert list(layout(line(long), 20)) == [line(long)]
    assert list(layout(line(long, hang=2), None)) == [line(long, hang=2)]


@pytest.mark.parametrize("width", [40, 60, None])
def test_a_table_keeps_its_columns_in_place_and_only_the_flexible_one_gives_way(width: int | None) -> None:
    table = Table(
        head=("id", "title", "n"),
        rows=((("a", "id"), ("漢字 " * 20, ""), ("7", "")), (("bcd", "id"), ("short", ""), ("123", ""))),
        flexible=(1,),
        right=frozenset({2}),
    )
    rows = [part.plain for part in layout(table, width)]
    assert [re.split(r"\s+", row)[0] for row in rows] == ["id", "a", "bcd"]
    assert len({cells(row) for row in rows}) == 1
    assert ("…" in rows[1]) is (width is not None)
    if width is not None:
        assert cells(rows[0]) == width


def test_of_several_flexible_columns_the_widest_give_way() -> None:
    table = Table(head=("a", "b", "n"), rows=((("x" * 30, ""), ("y" * 12, ""), ("12", "")),), flexible=(0, 1))
    rows = [part.plain for part in layout(table, 30)]
    assert rows[1] == f"{'x' * 11}…  {'y' * 12}  12"
    assert [cells(row) for row in rows] == [29, 30]
    assert list(layout(table, 10))[1].plain == f"{'x' * 7}…  {'y' * 7}…  12"


@given(
    st.integers(30, 120),
    st.lists(st.tuples(*[st.text("abé漢", max_size=40)] * 4), min_size=1, max_size=4),
)
def test_a_table_never_wraps_and_columns_leave_in_their_order(width: int, texts: list[tuple[str, ...]]) -> None:
    rows: tuple[tuple[Span, ...], ...] = tuple(tuple((text, "") for text in row) for row in texts)
    table = Table(head=("n", "k", "f", "text"), rows=rows, flexible=(3,), drop=(2, 1), last_flexible=0)
    lines = [part.plain for part in layout(table, width)]
    assert all(cells(shown) <= width for shown in lines)
    assert len(lines) == len(rows) + 1
    heads = lines[0].split()
    assert heads in (["n", "k", "f", "text"], ["n", "k", "text"], ["n", "text"])
    natural = [max(cells(text) for text in column) for column in zip(table.head, *texts, strict=True)]
    if sum(natural) + 6 <= width:
        assert heads == ["n", "k", "f", "text"]
        assert cells(lines[0]) <= sum(natural) + 6, "no wider than its texts"


@given(st.text(max_size=40))
def test_harmless_text_has_no_control_character_and_the_rest_unchanged(text: str) -> None:
    shown = harmless(text)
    assert len(shown) == len(text)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", shown)
    assert all(a == b or b == "\ufffd" for a, b in zip(text, shown, strict=True))


def test_styles_survive_a_break() -> None:
    (first, second) = layout(line(("one two ", "bad"), ("three four", "good"), hang=1), 12)
    assert isinstance(first, Line)
    assert {style for _, style in first.spans} == {"bad"}
    assert ("three ", "good") in second.spans or ("three", "good") in second.spans
