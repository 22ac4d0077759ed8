"""How far a judge agrees with a person: confusion matrix, accuracy, precision, recall, Cohen's kappa.

Source: Cohen 1960. A judge whose agreement nobody measured is an opinion.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from uuid import UUID

from bough.evals.statistics import Interval, cohen_kappa
from bough.types import JsonObject

RESAMPLES = 10_000


@dataclass(frozen=True, kw_only=True)
class JudgedLabel:
    """A label and what the judge said of it.

    Attributes:
        judged: None where the judge failed.
        conversation: The judge's first call.
    """

    id: str
    label: bool
    judged: bool | None
    rationale: str = ""
    conversation: UUID | None = None


@dataclass(frozen=True, kw_only=True)
class JudgeAgreement:
    """Person against judge, over the labels that the judge decided.

    Attributes:
        yes_yes: Both yes; `no_yes`: the person no, the judge yes; `yes_no`: the person yes, the judge no.
        failed: Labels that the judge did not decide; they are in no other number.
        precision: Of the judge's yes; None where it never said yes. `recall`: of the person's yes.
    """

    yes_yes: int
    no_yes: int
    yes_no: int
    no_no: int
    failed: int
    accuracy: float
    precision: float | None
    recall: float | None
    kappa: float
    interval: Interval
    differing: tuple[JudgedLabel, ...]

    def as_dict(self) -> JsonObject:
        """Return it as JSON."""
        return {
            "matrix": {
                "yes_yes": self.yes_yes,
                "no_yes": self.no_yes,
                "yes_no": self.yes_no,
                "no_no": self.no_no,
            },
            "failed": self.failed,
            "accuracy": self.accuracy,
            "precision": self.precision,
            "recall": self.recall,
            "kappa": self.kappa,
            "low": self.interval.low,
            "high": self.interval.high,
            "differing": [
                {
                    "id": each.id,
                    "label": "yes" if each.label else "no",
                    "judged": "yes" if each.judged else "no",
                    "rationale": each.rationale,
                    "conversation": None if each.conversation is None else str(each.conversation),
                }
                for each in self.differing
            ],
        }


def measure_agreement(judged: Sequence[JudgedLabel]) -> JudgeAgreement:
    """Return how far the judge agrees with the labels.

    Raises:
        InvalidInput: The judge decided none of them.
    """
    decided = [label for label in judged if label.judged is not None]
    cells = _count([(label.label, bool(label.judged)) for label in decided])
    yes_yes, no_yes, yes_no, no_no = cells
    kappa = cohen_kappa(*cells)
    return JudgeAgreement(
        yes_yes=yes_yes,
        no_yes=no_yes,
        yes_no=yes_no,
        no_no=no_no,
        failed=len(judged) - len(decided),
        accuracy=(yes_yes + no_no) / len(decided),
        precision=yes_yes / (yes_yes + no_yes) if yes_yes + no_yes else None,
        recall=yes_yes / (yes_yes + yes_no) if yes_yes + yes_no else None,
        kappa=kappa,
        interval=_interval(cells),
        differing=tuple(label for label in decided if label.judged is not label.label),
    )


def _count(pairs: Sequence[tuple[bool, bool]]) -> tuple[int, int, int, int]:
    """Return (yes yes, no yes, yes no, no no) of pairs (person, judge)."""
    return (
        sum(person and judge for person, judge in pairs),
        sum(not person and judge for person, judge in pairs),
        sum(person and not judge for person, judge in pairs),
        sum(not person and not judge for person, judge in pairs),
    )


def _interval(cells: tuple[int, int, int, int]) -> Interval:
    """Return the bootstrap interval of kappa: lines drawn anew, 10,000 times, seed 0."""
    total = sum(cells)
    random = Random(0)  # noqa: S311 - a resampling, not a secret
    kappas: list[float] = []
    for _ in range(RESAMPLES):
        drawn = random.choices(range(4), weights=cells, k=total)
        kappas.append(cohen_kappa(drawn.count(0), drawn.count(1), drawn.count(2), drawn.count(3)))
    kappas.sort()
    return Interval(kappas[round(0.025 * (RESAMPLES - 1))], kappas[round(0.975 * (RESAMPLES - 1))])
