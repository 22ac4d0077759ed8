"""Times, durations, tokens, USD and bytes as short texts for people. The same functions serve every HTML page."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

UNKNOWN: Final = "–"
"""What is shown in place of a value that is not known."""

_KILO: Final = 1000
_BYTE_UNITS: Final = ("kB", "MB", "GB", "TB")


def parse_moment(text: str) -> datetime | None:
    """Return a time of an event in UTC; None if the text is not a time with a time zone."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return None if moment.tzinfo is None else moment.astimezone(UTC)


def format_time(moment: datetime, now: datetime) -> str:
    """Return a time in UTC: `17:55:02` today, `21 Nov 17:55` this year, else `2025-11-21`."""
    moment, now = moment.astimezone(UTC), now.astimezone(UTC)
    if moment.date() == now.date():
        return f"{moment:%H:%M:%S}"
    if moment.year == now.year:
        return f"{moment.day} {moment:%b %H:%M}"
    return f"{moment:%Y-%m-%d}"


def format_duration(seconds: float | None) -> str:
    """Return a duration: `0.31 s`, `12.4 s`, `3 min 05 s`, `2 h 10 min`."""
    if seconds is None:
        return UNKNOWN
    seconds = max(seconds, 0.0)
    # Rounded before compared, so that 59.96 is a minute and not `60.0 s`.
    if round(seconds, 2) < 10:
        return f"{seconds:.2f} s" if seconds < 1 else f"{seconds:.1f} s"
    if round(seconds, 1) < 60:
        return f"{seconds:.1f} s"
    minutes, seconds_left = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {seconds_left:02} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min"


def format_age(age: timedelta) -> str:
    """Return how long ago something was: `just now`, `4 min ago`, `3 h ago`, `2 d ago`."""
    minutes = int(age.total_seconds() // 60)
    if minutes < 1:
        return "just now"
    if minutes < 60:
        return f"{minutes} min ago"
    return f"{minutes // 60} h ago" if minutes < 48 * 60 else f"{minutes // (24 * 60)} d ago"


def format_count(count: int) -> str:
    """Return a number of tokens or events: `842`, `4.2k`, `31.4k`, `148k`, `1.31M`."""
    if count < _KILO:
        return str(count)
    thousands = count / _KILO
    if round(thousands) < _KILO:
        return f"{thousands:.0f}k" if round(thousands, 1) >= 100 else f"{_trim(f'{thousands:.1f}')}k"
    millions = thousands / _KILO
    return f"{_trim(f'{millions:.2f}')}M"


def format_usd(usd: float | None) -> str:
    """Return an amount: `$0.0021` with two digits that count below one cent, `$0.031`, `$0.31`, `$1,204`; or `–`."""
    if usd is None:
        return UNKNOWN
    if usd <= 0:
        return "$0"
    if usd < 0.01:
        digits = f"{usd:.1e}"
        decimals = 1 - int(digits.partition("e")[2])
        return f"${usd:.{min(decimals, 12)}f}"
    if usd < 0.0995:
        return f"${usd:.3f}"
    return f"${usd:.2f}" if usd < 999.995 else f"${usd:,.0f}"


def format_bytes(size: int) -> str:
    """Return a size in powers of 1000: `842 B`, `1.2 MB`."""
    if size < _KILO:
        return f"{size} B"
    power = 1
    while power < len(_BYTE_UNITS) and round(size / _KILO**power, 1) >= _KILO:
        power += 1
    return f"{_trim(f'{size / _KILO**power:.1f}')} {_BYTE_UNITS[power - 1]}"


def count_of(count: int, noun: str) -> str:
    """Return a count with its noun: `1 step`, `2 steps`, `1,204 events`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _trim(text: str) -> str:
    """Remove the zeros at the end of a decimal number."""
    return text.rstrip("0").rstrip(".") if "." in text else text
