"""Events to bytes and back. Old events load for ever: a change of shape adds an upcaster, never edits a golden file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pydantic_core
from pydantic import TypeAdapter, ValidationError

from bough.errors import CorruptLog
from bough.events.model import BaseEvent, Event
from bough.events.record import StoredEvent
from bough.types import JsonObject

_EVENT: TypeAdapter[Event] = TypeAdapter(Event)
_IN_COLUMNS = {"id", "kind", "ts"}

Upcaster = Callable[[JsonObject], JsonObject]
UPCASTERS: Mapping[tuple[str, int], Upcaster] = {}
"""(kind, version) -> a function that lifts a payload of that version to the next one."""


def encode(event: BaseEvent) -> bytes:
    """Return the payload as JSON: every field but id, kind and time, which the store keeps beside it.

    Lone surrogates (invalid text from a tool) are written as U+FFFD, so that an append never fails for them.
    """
    try:
        return event.__pydantic_serializer__.to_json(event, exclude=_IN_COLUMNS)
    except pydantic_core.PydanticSerializationError:
        plain = event.model_dump(mode="python", exclude=_IN_COLUMNS)
        return pydantic_core.to_json(_without_surrogates(plain), inf_nan_mode="constants")


def decode(stored: StoredEvent) -> Event:
    """Return the typed event.

    Raises:
        CorruptLog: The payload is no JSON, or not what its kind says.
    """
    try:
        payload = pydantic_core.from_json(stored.raw)
        version = payload.get("schema_version", 1)
        while (upcaster := UPCASTERS.get((stored.kind, version))) is not None:
            payload = upcaster(payload)
            version = payload["schema_version"]
        payload |= {"id": stored.id, "kind": stored.kind, "ts": stored.ts}
        return _EVENT.validate_python(payload)
    except (ValueError, ValidationError, AttributeError, TypeError) as error:
        raise CorruptLog(
            f"event {stored.id} (seq {stored.seq}, {stored.kind}) cannot be read: {error}",
            hint="it may come from a newer version of bough; `bough doctor` checks the whole store",
            details={"event": str(stored.id), "seq": stored.seq, "kind": stored.kind},
        ) from error


def as_json(stored: StoredEvent) -> JsonObject:
    """Return a stored event as one flat JSON object: seq, id, kind, ts, then the payload. For people and programs."""
    return {
        "seq": stored.seq,
        "id": str(stored.id),
        "kind": stored.kind,
        "ts": stored.ts.isoformat(),
        **pydantic_core.from_json(stored.raw),
    }


def _without_surrogates(value: Any) -> Any:
    match value:
        case str():
            return value.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
        case dict():
            return {_without_surrogates(k): _without_surrogates(v) for k, v in value.items()}  # pyright: ignore
        case list() | tuple():
            return [_without_surrogates(item) for item in value]  # pyright: ignore
        case bytes():
            return value.decode("utf-8", "replace")
        case _:
            return value
