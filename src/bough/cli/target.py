"""How the command line names a conversation, and a point in it: `ID`, `-`, `ID@SEQ`."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from bough.errors import InvalidInput

LATEST = "-"


@dataclass(frozen=True)
class Target:
    """A conversation as typed.

    Attributes:
        name: An id, a unique start or end of one, or `-` for the most recent (`@SEQ` alone means that one too).
        at: How many of its events are meant, from the first; None for all.
    """

    name: str
    at: int | None = None

    @classmethod
    def parse(cls, text: str) -> Target:
        """Return what `ID` or `ID@SEQ` means.

        Raises:
            InvalidInput: There is no id, or SEQ is not a number from 0.
        """
        name, separator, seq = text.partition("@")
        if separator and not name:
            name = LATEST
        if not name:
            raise InvalidInput(f"not a conversation id: {text!r}", hint="give an id, or - for the most recent one")
        if not separator:
            return cls(name)
        if not (seq.isascii() and seq.isdigit()):
            raise InvalidInput(
                f"{seq!r} is not a position in a conversation", hint="expected a number, 0 or more, after @"
            )
        return cls(name, int(seq))


def short(cid: UUID) -> str:
    """Return the last 8 digits of an id, which are enough to name it."""
    return cid.hex[-8:]
