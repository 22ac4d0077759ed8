"""Ids of events on OpenHands' wire: ours, with a suffix that can be undone."""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from bough.errors import InvalidInput

STATE = "state"


class PartId(NamedTuple):
    """An event, and which of its parts is meant."""

    event: UUID
    part: int


def part_id(event: str, part: int) -> str:
    """Return the id of a part of an event; part 0 has the event's own."""
    return event if part == 0 else f"{event}.{part}"


def state_id(event: UUID | None) -> str:
    """Return the id of a `full_state` frame that was sent behind an event."""
    return f"{event or UUID(int=0)}.{STATE}"


def parse_id(text: str) -> PartId:
    """Return the event and the part that an id names; a state frame's id names its event.

    Raises:
        InvalidInput: It is no such id.
    """
    whole, _, suffix = text.partition(".")
    try:
        return PartId(UUID(whole), int(suffix) if suffix and suffix != STATE else 0)
    except ValueError as error:
        raise InvalidInput("an event id is not valid", hint="a UUID, as an event has it") from error
