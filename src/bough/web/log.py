"""The rows of a conversation's log in chunks of 50 events, for the timeline, its windows and its live stream."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, cast
from uuid import UUID

from bough.html.numbers import format_usd
from bough.html.rows import MAX_FIELD_CHARS, HiddenRow, Row, Setting, find_rows
from bough.html.timeline import TurnPart, add_up, build_rows, group_turns
from bough.server.access import Access
from bough.server.bodies.info import ConversationInfo
from bough.server.conversations.conversation import info_of_record
from bough.server.conversations.log_part import ConversationRecord, LogPart, read_for_search, read_log_part
from bough.types import utc_now

CHUNK: Final = 50
"""How many events a chunk has; it begins at a multiple of this."""

_SEARCHED: Final = 250
"""How many events a search looks at before it lets others run: some milliseconds."""


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """The rows of a chunk, grouped by turn.

    Attributes:
        number: The first seq divided by `CHUNK`.
        start: The first of the events that it contains.
        stop: The seq after the last of them.
        turn_before: The number of the turn before its first event; None if its beginning was not read.
    """

    number: int
    start: int
    stop: int
    parts: Sequence[TurnPart]
    turn_before: int | None = None

    def keep(self, is_wanted: Callable[[Row], bool]) -> Chunk:
        """Return the chunk with only some of its rows, and without turns that have none."""
        parts = [replace(part, rows=tuple(filter(is_wanted, part.rows))) for part in self.parts]
        return replace(self, parts=[part for part in parts if part.rows])


@dataclass(frozen=True, kw_only=True)
class LogReader:
    """Reads the rows of one conversation for one request.

    Attributes:
        head: The number of events when the request began.
        counted: A seq, and the number of the turn before it.
    """

    access: Access
    info: ConversationInfo
    setting: Setting
    head: int
    is_over: bool
    record: ConversationRecord
    counted: tuple[int, int] = (0, 0)

    @classmethod
    async def open(cls, access: Access, id: UUID, *, counted: tuple[int, int] = (0, 0)) -> LogReader:
        """Return the reader of a conversation.

        Args:
            counted: What an earlier reader's `count_turns` returned.

        Raises:
            NotFound: There is no such conversation.
        """
        record = await access.store.get(id)
        info = await info_of_record(access, record)
        is_running = info.execution_status == "running"
        setting = Setting(
            base=f"/c/{id}",
            agent=str(info.spec.get("name") or ""),
            waiting={call.tool_call_id: call.model_dump(mode="json") for call in info.waiting},
            is_running=is_running,
            max_field_chars=MAX_FIELD_CHARS,
            now=utc_now(),
        )
        is_over = not is_running and not info.waiting
        return cls(
            access=access,
            info=info,
            setting=setting,
            head=record.head,
            is_over=is_over,
            record=record,
            counted=counted,
        )

    async def read(self, start: int, stop: int) -> list[Chunk]:
        """Return the chunks of the events with `start <= seq < stop`."""
        start, stop = max(start, 0), min(stop, self.head)
        if start >= stop:
            return []
        part = await read_log_part(self.access.store, self.record, start, stop, counted=self.counted)
        chunks: list[Chunk] = []
        turn = part.first_turn
        for number in range(start // CHUNK, (stop - 1) // CHUNK + 1):
            low, high = max(number * CHUNK, start), min((number + 1) * CHUNK, stop)
            rows = build_rows(part.events, low, high, part.turns, self.setting)
            parts = [self._add_totals(part, piece, low, high) for piece in group_turns(rows, turn)]
            before = turn if low == number * CHUNK else None
            turn = parts[-1].number if parts else turn
            chunks.append(Chunk(number=number, start=low, stop=high, parts=parts, turn_before=before))
        return chunks

    async def read_from(self, after: int, stop: int) -> list[Chunk]:
        """Return the chunks with only those rows that show an event with `after < seq < stop`.

        A row of an earlier event is among them if a new event completes it.
        """
        chunks = [_select(chunk, after) for chunk in await self.read(max(after, 0) // CHUNK * CHUNK, stop)]
        first = chunks[0].number * CHUNK if chunks else 0
        # An outcome completes the row of its call, which may be in an earlier chunk.
        completed = {
            row.shown_by
            for chunk in chunks
            for part in chunk.parts
            for row in part.rows
            if isinstance(row, HiddenRow) and row.shown_by < first
        }
        earlier = [chunk for seq in sorted(completed) for chunk in await self.read(seq, seq + 1)]
        return [*earlier, *chunks]

    async def find(self, text: str, start: int) -> tuple[list[int], int | None]:
        """Return the seqs of rows from an event on that contain a text, and where to go on; None at the end.

        Looks at some thousand events.
        """
        events, following = await read_for_search(self.access.store, self.record, start)
        stop = self.head if following is None else following
        first = cast("int", events[0]["seq"]) if events else 0
        matches: list[int] = []
        for low in range(start, stop, _SEARCHED):
            high = min(low + _SEARCHED, stop)
            # With its neighbours, because an outcome without its call would be a row that no reader sees.
            around = events[max(low - first - CHUNK, 0) : high - first + CHUNK]
            matches += find_rows(build_rows(around, low, high, {}, self.setting), text)
            await asyncio.sleep(0)  # other requests and streams are answered meanwhile
        return matches, following

    def _add_totals(self, part: LogPart, piece: TurnPart, low: int, high: int) -> TurnPart:
        """Return a piece of a turn with the totals of the turn, if the turn ends in this chunk and was read whole."""
        start = part.turn_starts.get(piece.number)
        end = part.turn_starts.get(piece.number + 1)
        if end is None and self.is_over and part.stop == self.head:
            end = self.head
        if not piece.number or start is None or end is None or not low < end <= high:
            return piece
        events = [event for event in part.events if start <= event["seq"] < end]
        return replace(piece, totals=add_up(events))


def count_turns(chunks: Sequence[Chunk]) -> tuple[int, int] | None:
    """Return the seq at which the last whole chunk begins, and the number of the turn before it; None without one."""
    for chunk in reversed(chunks):
        if chunk.turn_before is not None:
            return chunk.number * CHUNK, chunk.turn_before
    return None


_ACTIONS: Mapping[str, str] = {"running": "stop", "error": "continue", "paused": "continue", "stuck": "continue"}
"""What a person can do about a run, besides sending a message, by the status of the conversation."""


def describe_status(reader: LogReader) -> dict[str, str]:
    """Return the word for the status of a conversation, its tone, and what follows it."""
    info = reader.info
    used = info.own.cost_usd
    budget = info.limits.get("usd") or info.limits.get("cost_usd")
    cost = format_usd(used) + (f" of {format_usd(budget)}" if budget else "") if used or budget else ""
    names = {"waiting_for_confirmation": "Waiting", "idle": "Ready", "finished": "Done", "error": "Failed"}
    word = names.get(info.execution_status, info.execution_status.capitalize())
    tones = {"running": "run", "waiting_for_confirmation": "warn", "error": "bad", "stuck": "bad"}
    facts = [f"step {info.own.requests}" if info.own.requests else "", reader.setting.agent]
    facts += [f"{reader.head:,} events", cost]
    return {
        "word": word,
        "tone": tones.get(info.execution_status, ""),
        "facts": " · ".join(filter(None, facts)),
        "running": "1" if info.execution_status == "running" else "",
        "can": _ACTIONS.get(info.execution_status, ""),
    }


def _select(chunk: Chunk, after: int) -> Chunk:
    """Return a chunk with only the rows that show an event later than `after`, or that such an event completes."""
    completed = {
        row.shown_by for part in chunk.parts for row in part.rows if isinstance(row, HiddenRow) and row.seq > after
    }

    def is_new(row: Row) -> bool:
        return row.seqs[-1] > after or row.seq in completed

    return replace(chunk.keep(is_new), start=max(chunk.start, after + 1))
