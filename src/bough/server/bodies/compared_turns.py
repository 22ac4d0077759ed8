"""`ComparedTurns`: a page of the turns of two conversations, side by side."""

from __future__ import annotations

import json
from typing import Literal

from pydantic import BaseModel

from bough.conversation.fork.compare_turns import Step, TurnComparison, TurnPair, TurnSide
from bough.events.record import Status
from bough.server.bodies.info import Ledger
from bough.types import Json, JsonObject


class ComparedStep(BaseModel):
    """A step of a turn: a message, an answer, a call with its outcome, or an error or limit.

    If `cut` is set, `text` is only the beginning of the text, or of the JSON of the result, which has that many
    characters. `result` is null then.
    """

    seq: int
    kind: Literal["message", "answer", "call", "error"]
    tool: str
    arguments: JsonObject
    text: str
    by: str
    ended: str
    result: Json
    cut: int | None


class ComparedTurnSide(BaseModel):
    """The part of a turn that the other conversation does not share; `omitted` further steps are not returned."""

    start: int
    stop: int
    status: Status
    usage: Ledger
    items: list[ComparedStep]
    omitted: int


class ComparedPlaces(BaseModel):
    """Two steps that stand side by side, by their places in `items`; `same` if they did the same."""

    a: int | None
    b: int | None
    same: bool


class ComparedTurn(BaseModel):
    """The turns of one number in both conversations; null where a conversation has no such turn."""

    number: int
    a: ComparedTurnSide | None
    b: ComparedTurnSide | None
    steps: list[ComparedPlaces]


class ComparedTurns(BaseModel):
    """A page of turns. Both conversations share the first `common` events."""

    common: int
    items: list[ComparedTurn]
    next_page_id: str | None = None


def describe_turns(comparison: TurnComparison, cut: int) -> ComparedTurns:
    """Return the document of a page.

    Args:
        cut: Longer texts and results are cut to this number of characters.
    """
    return ComparedTurns(
        common=comparison.common,
        items=[_describe_turn(pair, cut) for pair in comparison.turns],
        next_page_id=None if comparison.next_turn is None else str(comparison.next_turn),
    )


def _describe_turn(pair: TurnPair, cut: int) -> ComparedTurn:
    number = next(side.number for side in (pair.a, pair.b) if side is not None)
    places = [ComparedPlaces(a=a, b=b, same=_is_same(pair, a, b)) for a, b in pair.steps]
    return ComparedTurn(number=number, a=_describe_side(pair.a, cut), b=_describe_side(pair.b, cut), steps=places)


def _is_same(pair: TurnPair, a: int | None, b: int | None) -> bool:
    if a is None or b is None or pair.a is None or pair.b is None:
        return False
    return pair.a.steps[a].is_same(pair.b.steps[b])


def _describe_side(side: TurnSide | None, cut: int) -> ComparedTurnSide | None:
    if side is None:
        return None
    return ComparedTurnSide(
        start=side.start,
        stop=side.stop,
        status=side.status,
        usage=Ledger.of(side.usage),
        items=[_describe_step(step, cut) for step in side.steps],
        omitted=side.omitted,
    )


def _describe_step(step: Step, cut: int) -> ComparedStep:
    text = step.text
    if step.kind == "call":
        text = step.result if isinstance(step.result, str) else json.dumps(step.result, ensure_ascii=False)
    # Whether steps are the same was decided before: two results may differ only after the cut.
    is_cut = len(text) > cut
    return ComparedStep(
        seq=step.seq,
        kind=step.kind,
        tool=step.tool,
        arguments=step.arguments,
        text=text[:cut] if is_cut else step.text,
        by=step.by,
        ended=step.ended,
        result=None if is_cut else step.result,
        cut=len(text) if is_cut else None,
    )
