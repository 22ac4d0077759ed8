"""`benchmark.json`: what a skill changes, as the Agent Skills documentation has it, with every attempt behind it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from bough.evals.run.summary import AttemptResult, summarize_sides
from bough.evals.skill.sides import SIDES
from bough.types import JsonObject


def make_benchmark(results: Sequence[AttemptResult], *, metadata: JsonObject, triggers: JsonObject) -> JsonObject:
    """Return the content of `benchmark.json`: mean and deviation of each side over its attempts, and the difference."""
    return {
        "metadata": metadata,
        "run_summary": summarize_sides(results, SIDES),
        "runs": [_describe(each) for each in results],
        "triggers": triggers,
        "notes": list(_notes(results)),
    }


def _describe(result: AttemptResult) -> JsonObject:
    return {
        "eval_id": result.case,
        "side": result.side,
        "run": result.attempt,
        "pass_rate": result.assertion_rate,
        "time_seconds": round(result.seconds, 6),
        "tokens": result.tokens,
        "status": result.status,
    }


def _notes(results: Sequence[AttemptResult]) -> Iterator[str]:
    """Yield what the documentation asks to look at: assertions that say nothing, and those that waver."""
    outcomes: dict[tuple[str, str], dict[str, list[bool]]] = {}
    for result in results:
        assertions: list[JsonObject] = result.data.get("assertions") or []
        for each in assertions:
            sides = outcomes.setdefault((result.case, str(each["text"])), {})
            sides.setdefault(result.side, []).append(bool(each["passed"]))
    for (case, text), sides in outcomes.items():
        yield from _note_assertion(case, text, sides)


def _note_assertion(case: str, text: str, sides: Mapping[str, Sequence[bool]]) -> Iterator[str]:
    both = [sides.get(side, ()) for side in SIDES]
    if all(both) and all(all(each) for each in both):
        yield f"eval {case}: passes on both sides: {text}"
    elif all(both) and not any(any(each) for each in both):
        yield f"eval {case}: fails on both sides: {text}"
    for side, passed in sides.items():
        if len(set(passed)) > 1:
            yield f"eval {case}: differs between attempts {side}: {text}"
