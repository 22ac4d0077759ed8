"""Replays a recorded conversation: its recorded responses call the same tools again. Reports the differences."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher, unified_diff
from itertools import zip_longest
from pathlib import Path
from typing import Any

from bough.agents.models.replay import ReplayModel
from bough.agents.spec import AgentSpec
from bough.conversation.agent import read_recorded_spec
from bough.conversation.conversation import AsyncConversation
from bough.conversation.log.state import State, list_calls
from bough.conversation.log.tool_result import take_out_files
from bough.conversation.log.view import decode_response
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
"""Kinds of events that are compared: messages, responses, calls and outcomes, but no changes of state."""

VOLATILE = frozenset(
    {
        "seq", "id", "ts", "schema_version", "latency_seconds", "duration_seconds", "duration", "wall_seconds",
        "cpu_seconds", "max_rss_bytes", "seen", "timestamp", "run_id", "conversation_id", "content_hash", "isolation",
        "by",
    }
)  # fmt: skip
"""Fields that are not compared, because they differ from run to run."""

NOT_RUN = "the recorded call did not run"
NOT_APPROVED = "this call was not approved, because it was not recorded"


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One difference between the record and the replay.

    Attributes:
        seq: Seq of the recorded event; if only the replay has an event here, of the next recorded one.
        recorded: The recorded event; None if only the replay has an event here.
        replayed: The event of the replay; None if only the record has an event here.
    """

    seq: int
    recorded: JsonObject | None
    replayed: JsonObject | None

    def render(self) -> str:
        """Return the difference as a unified diff of the two events."""
        before, after = (_format_lines(event) for event in (self.recorded, self.replayed))
        return "\n".join(unified_diff(before, after, "recorded", "replayed", lineterm="", n=2))


@dataclass(frozen=True, kw_only=True)
class ReplayReport:
    """The result of a replay.

    Attributes:
        events: How many recorded events were compared.
        output: The output of the replay.
        error: The error that ended the replay early; None if none did.
    """

    events: int
    differences: tuple[Difference, ...]
    output: str
    error: BoughError | None = None

    @property
    def same(self) -> bool:
        """Whether the replay ended without an error and does not differ from the record."""
        return not self.differences and self.error is None


