"""Verdicts of a judge: one for each rubric, and the majority of several votes.

Source: ADK pull request 4575, one verdict with a rationale a rubric; verdicts are matched by id, never by text.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from bough.conversation.log.state import NOTHING_USED
from bough.evals.case import Rubric
from bough.events.model import Usage
from bough.types import JsonObject


class Verdict(BaseModel):
    """One verdict as the model writes it: the rationale comes before the verdict."""

    model_config = ConfigDict(extra="ignore")

    rubric_id: str
    property: str = ""
    rationale: str = Field(default="", max_length=20_000)
    verdict: Literal["yes", "no"]


class Verdicts(BaseModel):
    """All verdicts of one call."""

    model_config = ConfigDict(extra="ignore")

    verdicts: list[Verdict]


@dataclass(frozen=True, slots=True, kw_only=True)
class RubricVerdict:
    """The judge's decision on one rubric.

    Attributes:
        verdict: None if the judge did not decide.
        votes: (yes votes, all votes).
    """

    rubric: Rubric
    verdict: bool | None
    rationale: str = ""
    votes: tuple[int, int] = (0, 1)

    @property
    def is_split(self) -> bool:
        """Whether its votes differ."""
        return 0 < self.votes[0] < self.votes[1]

    def as_dict(self) -> JsonObject:
        """Return it as JSON."""
        words: dict[bool | None, str | None] = {None: None, True: "yes", False: "no"}
        word = words[self.verdict]
        return {
            "rubric_id": self.rubric.id,
            "property": self.rubric.property,
            "rationale": self.rationale,
            "verdict": word,
            "votes": f"{self.votes[0]} of {self.votes[1]}",
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """All verdicts about a trace, in the order of its rubrics.

    Attributes:
        conversations: The judge's calls.
        error: Why it failed for some or all rubrics; empty if it did not fail.
    """

    verdicts: tuple[RubricVerdict, ...] = ()
    conversations: tuple[UUID, ...] = ()
    usage: Usage = NOTHING_USED
    error: str = ""

    @property
    def share(self) -> float:
        """The share of yes; undecided rubrics count as no. No rubrics: 1."""
        return sum(verdict.verdict is True for verdict in self.verdicts) / len(self.verdicts) if self.verdicts else 1.0


@dataclass(kw_only=True)
class Ballot:
    """The verdicts of one call by rubric id; `error` says why some are missing."""

    verdicts: dict[str, Verdict] = field(default_factory=dict[str, Verdict])
    error: str = ""


def match_verdicts(answer: Verdicts, ids: Collection[str]) -> dict[str, Verdict]:
    """Return verdicts by id. Drops unknown ids, and ids with contradicting verdicts."""
    by_id: dict[str, Verdict] = {}
    contradicted: set[str] = set()
    for verdict in answer.verdicts:
        if verdict.rubric_id not in ids:
            continue
        if verdict.rubric_id in by_id and by_id[verdict.rubric_id].verdict != verdict.verdict:
            contradicted.add(verdict.rubric_id)
        by_id[verdict.rubric_id] = verdict
    return {id: verdict for id, verdict in by_id.items() if id not in contradicted}


def count_votes(rubrics: Sequence[Rubric], ballots: Sequence[Ballot]) -> tuple[RubricVerdict, ...]:
    """Return the majority for each rubric; None for a rubric that most votes did not decide."""
    return tuple(_count(rubric, ballots) for rubric in rubrics)


def _count(rubric: Rubric, ballots: Sequence[Ballot]) -> RubricVerdict:
    cast = [ballot.verdicts[rubric.id] for ballot in ballots if rubric.id in ballot.verdicts]
    yes = sum(vote.verdict == "yes" for vote in cast)
    if 2 * len(cast) <= len(ballots):
        reason = next((ballot.error for ballot in ballots if ballot.error), "the judge gave no verdict")
        return RubricVerdict(rubric=rubric, verdict=None, rationale=reason, votes=(yes, len(ballots)))
    decided = 2 * yes > len(cast)
    word = "yes" if decided else "no"
    rationale = next(vote.rationale for vote in cast if vote.verdict == word or len(cast) == 2 * yes)
    return RubricVerdict(rubric=rubric, verdict=decided, rationale=rationale[:2000], votes=(yes, len(ballots)))
