"""A part of a log as rows in turns: calls with their outcomes, bookkeeping folded, totals of each complete turn."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from bough.html.calls import OPENING_KINDS, OUTCOME_KINDS, Call, make_call_row
from bough.html.fields import (
    find_subject,
    read_arguments,
    read_count,
    read_number,
    read_object,
    read_objects,
    read_text,
    read_texts,
)
from bough.html.lines import describe_line, describe_task
from bough.html.markup import count_changed_lines
from bough.html.rows import (
    AskedCall,
    AskRow,
    HiddenRow,
    MessageRow,
    QuietItem,
    QuietRow,
    Row,
    Setting,
    make_message,
    make_step,
    make_stored,
    read_moment,
)
from bough.types import JsonObject

_NEEDS: Final = {"question": "asks you", "external": "needs a result"}
"""What a waiting call needs of a person, by its kind; others require an approval."""


@dataclass(frozen=True, kw_only=True)
class TurnTotals:
    """What a turn took.

    Attributes:
        start: The seq of its first event; `stop` is the one after its last.
        cost_usd: None if no response tells its cost.
        files: Lines added and removed in each file, as far as edits tell; 0 for a file that a command changed.
        are_kept: Whether the files of before and after its steps were kept, so that they can be compared and restored.
    """

    start: int = 0
    stop: int = 0

    steps: int = 0
    tokens: int = 0
    cost_usd: float | None = None
    seconds: float | None = None
    files: Mapping[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    are_kept: bool = False

    @property
    def added(self) -> int:
        """Lines added in all files."""
        return sum(added for added, _ in self.files.values())

    @property
    def removed(self) -> int:
        """Lines removed in all files."""
        return sum(removed for _, removed in self.files.values())


@dataclass(frozen=True, kw_only=True)
class TurnPart:
    """The rows of a turn that are in a range of the log.

    Attributes:
        number: 0 for the events before the first message.
        begins: Whether the first row is the message that begins the turn.
        totals: None if the range does not contain the whole turn, or the turn is not over.
    """

    number: int
    begins: bool
    rows: tuple[Row, ...]
    totals: TurnTotals | None = None


def build_rows(
    events: Sequence[JsonObject], start: int, stop: int, turns: Mapping[int, int], setting: Setting
) -> list[Row]:
    """Return the rows of the events with `start <= seq < stop`. O(events).

    Args:
        events: The events of that range, and some around it, in which calls and outcomes of the range are found.
        turns: The number of the turn that an event begins, by seq.
    """
    pairing = _Pairing(setting)
    for event in events:
        pairing.add(event, turns)
    rows: list[Row] = []
    quiet: list[QuietItem] = []
    for row in pairing.finish():
        if isinstance(row, QuietItem):
            if start <= row.seq < stop:
                quiet.append(row)
            continue
        if not start <= row.seq < stop:
            continue
        # A hidden row shows nothing, so bookkeeping before and after it is still neighbouring.
        if not isinstance(row, HiddenRow):
            rows += _fold(quiet)
            quiet = []
        rows.append(row)
    return [*rows, *_fold(quiet)]


def group_turns(rows: Iterable[Row], first_number: int) -> list[TurnPart]:
    """Return rows grouped by turn.

    Args:
        first_number: The turn to which the first row belongs, unless it begins one.
    """
    parts: list[TurnPart] = []
    number, begins, current = first_number, False, list[Row]()
    for row in rows:
        if isinstance(row, MessageRow) and row.turn is not None:
            if current:
                parts.append(TurnPart(number=number, begins=begins, rows=tuple(current)))
            number, begins, current = row.turn, True, []
        current.append(row)
    if current:
        parts.append(TurnPart(number=number, begins=begins, rows=tuple(current)))
    return parts


def add_up(events: Sequence[JsonObject]) -> TurnTotals:
    """Return the totals of the events of one turn. Edits count if their calls returned."""
    steps = tokens = 0
    cost: float | None = None
    first: datetime | None = None
    last: datetime | None = None
    edits: dict[str, tuple[str, int, int]] = {}
    files: dict[str, tuple[int, int]] = {}
    for event in events:
        moment = read_moment(event)
        first, last = first or moment, moment or last
        match event.get("kind"):
            case "ModelResponded":
                usage = read_object(event, "usage")
                steps += 1
                tokens += read_count(usage, "input_tokens") + read_count(usage, "output_tokens")
                if (usd := read_number(usage, "cost_usd")) is not None:
                    cost = (cost or 0.0) + usd
            case "ToolCalled":
                edit = _read_edit(event)
                if edit is not None:
                    edits[read_text(event, "tool_call_id")] = edit
            case "ToolReturned":
                edit = edits.pop(read_text(event, "tool_call_id"), None)
                if edit is not None:
                    path, added, removed = edit
                    before = files.get(path, (0, 0))
                    files[path] = (before[0] + added, before[1] + removed)
            case _:
                pass
    # From the message to the last event: what a reader waited, tools and approvals included.
    seconds = None if first is None or last is None else (last - first).total_seconds()
    kept_paths = _list_kept_paths(events)
    # Calls may name a file by its whole path, but kept files are named by their paths in the workspace.
    for path in kept_paths or ():
        if path not in files and not any(edited.endswith(f"/{path}") for edited in files):
            files[path] = (0, 0)
    return TurnTotals(
        start=read_count(events[0], "seq") if events else 0,
        stop=read_count(events[-1], "seq") + 1 if events else 0,
        steps=steps,
        tokens=tokens,
        cost_usd=cost,
        seconds=seconds,
        files=files,
        are_kept=kept_paths is not None,
    )


def _list_kept_paths(events: Sequence[JsonObject]) -> list[str] | None:
    """Return the paths that tools changed, as the log names them when it keeps files; None if no files were kept."""
    kept_files = [event for event in events if event.get("kind") == "FilesKept" and event.get("by") == "tool"]
    trees = [event for event in kept_files if isinstance(event.get("tree"), str)]
    return [path for event in trees for path in read_texts(event, "paths")] if trees else None


def _read_edit(event: JsonObject) -> tuple[str, int, int] | None:
    """Return the path and the lines added and removed by a call of a tool that writes; None for other tools."""
    arguments = read_object(event, "arguments")
    path = read_text(arguments, "path")
    match event.get("tool"):
        case "edit_file":
            return path, *count_changed_lines(read_text(arguments, "old"), read_text(arguments, "new"))
        case "write_file":
            return path, len(read_text(arguments, "content").splitlines()), 0
        case _:
            return None


def _fold(items: Sequence[QuietItem]) -> list[Row]:
    return [QuietRow(seqs=tuple(item.seq for item in items), items=tuple(items))] if items else []


class _Pairing:
    """Joins calls and tasks with their outcomes while it reads the events in order."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._rows: list[Row | QuietItem | Call] = []
        self._calls: dict[str, Call] = {}  # the latest call of each id
        self._requested: dict[str, JsonObject] = {}  # calls of the latest response
        self._tasks: dict[str, int] = {}  # place in `_rows` and `_linked` by task id
        self._linked: dict[str, JsonObject] = {}
        self._asked: dict[int, tuple[AskedCall, ...]] = {}

    def add(self, event: JsonObject, turns: Mapping[int, int]) -> None:
        """Add the next event."""
        kind = event.get("kind")
        match kind:
            case "UserMessage":
                self._rows.append(make_message(event, turns))
            case "MessageStored":
                self._rows.append(make_stored(event))
            case "ModelResponded":
                self._read_requests(event)
                self._rows.append(make_step(event))
            case "TaskLinked":
                task = read_text(event, "task_id")
                self._tasks[task], self._linked[task] = len(self._rows), event
                self._rows.append(describe_task(event, None))
            case "TaskEnded":
                self._end_task(event)
            case "StateChanged" if read_object(read_object(event, "changes"), "waiting"):
                self._rows.append(self._ask(event))
            case _ if kind in OPENING_KINDS or kind in OUTCOME_KINDS:
                self._add_to_call(event)
            case _:
                self._rows.append(describe_line(event))

    def finish(self) -> list[Row | QuietItem]:
        """Return the rows in the order of their first events."""
        return [make_call_row(row, self._setting) if isinstance(row, Call) else row for row in self._rows]

    def _read_requests(self, event: JsonObject) -> None:
        parts = read_objects(read_object(event, "response"), "parts")
        self._requested = {
            read_text(part, "tool_call_id"): {
                "tool": read_text(part, "tool_name"),
                "arguments": read_arguments(part.get("args")),
            }
            for part in parts
            if part.get("part_kind") == "tool-call"
        }

    def _add_to_call(self, event: JsonObject) -> None:
        """Add an event to its call. Without one, a script is a row, and an outcome is a call without a beginning."""
        seq, id, kind = read_count(event, "seq"), read_text(event, "tool_call_id"), read_text(event, "kind")
        call = self._calls.get(id)
        # Some models use an id again: an outcome ends a call once, and a call that has ended gets no second beginning.
        if call is not None and (kind == "ScriptRan" or call.outcome is None):
            call.add(event)
            self._rows.append(HiddenRow(seqs=(seq,), shown_by=call.seq))
            return
        if kind == "ScriptRan":
            self._rows.append(describe_line(event))
            return
        call = Call(id=id, seq=seq, moment=read_moment(event), requested=self._requested.get(id))
        call.add(event)
        self._calls[id] = call
        self._rows.append(call)

    def _end_task(self, event: JsonObject) -> None:
        task = read_text(event, "task_id")
        place = self._tasks.pop(task, None)
        if place is None:
            self._rows.append(describe_task(None, event))
            return
        # The row stays where the task began; its end only completes it.
        linked = self._linked.pop(task)
        self._rows[place] = describe_task(linked, event)
        self._rows.append(HiddenRow(seqs=(read_count(event, "seq"),), shown_by=read_count(linked, "seq")))

    def _ask(self, event: JsonObject) -> Row | QuietItem:
        """Return the calls that wait since an event, if they still do; they are shown once, at their latest event."""
        waiting = read_object(read_object(event, "changes"), "waiting")
        calls = tuple(
            AskedCall(
                id=id,
                tool=read_text(call, "tool"),
                arguments=(arguments := read_arguments(call.get("arguments"))),
                subject=find_subject(arguments),
                need=_NEEDS.get(read_text(call, "kind"), "requires approval"),
                risk=f"{risk.lower()} risk" if (risk := read_text(call, "risk")) else "",
                reason=read_text(call, "reason"),
            )
            for id, call in self._setting.waiting.items()
            if id in waiting
        )
        if not calls:
            return describe_line(event)
        # A decision on one of several calls writes the others again: only the latest event shows them.
        for place, row in enumerate(self._rows):
            if isinstance(row, AskRow) and any(call in row.calls for call in calls):
                self._rows[place] = QuietItem(seq=row.seq, word="state", text="waits for a decision")
        return AskRow(seqs=(read_count(event, "seq"),), moment=read_moment(event), calls=calls)
