"""Names of conversations for people: an id, a unique part of it, or `-` for the latest."""

from __future__ import annotations

import string
from collections.abc import Sequence
from uuid import UUID

from bough.errors import InvalidInput, NotFound

LATEST = "-"
_SHORTEST = 4
_WHOLE = 32


def parse_digits(name: str) -> str:
    """Return the 4 to 32 hexadecimal digits of a name, in lower case.

    Raises:
        InvalidInput: The name is invalid.
    """
    digits = name.strip().lower().replace("-", "")
    if not _SHORTEST <= len(digits) <= _WHOLE or set(digits) - set(string.hexdigits):
        raise InvalidInput(
            f"not a conversation id: {name!r}",
            hint="give an id, its first or last digits (at least 4), or - for the latest conversation",
        )
    return digits


def only(name: str, matches: Sequence[UUID]) -> UUID:
    """Return the only match.

    Raises:
        NotFound: There is no match.
        InvalidInput: There are several matches.
    """
    if not matches:
        latest = name.strip() == LATEST
        raise NotFound(
            "there are no conversations yet" if latest else f"no conversation matches {name!r}",
            hint="`bough conv list` shows what there is",
        )
    if len(matches) > 1:
        raise InvalidInput(
            f"{name!r} matches several conversations",
            hint="give more digits: " + ", ".join(match.hex[-8:] for match in matches),
            details={"matches": [str(match) for match in matches]},
        )
    return matches[0]
