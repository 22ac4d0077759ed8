"""Tool calls: the events of one call collected, and the row that shows them."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, cast

from bough.html.fields import (
    find_subject,
    first_line,
    read_arguments,
    read_count,
    read_number,
    read_object,
    read_text,
    read_texts,
)
from bough.html.lines import describe_script_facts
from bough.html.markup import count_changed_lines
from bough.html.numbers import count_of, format_duration
from bough.html.rows import CallRow, Fact, Setting, Sign, list_usage_facts
from bough.types import Json, JsonObject

OPENING_KINDS: Final = frozenset({"ToolCalled", "ScriptRan"})
OUTCOME_KINDS: Final = frozenset({"ToolReturned", "ToolFailed", "ToolRejected", "ToolInterrupted"})

_SIGNS: Final[dict[str, Sign]] = {"ToolFailed": "failed", "ToolRejected": "rejected", "ToolInterrupted": "lost"}


@dataclass(kw_only=True)
class Call:
    """The events of one call, as they are read.

    Attributes:
        seq: The seq of the first of its events.
        requested: Tool and arguments of the response that requested it; None if that was not read.
        called: Its `ToolCalled`; None if it never started.
        outcome: The event that ended it; None while it is open.
        seqs: The seqs of its events.
    """

    id: str
    seq: int
    moment: datetime | None
    requested: JsonObject | None = None
    called: JsonObject | None = None
    outcome: JsonObject | None = None
    scripts: list[JsonObject] = field(default_factory=list[JsonObject])
    seqs: list[int] = field(default_factory=list[int])

    def add(self, event: JsonObject) -> None:
        """Add one of its events."""
        self.seqs.append(read_count(event, "seq"))
        match event.get("kind"):
            case "ToolCalled":
                self.called = event
            case "ScriptRan":
                self.scripts.append(event)
            case _:
                self.outcome = event


def make_call_row(call: Call, setting: Setting) -> CallRow:
    """Return the row of a call."""
    called, outcome, requested = call.called or {}, call.outcome or {}, call.requested or {}
    tool = read_text(called, "tool") or read_text(outcome, "tool") or read_text(requested, "tool")
    arguments = read_arguments(called["arguments"] if "arguments" in called else requested.get("arguments"))
    result: Json = outcome.get("result")
    sign = _find_sign(outcome, result, setting)
    has_result = outcome.get("kind") == "ToolReturned"
    error = read_text(outcome, "error") or read_text(outcome, "reason")
    return CallRow(
        seqs=tuple(call.seqs),
        moment=call.moment,
        id=call.id,
        tool=tool,
        sign=sign,
        arguments=arguments,
        subject=find_subject(arguments),
        result=result,
        has_result=has_result,
        error=error,
        facts=tuple(_list_facts(tool, arguments, outcome, sign, called)),
        result_facts=tuple(_list_result_facts(call, result)),
        notes=tuple(_list_notes(called, outcome)),
    )


def _find_sign(outcome: JsonObject, result: Json, setting: Setting) -> Sign:
    if not outcome:
        return "running" if setting.is_running else "lost"
    if outcome.get("kind") != "ToolReturned":
        return _SIGNS.get(read_text(outcome, "kind"), "failed")
    return "failed" if is_failure(result) else "ok"


def is_failure(result: Json) -> bool:
    """Return whether the result of a tool reports a failure: a command by its exit code, a script by its status."""
    fields = cast("JsonObject", result) if isinstance(result, dict) else {}
    exit_code = read_number(fields, "exit_code")
    return fields.get("status") == "error" or exit_code not in (None, 0.0) or bool(fields.get("killed_by"))


def _list_facts(tool: str, arguments: JsonObject, outcome: JsonObject, sign: Sign, called: JsonObject) -> list[Fact]:
    result: Json = outcome.get("result")
    facts: list[Fact] = []
    if sign != "ok":
        facts.append(Fact(sign, "bad" if sign in ("failed", "rejected") else "dim"))
    risk = read_text(called, "risk")
    if risk in ("MEDIUM", "HIGH"):
        facts.append(Fact(f"{risk.lower()} risk", "bad" if risk == "HIGH" else "warn"))
    if isinstance(result, dict) and (exit_code := read_number(cast("JsonObject", result), "exit_code")):
        facts.append(Fact(f"exit {exit_code:.0f}"))
    if tool == "edit_file" and sign == "ok":
        added, removed = count_changed_lines(read_text(arguments, "old"), read_text(arguments, "new"))
        facts += [Fact(f"+{added}", "good")] * bool(added) + [Fact(f"−{removed}", "bad")] * bool(removed)
    elif tool == "write_file" and sign == "ok":
        facts.append(Fact(f"+{len(read_text(arguments, 'content').splitlines())}", "good"))
    elif isinstance(result, str) and result.count("\n"):
        facts.append(Fact(count_of(len(result.splitlines()), "line")))
    elif isinstance(result, list):
        facts.append(Fact(count_of(len(cast("list[Json]", result)), "item")))
    if (seconds := read_number(outcome, "duration_seconds")) is not None:
        facts.append(Fact(format_duration(seconds)))
    return [*facts, *list_usage_facts(read_object(outcome, "usage"))]


def _list_result_facts(call: Call, result: Json) -> list[str]:
    if call.scripts:
        return describe_script_facts(call.scripts[-1])
    return describe_script_facts(cast("JsonObject", result)) if isinstance(result, dict) else []


def _list_notes(called: JsonObject, outcome: JsonObject) -> list[str]:
    notes: list[str] = []
    if editor := read_text(called, "edited_by"):
        notes.append(f"arguments edited by {editor}")
    if author := read_text(outcome, "by"):
        notes.append(
            f"{'rejected' if outcome.get('kind') == 'ToolRejected' else 'result provided'} by {first_line(author)}"
        )
    if outcome.get("retry") is True:
        notes.append("the model was asked to try again")
    if (seen_chars := read_number(outcome, "shown")) is not None:
        notes.append(f"the model sees {count_of(int(seen_chars), 'character')}")
    if tasks := read_texts(outcome, "tasks"):
        notes.append(f"contains results of {', '.join(tasks)}")
    return notes
