"""Ids, JSON aliases, and the protocols for time and ids, which are injected wherever they are needed."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from typing import Any, Protocol, TypeAlias
from uuid import UUID

from uuid_utils.compat import uuid7

from bough.errors import InvalidInput

Json: TypeAlias = Any
"""A JSON value: None, bool, int, float, str, list of Json, or dict of str to Json."""

JsonObject: TypeAlias = dict[str, Any]
"""A JSON object."""

_RAW_CONTROLS = re.compile("[\x7f-\x9f]")


class Clock(Protocol):
    """Where time comes from."""

    def now(self) -> datetime:
        """The present moment in UTC, with a time zone."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back, for durations and deadlines."""
        ...


def utc_now() -> datetime:
    """Return the present moment in UTC, with a time zone."""
    return datetime.now(UTC)


class SystemClock:
    """The machine's own clock."""

    def now(self) -> datetime:
        """The present moment in UTC, with a time zone."""
        return utc_now()

    def monotonic(self) -> float:
        """Seconds that never go back."""
        return time.monotonic()


def require_type(value: object, kinds: type | tuple[type, ...], subject: str, hint: str) -> None:
    """Check the kind of what a caller gave: not everyone checks types.

    Raises:
        InvalidInput: It is of another kind.
    """
    if not isinstance(value, kinds):
        raise InvalidInput(f"{subject}: this is a {type(value).__name__}", hint=hint)


def new_id() -> UUID:
    """Return a fresh uuid7: 48 bits of milliseconds, then a counter and randomness; ordered within a process."""
    return uuid7()


def escape_json_controls(text: str) -> str:
    """Return JSON with every control character escaped, so that a terminal which shows it obeys nothing in it.

    JSON demands that of those below U+0020 only; U+009B begins a command to a terminal as well.
    """
    return _RAW_CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
