"""`instruction_adherence_score`: the share of rubrics that the judge finds met.

Rubrics of a turn are judged on that turn's part of the trace, those of the case on the whole of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from bough.evals.case import Rubric
from bough.evals.judge.verdict import Judgement, RubricVerdict
from bough.evals.score import Score, at_least
from bough.evals.trace import Trace

if TYPE_CHECKING:
    from bough.evals.context import TraceContext

NAME = "instruction_adherence_score"


async def score_adherence(ctx: TraceContext, rubrics: Sequence[Rubric] | None, threshold: float | None) -> Score:
    """Return the share of yes. No rubrics: 1 without a call; a failed judge: 0 with its error.

    Args:
        rubrics: Judged on the whole trace; None takes those of the case and of its turns.
    """
    parts = [(ctx.trace, tuple(rubrics))] if rubrics is not None else list(_parts(ctx))
    parts = [(trace, part_rubrics) for trace, part_rubrics in parts if part_rubrics]
    if not parts:
        return at_least(NAME, 1.0, threshold, "no rubrics")
    if ctx.host.judge is None:
        return _make_failed_score("there is no judge", threshold)
    judgements: list[Judgement] = []
    for trace, part_rubrics in parts:
        judgements.append(await ctx.host.judge(trace, ctx.case, part_rubrics, ctx.host.outputs))
    ctx.judgements += judgements
    verdicts = [verdict for judgement in judgements for verdict in judgement.verdicts]
    if undecided := [verdict for verdict in verdicts if verdict.verdict is None]:
        return _make_failed_score(
            f"{len(undecided)} of {len(verdicts)} rubrics undecided: {undecided[0].rationale}", threshold
        )
    met = sum(verdict.verdict is True for verdict in verdicts)
    score = at_least(NAME, met / len(verdicts), threshold, _reason(verdicts))
    return Score(NAME, score.value, score.passed, score.reason, threshold, by="judge")


def _parts(ctx: TraceContext) -> Iterator[tuple[Trace, tuple[Rubric, ...]]]:
    """Yield (part of the trace, rubrics judged on it)."""
    yield ctx.trace, ctx.case.rubrics
    for number, turn in enumerate(ctx.case.turns):
        if turn.rubrics:
            yield ctx.trace.turns[number] if number < len(ctx.trace.turns) else Trace(), turn.rubrics


def _reason(verdicts: Sequence[RubricVerdict]) -> str:
    missed = [verdict for verdict in verdicts if not verdict.verdict]
    if not missed:
        return f"all {len(verdicts)} rubrics are met"
    first = missed[0]
    return f"{len(missed)} of {len(verdicts)} not met: {first.rubric.property[:120]!r}: {first.rationale[:300]}"


def _make_failed_score(reason: str, threshold: float | None) -> Score:
    return Score(NAME, 0.0, None if threshold is None else False, reason, threshold, by="judge", error=True)
