"""Numbers as texts, at the edges where their form changes."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from bough.html.numbers import format_bytes, format_count, format_duration, format_time, format_usd, parse_moment


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "–"),
        (-1, "0.00 s"),
        (0.314, "0.31 s"),
        (12.4, "12.4 s"),
        (59.96, "1 min 00 s"),
        (185, "3 min 05 s"),
        (3599.6, "1 h 00 min"),
        (7800, "2 h 10 min"),
    ],
)
def test_durations(seconds: float | None, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"),
        (842, "842"),
        (4200, "4.2k"),
        (31_400, "31.4k"),
        (148_400, "148k"),
        (999_600, "1M"),
        (1_314_000, "1.31M"),
    ],
)
def test_counts(count: int, text: str) -> None:
    assert format_count(count) == text


@pytest.mark.parametrize(
    ("usd", "text"),
    [
        (None, "–"),
        (0.0, "$0"),
        (0.0021, "$0.0021"),
        (0.00000123, "$0.0000012"),
        (0.031, "$0.031"),
        (0.0996, "$0.10"),
        (0.31, "$0.31"),
        (31.4, "$31.40"),
        (1204.4, "$1,204"),
    ],
)
def test_amounts(usd: float | None, text: str) -> None:
    assert format_usd(usd) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (842, "842 B"), (41_000, "41 kB"), (1_200_000, "1.2 MB"), (999_960, "1 MB"), (5 * 10**15, "5000 TB")],
)
def test_sizes(size: int, text: str) -> None:
    assert format_bytes(size) == text


def test_times_are_as_short_as_their_distance_allows() -> None:
    now = datetime(2026, 11, 28, 23, 0, tzinfo=UTC)
    assert format_time(datetime(2026, 11, 28, 17, 55, 2, tzinfo=UTC), now) == "17:55:02"
    assert format_time(datetime(2026, 11, 1, 17, 55, 2, tzinfo=UTC), now) == "1 Nov 17:55"
    assert format_time(datetime(2025, 11, 21, 17, 55, 2, tzinfo=UTC), now) == "2025-11-21"


@pytest.mark.parametrize("text", ["", "yesterday", "2026-11-28T17:55:02", "<b>"])
def test_a_damaged_time_is_none(text: str) -> None:
    assert parse_moment(text) is None
