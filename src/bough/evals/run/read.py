"""Reads a run from its folder: the plan from `run.json`, the results from the logs."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Container
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import UUID

from bough.errors import NotFound
from bough.evals.run.folder import RunFolder
from bough.evals.run.note import last_note, result_from_note
from bough.evals.run.plan import attempt_conversation
from bough.evals.run.result import EvalRun
from bough.evals.run.summary import AttemptResult, RateBy, summarize, summarize_sides
from bough.evals.trace import Trace
from bough.events import open_store
from bough.events.model import TaskLinked
from bough.types import JsonObject

if TYPE_CHECKING:
    from bough.events.record import StoredEvent
    from bough.events.store import EventStore


@dataclass(kw_only=True)
class AttemptSlot:
    """A planned attempt with the result notes of all its tries.

    Attributes:
        number: Number of the first try.
        note: Result note of the last try with a note; None if no try has a note.
        replaced: Result notes of the earlier tries, which ended in errors.
    """

    case: str
    number: int
    side: str
    note: JsonObject | None
    replaced: list[JsonObject] = field(default_factory=list[Any])

    @property
    def is_error(self) -> bool:
        """Whether the last try ended in an error."""
        return self.note is not None and self.note["status"] == "error"

    def replace(self, note: JsonObject) -> None:
        """Set the note of a later try; the current note moves to `replaced`."""
        if self.note is not None:
            self.replaced.append(self.note)
        self.note = note

    def describe(self) -> JsonObject | None:
        """Return the note of the last try, with a summary of the notes it replaced."""
        if self.note is None or not self.replaced:
            return self.note
        fields = ("attempt", "status", "reason", "conversation")
        return self.note | {"replaced": [{name: note.get(name) for name in fields} for note in self.replaced]}


class RunReader:
    """Reads the attempts of a run from its store.

    Attributes:
        record: Content of `run.json`.
    """

    def __init__(self, folder: RunFolder, record: JsonObject, store: EventStore | None) -> None:
        self.folder = folder
        self.record = record
        self._store = store

    @classmethod
    @asynccontextmanager
    async def open(cls, folder: RunFolder, store: EventStore | None = None) -> AsyncGenerator[RunReader]:
        """Open a run for reading; a run without a store has only its plan.

        Args:
            store: The run's store, if it is already open.

        Raises:
            NotFound: The folder contains no run.
        """
        record = folder.read_record()
        # A run that scores existing conversations records the URL of their store.
        url = record.get("store") or (folder.store_url if folder.has_store else None)
        own_store = None if store is not None or url is None else await open_store(str(url))
        try:
            yield cls(folder, record, store or own_store)
        finally:
            if own_store is not None:
                await own_store.aclose()

    @property
    def attempts(self) -> list[tuple[str, int, str]]:
        """The planned attempts as (case, number, side), in the order of the plan."""
        sides: list[str] = self.record.get("sides") or [""]
        repeat = int(self.record.get("repeat", 1))
        cases = [str(case["id"]) for case in self.record.get("cases", [])]
        return [(case, number, side) for number in range(1, repeat + 1) for case in cases for side in sides]

    async def read_events(self, conversation: UUID) -> list[StoredEvent]:
        """Return the log of a conversation; empty if it does not exist."""
        if self._store is None:
            return []
        try:
            return [stored async for stored in self._store.read(conversation)]
        except NotFound:
            return []

    async def read_note(self, case: str, number: int, side: str) -> JsonObject | None:
        """Return the result note of an attempt; None if missing."""
        return last_note(await self.read_events(self.conversation_id(case, number, side)), self.folder.run)

    def conversation_id(self, case: str, number: int, side: str) -> UUID:
        """Return the id of the conversation of an attempt."""
        recorded_ids: dict[str, str] = self.record.get("conversations") or {}
        if case in recorded_ids:
            return UUID(recorded_ids[case])
        return attempt_conversation(self.folder.run, case, number, side)

    async def read_slots(self) -> list[AttemptSlot]:
        """Return the planned attempts, each with the note of its last try.

        Numbers above the run's `repeat` are retries. The n-th retry of a case replaces the n-th of its attempts and
        retries that ended in an error.
        """
        slots = [
            AttemptSlot(case=case, number=number, side=side, note=await self.read_note(case, number, side))
            for case, number, side in self.attempts
        ]
        failed_slots: dict[tuple[str, str], deque[AttemptSlot]] = {}
        for slot in slots:
            if slot.is_error:
                failed_slots.setdefault((slot.case, slot.side), deque()).append(slot)
        repeat = int(self.record.get("repeat", 1))
        for (case, side), queue in failed_slots.items():
            number, consecutive_gaps = repeat, 0
            # Retries run concurrently, so an interrupted retry may lack a note while later retries have one.
            while queue and consecutive_gaps < len(queue):
                number += 1
                note = await self.read_note(case, number, side)
                if note is None:
                    consecutive_gaps += 1
                    continue
                consecutive_gaps = 0
                slot = queue.popleft()
                slot.replace(note)
                if slot.is_error:
                    queue.append(slot)
        return slots

    async def read_notes(self) -> list[JsonObject]:
        """Return the note of the last try of each planned attempt; a missing note becomes one with status `skipped`."""
        return [
            slot.describe() or self._make_skipped(slot.case, slot.number, slot.side) for slot in await self.read_slots()
        ]

    async def next_number(self, slot: AttemptSlot, reserved: Container[int]) -> int:
        """Return the number of the next try of an attempt: the first number without a note that is not reserved."""
        number = int(self.record.get("repeat", 1)) + 1
        while number in reserved or await self.read_note(slot.case, number, slot.side) is not None:
            number += 1
        return number

    def _make_skipped(self, case: str, number: int, side: str) -> JsonObject:
        """Return the note of an attempt that was not run."""
        return {
            "schema_version": 1,
            "run": self.folder.run,
            "case": case,
            "attempt": number,
            "side": side,
            "status": "skipped",
            "passed": False,
            "reason": "not run",
            "scores": {},
            "conversation": None,
        }

    def make_run(self, results: list[AttemptResult], *, is_over_budget: bool = False) -> EvalRun:
        """Return the run with these results; if sides are compared, the first side decides whether the run passed."""
        sides: list[str] = self.record.get("sides") or [""]
        deciding_results = [result for result in results if result.side == sides[0]]
        rate_by: RateBy = "queries" if self.record.get("kind") == "triggers" else "attempts"
        if len(sides) > 1:
            rate_by = "assertions"
        return EvalRun(
            run=self.folder.run,
            folder=self.folder.path,
            cases=tuple(results),
            summary=summarize(deciding_results, not_judged=int(self.record.get("not_judged", 0)), rate_by=rate_by),
            sides=summarize_sides(results, sides) if len(sides) > 1 else {},
            threshold=float(self.record.get("threshold", 1.0)),
            is_over_budget=is_over_budget,
        )


async def read_trace(store: EventStore, conversation: UUID) -> Trace:
    """Return the trace of a conversation and of the conversations it started. Reads each event once.

    Raises:
        NotFound: The conversation does not exist.
    """
    events = [stored async for stored in store.read(conversation)]
    children: dict[UUID, list[StoredEvent]] = {}
    pending = [events]
    while pending:
        for stored in pending.pop():
            if stored.kind != "TaskLinked" or not isinstance(event := stored.event, TaskLinked):
                continue
            child = event.conversation
            # Each conversation is read once, so links that form a cycle end here.
            if child is not None and child not in children:
                children[child] = [stored async for stored in store.read(child)]
                pending.append(children[child])
    return Trace.of(events, children=children)


async def read_run(folder: RunFolder, store: EventStore | None = None) -> tuple[EvalRun, list[JsonObject]]:
    """Return a run, and the notes in its logs that record the results.

    Raises:
        NotFound: The folder contains no run.
    """
    async with RunReader.open(folder, store) as reader:
        notes = await reader.read_notes()
        return reader.make_run([result_from_note(note) for note in notes]), notes
