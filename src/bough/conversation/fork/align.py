"""Aligns the steps of two turns: finds which step of one turn corresponds to which step of the other."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple, TypeAlias, TypeVar

T = TypeVar("T")

MAX_ALIGNED_STEPS = 200
"""If a turn has more steps, steps are paired by their index."""


class StepKey(NamedTuple):
    """The values by which a step is compared.

    Attributes:
        content: The arguments of a call as canonical JSON; for any other step, its text.
    """

    kind: str
    tool: str
    content: str

    @property
    def coarse(self) -> tuple[str, str]:
        """The key without the content."""
        return self.kind, self.tool


Pair: TypeAlias = tuple[int | None, int | None]
"""The indexes of two corresponding steps; None if one turn has no such step."""


def align(a: Sequence[StepKey], b: Sequence[StepKey]) -> list[Pair]:
    """Return the pairs of two lists of steps. Each step is in one pair, and both lists keep their order.

    Pairs equal steps first, as a longest common subsequence; between them, steps of the same kind and tool. O(len(a) *
    len(b)) up to `MAX_ALIGNED_STEPS`, else O(len(a) + len(b)).
    """
    if max(len(a), len(b)) > MAX_ALIGNED_STEPS:
        return _pair_by_index(a, b)
    pairs: list[Pair] = []
    start_a = start_b = 0
    # The last pair is beyond both ends, so that the steps after the last match are aligned too.
    for end_a, end_b in [*_find_common(a, b, lambda key: key), (len(a), len(b))]:
        pairs += _align_coarse(a, b, (start_a, end_a), (start_b, end_b))
        if end_a < len(a):
            pairs.append((end_a, end_b))
        start_a, start_b = end_a + 1, end_b + 1
    return pairs


def _align_coarse(
    a: Sequence[StepKey], b: Sequence[StepKey], range_a: tuple[int, int], range_b: tuple[int, int]
) -> list[Pair]:
    """Return the pairs of two ranges that have no equal steps, by kind and tool."""
    (start_a, stop_a), (start_b, stop_b) = range_a, range_b
    pairs: list[Pair] = []
    common = _find_common(a[start_a:stop_a], b[start_b:stop_b], lambda key: key.coarse)
    matches = [(start_a + index_a, start_b + index_b) for index_a, index_b in common]
    for end_a, end_b in [*matches, (stop_a, stop_b)]:
        pairs += [(index, None) for index in range(start_a, end_a)]
        pairs += [(None, index) for index in range(start_b, end_b)]
        # The last pair is the end of both ranges, not a match.
        if (end_a, end_b) != (stop_a, stop_b):
            pairs.append((end_a, end_b))
        start_a, start_b = end_a + 1, end_b + 1
    return pairs


def _pair_by_index(a: Sequence[StepKey], b: Sequence[StepKey]) -> list[Pair]:
    pairs: list[Pair] = []
    for index in range(max(len(a), len(b))):
        has_a, has_b = index < len(a), index < len(b)
        if has_a and has_b and a[index].coarse == b[index].coarse:
            pairs.append((index, index))
            continue
        pairs += [(index, None)] if has_a else []
        pairs += [(None, index)] if has_b else []
    return pairs


def _find_common(a: Sequence[T], b: Sequence[T], key: Callable[[T], Hashable]) -> list[tuple[int, int]]:
    """Return the indexes of a longest common subsequence in both lists."""
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
