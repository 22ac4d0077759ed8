"""The place after a record in a list, as text that means nothing to anyone else."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode

from bough.errors import InvalidInput

_MOST = 2**63 - 1


def encode_cursor(updated: int, number: int) -> str:
    """Return the place after the record with this time of change (microseconds) and number."""
    return urlsafe_b64encode(b"%d.%d" % (updated, number)).decode().rstrip("=")


def decode_cursor(cursor: str | None) -> tuple[int, int] | None:
    """Return the place that `encode_cursor` wrote down.

    Raises:
        InvalidInput: It is no such text.
    """
    if cursor is None:
        return None
    try:
        updated, number = urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).split(b".")
        place = int(updated), int(number)
    except ValueError as error:
        raise _make_invalid(cursor) from error
    if max(map(abs, place)) > _MOST:  # no database holds such a number
        raise _make_invalid(cursor)
    return place


def _make_invalid(cursor: str) -> InvalidInput:
    return InvalidInput(f"invalid cursor {cursor!r}", hint="use the next_cursor of the page before, or none")
