"""Differences of texts as pieces."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bough.web.screens.compare import MAX_WORD_BYTES, Piece, diff_texts

TEXTS = st.lists(st.sampled_from(["a", "b", " ", "\n", "word", "λ", ","]), max_size=20).map("".join)


@given(TEXTS, TEXTS)
def test_the_pieces_are_the_texts_and_share_what_is_not_changed(a: str, b: str) -> None:
    pieces_a, pieces_b = diff_texts(a, b)
    assert "".join(piece.text for piece in pieces_a) == a
    assert "".join(piece.text for piece in pieces_b) == b
    same = ["".join(piece.text for piece in pieces if not piece.change) for pieces in (pieces_a, pieces_b)]
    assert same[0] == same[1]


def test_short_texts_are_compared_by_words() -> None:
    pieces_a, pieces_b = diff_texts("fix the parser.", "fix the loader.")
    assert pieces_a == [Piece("fix the ", ""), Piece("parser", "del"), Piece(".", "")]
    assert pieces_b == [Piece("fix the ", ""), Piece("loader", "ins"), Piece(".", "")]


def test_long_texts_are_compared_by_lines() -> None:
    long = "one two\n" * (MAX_WORD_BYTES // 8 + 1)
    _, pieces = diff_texts(long, long + "three four\n")
    assert pieces[-1] == Piece("three four\n", "ins")
    assert diff_texts("x\n" * 3000, "y")[1] == [Piece("y", "ins")]
