"""RenewedLease what the model sees short: a summary stands for a range of the log, and the log stays as it is.

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
"""Returns a model's summary of messages, and what making it consumed."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much the model sees: messages, and the tokens of the last request as the provider counted them."""

    messages: int
    tokens: int


class Condenser(Protocol):
    """Decides when what the model sees is too much, and makes a summary of some of it."""

    async def condense(self, view: View, size: Size, *, force: bool = False) -> Condensed | None:
        """Return what to put in the place of which events; None to leave all as it is.

        Args:
            force: Condense even if nothing is too long yet.
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
    """Leaves out the middle, without a summary: the first messages and the newest half of the rest stay."""

    max_events: int = 120
    keep_first: int = 2

    def __post_init__(self) -> None:
        _check(self.max_events, self.keep_first)

    async def condense(self, view: View, size: Size, *, force: bool = False) -> Condensed | None:
        """Return a note in the place of the middle when there are more than `max_events` messages."""
        if not force and size.messages <= self.max_events:
            return None
        middle = select_range(view.shown, keep_first=self.keep_first, keep_last=self.max_events // 2)
        if not middle:
            return None
        note = f"[{len(middle)} earlier messages were left out here.]"
        return Condensed(start=middle[0].start, stop=middle[-1].stop, summary=note)


@dataclass(frozen=True, kw_only=True)
class SummarizingCondenser:
    """Has a model summarize the middle: the first messages and the newest half of the rest stay.

    Attributes:
        model: Makes the summary: a PydanticAI model or a model string; None uses the conversation's own.
        max_events: Messages the model may see before they are condensed.
        max_tokens: Tokens of a request before it is condensed; None sets no bound.
        summarize: Asks the model. Without it, as without a model object, nothing is condensed; a run gives both.
    """

    model: str | Model | None = None
    max_events: int = 120
    max_tokens: int | None = None
    keep_first: int = 2
    summarize: Summarize | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check(self.max_events, self.keep_first)

    async def condense(self, view: View, size: Size, *, force: bool = False) -> Condensed | None:
        """Return a summary in the place of the middle when there is too much to see.

        Raises:
            ModelError: The model could not make the summary.
        """
        over = size.messages > self.max_events or (self.max_tokens is not None and size.tokens > self.max_tokens)
        if not (force or over):
            return None
        keep_last = min(self.max_events, size.messages) // 2
        middle = select_range(view.shown, keep_first=self.keep_first, keep_last=keep_last)
        if not middle or self.model is None or isinstance(self.model, str) or self.summarize is None:
            return None
        summary, usage = await self.summarize(self.model, [item.message for item in middle])
        text = f"[Summary of {len(middle)} earlier messages]\n{summary}"
        return Condensed(start=middle[0].start, stop=middle[-1].stop, summary=text, usage=usage)


def select_range(messages: Sequence[Shown], *, keep_first: int, keep_last: int) -> Sequence[Shown]:
    """Return the messages between the first and the last ones, moved so that no call is parted from its result."""
    first, last = keep_first, len(messages) - keep_last
    while first < len(messages) and messages[first].continues_calls:
        first += 1
    while last > first and last < len(messages) and messages[last].continues_calls:
        last -= 1
    return messages[first:last] if last - first > 1 else ()


def _check(max_events: int, keep_first: int) -> None:
    if keep_first < 0 or max_events < keep_first + 4:
        raise InvalidInput(
            f"a condenser cannot keep {keep_first} of at most {max_events} messages",
            hint="keep_first is 0 or more, and max_events at least 4 more than that",
        )


def condenser_to_json(condenser: Condenser) -> JsonObject | None:
    """Return what a log records of a condenser; None where it records nothing."""
    match condenser:
        case KeepFirstCondenser():
            return {"kind": "KeepFirstCondenser", **asdict(condenser)}
        case SummarizingCondenser():
            bounds = {name: getattr(condenser, name) for name in ("max_events", "max_tokens", "keep_first")}
            model = {"model": condenser.model} if isinstance(condenser.model, str) else {}
            return {"kind": "SummarizingCondenser", **bounds, **model}
        case _:
            return None


def condenser_from_json(recorded: Any, condenser: Condenser) -> Condenser:
    """Return the given one, or the recorded one made anew; its summaries are then the conversation's own model's."""
    if not isinstance(condenser, NoCondenser) or not isinstance(recorded, dict):
        return condenser
    fields: dict[str, Any] = dict(recorded)  # pyright: ignore[reportUnknownArgumentType]
    kinds = {"KeepFirstCondenser": KeepFirstCondenser, "SummarizingCondenser": SummarizingCondenser}
    kind = kinds.get(fields.pop("kind", ""))
    return condenser if kind is None else kind(**fields)
