"""`benchmark.json`: what a skill changes, as the Agent Skills documentation has it, with every attempt behind it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from bough.evals.run.summary import AttemptResult
from bough.evals.skill.sides import SIDES, WITH_SKILL, WITHOUT_SKILL
from bough.evals.statistics import deviation, mean
from bough.types import JsonObject

_FIGURES = ("pass_rate", "time_seconds", "tokens")


def attempt_pass_rate(result: AttemptResult) -> float | None:
    """Return the share of assertions that hold; 0 for an error, None where there were none."""
    if result.status == "error":
        return 0.0
    assertions: list[JsonObject] = result.data.get("assertions") or []
    if not assertions:
        return None
    return sum(bool(each["passed"]) for each in assertions) / len(assertions)


def make_benchmark(results: Sequence[AttemptResult], *, metadata: JsonObject, triggers: JsonObject) -> JsonObject:
    """Return the content of `benchmark.json`: mean and deviation of each side over its attempts, and the difference."""
    runs = [_describe(each) for each in results]
    sides = {side: _summarize([run for run in runs if run["side"] == side]) for side in SIDES}
    delta = {
        figure: round(sides[WITH_SKILL][figure]["mean"] - sides[WITHOUT_SKILL][figure]["mean"], 6)
        for figure in _FIGURES
    }
    return {
        "metadata": metadata,
        "run_summary": {**sides, "delta": delta},
        "runs": runs,
        "triggers": triggers,
        "notes": list(_notes(results)),
    }


def _describe(result: AttemptResult) -> JsonObject:
    return {
        "eval_id": result.case,
        "side": result.side,
        "run": result.attempt,
        "pass_rate": attempt_pass_rate(result),
        "time_seconds": round(result.seconds, 6),
        "tokens": result.tokens,
        "status": result.status,
    }


def _summarize(runs: Sequence[JsonObject]) -> dict[str, JsonObject]:
    found: dict[str, JsonObject] = {}
    for figure in _FIGURES:
        values = [float(run[figure]) for run in runs if run[figure] is not None]
        found[figure] = {"mean": round(mean(values), 6), "stddev": round(deviation(values), 6)}
    return found


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
