"""What the events of a conversation have used: requests, tokens and cost. Cheap to import."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

if TYPE_CHECKING:
    from bough.events.model import Event

USAGE_KINDS: Final = ("ModelResponded", "Condensed", "UsageAdded", "ToolReturned", "ToolFailed")
"""Events with usage of the conversation itself. The usage of its sub-agents is in their own logs."""

NANOS: Final = 1_000_000_000
"""Billionths in a dollar. Costs are kept as integers, so that sums and orders are exact."""

_MAX_TOKENS = 1 << 40
_MAX_NANOS = 1 << 50
"""Highest amounts of one event: sums of them never exceed what a database stores as an integer."""

_ALWAYS_USED = {"ModelResponded", "UsageAdded"}


@dataclass(frozen=True, slots=True)
class ConversationUsage:
    """What the own events of a conversation have used, without the events that it shares with its source.

    So the sum over conversations counts each request once. What sub-agents used is in their own conversations.

    Attributes:
        requests: Requests to models.
        input_tokens: Tokens sent to models, including those from a provider's cache.
        output_tokens: Tokens received.
        cost_nanos: Billionths of a dollar. Events without a known price count as 0.
    """

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost_nanos: int = 0

    @property
    def cost_usd(self) -> float:
        """Cost in dollars."""
        return self.cost_nanos / NANOS

    @classmethod
    def of_row(cls, counts: str | None, cost_nanos: int) -> ConversationUsage:
        """Return the usage of a row; see `add_counts`."""
        requests, input_tokens, output_tokens = json.loads(counts or "[0,0,0]")
        return cls(requests, input_tokens, output_tokens, cost_nanos)

    @property
    def columns(self) -> tuple[int, int, int, int]:
        """Requests, input tokens, output tokens and billionths of a dollar, in the order of the columns."""
        return self.requests, self.input_tokens, self.output_tokens, self.cost_nanos

    def __add__(self, other: ConversationUsage) -> ConversationUsage:
        if other is NO_USAGE:
            return self
        return ConversationUsage(
            self.requests + other.requests,
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cost_nanos + other.cost_nanos,
        )


NO_USAGE: Final = ConversationUsage()


def round_to_nanos(usd: float) -> int:
    """Return dollars as billionths of a dollar, rounded to the nearest. The migrations round in the same way."""
    return int(usd * NANOS + 0.5)


def sum_events(events: Iterable[Event]) -> ConversationUsage:
    """Return the usage of events."""
    total = NO_USAGE
    for event in events:
        if event.kind in USAGE_KINDS and (usage := cast(Any, event).usage) is not None:
            total += _clamp_amounts(usage.requests, usage.input_tokens, usage.output_tokens, usage.cost_usd)
    return total


def sum_payloads(payloads: Iterable[tuple[str, bytes]]) -> ConversationUsage:
    """Return the usage of stored events, given as kind and payload. A damaged payload has no usage."""
    total = NO_USAGE
    for kind, data in payloads:
        if kind in USAGE_KINDS:
            total += _read_payload(kind, data)
    return total


def dump_usage(kind: str, data: bytes) -> str:
    """Return the usage of a stored event as a JSON array, for migrations."""
    return json.dumps(sum_payloads([(kind, data)]).columns)


def add_counts(counts: str | None, *added: int) -> str | None:
    """Return requests, input and output tokens as a JSON array, added to those of an array; None for none.

    SQLite keeps them in one column, so that the row of a fork stays short.
    """
    if not any(added):
        return counts
    stored: list[int] = json.loads(counts) if counts else [0, 0, 0]
    return json.dumps([a + b for a, b in zip(stored, added, strict=True)], separators=(",", ":"))


def _read_payload(kind: str, data: bytes) -> ConversationUsage:
    try:
        payload: object = json.loads(data)
    except ValueError:
        return NO_USAGE
    if not isinstance(payload, dict):
        return NO_USAGE
    usage = cast("dict[str, object]", payload).get("usage", {} if kind in _ALWAYS_USED else None)
    if not isinstance(usage, dict):
        return NO_USAGE
    fields = cast("dict[str, object]", usage)
    return _clamp_amounts(
        fields.get("requests", 1),
        fields.get("input_tokens", 0),
        fields.get("output_tokens", 0),
        fields.get("cost_usd"),
    )


def _clamp_amounts(requests: object, input_tokens: object, output_tokens: object, usd: object) -> ConversationUsage:
    """Return amounts that every database stores; what is not a number, or below 0, counts as 0."""
    cost = usd if isinstance(usd, int | float) and usd > 0 else 0  # `nan > 0` is false
    nanos = _MAX_NANOS if math.isinf(cost) or cost * NANOS > _MAX_NANOS else round_to_nanos(cost)
    return ConversationUsage(_clamp_count(requests), _clamp_count(input_tokens), _clamp_count(output_tokens), nanos)


def _clamp_count(count: object) -> int:
    return min(max(count, 0), _MAX_TOKENS) if isinstance(count, int) else 0
