"""Running a recorded conversation again: the recorded responses drive the same tools, and what differs is told."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher, unified_diff
from pathlib import Path
from typing import Any

from bough.agents.models.replay import ReplayModel
from bough.agents.spec import AgentSpec
from bough.conversation.agent import read_recorded_spec
from bough.conversation.conversation import AsyncConversation
from bough.conversation.log.state import State, calls_of
from bough.conversation.log.view import response_of
from bough.conversation.replay.recording import Conductor, RecordedCondenser, RecordedParts, RecordedTurn
from bough.errors import BoughError
from bough.events import open_store
from bough.events.model import ModelResponded, ToolCalled, ToolRejected
from bough.events.record import StoredEvent
from bough.execution.base import CodeExecutor
from bough.guard import AlwaysConfirm, NeverConfirm, RuleAnalyzer
from bough.settings import Settings
from bough.types import JsonObject

COMPARED = frozenset(
    {
        "UserMessage",
        "Condensed",
        "SkillActivated",
        "ModelResponded",
        "ToolCalled",
        "ToolReturned",
        "ToolFailed",
        "ToolRejected",
        "ToolInterrupted",
        "ScriptRan",
        "HookRan",
    }
)
"""Kinds of events that are compared: what was said and done, not how the conversation was managed."""

VOLATILE = frozenset(
    {
        "seq", "id", "ts", "schema_version", "latency_seconds", "duration_seconds", "duration", "wall_seconds",
        "cpu_seconds", "max_rss_bytes", "seen", "timestamp", "run_id", "conversation_id", "content_hash", "isolation",
        "by",
    }
)  # fmt: skip
"""Fields that differ from run to run without meaning anything."""


NOT_RUN = "it did not run in the record"
NOT_AGREED = "nobody has agreed to this call; the record does not have it"


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One place where the replay went another way.

    Attributes:
        seq: Of the recorded event, or where it would have been.
        recorded: What the record has there; None for something the replay did besides.
        replayed: What the replay did; None for something it did not do.
    """

    seq: int
    recorded: JsonObject | None
    replayed: JsonObject | None

    def render(self) -> str:
        """The difference as a unified diff of the two events."""
        before, after = (_lines(event) for event in (self.recorded, self.replayed))
        return "\n".join(unified_diff(before, after, "recorded", "replayed", lineterm="", n=2))


@dataclass(frozen=True, kw_only=True)
class ReplayReport:
    """What a replay came to.

    Attributes:
        events: How many events were compared.
        error: What ended the replay early, where something did.
    """

    events: int
    differences: tuple[Difference, ...]
    output: str
    error: BoughError | None = None

    @property
    def same(self) -> bool:
        """Whether the replay did what the record says."""
        return not self.differences and self.error is None


async def replay(
    recorded: AsyncConversation,
    *,
    until: int | None = None,
    agent: AgentSpec | None = None,
    model: str | None = None,
) -> ReplayReport:
    """Run the conversation again in a log of its own, in memory, and return what differs.

    Tools and scripts really run, in the same workspace; no model is asked unless `model` names one. Messages that came
    in the middle and summaries of what had grown too long come again at their places. A call that did not run then
    does not run now, and one that the record does not have runs only where no policy asked about calls.

    Args:
        until: Events before this seq are replayed; None takes all.
        agent: Replaces the agent; the recorded responses still drive it.
        model: Asked instead of the record.
    """
    record = [stored async for stored in recorded.store.read(recorded.id, 0, until)]
    return await rerun(
        record,
        agent or _spec(recorded),
        workspace=recorded.workspace,
        executor=recorded.executor,
        settings=recorded.settings,
        model=model,
    )


async def rerun(
    record: Sequence[StoredEvent],
    agent: AgentSpec,
    *,
    workspace: Path,
    executor: CodeExecutor | None = None,
    settings: Settings | None = None,
    model: str | None = None,
) -> ReplayReport:
    """Run what `record` says with `agent`, in a log of its own, in memory, and return what differs.

    Args:
        model: Asked instead of the record.
    """
    responses = [response_of(stored.event) for stored in record if isinstance(stored.event, ModelResponded)]
    parts = RecordedParts.of(record)
    conductor = Conductor(parts)
    spec = agent.model_copy(update={"model": model or ReplayModel(responses, writing=conductor.while_writing)})
    agreed = _Agreed.by(record)
    store = await open_store("memory:")
    error: BoughError | None = None
    try:
        again = await AsyncConversation.create(
            spec,
            workspace=workspace,
            store=store,
            executor=executor,
            settings=settings,
            title="replay",
            confirmation_policy=AlwaysConfirm(),
            security_analyzer=agreed.analyzer,
            condenser=RecordedCondenser(parts, lambda: conductor.responses),
        )
        async with again:
            conductor.send = again._follow(conductor.watch)  # pyright: ignore[reportPrivateUsage]
            try:
                for turn in parts.turns:
                    await _replay_turn(again, turn, agreed)
            except BoughError as caught:
                error = caught
            replayed = [stored async for stored in again.events]
            output = again.state.output
    finally:
        await store.aclose()
    before, after = _comparable(record), _comparable(replayed)
    return ReplayReport(events=len(before), differences=tuple(_differences(before, after)), output=output, error=error)


