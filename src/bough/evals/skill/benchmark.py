"""Benchmarks a skill: figures of the agent with and without the skill, and of the trigger queries.

Failures of the train set are listed; failures of the validation set are only counted, to prevent tuning on them.

Source: Agent Skills documentation, evaluating skills (`benchmark.json`) and optimizing descriptions.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from bough.agents.spec import AgentSpec
from bough.evals.case import SetCase
from bough.evals.eval_set import EvalSet
from bough.evals.run.folder import RunFolder
from bough.evals.run.plan import PlannedAttempt
from bough.evals.run.summary import AttemptResult, rate_query, summarize_sides
from bough.types import JsonObject

WITH_SKILL = "with_skill"
WITHOUT_SKILL = "without_skill"
SIDES = (WITH_SKILL, WITHOUT_SKILL)


class SkillSides:
    """Returns the agent of each side.

    Attributes:
        skill: Folder of the evaluated skill.
        others: Folders of skills available to both sides.
    """

    def __init__(self, skill: Path, others: Sequence[Path] = ()) -> None:
        self.skill = skill.absolute()
        self.others = tuple(root.absolute() for root in others)

    def begin(self, folder: RunFolder) -> None:
        """Copy the skill without its evals into the run's folder, so that the agent cannot read them."""
        target = self._root(folder) / self.skill.name
        if not target.exists():
            staging = target.with_name(f".{target.name}.part")
            shutil.rmtree(staging, ignore_errors=True)
            ignore = shutil.ignore_patterns("evals", "eval_queries.json", ".git", "__pycache__")
            shutil.copytree(self.skill, staging, symlinks=True, ignore=ignore)
            # Renamed when complete, so that after a crash no attempt runs with a part of the skill.
            staging.rename(target)

    def agent_for(self, planned: PlannedAttempt, spec: AgentSpec, folder: RunFolder) -> AgentSpec:
        """Return the agent of an attempt, with exactly the skills of its side and no discovered skills."""
        roots = self.others if planned.side == WITHOUT_SKILL else (self._root(folder), *self.others)
        return spec.model_copy(update={"skills": None, "discover_skills": False, "skill_roots": roots})

    def _root(self, folder: RunFolder) -> Path:
        return folder.path / "skill"


def make_benchmark(results: Sequence[AttemptResult], *, metadata: JsonObject, triggers: JsonObject) -> JsonObject:
    """Return the content of `benchmark.json`: mean and deviation of each side, their difference, and the attempts."""
    return {
        "metadata": metadata,
        "run_summary": summarize_sides(results, SIDES),
        "runs": [_describe_attempt(result) for result in results],
        "triggers": triggers,
        "notes": list(_list_notes(results)),
    }


def _describe_attempt(result: AttemptResult) -> JsonObject:
    return {
        "eval_id": result.case,
        "side": result.side,
        "run": result.attempt,
        "pass_rate": result.assertion_rate,
        "time_seconds": round(result.seconds, 6),
        "tokens": result.tokens,
        "status": result.status,
    }


def _list_notes(results: Sequence[AttemptResult]) -> Iterator[str]:
    """Yield remarks on assertions that do not discriminate between sides, or differ between attempts."""
    outcomes: dict[tuple[str, str], dict[str, list[bool]]] = {}
    for result in results:
        assertions: list[JsonObject] = result.data.get("assertions") or []
        for assertion in assertions:
            by_side = outcomes.setdefault((result.case, str(assertion["text"])), {})
            by_side.setdefault(result.side, []).append(bool(assertion["passed"]))
    for (case, text), by_side in outcomes.items():
        yield from _note_assertion(case, text, by_side)


def _note_assertion(case: str, text: str, by_side: Mapping[str, Sequence[bool]]) -> Iterator[str]:
    """Yield the remarks on one assertion; `by_side` has its outcomes in the attempts of each side."""
    outcomes_of_sides = [by_side.get(side, ()) for side in SIDES]
    if all(outcomes_of_sides):
        all_outcomes = [passed for outcomes in outcomes_of_sides for passed in outcomes]
        if all(all_outcomes):
            yield f"eval {case}: passes on both sides: {text}"
        elif not any(all_outcomes):
            yield f"eval {case}: fails on both sides: {text}"
    for side, outcomes in by_side.items():
        if len(set(outcomes)) > 1:
            yield f"eval {case}: differs between attempts of {side}: {text}"


SPLITS = ("train", "validation")


def summarize_triggers(queries: EvalSet, results: Sequence[AttemptResult]) -> JsonObject:
    """Return the figures of each split: queries, passed, pass rate, precision, recall; failures of the train set."""
    return {
        split: _summarize_split([case for case in queries.cases if case.split == split], results, split)
        for split in SPLITS
    }


def trigger_pass_rate(triggers: JsonObject) -> float | None:
    """Return the share of queries of both splits that passed; None without queries."""
    total = sum(triggers[split]["queries"] for split in SPLITS if split in triggers)
    passed = sum(triggers[split]["passed"] for split in SPLITS if split in triggers)
    return passed / total if total else None


def _summarize_split(cases: Sequence[SetCase], results: Sequence[AttemptResult], split: str) -> JsonObject:
    """Return the figures of the queries of one split."""
    passed = should_count = triggered_count = rightly_triggered_count = 0
    failures: list[JsonObject] = []
    for case in cases:
        rate = rate_query([result for result in results if result.case == case.id])
        should_trigger = case.input.should_trigger is True
        # A high rate means the right outcome: for a query that should not trigger, that it did not.
        did_trigger = rate > 0.5 if should_trigger else rate <= 0.5
        passed += rate > 0.5
        should_count += should_trigger
        triggered_count += did_trigger
        rightly_triggered_count += did_trigger and should_trigger
        if rate <= 0.5:
            failures.append(
                {"query": case.input.turns[0].user, "should_trigger": should_trigger, "score": round(rate, 6)}
            )
    summary: JsonObject = {
        "queries": len(cases),
        "passed": passed,
        "pass_rate": round(passed / len(cases), 6) if cases else None,
        "precision": round(rightly_triggered_count / triggered_count, 6) if triggered_count else None,
        "recall": round(rightly_triggered_count / should_count, 6) if should_count else None,
    }
    return summary | ({"failures": failures} if split == "train" else {})
