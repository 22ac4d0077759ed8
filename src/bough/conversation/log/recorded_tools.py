"""Answering the tool calls of a fork from the log of its source, so that no tool runs."""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Self, TypeAlias, cast
from uuid import UUID

from bough.conversation.log.journal import Journal
from bough.conversation.log.state import State, ToolCall, YieldingDecoder
from bough.conversation.log.turns import MARK
from bough.errors import CorruptLog, NotFound
from bough.events.blob.blob import list_named_bytes, read_bytes
from bough.events.model import Event, StateChanged, ToolFailed, ToolOutcome, ToolRejected, ToolReturned
from bough.types import JsonObject, new_id, utc_now

ToolSource: TypeAlias = Literal["recorded", "recorded-or-run"]
"""Where the results of tools come from: only from a record, or from a record and for other calls from the tools."""

POLICY = "recorded_tools"
"""The key of a `RecordedTools` in the recorded rules of a fork."""

_ANSWERS = ("ToolReturned", "ToolFailed", "ToolRejected")
_MARKED = ("ToolReturned", "ToolRejected", "StateChanged")
"""Kinds of events that may have the mark of a used outcome."""


@dataclass(frozen=True, kw_only=True)
class RecordedTools:
    """The part of a log from which the tool calls of a fork are answered. Recorded with the rules of the fork.

    Attributes:
        source: The conversation that made the recorded calls: an ancestor of the fork.
        start: Seq of the first event of the record.
        stop: Seq after the last one.
    """

    mode: ToolSource
    source: UUID
    start: int
    stop: int

    @classmethod
    def from_policies(cls, policies: JsonObject) -> Self | None:
        """Return the record that the rules name; None if the rules name none, so that the tools run.

        Raises:
            CorruptLog: The rules do not have the form that `to_json` writes.
        """
        recorded = policies.get(POLICY)
        if recorded is None:
            return None
        try:
            # An imported log may have any other mode: it counts as the stricter one.
            mode: ToolSource = "recorded-or-run" if recorded["mode"] == "recorded-or-run" else "recorded"
            start, stop = int(recorded["start"]), int(recorded["stop"])
            return cls(mode=mode, source=UUID(recorded["source"]), start=start, stop=stop)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CorruptLog(
                f"the record that answers tool calls is not valid: {recorded!r:.200}",
                hint="fork a conversation with another source",
            ) from error

    def to_json(self) -> JsonObject:
        """Return the form in which the rules record it."""
        return {"mode": self.mode, "source": str(self.source), "start": self.start, "stop": self.stop}

    def cut_at(self, cut: int) -> Self:
        """Return the record for a fork of this fork. If it is cut earlier, its record begins at that cut."""
        return replace(self, start=min(self.start, cut))


