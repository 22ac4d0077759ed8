"""Reads the labels of a person, with which a judge is compared: one JSON object per line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from bough.errors import InvalidInput
from bough.evals.case import Rubric
from bough.evals.document import Entry, FaultList
from bough.evals.trace import Trace, TracedCall
from bough.types import JsonObject

MAX_BYTES = 64 << 20


@dataclass(frozen=True, kw_only=True)
class Label:
    """A statement about an outcome, and a person's verdict on the statement.

    Attributes:
        property: The statement.
        label: The verdict of the person.
        calls: The tool calls of the outcome.
    """

    id: str
    request: str
    answer: str
    property: str
    label: bool
    calls: tuple[TracedCall, ...] = field(default_factory=tuple)

    def to_trace(self) -> Trace:
        """Return the trace that the judge sees."""
        return Trace(requests=(self.request,), calls=self.calls, answer=self.answer)

    def to_rubric(self) -> Rubric:
        """Return the rubric that the judge decides."""
        return Rubric("r1", self.property)


def read_labels(path: Path) -> tuple[list[Label], FaultList]:
    """Return the labels of a file and its faults; lines with errors are omitted.

    Raises:
        InvalidInput: The file cannot be read.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise InvalidInput(f"{path} is longer than {MAX_BYTES} bytes", hint="split the file")
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"the labels {path} cannot be read: {error}", hint="give JSON lines in UTF-8") from error
    faults = FaultList(path)
    ids: set[str] = set()
    labels = [label for number, line in enumerate(lines, 1) for label in _read_line(line, number, faults, ids)]
    return labels, faults


def _read_line(line: str, number: int, faults: FaultList, ids: set[str]) -> Iterator[Label]:
    """Yield the label of a line; nothing for an empty line, or for an invalid line, whose faults are added."""
    if not line.strip():
        return
    fault_count = len(faults.items)
    try:
        data: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        faults.add("not-json", f"is not JSON: {error}", case=str(number))
        return
    if not isinstance(data, dict):
        faults.add("type", "is not an object", case=str(number))
        return
    entry = Entry(cast("JsonObject", data), faults, str(number))
    recorded_id = entry.get("id")
    id = str(number) if recorded_id is None else str(recorded_id)
    if id in ids:
        entry.fault("duplicate-id", f"the id {id!r} already exists", "id")
    ids.add(id)
    request = entry.text("request", required=True)
    answer = entry.text("answer", required=True)
    statement = entry.text("property", required=True)
    label = entry.text("label", required=True)
    if statement is not None and not statement.strip():
        entry.fault("rubric-empty", "`property` is empty", "property")
    if label not in (None, "yes", "no"):
        entry.fault("type", "`label` is neither yes nor no", "label")
    calls = tuple(_read_calls(entry))
    if faults.has_error(fault_count):
        return
    yield Label(
        id=id, request=request or "", answer=answer or "", property=statement or "", label=label == "yes", calls=calls
    )


def _read_calls(entry: Entry) -> Iterator[TracedCall]:
    for number, call in enumerate(entry.entries("trace")):
        tool = call.text("tool", "name", required=True)
        arguments = call.object("arguments", "args")
        if tool:
            yield TracedCall(
                id=str(number), tool=tool, arguments=arguments or {}, ended="ToolReturned", result=call.get("result")
            )
