"""The judge: a model that decides rubrics about a trace, in separate conversations, so that every verdict has a log.

Source: ADK pull request 4575 (`instruction_adherence_score`).
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from bough.agents.retry_policy import RetryPolicy
from bough.agents.spec import AgentSpec
from bough.conversation.log.state import add_usage
from bough.errors import BoughError, InvalidInput
from bough.evals.case import Rubric
from bough.evals.converse import ConversationHost, conversation_id, send_messages
from bough.evals.judge.prompt import SYSTEM_PROMPT, ask_again, quote_case
from bough.evals.judge.verdict import (
    NOTHING_USED,
    Ballot,
    Judgement,
    Verdict,
    Verdicts,
    count_votes,
    match_verdicts,
)
from bough.evals.trace import Trace
from bough.events.model import OutputGiven

if TYPE_CHECKING:
    from pydantic_ai.models import Model
    from pydantic_ai.settings import ModelSettings

    from bough.conversation import AsyncConversation

MAX_RUBRICS = 20
"""Maximum number of rubrics of one call."""

MAX_VOTES = 9

JUDGE_RETRY = RetryPolicy(attempts=5, base_seconds=2.0, max_wait_seconds=16.0, jitter=False)
"""Retries a busy server after 2, 4, 8 and 16 seconds, or later if the server asks for it."""

OUTPUT_RETRIES = 2
"""Number of invalid responses after which the judge is asked again."""


@dataclass(frozen=True, kw_only=True)
class JudgedCase:
    """The input of one judgement.

    Attributes:
        key: Unique in the run; the ids of the judge's conversations derive from the key.
        files: Sizes in bytes of the files that the assistant created, by name.
        expected: Description of a good outcome.
    """

    key: str
    trace: Trace
    rubrics: Sequence[Rubric]
    files: Mapping[str, int] = field(default_factory=dict[str, int])
    expected: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict[str, str])


class Judge:
    """Decides rubrics with a model. One call decides up to twenty rubrics; several calls vote.

    Attributes:
        votes: Number of calls for the same rubrics; the majority decides.
    """

    def __init__(
        self,
        model: str | Model[Any],
        votes: int = 1,
        *,
        base_url: str | None = None,
        settings: ModelSettings | None = None,
        by_tool: bool | None = None,
    ) -> None:
        """Create a judge from a model string or a model; sends no request.

        Args:
            settings: Model settings; temperature 0 by default.
            by_tool: Whether the model returns verdicts by a tool call; None for a tool call only if the model does not
                support JSON schema output.

        Raises:
            InvalidInput: `votes` is even, or not between 1 and 9.
        """
        if votes not in range(1, MAX_VOTES + 1, 2):
            raise InvalidInput(f"a judge cannot have {votes} votes", hint="give an odd number from 1 to 9")
        self.votes = votes
        self._model = model
        self._base_url = base_url
        self._settings: ModelSettings = settings or {"temperature": 0.0}
        self._by_tool = by_tool

    @property
    def model_name(self) -> str:
        """The name of the model."""
        return self._model if isinstance(self._model, str) else self._model.model_name

    async def judge(self, case: JudgedCase, host: ConversationHost, folder: Path) -> Judgement:
        """Return a verdict for each rubric. A failure is reported in the judgement, never raised.

        Args:
            folder: An empty folder, the workspace of the judge's conversations.
        """
        judgement = Judgement()
        for start in range(0, len(case.rubrics), MAX_RUBRICS):
            batch = await self._judge_batch(case, case.rubrics[start : start + MAX_RUBRICS], start, host, folder)
            judgement = Judgement(
                verdicts=judgement.verdicts + batch.verdicts,
                conversations=judgement.conversations + batch.conversations,
                usage=add_usage(judgement.usage, batch.usage),
                error=judgement.error or batch.error,
            )
        return judgement

    async def _judge_batch(
        self, case: JudgedCase, rubrics: Sequence[Rubric], start: int, host: ConversationHost, folder: Path
    ) -> Judgement:
        """Return the verdicts on one batch of rubrics; `start` is its position among all rubrics."""
        usage = NOTHING_USED
        ballots: list[Ballot] = []
        ids: list[UUID] = []
        digest = sha256(repr([(rubric.id, rubric.property) for rubric in rubrics]).encode()).hexdigest()[:16]
        for vote in range(self.votes):
            id = conversation_id("judge", case.key, digest, start, vote)
            ballot, vote_usage = await self._vote(case, rubrics, vote, id, host, folder)
            usage = add_usage(usage, vote_usage)
            ballots.append(ballot)
            ids.append(id)
        verdicts = count_votes(rubrics, ballots)
        error = next((verdict.rationale for verdict in verdicts if verdict.verdict is None), "")
        return Judgement(verdicts=verdicts, conversations=tuple(ids), usage=usage, error=error)

    async def _vote(
        self, case: JudgedCase, rubrics: Sequence[Rubric], vote: int, id: UUID, host: ConversationHost, folder: Path
    ) -> tuple[Ballot, Any]:
        """Ask the judge, and ask once more for missing verdicts. Returns (ballot by rubric id, usage)."""
        # Each vote uses a different order, so that a position bias does not decide. Neutral ids hide hints in names.
        rotated = [*rubrics[vote % len(rubrics) :], *rubrics[: vote % len(rubrics)]]
        rubrics_by_alias = {f"r{number}": rubric for number, rubric in enumerate(rotated, 1)}
        anonymous = [Rubric(alias, rubric.property) for alias, rubric in rubrics_by_alias.items()]
        # A new nonce for each vote, so that the judged data cannot contain the tag that closes its block.
        message = quote_case(
            case.trace, anonymous, nonce=secrets.token_hex(16), files=case.files, expected=case.expected or None
        )
        ballot = Ballot()
        try:
            conversation = await host.open(id, self._make_spec(), folder, case.tags, f"judge {case.key}"[:60])
        except BoughError as error:
            return Ballot(error=f"the judge could not be asked: {error.message}"), NOTHING_USED
        async with conversation:
            try:
                await send_messages(conversation, [message])
                ballot.verdicts = await _read_verdicts(conversation, anonymous)
                missing = [rubric for rubric in anonymous if rubric.id not in ballot.verdicts]
                if missing:
                    await send_messages(conversation, [message, ask_again(missing)])
                    ballot.verdicts = await _read_verdicts(conversation, anonymous)
                if len(ballot.verdicts) < len(anonymous):
                    ballot.error = f"the judge gave {len(ballot.verdicts)} of {len(anonymous)} verdicts"
            except BoughError as error:
                ballot.error = f"the judge failed: {error.message}"
            usage = conversation.usage
        ballot.verdicts = {rubrics_by_alias[alias].id: verdict for alias, verdict in ballot.verdicts.items()}
        return ballot, usage

    def _make_spec(self) -> AgentSpec:
        """Return the judge as an agent without skills and tools."""
        from pydantic_ai.output import NativeOutput, ToolOutput

        model = self._resolve_model()
        by_tool = self._by_tool
        if by_tool is None:
            by_tool = not model.profile.get("supports_json_schema_output")
        return AgentSpec(
            name="judge",
            model=model,
            system_prompt=SYSTEM_PROMPT,
            settings=dict(self._settings),
            skills=(),
            retry=JUDGE_RETRY,
            output_type=ToolOutput(Verdicts) if by_tool else NativeOutput(Verdicts),
            output_retries=OUTPUT_RETRIES,
        )

    def _resolve_model(self) -> Model[Any]:
        """Return the model, resolved on the first call."""
        if not isinstance(self._model, str):
            return self._model
        import os

        from bough.agents.models.resolve import resolve_model

        self._model = resolve_model(self._model, base_url=self._base_url, env=os.environ).model
        return self._model


async def _read_verdicts(conversation: AsyncConversation, rubrics: Sequence[Rubric]) -> dict[str, Verdict]:
    """Return the verdicts in a judge's log: those of the first response, then missing ones from later responses."""
    verdicts: dict[str, Verdict] = {}
    async for stored in conversation.events:
        if stored.kind == "OutputGiven" and isinstance(event := stored.event, OutputGiven):
            # Only missing ids, so that a second response cannot replace a verdict of the first.
            missing = [rubric.id for rubric in rubrics if rubric.id not in verdicts]
            verdicts |= match_verdicts(Verdicts.model_validate(event.data), missing)
    return verdicts