class RecordedAnswers:
    """Answers the calls of one conversation from the record that its rules name. Reads the record at the first call.

    Each recorded outcome answers one call. The log tells which outcomes have been used, so a resumed run and a fork of
    the fork continue with the next one.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._tools: RecordedTools | None = None
        self._seqs: Mapping[bytes, deque[int]] = {}

    async def answer(self, call: ToolCall) -> list[Event]:
        """Return the events that answer a call, the outcome last; none if the call may run under the usual rules.

        Reads one row; at the first call, all events of the record.

        Raises:
            NotFound: The conversation with the record was deleted.
            CorruptLog: The record that the rules name is invalid.
        """
        tools = RecordedTools.from_policies(self._journal.state.policies)
        if tools is None:
            return []
        if tools != self._tools:
            self._seqs, self._tools = await self._find_outcomes(tools), tools
        seqs = self._seqs.get(_make_key(call))
        if seqs:
            events = [event async for event in self._copy(tools, seqs.popleft(), call)]
            if not events:  # an empty list would let the tool run
                raise NotFound("the recorded outcome of a tool call is gone", hint="fork another conversation")
            return events
        if tools.mode == "recorded-or-run":
            return []
        reason = (
            f"not run: tools are answered from the record of another conversation, which has no further call of "
            f"{call.tool} with these arguments"
        )
        return [ToolRejected(tool_call_id=call.id, tool=call.tool, by="recorded", reason=reason)]

    async def _find_outcomes(self, tools: RecordedTools) -> Mapping[bytes, deque[int]]:
        """Return the seqs of the outcomes that have not been used, by key of their call, in the order of the calls."""
        store = self._journal.store
        await self._require_source(tools.source)
        await self._journal.settle()  # the marks of what this process has answered must be in the log
        used = {mark async for mark in self._read_marks(tools.start)}
        first_seq = tools.start
        async for stored in store.read(tools.source, 0, tools.start, reverse=True, kinds=("ModelResponded",)):
            first_seq = stored.seq  # from this response on: its calls may have been open at the cut, and ended later
            break
        state, decoder = State(), YieldingDecoder()
        outcomes: list[tuple[int, int, bytes, int]] = []
        async for stored in store.read(tools.source, first_seq, tools.stop):
            event = await decoder.decode(stored)
            if stored.kind in _ANSWERS and stored.seq >= tools.start and str(stored.id) not in used:
                call = state.calls.get(cast("ToolOutcome", event).tool_call_id)
                if call is not None and call.outcome is None and state.response_seq is not None:
                    outcomes.append((state.response_seq, list(state.calls).index(call.id), _make_key(call), stored.seq))
            state.apply(stored.seq, event)
        seqs: dict[bytes, deque[int]] = {}
        for _, _, key, seq in sorted(outcomes):
            seqs.setdefault(key, deque()).append(seq)
        return seqs

    async def _require_source(self, source: UUID) -> None:
        """Check that the source is an ancestor of this conversation, has the same owner, and was not deleted.

        The rules of an imported log come from its sender, and may name any conversation.
        """
        store, cid = self._journal.store, self._journal.cid
        own_record = await store.get(cid)
        ancestors = {record.id: record for record in await store.ancestry(cid)}
        record = ancestors.get(source)
        if record is None or record.deleted or record.owner != own_record.owner:
            raise NotFound(
                f"the conversation whose log answers the tool calls does not exist: {source}",
                hint="fork a conversation that was not deleted",
                details={"source": str(source)},
            )

    async def _read_marks(self, start: int) -> AsyncIterator[str]:
        """Yield the ids of the recorded events that have already answered calls of this conversation."""
        async for stored in self._journal.store.read(self._journal.cid, start, kinds=_MARKED):
            event = stored.event
            if isinstance(event, StateChanged):
                for mark in event.changes.get("recorded", {}).values():
                    yield str(mark)
            elif isinstance(event, ToolReturned | ToolRejected) and (event.by or "").startswith(MARK):
                yield (event.by or "").removeprefix(MARK)

    async def _copy(self, tools: RecordedTools, seq: int, call: ToolCall) -> AsyncIterator[Event]:
        """Yield a copy of a recorded outcome as the outcome of `call`, marked with the id of the recorded event."""
        async for stored in self._journal.store.read(tools.source, seq, seq + 1):
            fields: dict[str, Any] = {"id": new_id(), "ts": utc_now(), "tool_call_id": call.id}
            # The source has spent the time and the usage, and has started the tasks.
            cleared: dict[str, Any] = {"duration_seconds": None, "usage": None, "tasks": (), "shown": None}
            match stored.event:
                case ToolReturned() as event:
                    await self._read_files(tools.source, event)
                    yield event.model_copy(update=fields | cleared | {"by": f"{MARK}{stored.id}"})
                case ToolFailed() as event:  # it has no `by`, so another event has the mark
                    yield StateChanged(changes={"recorded": {call.id: str(stored.id)}})
                    yield event.model_copy(update=fields | cleared)
                case ToolRejected() as event:
                    yield event.model_copy(update=fields | {"by": f"{MARK}{stored.id}"})
                case _:
                    pass

    async def _read_files(self, source: UUID, event: ToolReturned) -> None:
        """Attach the bytes of a result's files, which the fork stores with its own event."""
        digests = {reference.sha256 for reference in list_named_bytes(event)}
        if not digests:
            return
        data_by_digest = await read_bytes(self._journal.store, source, digests)
        for file in event.files:
            if file.sha256 in data_by_digest:
                file.carry_bytes(data_by_digest[file.sha256])


def _make_key(call: ToolCall) -> bytes:
    """Return a digest of the tool and the arguments of a call."""
    return hashlib.sha256(json.dumps([call.tool, call.parsed_arguments], sort_keys=True).encode()).digest()
