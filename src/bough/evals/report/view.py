"""Prepares notes and traces for reports: limits their size and escapes control characters."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from uuid import UUID

from bough.evals.run.folder import sort_notes
from bough.evals.run.read import RunReader
from bough.evals.trace import Trace
from bough.types import Json, JsonObject

MAX_CALLS = 200
MAX_VALUE_CHARS = 400
MAX_TEXT_CHARS = 4_000
_CONTROLS = re.compile("[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")


@dataclass(frozen=True, kw_only=True)
class CallView:
    """A tool call in a report."""

    tool: str
    arguments: str
    ended: str
    result: str
    error: str


@dataclass(frozen=True, kw_only=True)
class CaseView:
    """An attempt in a report: its note, messages and calls.

    Attributes:
        more_calls: Number of omitted calls.
    """

    note: JsonObject
    requests: tuple[str, ...] = ()
    answer: str = ""
    calls: tuple[CallView, ...] = ()
    more_calls: int = 0

    @property
    def name(self) -> str:
        """Case, side and number of the attempt."""
        side = f"@{self.note['side']}" if self.note.get("side") else ""
        return f"{self.note['case']}{side}#{self.note['attempt']}"

    @property
    def size(self) -> int:
        """Approximate number of characters of the trace in the page."""
        texts = [*self.requests, self.answer, *(call.arguments + call.result for call in self.calls)]
        return sum(map(len, texts)) + 200 * len(self.calls)


async def view_cases(reader: RunReader, notes: Sequence[JsonObject]) -> list[CaseView]:
    """Return the attempts by side in the order of the run, failures first. Reads each log once."""
    ordered = sort_notes(notes, reader.record.get("sides") or [""])
    return [await _make_view(reader, note) for note in ordered]


async def _make_view(reader: RunReader, note: JsonObject) -> CaseView:
    """Return the view of an attempt; without a conversation, only its note."""
    if not note.get("conversation"):
        return CaseView(note=note)
    trace = Trace.of(await reader.read_events(UUID(str(note["conversation"]))))
    return CaseView(
        note=note,
        requests=tuple(cut(text, MAX_TEXT_CHARS) for text in trace.requests),
        answer=cut(trace.answer, MAX_TEXT_CHARS),
        calls=tuple(_view_calls(trace)),
        more_calls=max(0, len(trace.calls) - MAX_CALLS),
    )


def _view_calls(trace: Trace) -> Iterator[CallView]:
    for call in trace.calls[:MAX_CALLS]:
        yield CallView(
            tool=call.tool,
            arguments=_format_value(call.arguments),
            ended=call.ended or "open",
            result=_format_value(call.result),
            error=cut(call.error or "", MAX_VALUE_CHARS),
        )


def _format_value(value: Json) -> str:
    return cut(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), MAX_VALUE_CHARS)


def cut(text: str, limit: int) -> str:
    """Return a text; one above `limit` characters is cut, and the number of omitted characters is added."""
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text) - limit} more characters)"


def escape_controls(text: object) -> str:
    """Return a text whose control and bidirectional formatting characters are replaced by visible escapes."""
    return _CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", str(text))
