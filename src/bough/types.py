"""JSON aliases, ids, clocks, and small checks that all packages share."""

from __future__ import annotations

import json
import re
import time
from contextlib import suppress
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
    """A source of time."""

    def now(self) -> datetime:
        """Return the current time in UTC, with a time zone."""
        ...

    def monotonic(self) -> float:
        """Return seconds that never decrease, for durations and deadlines."""
        ...


def utc_now() -> datetime:
    """Return the current time in UTC, with a time zone."""
    return datetime.now(UTC)


class SystemClock:
    """The clock of this machine."""

    def now(self) -> datetime:
        """Return the current time in UTC, with a time zone."""
        return utc_now()

    def monotonic(self) -> float:
        """Return seconds that never decrease."""
        return time.monotonic()


def parse_arguments(arguments: Json) -> JsonObject:
    """Return the arguments of a tool call as an object. Other values and invalid JSON are under the key `_`."""
    value = arguments
    if isinstance(arguments, str):
        with suppress(ValueError):
            value = json.loads(arguments or "{}")
    return value if isinstance(value, dict) else {"_": value}  # pyright: ignore[reportUnknownVariableType]


def require_type(value: object, kinds: type | tuple[type, ...], subject: str, hint: str) -> None:
    """Check the type of a value from a caller, because callers may not use a type checker.

    Raises:
        InvalidInput: The value has another type.
    """
    allowed = kinds if isinstance(kinds, tuple) else (kinds,)
    # True is an int to Python: without this, `limit=True` would be a limit of 1.
    if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
        raise InvalidInput(f"{subject}: this is a {type(value).__name__}", hint=hint)


def new_id() -> UUID:
    """Return a new uuid7: 48 bits of milliseconds, then a counter and random bits; ordered within a process."""
    return uuid7()


def escape_json_controls(text: str) -> str:
    """Return JSON with all control characters escaped, so that it cannot control a terminal that shows it.

    JSON requires escapes only below U+0020, but U+009B starts a terminal command too.
    """
    return _RAW_CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
