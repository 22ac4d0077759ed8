"""Opaque cursors for lists of conversations."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode

from bough.errors import InvalidInput

_MAX_INTEGER = 2**63 - 1


def encode_cursor(updated: int, number: int) -> str:
    """Return the cursor after the record with this update time (microseconds) and number."""
    return urlsafe_b64encode(b"%d.%d" % (updated, number)).decode().rstrip("=")


def decode_cursor(cursor: str | None) -> tuple[int, int] | None:
    """Return the update time and number of a cursor.

    Raises:
        InvalidInput: The cursor is invalid.
    """
    if cursor is None:
        return None
    try:
        updated, number = urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).split(b".")
        place = int(updated), int(number)
    except ValueError as error:
        raise _make_invalid(cursor) from error
    if max(map(abs, place)) > _MAX_INTEGER:  # no database accepts such a number as a parameter
        raise _make_invalid(cursor)
    return place


def _make_invalid(cursor: str) -> InvalidInput:
    return InvalidInput(f"invalid cursor {cursor!r}", hint="use the next_cursor of the page before, or none")
