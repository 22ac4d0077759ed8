"""Condensers shorten what the model is shown. A summary replaces a range of messages; the log is unchanged.

Source: OpenHands' condensers (`keep_first`, a summarizing model), as events instead of rewrites.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from bough.errors import InvalidInput
from bough.events.model import Condensed, Usage
from bough.types import JsonObject

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage
    from pydantic_ai.models import Model

    from bough.conversation.log.view import Shown, View

Summarize: TypeAlias = "Callable[[Model, Sequence[ModelMessage]], Awaitable[tuple[str, Usage]]]"
"""Returns a model's summary of messages, and the usage of making it."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much the model is shown: messages, and the tokens of the last request as the provider counted them."""

    messages: int
    tokens: int


class Condenser(Protocol):
    """Decides when the model is shown too much, and which messages a summary replaces."""

    async def condense(self, view: View, size: Size, *, force: bool = False) -> Condensed | None:
        """Return the event that replaces a range of messages by a summary; None for no change.

        Args:
            force: Condense even if no limit is exceeded yet.
        """
        ...


@dataclass(frozen=True)
class NoCondenser:
    """Never condenses."""

    async def condense(self, view: View, size: Size, *, force: bool = False) -> Condensed | None:
        """Return None."""
        return None


@dataclass(frozen=True, kw_only=True)
class KeepFirstCondenser:
    """Leaves out the middle without a summary.

    Attributes:
        max_events: Messages the model may be shown before they are condensed. The newest half of them remains.
        keep_first: How many of the first messages remain.
    """

    max_events: int = 120
    keep_first: int = 2

    def __post_init__(self) -> None:
        _check(self.max_events, self.keep_first)

    async def condense(self, view: View, size: Size, *, force: bool = False) -> Condensed | None:
        """Return an event that replaces the middle by a note if there are more than `max_events` messages."""
        if not force and size.messages <= self.max_events:
            return None
        middle = select_range(view.shown, keep_first=self.keep_first, keep_last=self.max_events // 2)
        if not middle:
            return None
        note = f"[{len(middle)} earlier messages were left out here.]"
        return Condensed(start=middle[0].start, stop=middle[-1].stop, summary=note)


@dataclass(frozen=True, kw_only=True)
class SummarizingCondenser:
    """Has a model summarize the middle.

    Attributes:
        model: Makes the summary: a PydanticAI model or a model string; None uses the conversation's model.
        max_events: Messages the model may be shown before they are condensed. The newest half of them remains.
        max_tokens: Tokens that a request may have before messages are condensed; None sets no limit.
        keep_first: How many of the first messages remain.
        summarize: Asks the model. A run sets it, and replaces a model string by a model object; before that, nothing is
            condensed.
    """

    model: str | Model | None = None
    max_events: int = 120
    max_tokens: int | None = None
    keep_first: int = 2
    summarize: Summarize | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check(self.max_events, self.keep_first)

    async def condense(self, view: View, size: Size, *, force: bool = False) -> Condensed | None:
        """Return an event that replaces the middle by a summary if a limit is exceeded.

        Raises:
            ModelError: The model could not make the summary.
        """
        has_too_many_tokens = self.max_tokens is not None and size.tokens > self.max_tokens
        if not (force or has_too_many_tokens or size.messages > self.max_events):
            return None
        keep_last = min(self.max_events, size.messages) // 2
        middle = select_range(view.shown, keep_first=self.keep_first, keep_last=keep_last)
        if not middle or self.model is None or isinstance(self.model, str) or self.summarize is None:
            return None
        summary, usage = await self.summarize(self.model, [item.message for item in middle])
        text = f"[Summary of {len(middle)} earlier messages]\n{summary}"
        return Condensed(start=middle[0].start, stop=middle[-1].stop, summary=text, usage=usage)


def select_range(messages: Sequence[Shown], *, keep_first: int, keep_last: int) -> Sequence[Shown]:
    """Return the messages to condense: those between the kept first and last ones; none if there are fewer than two.

    No call is separated from its result.
    """
    first, stop = keep_first, len(messages) - keep_last
    while first < len(messages) and messages[first].continues_calls:
        first += 1
    while first < stop < len(messages) and messages[stop].continues_calls:
        stop -= 1
    return messages[first:stop] if stop - first > 1 else ()


def _check(max_events: int, keep_first: int) -> None:
    if keep_first < 0 or max_events < keep_first + 4:
        raise InvalidInput(
            f"a condenser cannot keep {keep_first} of at most {max_events} messages",
            hint="keep_first is 0 or more, and max_events at least 4 more than that",
        )


def condenser_to_json(condenser: Condenser) -> JsonObject | None:
    """Return a condenser as a log records it; None for one that is not recorded."""
    match condenser:
        case KeepFirstCondenser():
            return {"kind": "KeepFirstCondenser", **asdict(condenser)}
        case SummarizingCondenser():
            limits = {name: getattr(condenser, name) for name in ("max_events", "max_tokens", "keep_first")}
            model = {"model": condenser.model} if isinstance(condenser.model, str) else {}
            return {"kind": "SummarizingCondenser", **limits, **model}
        case _:
            return None


def condenser_from_json(recorded: Any, condenser: Condenser) -> Condenser:
    """Return the recorded condenser if `condenser` is a `NoCondenser`, else `condenser`."""
    if not isinstance(condenser, NoCondenser) or not isinstance(recorded, dict):
        return condenser
    fields: dict[str, Any] = dict(recorded)  # pyright: ignore[reportUnknownArgumentType]
    kinds = {"KeepFirstCondenser": KeepFirstCondenser, "SummarizingCondenser": SummarizingCondenser}
    kind = kinds.get(fields.pop("kind", ""))
    return condenser if kind is None else kind(**fields)
