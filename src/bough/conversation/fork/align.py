"""Aligning the steps of two turns: which step of one side stands beside which step of the other."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple, TypeAlias, TypeVar

T = TypeVar("T")

MAX_ALIGNED_STEPS = 200
"""Above this number of steps on a side, steps are paired by their places."""


class StepKey(NamedTuple):
    """What a step is compared by.

    Attributes:
        content: For a call its arguments as canonical JSON, else the text.
    """

    kind: str
    tool: str
    content: str

    @property
    def coarse(self) -> tuple[str, str]:
        """The key without the content."""
        return self.kind, self.tool


Pair: TypeAlias = tuple[int | None, int | None]
"""The places of two steps that stand side by side; None where one side has no such step."""


def align(a: Sequence[StepKey], b: Sequence[StepKey]) -> list[Pair]:
    """Return the pairs of two lists of steps. Each step is in one pair, and both sides keep their order.

    Pairs equal steps first, as a longest common subsequence, and between them steps of one kind and tool. O(len(a) *
    len(b)) up to `MAX_ALIGNED_STEPS`, else O(len(a) + len(b)).
    """
    if max(len(a), len(b)) > MAX_ALIGNED_STEPS:
        return _pair_by_place(a, b)
    pairs: list[Pair] = []
    start_a = start_b = 0
    # The last pair is beyond both ends, so that the steps after the last match are aligned like the steps between two.
    for end_a, end_b in [*_find_common(a, b, lambda key: key), (len(a), len(b))]:
        pairs += _align_coarse(a, b, (start_a, end_a), (start_b, end_b))
        if end_a < len(a):
            pairs.append((end_a, end_b))
        start_a, start_b = end_a + 1, end_b + 1
    return pairs


def _align_coarse(
    a: Sequence[StepKey], b: Sequence[StepKey], range_a: tuple[int, int], range_b: tuple[int, int]
) -> list[Pair]:
    """Return the pairs of two ranges that have no equal steps."""
    (start_a, stop_a), (start_b, stop_b) = range_a, range_b
    pairs: list[Pair] = []
    common = _find_common(a[start_a:stop_a], b[start_b:stop_b], lambda key: key.coarse)
    matches = [(start_a + place_a, start_b + place_b) for place_a, place_b in common]
    for end_a, end_b in [*matches, (stop_a, stop_b)]:
        pairs += [(place, None) for place in range(start_a, end_a)]
        pairs += [(None, place) for place in range(start_b, end_b)]
        # The last pair is the end of both ranges, not a match.
        if (end_a, end_b) != (stop_a, stop_b):
            pairs.append((end_a, end_b))
        start_a, start_b = end_a + 1, end_b + 1
    return pairs


def _pair_by_place(a: Sequence[StepKey], b: Sequence[StepKey]) -> list[Pair]:
    pairs: list[Pair] = []
    for place in range(max(len(a), len(b))):
        has_a, has_b = place < len(a), place < len(b)
        if has_a and has_b and a[place].coarse == b[place].coarse:
            pairs.append((place, place))
            continue
        pairs += [(place, None)] if has_a else []
        pairs += [(None, place)] if has_b else []
    return pairs


def _find_common(a: Sequence[T], b: Sequence[T], key: Callable[[T], Hashable]) -> list[tuple[int, int]]:
    """Return the places of a longest common subsequence in both lists."""
    keys_a, keys_b = [key(item) for item in a], [key(item) for item in b]
    # lengths[i][j]: the length of the longest common subsequence of a[i:] and b[j:].
    lengths = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i in range(len(a) - 1, -1, -1):
        row, below = lengths[i], lengths[i + 1]
        for j in range(len(b) - 1, -1, -1):
            row[j] = below[j + 1] + 1 if keys_a[i] == keys_b[j] else max(below[j], row[j + 1])
    matches: list[tuple[int, int]] = []
    i = j = 0
    while i < len(a) and j < len(b):
        # Taking the first match never makes the subsequence shorter.
        if keys_a[i] == keys_b[j]:
            matches.append((i, j))
            i, j = i + 1, j + 1
        elif lengths[i + 1][j] >= lengths[i][j + 1]:
            i += 1
        else:
            j += 1
    return matches
