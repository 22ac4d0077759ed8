"""Agreement between a judge and a person: confusion matrix, accuracy, precision, recall, Cohen's kappa.

Source: Cohen 1960.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from uuid import UUID

from bough.evals.statistics import Interval, cohen_kappa
from bough.types import JsonObject

RESAMPLES = 10_000
"""Number of resamples for the interval of kappa."""


@dataclass(frozen=True, kw_only=True)
class JudgedLabel:
    """A label and the judge's verdict on it.

    Attributes:
        label: The verdict of the person.
        judged: The verdict of the judge; None if the judge failed.
        conversation: Id of the conversation of the judge's first call.
    """

    id: str
    label: bool
    judged: bool | None
    rationale: str = ""
    conversation: UUID | None = None


@dataclass(frozen=True, kw_only=True)
class JudgeAgreement:
    """Agreement over the labels that the judge decided.

    Attributes:
        yes_yes: Number of labels with yes from the person and the judge.
        no_yes: Number with no from the person and yes from the judge.
        yes_no: Number with yes from the person and no from the judge.
        no_no: Number with no from both.
        failed: Number of labels that the judge did not decide; excluded from all other numbers.
        precision: Share of the judge's yes that the person shares; None if the judge never decided yes.
        recall: Share of the person's yes that the judge shares; None if the person never decided yes.
        differing: The labels on which person and judge differ.
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
        """Return the agreement as JSON."""
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
                    "id": label.id,
                    "label": "yes" if label.label else "no",
                    "judged": "yes" if label.judged else "no",
                    "rationale": label.rationale,
                    "conversation": None if label.conversation is None else str(label.conversation),
                }
                for label in self.differing
            ],
        }


def measure_agreement(judged: Sequence[JudgedLabel]) -> JudgeAgreement:
    """Return the agreement of the judge's verdicts with the labels.

    Raises:
        InvalidInput: The judge decided none of the labels.
    """
    decided = [label for label in judged if label.judged is not None]
    cells = _count_pairs([(label.label, bool(label.judged)) for label in decided])
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
        interval=_kappa_interval(cells),
        differing=tuple(label for label in decided if label.judged is not label.label),
    )


def _count_pairs(pairs: Sequence[tuple[bool, bool]]) -> tuple[int, int, int, int]:
    """Return the numbers (yes_yes, no_yes, yes_no, no_no) of the pairs (person, judge)."""
    return (
        sum(person and judge for person, judge in pairs),
        sum(not person and judge for person, judge in pairs),
        sum(person and not judge for person, judge in pairs),
        sum(not person and not judge for person, judge in pairs),
    )


def _kappa_interval(cells: tuple[int, int, int, int]) -> Interval:
    """Return the bootstrap interval of kappa: 10,000 resamples, seed 0."""
    total = sum(cells)
    random = Random(0)  # noqa: S311 - for resampling, not for a secret
    kappas: list[float] = []
    for _ in range(RESAMPLES):
        sample = random.choices(range(4), weights=cells, k=total)
        kappas.append(cohen_kappa(sample.count(0), sample.count(1), sample.count(2), sample.count(3)))
    kappas.sort()
    return Interval(kappas[round(0.025 * (RESAMPLES - 1))], kappas[round(0.975 * (RESAMPLES - 1))])
