"""Benchmarks a skill: figures of the agent with and without it, and of its trigger queries.

Failures of the train set are listed; those of the validation set are only counted, to prevent tuning on them.

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
        """Copy the skill without its evals into the run's folder, so that the agent cannot read the answers."""
        target = self._root(folder) / self.skill.name
        if not target.exists():
            part = target.with_name(f".{target.name}.part")
            shutil.rmtree(part, ignore_errors=True)
            left_out = shutil.ignore_patterns("evals", "eval_queries.json", ".git", "__pycache__")
            shutil.copytree(self.skill, part, symlinks=True, ignore=left_out)
            # Renamed when complete: after a crash no side runs with half of the skill.
            part.rename(target)

    def agent_for(self, planned: PlannedAttempt, spec: AgentSpec, folder: RunFolder) -> AgentSpec:
        """Return the agent of an attempt: exactly the skills of its side, and no discovered ones."""
        roots = self.others if planned.side == WITHOUT_SKILL else (self._root(folder), *self.others)
        return spec.model_copy(update={"skills": None, "discover_skills": False, "skill_roots": roots})

    def _root(self, folder: RunFolder) -> Path:
        return folder.path / "skill"


def make_benchmark(results: Sequence[AttemptResult], *, metadata: JsonObject, triggers: JsonObject) -> JsonObject:
    """Return the content of `benchmark.json`: mean and deviation of each side over its attempts, and the difference."""
    return {
        "metadata": metadata,
        "run_summary": summarize_sides(results, SIDES),
        "runs": [_describe(result) for result in results],
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
    """Yield remarks on assertions that do not discriminate between sides, or differ between attempts."""
    outcomes: dict[tuple[str, str], dict[str, list[bool]]] = {}
    for result in results:
        assertions: list[JsonObject] = result.data.get("assertions") or []
        for assertion in assertions:
            sides = outcomes.setdefault((result.case, str(assertion["text"])), {})
            sides.setdefault(result.side, []).append(bool(assertion["passed"]))
    for (case, text), sides in outcomes.items():
        yield from _note_assertion(case, text, sides)


def _note_assertion(case: str, text: str, sides: Mapping[str, Sequence[bool]]) -> Iterator[str]:
    both = [sides.get(side, ()) for side in SIDES]
    if all(both) and all(all(outcomes) for outcomes in both):
        yield f"eval {case}: passes on both sides: {text}"
    elif all(both) and not any(any(outcomes) for outcomes in both):
        yield f"eval {case}: fails on both sides: {text}"
    for side, passed in sides.items():
        if len(set(passed)) > 1:
            yield f"eval {case}: differs between attempts {side}: {text}"


SPLITS = ("train", "validation")


def summarize_triggers(queries: EvalSet, results: Sequence[AttemptResult]) -> JsonObject:
    """Return the figures of each split: queries, passed, pass rate, precision, recall; failures of the train set."""
    return {
        split: _summarize([case for case in queries.cases if case.split == split], results, split) for split in SPLITS
    }


def trigger_pass_rate(triggers: JsonObject) -> float | None:
    """Return the share of queries of both splits that passed; None without queries."""
    total = sum(triggers[split]["queries"] for split in SPLITS if split in triggers)
    passed = sum(triggers[split]["passed"] for split in SPLITS if split in triggers)
    return passed / total if total else None


def _summarize(cases: Sequence[SetCase], results: Sequence[AttemptResult], split: str) -> JsonObject:
    passed = used_well = used = positives = 0
    failures: list[JsonObject] = []
    for case in cases:
        rate = rate_query([result for result in results if result.case == case.id])
        should = case.input.should_trigger is True
        # The score of a query that should not trigger is the share of runs in which it did not.
        in_use = rate > 0.5 if should else rate <= 0.5
        passed += rate > 0.5
        positives += should
        used += in_use
        used_well += in_use and should
        if rate <= 0.5:
            failures.append({"query": case.input.turns[0].user, "should_trigger": should, "score": round(rate, 6)})
    summary: JsonObject = {
        "queries": len(cases),
        "passed": passed,
        "pass_rate": round(passed / len(cases), 6) if cases else None,
        "precision": round(used_well / used, 6) if used else None,
        "recall": round(used_well / positives, 6) if positives else None,
    }
    return summary | ({"failures": failures} if split == "train" else {})
