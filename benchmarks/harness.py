"""Measures figures: the work and its floor run in one process, in turns, and the figure has the medians of both.

A time without a floor mostly shows how fast the machine is. Both sides run under the same load, because their rounds
alternate, and the order within a round alternates too.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from statistics import median
from time import perf_counter
from typing import TypeVar

ROUNDS = 7
"""How often both sides run unless a benchmark says otherwise; never fewer than `MIN_ROUNDS`."""

MIN_ROUNDS = 5

ON_DISK = "/var/tmp"
"""The folder for a server's home: on a disk, and outside this repository, which would be searched for rule files."""

SECONDS_TO = {"s": 1.0, "ms": 1e3, "us": 1e6}

T = TypeVar("T")
Work = Callable[[], object]
AsyncWork = Callable[[], Awaitable[object]]
AsyncMeasure = Callable[[], Awaitable[float]]


class CannotMeasure(Exception):
    """Something cannot be measured on this machine. The message says why."""


@dataclass(frozen=True)
class Figure:
    """One measured figure.

    Attributes:
        value: Median of the work, in `unit`.
        floor: Median of the floor, in `unit`; None where there is none.
        ratio: `value / floor`.
        n: How often each side ran.
    """

    name: str
    value: float
    unit: str
    floor: float | None
    ratio: float | None
    n: int

    @classmethod
    def of(cls, name: str, values: list[float], floors: list[float] | None = None, *, unit: str) -> Figure:
        """Return a figure with the medians of values that were measured in turns."""
        if len(values) < MIN_ROUNDS or (floors is not None and len(floors) != len(values)):
            raise ValueError(f"{name}: both sides run equally often, at least {MIN_ROUNDS} times")
        value = median(values)
        if floors is None:
            return cls(name, round(value, 4), unit, None, None, len(values))
        floor = median(floors)
        return cls(name, round(value, 4), unit, round(floor, 4), round(value / floor, 3), len(values))

    def report(self) -> None:
        """Print the figure as one JSON line."""
        print(json.dumps(asdict(self)), flush=True)


def measure_seconds(work: Work) -> float:
    """Run `work` once and return how long it took."""
    start = perf_counter()
    work()
    return perf_counter() - start


async def measure_seconds_async(work: AsyncWork) -> float:
    """Await `work` once and return how long it took."""
    start = perf_counter()
    await work()
    return perf_counter() - start


def in_turns(
    measure: Callable[[], T], measure_floor: Callable[[], T], *, rounds: int = ROUNDS
) -> tuple[list[T], list[T]]:
    """Return the results of both functions in `rounds` rounds, after one round that is not counted."""
    values: list[T] = []
    floors: list[T] = []
    for number in range(rounds + 1):
        sides = [(values, measure), (floors, measure_floor)]
        for results, side in sides if number % 2 else reversed(sides):
            results.append(side())
    return values[1:], floors[1:]


async def in_turns_async(
    measure: AsyncMeasure, measure_floor: AsyncMeasure, *, rounds: int = ROUNDS
) -> tuple[list[float], list[float]]:
    """Return the results of both coroutine functions in `rounds` rounds, after one round that is not counted."""
    values: list[float] = []
    floors: list[float] = []
    for number in range(rounds + 1):
        sides = [(values, measure), (floors, measure_floor)]
        for results, side in sides if number % 2 else reversed(sides):
            results.append(await side())
    return values[1:], floors[1:]


def compare(name: str, work: Work, floor: Work, *, unit: str = "ms", per: int = 1, rounds: int = ROUNDS) -> Figure:
    """Time `work` against `floor`, print the figure and return it.

    Args:
        unit: `s`, `ms`, `us`: time for one of the `per` operations of a call; `1/s`: operations a second.
        per: How many operations one call of either side makes.
    """
    values, floors = in_turns(lambda: measure_seconds(work), lambda: measure_seconds(floor), rounds=rounds)
    return _report(name, values, floors, unit, per)


async def compare_async(
    name: str, work: AsyncWork, floor: AsyncWork, *, unit: str = "ms", per: int = 1, rounds: int = ROUNDS
) -> Figure:
    """Do what `compare` does with two coroutine functions, in the running event loop."""
    values, floors = await in_turns_async(
        lambda: measure_seconds_async(work), lambda: measure_seconds_async(floor), rounds=rounds
    )
    return _report(name, values, floors, unit, per)


def _report(name: str, values: list[float], floors: list[float], unit: str, per: int) -> Figure:
    figure = Figure.of(
        name, [_convert(unit, v, per) for v in values], [_convert(unit, v, per) for v in floors], unit=unit
    )
    figure.report()
    return figure


def _convert(unit: str, duration: float, per: int) -> float:
    return per / duration if unit == "1/s" else duration * SECONDS_TO[unit] / per


def print_note(text: str) -> None:
    """Print a note to standard error, because standard output has only figures."""
    print(text, file=sys.stderr, flush=True)
