"""Show a run in a chat: answers as Markdown, one line for each tool call, thinking folded to one line."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any, cast

from bough.cli import describe
from bough.cli.commands.chat.paint import Painter, diff_lines, fit
from bough.cli.commands.chat.stream import MarkdownStream
from bough.cli.text import Line, Span, cells, harmless, layout, line, one_line, shorten
from bough.cli.turns.confirm import headline
from bough.conversation import Delta, Update
from bough.errors import ConnectError
from bough.types import Json, JsonObject

_LIVE_ROWS = 8
_FAILURE_ROWS = 3
_DIFF_ROWS = 12
_DETAIL_COLUMNS = 72
"""Seconds and event numbers stand in one column, at the end of a line of 80."""


class TurnView:
    """Shows the updates of a run: prints finished parts; unfinished ones are in `live_lines`.

    Args:
        write: Prints finished ANSI text.
        get_width: Returns the columns of the terminal.
        is_plain: Returns whether answers are the output of scripts, which is not Markdown.

    Attributes:
        own_messages: Ids of messages that were typed in this chat, and so are on the screen already.
        stopped: The event of the limit or loop that ended the latest run; empty without one.
        steps: Responses of the model in this turn.
        tokens: Input and output tokens of these responses.
        seconds: Duration of the runs of this turn, without the time in which a person answers.
    """

    def __init__(
        self,
        painter: Painter,
        write: Callable[[str], None],
        get_width: Callable[[], int],
        is_plain: Callable[[], bool],
    ) -> None:
        self._painter = painter
        self._write = write
        self._get_width = get_width
        self._is_plain = is_plain
        self._signs = pick_signs()
        self._answer = MarkdownStream()
        self._is_incomplete = False
        self._thinking = ""
        self._calls: dict[str, JsonObject] = {}
        self._scripts: dict[str, JsonObject] = {}
        self._doing = ""
        self._since = 0.0
        self.own_messages: set[str] = set()
        self.stopped: JsonObject = {}
        self.steps = self.tokens = 0
        self.seconds = 0.0
        self._run_began = 0.0

    def begin(self) -> None:
        """Start a turn, which may have several runs."""
        self.stopped = {}
        self.steps = self.tokens = 0
        self.seconds = 0.0

    def begin_run(self) -> None:
        """Start a run."""
        self._run_began = time.monotonic()
        self._note_doing("thinking")

    def end(self) -> None:
        """End a run: print the streamed text of a response that was interrupted."""
        self._print_markdown(self._answer.take_rest())
        self._answer, self._is_incomplete = MarkdownStream(), False
        self._thinking, self._doing = "", ""
        self.seconds += time.monotonic() - self._run_began
        self._calls.clear()

    def show(self, update: Update) -> None:
        """Show an event or a piece of text."""
        if isinstance(update, Delta):
            self._add_piece(update)
        else:
            self._show_event(update.as_json())

    def live_lines(self, width: int) -> str:
        """Return the unfinished part as ANSI text: the last rows of the block being written, or the activity."""
        if not self._doing:
            return ""
        text = harmless(self._answer.open_text).expandtabs(4).strip("\n")
        if text:
            room = max(width - 1, 1)
            wrapped = (row.plain for part in text.split("\n") for row in layout(line(part, hang=0), room))
            rows = [row for part in wrapped for row in fit(part, room)]
            return "\n" + "\n".join(rows[-_LIVE_ROWS:])  # an empty line, as above the block when it is complete
        seconds = time.monotonic() - self._since
        activity = self._doing
        if self._thinking:
            last = self._thinking.rstrip().rpartition("\n")[2]
            activity += f": {one_line(harmless(last))}"
        waited = f"  {seconds:.0f} s" if seconds >= 1 else ""
        row = shorten(f"… {activity}", max(width - cells(waited) - 1, 1)) + waited
        return self._painter.blocks([line((row, "dim"))], width).rstrip("\n")

    def print_lines(self, *lines: Line) -> None:
        """Print finished lines."""
        self._write(self._painter.blocks(lines, self._get_width()))

    def _note_doing(self, activity: str) -> None:
        self._doing, self._since = activity, time.monotonic()

    def _add_piece(self, piece: Delta) -> None:
        if piece.kind == "thinking":
            self._thinking += piece.text
        elif piece.kind == "text":
            # After a lost piece the text has a gap: the rest is printed when the response is complete.
            self._is_incomplete = self._is_incomplete or piece.lost > 0
            if not self._is_incomplete:
                self._print_markdown(self._answer.feed(piece.text))

    def _print_markdown(self, text: str) -> None:
        width = self._get_width()
        if self._is_plain():
            painted = self._painter.blocks([line(row, hang=0) for row in text.splitlines()], width)
        else:
            painted = self._painter.markdown(text, width)
        if painted.strip():
            self._write("\n" + painted.strip("\n") + "\n")

    def _show_event(self, event: JsonObject) -> None:
        match event["kind"]:
            case "UserMessage" if event["id"] not in self.own_messages:
                self._show_message(event)
            case "ModelResponded":
                self._end_response(event)
            case "ToolCalled":
                self._calls[event["tool_call_id"]] = event
                self._note_doing(_headline(event, None))
            case "ScriptRan":
                self._scripts[event.get("tool_call_id") or ""] = event
            case "ToolReturned" | "ToolFailed" | "ToolRejected" | "ToolInterrupted":
                self._end_call(event)
            case "LimitReached" | "StuckDetected":
                self.stopped = event
            case _:
                self.print_lines(*_describe_event(event))

    def _show_message(self, event: JsonObject) -> None:
        text = "\n".join(str(part.get("text") or f"[{part.get('type')}]") for part in event["content"])
        sender = "" if event.get("sender", "user") == "user" else f"({event['sender']}) "
        if event.get("sender") != "hook":
            self.print_lines(line(), *(line((f"> {sender}", "dim"), (row, "strong")) for row in text.splitlines()))

    def _end_response(self, event: JsonObject) -> None:
        usage: JsonObject = event.get("usage") or {}
        self.steps += 1
        self.tokens += usage.get("input_tokens", 0) + usage.get("output_tokens", 0)
        parts: list[dict[str, Any]] = event["response"].get("parts", [])
        thinking = "\n".join(str(part.get("content")) for part in parts if part.get("part_kind") == "thinking").strip()
        if thinking:
            rows = len(thinking.splitlines())
            more = f"  ({rows} lines, /show {event['seq']})" if rows > 1 else f"  (/show {event['seq']})"
            width = min(self._get_width(), _DETAIL_COLUMNS + 8) - cells(more) - 12
            self.print_lines(line((f"  thought: {one_line(thinking, max(width, 8))}{more}", "dim"), hang=4))
        text = "".join(str(part["content"]) for part in parts if part.get("part_kind") == "text")
        # Printed text cannot be changed: if the recorded text differs, as with a masked secret, all of it is printed.
        is_continued = text.startswith(self._answer.complete)
        self._print_markdown(text[len(self._answer.complete) :] if is_continued else text)
        self._answer, self._is_incomplete, self._thinking = MarkdownStream(), False, ""
        self._note_doing("thinking")

    def _end_call(self, event: JsonObject) -> None:
        call = self._calls.pop(event["tool_call_id"], event)
        script = self._scripts.pop(event["tool_call_id"], None)
        problem, details = _find_problem(event, script)
        seconds = event.get("duration_seconds")
        tail = "  ".join(filter(None, [f"{seconds:.2f} s" if seconds is not None else "", problem]))
        self.print_lines(self._call_line(_headline(call, script), tail, event["seq"], is_bad=bool(problem)))
        self.print_lines(*(line("      ", (row, "dim"), hang=6) for row in details))
        if event["kind"] == "ToolReturned" and not problem:
            self.print_lines(*_list_changes(call))
        self._note_doing("thinking")

    def _call_line(self, subject: str, tail: str, seq: int, *, is_bad: bool) -> Line:
        good, bad = self._signs
        sign: Span = (f"  {bad} ", "bad") if is_bad else (f"  {good} ", "")
        number = f"  #{seq}"
        columns = min(self._get_width(), _DETAIL_COLUMNS + 8)
        room = max(columns - cells(sign[0]) - cells(tail) - cells(number) - 2, 12)
        short = shorten(subject, room)
        return line(
            sign, short, " " * (room - cells(short) + 2), (tail, "bad" if is_bad else "dim"), (number, "dim"), hang=6
        )


def pick_signs() -> tuple[str, str]:
    """Return the signs of success and failure: words where signs cannot be shown or read aloud (`BOUGH_PLAIN=1`)."""
    encoding = (sys.stdout.encoding or "").lower().replace("-", "")
    return ("✓", "✗") if encoding == "utf8" and not os.environ.get("BOUGH_PLAIN") else ("ok", "failed")


def _headline(call: JsonObject, script: JsonObject | None) -> str:
    """Return a call on one line: the tool, or the skill of a script, and its most informative argument."""
    arguments: JsonObject = call.get("arguments") or {}
    if script is not None:
        return one_line(" ".join([script["skill"], script["script"], *script.get("argv", [])]))
    if call.get("tool") == "run_skill_script" and isinstance(arguments.get("skill_name"), str):
        script_args: Json = arguments.get("args") or []
        words = [str(word) for word in cast("list[Json]", script_args)] if isinstance(script_args, list) else []
        return one_line(" ".join([arguments["skill_name"], str(arguments.get("script_path") or ""), *words]))
    return headline(call)


def _find_problem(event: JsonObject, script: JsonObject | None) -> tuple[str, list[str]]:
    """Return how a call failed and the last lines of its error text; empty for a call that succeeded."""
    match event["kind"]:
        case "ToolFailed":
            return "failed", _last_rows(str(event["error"]))
        case "ToolRejected":
            return "rejected", _last_rows(str(event.get("reason") or ""))
        case "ToolInterrupted":
            return str(event.get("reason") or "interrupted"), []
        case _:
            pass
    result: Json = event.get("result")
    outcome = cast("JsonObject", result) if isinstance(result, dict) else {}
    code, status = outcome.get("exit_code"), outcome.get("status")
    if script is not None and script["status"] != "success":
        problem = describe.describe_outcome(script)
    elif status == "error" or (isinstance(code, int) and code != 0):
        problem = f"exit code {code}" if code else "failed"
    else:
        return "", []
    text = outcome.get("stderr") or outcome.get("error") or outcome.get("stdout") or ""
    return problem, _last_rows(str(text))


def _last_rows(text: str) -> list[str]:
    return [row for row in text.splitlines() if row.strip()][-_FAILURE_ROWS:]


def _list_changes(call: JsonObject) -> list[Line]:
    """Return the diff of a file that was edited."""
    arguments: JsonObject = call.get("arguments") or {}
    before, after = arguments.get("old"), arguments.get("new")
    if call.get("tool") != "edit_file" or not isinstance(before, str) or not isinstance(after, str):
        return []
    return diff_lines(before, after, max_lines=_DIFF_ROWS)


def _describe_event(event: JsonObject) -> list[Line]:
    """Return the lines of an event that is neither a message nor a call; none for most kinds."""
    match event["kind"]:
        case "SkillActivated" if event.get("trigger") != "tool":  # a skill that the model loads is a line of its call
            return [describe.skill_line(event)]
        case "SkillSkipped":
            return [describe.render_skip(event)]
        case "RequestRetried":
            wait = f"{event['wait_seconds']:.0f} s"
            number = f"{event['attempt']} of {event['attempts']}"
            return [line((f"  retrying in {wait} ({number}): ", "warn"), one_line(str(event["error"])), hang=4)]
        case "Condensed":
            return [line((f"  condensed events {event['start']} to {event['stop'] - 1}", "dim"))]
        case "ErrorRaised" if event["code"] == ConnectError.code:  # a server is missing; the run continues
            return [line(("  warning: ", "warn"), event["message"], hang=4)]
        case _:
            return []
