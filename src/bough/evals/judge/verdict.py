"""Verdicts of a judge: one for each rubric, and the majority of several votes.

Source: ADK pull request 4575: one verdict with a rationale for each rubric. Verdicts are matched by id, not by text.
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
    """One verdict as the model writes it, with the rationale before the verdict."""

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
        """Whether the votes differ."""
        return 0 < self.votes[0] < self.votes[1]

    def as_dict(self) -> JsonObject:
        """Return the verdict as JSON."""
        words: dict[bool | None, str | None] = {None: None, True: "yes", False: "no"}
        return {
            "rubric_id": self.rubric.id,
            "property": self.rubric.property,
            "rationale": self.rationale,
            "verdict": words[self.verdict],
            "votes": f"{self.votes[0]} of {self.votes[1]}",
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """All verdicts about a trace, in the order of its rubrics.

    Attributes:
        conversations: Ids of the conversations of the judge's calls.
        error: Why the judge did not decide some or all rubrics; empty if all are decided.
    """

    verdicts: tuple[RubricVerdict, ...] = ()
    conversations: tuple[UUID, ...] = ()
    usage: Usage = NOTHING_USED
    error: str = ""

    @property
    def share(self) -> float:
        """The share of rubrics with the verdict yes; undecided rubrics count as no. 1 without rubrics."""
        if not self.verdicts:
            return 1.0
        return sum(verdict.verdict is True for verdict in self.verdicts) / len(self.verdicts)


@dataclass(kw_only=True)
class Ballot:
    """The verdicts of one call.

    Attributes:
        verdicts: Verdicts by rubric id.
        error: Why verdicts are missing; empty if there are all.
    """

    verdicts: dict[str, Verdict] = field(default_factory=dict[str, Verdict])
    error: str = ""


def match_verdicts(response: Verdicts, ids: Collection[str]) -> dict[str, Verdict]:
    """Return the verdicts by rubric id, without unknown ids and ids with contradicting verdicts."""
    by_id: dict[str, Verdict] = {}
    contradicted: set[str] = set()
    for verdict in response.verdicts:
        if verdict.rubric_id not in ids:
            continue
        if verdict.rubric_id in by_id and by_id[verdict.rubric_id].verdict != verdict.verdict:
            contradicted.add(verdict.rubric_id)
        by_id[verdict.rubric_id] = verdict
    return {id: verdict for id, verdict in by_id.items() if id not in contradicted}


def count_votes(rubrics: Sequence[Rubric], ballots: Sequence[Ballot]) -> tuple[RubricVerdict, ...]:
    """Return the majority verdict for each rubric; None if at most half of the ballots decide the rubric."""
    return tuple(_decide_rubric(rubric, ballots) for rubric in rubrics)


def _decide_rubric(rubric: Rubric, ballots: Sequence[Ballot]) -> RubricVerdict:
    """Return the majority verdict for one rubric, with the rationale of the first vote that agrees with it.

    A tie counts as no. The verdict is None unless more than half of the ballots decide the rubric.
    """
    votes = [ballot.verdicts[rubric.id] for ballot in ballots if rubric.id in ballot.verdicts]
    yes_count = sum(vote.verdict == "yes" for vote in votes)
    if 2 * len(votes) <= len(ballots):
        reason = next((ballot.error for ballot in ballots if ballot.error), "the judge gave no verdict")
        return RubricVerdict(rubric=rubric, verdict=None, rationale=reason, votes=(yes_count, len(ballots)))
    is_yes = 2 * yes_count > len(votes)
    is_tie = 2 * yes_count == len(votes)
    word = "yes" if is_yes else "no"
    rationale = next(vote.rationale for vote in votes if is_tie or vote.verdict == word)
    return RubricVerdict(rubric=rubric, verdict=is_yes, rationale=rationale[:2000], votes=(yes_count, len(ballots)))
