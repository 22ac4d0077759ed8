"""Operations on lineages: short lists of disjoint ranges `(owner, lo, hi)`, oldest first, that make up a log."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias, TypeVar

Owner = TypeVar("Owner")
Range: TypeAlias = tuple[Owner, int, int]


def clip(ranges: Iterable[Range[Owner]], start: int, stop: int) -> list[Range[Owner]]:
    """Return the parts of the ranges within `start <= seq < stop`, without empty ones."""
    parts = ((owner, max(lo, start), min(hi, stop)) for owner, lo, hi in ranges)
    return [(owner, lo, hi) for owner, lo, hi in parts if lo < hi]


def find_owner(ranges: Iterable[Range[Owner]], seq: int) -> Owner | None:
    """Return the owner of the event at `seq`; None if missing."""
    return next((owner for owner, lo, hi in ranges if lo <= seq < hi), None)


def find_shared(a: Sequence[Range[Owner]], b: Sequence[Range[Owner]]) -> tuple[Owner, int] | None:
    """Return (owner of the last shared event, number of shared events) of two logs; None if they share nothing."""
    shared: tuple[Owner, int] | None = None
    for (owner, lo, hi), (other, other_lo, other_hi) in zip(a, b, strict=False):
        if owner != other or lo != other_lo or lo == min(hi, other_hi):
            break
        shared = (owner, min(hi, other_hi))
        if hi != other_hi:
            break
    return shared
