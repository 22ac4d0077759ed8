"""Trigger queries: how often a skill comes into use when it should, and when it should not.

Failures of the train set are told in clear; those of the validation set are only counted, so that nobody tunes on them.

Source: Agent Skills documentation, optimizing descriptions.
"""

from __future__ import annotations

from collections.abc import Sequence

from bough.evals.eval_set import EvalSet
from bough.evals.run.summary import AttemptResult, rate_query
from bough.evals.set_case import SetCase
from bough.types import JsonObject

SPLITS = ("train", "validation")


def summarize_triggers(queries: EvalSet, results: Sequence[AttemptResult]) -> JsonObject:
    """Return the figures of each split: queries, passed, pass rate, precision, recall; failures of the train set."""
    return {
        split: _summarize([case for case in queries.cases if case.split == split], results, split) for split in SPLITS
    }


def trigger_pass_rate(triggers: JsonObject) -> float | None:
    """Return the share of queries of both splits that passed; None where there are none."""
    total = sum(triggers[split]["queries"] for split in SPLITS if split in triggers)
    passed = sum(triggers[split]["passed"] for split in SPLITS if split in triggers)
    return passed / total if total else None


def _summarize(cases: Sequence[SetCase], results: Sequence[AttemptResult], split: str) -> JsonObject:
    passed = used_well = used = wanted = 0
    failures: list[JsonObject] = []
    for case in cases:
        rate = rate_query([each for each in results if each.case == case.id])
        should = case.input.should_trigger is True
        # The score of a query that should not trigger is the share of runs in which it did not.
        in_use = rate > 0.5 if should else rate <= 0.5
        passed += rate > 0.5
        wanted += should
        used += in_use
        used_well += in_use and should
        if rate <= 0.5:
            failures.append({"query": case.input.turns[0].user, "should_trigger": should, "score": round(rate, 6)})
    summary: JsonObject = {
        "queries": len(cases),
        "passed": passed,
        "pass_rate": round(passed / len(cases), 6) if cases else None,
        "precision": round(used_well / used, 6) if used else None,
        "recall": round(used_well / wanted, 6) if wanted else None,
    }
    return summary | ({"failures": failures} if split == "train" else {})