async def replay(
    recorded: AsyncConversation,
    *,
    until: int | None = None,
    agent: AgentSpec | None = None,
    model: str | None = None,
) -> ReplayReport:
    """Run the conversation again in a new log in memory, and return the differences.

    Tools and scripts really run, in the same workspace. A model is called only if `model` is given. Messages that were
    sent during a run, and recorded summaries, are inserted at the same positions. A recorded call that did not run does
    not run in the replay either. A call that was not recorded runs only if the recorded rules permitted every call.

    Args:
        until: Only events before this seq are replayed; None for all events.
        agent: Replaces the agent. It gets the recorded responses all the same.
        model: A model that is called instead of using the recorded responses.
    """
    record = [stored async for stored in recorded.store.read(recorded.id, 0, until)]
    return await rerun(
        record,
        agent or _choose_spec(recorded),
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
    """Run the messages of `record` with `agent` in a new log in memory, and return the differences.

    Args:
        model: A model that is called instead of using the recorded responses.
    """
    responses = [decode_response(stored.event) for stored in record if isinstance(stored.event, ModelResponded)]
    parts = RecordedParts.of(record)
    conductor = Conductor(parts)
    spec = agent.model_copy(update={"model": model or ReplayModel(responses, before_response=conductor.send_during)})
    permissions = _Permissions.from_record(record)
    store = await open_store("memory:")
    error: BoughError | None = None
    try:
        replaying = await AsyncConversation.create(
            spec,
            workspace=workspace,
            store=store,
            executor=executor,
            settings=settings,
            title="replay",
            confirmation_policy=AlwaysConfirm(),
            security_analyzer=permissions.analyzer,
            condenser=RecordedCondenser(parts, lambda: conductor.responses),
        )
        async with replaying:
            conductor.send = replaying._follow(conductor.watch)  # pyright: ignore[reportPrivateUsage]
            try:
                for turn in parts.turns:
                    await _replay_turn(replaying, turn, permissions)
            except BoughError as caught:
                error = caught
            replayed = [stored async for stored in replaying.events]
            output = replaying.state.output
    finally:
        await store.aclose()
    before, after = _normalize_events(record), _normalize_events(replayed)
    return ReplayReport(events=len(before), differences=tuple(_diff_events(before, after)), output=output, error=error)


@dataclass(frozen=True)
class _Permissions:
    """Which calls may run in a replay: those that ran in the recorded conversation.

    Attributes:
        refused: For each recorded call that did not run, the reason, by id.
        recorded: Ids of all recorded calls.
        allows_unrecorded: Whether other calls may run: only if the recorded rules permitted every call.
        analyzer: The recorded analyzer, if it was a `RuleAnalyzer`.
    """

    refused: Mapping[str, str]
    recorded: frozenset[str]
    allows_unrecorded: bool
    analyzer: RuleAnalyzer | None

    @classmethod
    def from_record(cls, record: Sequence[StoredEvent]) -> _Permissions:
        """Return the permissions of a record."""
        events = [stored.event for stored in record]
        call_ids = {call.id for event in events if isinstance(event, ModelResponded) for call in list_calls(event)}
        ran = {event.tool_call_id for event in events if isinstance(event, ToolCalled)}
        reasons = {event.tool_call_id: event.reason for event in events if isinstance(event, ToolRejected)}
        state = State()
        for stored in record:
            state.apply(stored.seq, stored.event)
        policy: JsonObject = state.policies.get("policy") or NeverConfirm().to_json()
        analyzer: JsonObject = state.policies.get("analyzer") or {}
        return cls(
            refused={id: reasons.get(id, NOT_RUN) for id in call_ids - ran},
            recorded=frozenset(call_ids),
            allows_unrecorded=policy == NeverConfirm().to_json() and not state.policies.get("allow_list"),
            analyzer=RuleAnalyzer() if analyzer.get("kind") == "RuleAnalyzer" else None,
        )

    def find_reason_against(self, call: str) -> str | None:
        """Return why a call must not run; None if it may run."""
        if call in self.recorded:
            return self.refused.get(call)
        return None if self.allows_unrecorded else NOT_APPROVED


async def _replay_turn(replaying: AsyncConversation, turn: RecordedTurn, permissions: _Permissions) -> None:
    if turn.message is None:
        await replaying.condense()
    else:
        await replaying.send_message(turn.message)
        await _run_to_end(replaying, permissions)


async def _run_to_end(replaying: AsyncConversation, permissions: _Permissions) -> None:
    """Run until no call waits. Each waiting call is decided as in the recorded conversation."""
    await replaying.run()
    while replaying.state.waiting:
        for call in list(replaying.state.waiting):
            if (reason := permissions.find_reason_against(call)) is None:
                await replaying.approve(call, by="replay")
            else:
                await replaying.reject(call, reason=reason, by="replay")
        await replaying.run()


def _choose_spec(recorded: AsyncConversation) -> AgentSpec:
    """Return the agent in use if it has tools or skills that were passed as code, else the recorded agent."""
    spec = recorded.agent
    has_code = bool(spec.tools or spec.agent) or spec.skills is not None
    return spec if has_code else read_recorded_spec(recorded.state)


def _normalize_events(events: Sequence[StoredEvent]) -> list[tuple[int, JsonObject]]:
    """Return the compared events with their seq, without fields that may differ."""
    return [
        (stored.seq, _drop_volatile(_drop_positions(_take_out_files(stored.as_json()))))
        for stored in events
        if stored.kind in COMPARED
    ]


def _take_out_files(event: JsonObject) -> JsonObject:
    """Return a recorded result; one of an older log, which has the bytes of its files, in the present form."""
    if event["kind"] != "ToolReturned" or event["files"]:
        return event
    result, files = take_out_files(event["result"])
    return event | {"result": result, "files": [file.model_dump(mode="json") for file in files]}


def _drop_positions(event: JsonObject) -> JsonObject:
    """Return the event without seqs of other events, which may differ in a replay."""
    if event["kind"] != "Condensed":
        return event
    return {key: value for key, value in event.items() if key not in ("start", "stop")}


def _drop_volatile(value: Any) -> Any:
    match value:
        case dict():
            return {key: _drop_volatile(item) for key, item in value.items() if key not in VOLATILE}  # pyright: ignore
        case list():
            return [_drop_volatile(item) for item in value]  # pyright: ignore
        case _:
            return value


def _diff_events(before: list[tuple[int, JsonObject]], after: list[tuple[int, JsonObject]]) -> list[Difference]:
    keys = [[json.dumps(event, sort_keys=True) for _, event in side] for side in (before, after)]
    differences: list[Difference] = []
    matcher = SequenceMatcher(None, *keys, autojunk=False)
    for kind, before_start, before_stop, after_start, after_stop in matcher.get_opcodes():
        if kind == "equal":
            continue
        next_seq = _next_seq(before, before_start)
        for old, new in zip_longest(before[before_start:before_stop], after[after_start:after_stop]):
            seq = old[0] if old else next_seq
            differences.append(Difference(seq=seq, recorded=old and old[1], replayed=new and new[1]))
    return differences


def _next_seq(events: list[tuple[int, JsonObject]], index: int) -> int:
    """Return the seq of the event at `index`; at the end, the seq after the last event."""
    if index < len(events):
        return events[index][0]
    return events[-1][0] + 1 if events else 0


def _format_lines(event: JsonObject | None) -> list[str]:
    return [] if event is None else json.dumps(event, indent=1, sort_keys=True, ensure_ascii=False).splitlines()
