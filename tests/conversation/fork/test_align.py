"""Aligning steps: every step is in one pair, both orders are kept, and equal steps are found."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bough.conversation.fork.align import MAX_ALIGNED_STEPS, StepKey, align

KEYS = st.builds(StepKey, st.sampled_from(["call", "answer"]), st.sampled_from(["", "run"]), st.sampled_from("abc"))


def make_calls(*contents: str) -> list[StepKey]:
    return [StepKey("call", "run", content) for content in contents]


@given(st.lists(KEYS, max_size=12), st.lists(KEYS, max_size=12))
def test_each_step_is_in_one_pair_and_both_sides_keep_their_order(a: list[StepKey], b: list[StepKey]) -> None:
    pairs = align(a, b)
    assert [place for place, _ in pairs if place is not None] == list(range(len(a)))
    assert [place for _, place in pairs if place is not None] == list(range(len(b)))
    assert all(pair != (None, None) for pair in pairs)
    assert all(a[i].coarse == b[j].coarse for i, j in pairs if i is not None and j is not None)


@given(st.lists(KEYS, max_size=12))
def test_a_list_is_aligned_with_itself_step_by_step(steps: list[StepKey]) -> None:
    assert align(steps, steps) == [(place, place) for place in range(len(steps))]


@given(st.lists(KEYS, max_size=10), st.lists(KEYS, max_size=10))
def test_swapping_the_sides_pairs_as_many_steps(a: list[StepKey], b: list[StepKey]) -> None:
    exact = [sum(None not in (i, j) and x[i or 0] == y[j or 0] for i, j in align(x, y)) for x, y in ((a, b), (b, a))]
    assert exact[0] == exact[1]


def test_equal_steps_are_paired_before_steps_of_the_same_tool() -> None:
    assert align(make_calls("a", "b"), make_calls("b")) == [(0, None), (1, 0)]
    assert align(make_calls("a"), make_calls("x")) == [(0, 0)]
    assert align(make_calls("a", "b", "c"), make_calls("a", "x", "c")) == [(0, 0), (1, 1), (2, 2)]


def test_a_step_of_another_kind_stands_alone() -> None:
    answer = StepKey("answer", "", "a")
    assert align([answer], make_calls("a")) == [(0, None), (None, 0)]


def test_many_steps_are_paired_by_their_places() -> None:
    many = make_calls(*[str(number) for number in range(MAX_ALIGNED_STEPS + 1)])
    assert align(many, many[1:])[:2] == [(0, 0), (1, 1)]
    assert len(align(many, [])) == len(many)
    assert align(many, [StepKey("answer", "", "a")])[:2] == [(0, None), (None, 0)]