@dataclass(frozen=True)
class _Agreed:
    """Which calls may run in a replay: those that ran then. What was refused then is refused again.

    Attributes:
        refused: Reason by id, of calls that did not run in the record.
        known: Ids of all calls of the record.
        others: Whether calls that the record does not have may run: only where nobody was asked then.
        analyzer: The rules that said how risky a call is, where the record has them.
    """

    refused: Mapping[str, str]
    known: frozenset[str]
    others: bool
    analyzer: RuleAnalyzer | None

    @classmethod
    def by(cls, record: Sequence[StoredEvent]) -> _Agreed:
        """Return what the record says."""
        events = [stored.event for stored in record]
        call_ids = {call.id for event in events if isinstance(event, ModelResponded) for call in calls_of(event)}
        ran = {event.tool_call_id for event in events if isinstance(event, ToolCalled)}
        reasons = {event.tool_call_id: event.reason for event in events if isinstance(event, ToolRejected)}
        state = State()
        for stored in record:
            state.apply(stored.seq, stored.event)
        policy: JsonObject = state.policies.get("policy") or NeverConfirm().to_json()
        analyzer: JsonObject = state.policies.get("analyzer") or {}
        return cls(
            refused={id: reasons.get(id, NOT_RUN) for id in call_ids - ran},
            known=frozenset(call_ids),
            others=policy == NeverConfirm().to_json() and not state.policies.get("allow_list"),
            analyzer=RuleAnalyzer() if analyzer.get("kind") == "RuleAnalyzer" else None,
        )

    def reason_against(self, call: str) -> str | None:
        """Return why a call must not run; None where it may."""
        if call in self.known:
            return self.refused.get(call)
        return None if self.others else NOT_AGREED


async def _replay_turn(again: AsyncConversation, turn: RecordedTurn, agreed: _Agreed) -> None:
    if turn.message is None:
        await again.condense()
    else:
        await again.send_message(turn.message)
        await _run(again, agreed)


async def _run(again: AsyncConversation, agreed: _Agreed) -> None:
    """Run to the end, deciding each call as the record did."""
    await again.run()
    while again.state.waiting:
        for call in list(again.state.waiting):
            if (reason := agreed.reason_against(call)) is None:
                await again.approve(call, by="replay")
            else:
                await again.reject(call, reason=reason, by="replay")
        await again.run()


def _spec(recorded: AsyncConversation) -> AgentSpec:
    """The agent in use, which has its Python tools where the record has only their names."""
    spec = recorded.agent
    is_code = bool(spec.tools or spec.agent) or spec.skills is not None
    return spec if is_code else read_recorded_spec(recorded.state)


def _comparable(events: Sequence[StoredEvent]) -> list[tuple[int, JsonObject]]:
    return [(stored.seq, _stable(_placeless(stored.as_json()))) for stored in events if stored.kind in COMPARED]


def _placeless(event: JsonObject) -> JsonObject:
    """Return the event without the numbers of other events, which may be others in a replay."""
    return {key: event[key] for key in event if key not in ("start", "stop")} if event["kind"] == "Condensed" else event


def _stable(value: Any) -> Any:
    match value:
        case dict():
            return {key: _stable(item) for key, item in value.items() if key not in VOLATILE}  # pyright: ignore
        case list():
            return [_stable(item) for item in value]  # pyright: ignore
        case _:
            return value


def _differences(before: list[tuple[int, JsonObject]], after: list[tuple[int, JsonObject]]) -> list[Difference]:
    keys = [[json.dumps(event, sort_keys=True) for _, event in side] for side in (before, after)]
    differences: list[Difference] = []
    for kind, a1, a2, b1, b2 in SequenceMatcher(None, *keys, autojunk=False).get_opcodes():
        if kind == "equal":
            continue
        for n in range(max(a2 - a1, b2 - b1)):
            old = before[a1 + n] if a1 + n < a2 else None
            new = after[b1 + n] if b1 + n < b2 else None
            differences.append(
                Difference(
                    seq=old[0] if old else _next_seq(before, a1), recorded=old and old[1], replayed=new and new[1]
                )
            )
    return differences


def _next_seq(events: list[tuple[int, JsonObject]], index: int) -> int:
    """Return the seq at `index`, or the one after the last."""
    if index < len(events):
        return events[index][0]
    return events[-1][0] + 1 if events else 0


def _lines(event: JsonObject | None) -> list[str]:
    return [] if event is None else json.dumps(event, indent=1, sort_keys=True, ensure_ascii=False).splitlines()
