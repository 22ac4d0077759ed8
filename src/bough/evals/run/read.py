"""A run read back from its folder: the plan from `run.json`, the results from the logs."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from uuid import UUID

from bough.errors import NotFound
from bough.evals.run.folder import RunFolder
from bough.evals.run.note import last_note, result_of_note
from bough.evals.run.plan import attempt_conversation
from bough.evals.run.result import EvalRun
from bough.evals.run.summary import AttemptResult, summarize
from bough.evals.trace import Trace
from bough.events import open_store
from bough.events.model import TaskLinked
from bough.types import JsonObject

if TYPE_CHECKING:
    from bough.events.record import StoredEvent
    from bough.events.store import EventStore


class RunReader:
    """Reads the attempts of a run from its store.

    Attributes:
        record: What `run.json` says.
    """

    def __init__(self, folder: RunFolder, record: JsonObject, store: EventStore | None) -> None:
        self.folder = folder
        self.record = record
        self._store = store

    @classmethod
    @asynccontextmanager
    async def open(cls, folder: RunFolder, store: EventStore | None = None) -> AsyncGenerator[RunReader]:
        """Open a run for reading; a run without a store has nothing but its plan.

        Args:
            store: The run's store where it is open already.

        Raises:
            NotFound: The folder holds no run.
        """
        record = folder.read_record()
        url = record.get("store") or (folder.store_url if folder.has_store else None)  # of conversations elsewhere
        opened = None if store is not None or url is None else await open_store(str(url))
        try:
            yield cls(folder, record, store or opened)
        finally:
            if opened is not None:
                await opened.aclose()

    @property
    def attempts(self) -> list[tuple[str, int, str]]:
        """The planned attempts as (case, number, side), in the order of the plan."""
        sides: list[str] = self.record.get("sides") or [""]
        repeat = int(self.record.get("repeat", 1))
        cases = [str(case["id"]) for case in self.record.get("cases", [])]
        return [(case, number, side) for number in range(1, repeat + 1) for case in cases for side in sides]

    async def events(self, conversation: UUID) -> list[StoredEvent]:
        """Return the log of a conversation; empty where there is none."""
        if self._store is None:
            return []
        try:
            return [stored async for stored in self._store.read(conversation)]
        except NotFound:
            return []

    async def note(self, case: str, number: int, side: str) -> JsonObject | None:
        """Return the result note of an attempt; None where it has none."""
        return last_note(await self.events(self.conversation(case, number, side)), self.folder.run)

    def conversation(self, case: str, number: int, side: str) -> UUID:
        """Return the conversation of an attempt."""
        known: dict[str, str] = self.record.get("conversations") or {}
        return UUID(known[case]) if case in known else attempt_conversation(self.folder.run, case, number, side)

    async def notes(self) -> list[JsonObject]:
        """Return one note for each planned attempt, then those of further tries; a missing one is `skipped`."""
        found: list[JsonObject] = []
        for case, number, side in self.attempts:
            note = await self.note(case, number, side)
            found.append(note or self._make_skipped(case, number, side))
        repeat = int(self.record.get("repeat", 1))
        again = [(str(each["case"]), str(each["side"])) for each in found if each["status"] == "error"]
        for case, side in dict.fromkeys(again):
            number = repeat + 1
            while (note := await self.note(case, number, side)) is not None:
                found.append(note)
                number += 1
        return found

    def _make_skipped(self, case: str, number: int, side: str) -> JsonObject:
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

    def run_of(self, results: list[AttemptResult], *, is_over_budget: bool = False) -> EvalRun:
        """Return the run that these results make."""
        return EvalRun(
            run=self.folder.run,
            folder=self.folder.path,
            cases=tuple(results),
            summary=summarize(results, not_judged=int(self.record.get("not_judged", 0))),
            threshold=float(self.record.get("threshold", 1.0)),
            is_over_budget=is_over_budget,
        )


async def read_trace(store: EventStore, conversation: UUID) -> Trace:
    """Return the trace of a log and of the conversations that it started. Each event is read once.

    Raises:
        NotFound: There is no such conversation.
    """
    events = [stored async for stored in store.read(conversation)]
    children: dict[UUID, list[StoredEvent]] = {}
    pending = [events]
    while pending:
        for stored in pending.pop():
            if stored.kind != "TaskLinked" or not isinstance(event := stored.event, TaskLinked):
                continue
            child = event.conversation
            if child is not None and child not in children:
                children[child] = [each async for each in store.read(child)]
                pending.append(children[child])
    return Trace.of(events, children=children)


async def read_run(folder: RunFolder, store: EventStore | None = None) -> tuple[EvalRun, list[JsonObject]]:
    """Return a run and its result notes from the logs.

    Raises:
        NotFound: The folder holds no run.
    """
    async with RunReader.open(folder, store) as reader:
        notes = await reader.notes()
        return reader.run_of([result_of_note(note) for note in notes]), notes
