"""Show tool calls that wait for a person in full, and ask about each of them."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple, cast

from bough.cli.describe import SUBJECTS
from bough.cli.render import Renderer
from bough.cli.text import Line, Style, is_visible, line, one_line
from bough.cli.turns.always import Always
from bough.errors import InvalidInput, PermissionDenied
from bough.types import Json, JsonObject

if TYPE_CHECKING:
    from bough.conversation import AsyncConversation

_RISKS: dict[str, Style] = {"HIGH": "bad", "MEDIUM": "warn"}
APPROVAL_ANSWERS = "y, n, n REASON, a (always in this session)"
_QUESTIONS = {
    "approval": f"allow it? {APPROVAL_ANSWERS}: ",
    "question": "answer: ",
    "external": "result: ",
}
_SHOWN_REPEATS = 3
_LONG_CALL_LINES = 20
_HEADLINE_CHARS = 100


def can_ask() -> bool:
    """Whether a person can be asked: stdin and stderr are a terminal."""
    return sys.stdin.isatty() and sys.stderr.isatty()


async def ask(conversation: AsyncConversation, renderer: Renderer, always: Always) -> bool:
    """Ask about every waiting call and record each answer at once. Returns False if one cannot be answered here.

    Text that was typed before a call was shown is not an answer. The end of input (Ctrl-D) rejects the call.
    """
    for id, call in dict(conversation.state.waiting).items():
        kind = str(call.get("kind") or "approval")
        if kind == "approval" and (shape := always.find(call)) is not None:
            await conversation.approve(id, reason=f"always: {shape}")
            continue
        for row in call_lines(id, call):
            renderer.note(row)
        if kind not in _QUESTIONS:
            return False
        renderer.note(summarize_call(call))
        answer = await _read_answer(renderer, _QUESTIONS[kind])
        if kind != "approval":
            if answer is None:
                return False
            await _give(conversation, renderer, id, answer)
        else:
            await _decide(conversation, renderer, id, answer, always)
    return True


async def _decide(
    conversation: AsyncConversation, renderer: Renderer, id: str, answer: str | None, always: Always
) -> None:
    """Record the decision on a call. Asks again until the answer is valid."""
    while answer is not None:
        decision = parse_decision(answer)
        if decision is not None:
            break
        renderer.note(line((f"not an answer: {one_line(answer, 40)}", "warn")))
        answer = await _read_answer(renderer, _QUESTIONS["approval"])
    else:
        decision = Decision("n")  # the end of input
    if decision.word == "n":
        await conversation.reject(id, reason=decision.reason)
    elif decision.word == "a":
        renderer.note(await approve_always(conversation, id, always))
    else:
        await conversation.approve(id)


class Decision(NamedTuple):
    """A person's decision about a call: `y`, `n` or `a`, and the reason for an `n`."""

    word: str
    reason: str = ""


_WORDS = {"yes": "y", "no": "n", "always": "a"}


def parse_decision(text: str) -> Decision | None:
    """Return the decision; None if the text is not one. Only `n`, or `n ` and a reason, rejects."""
    word, _, reason = text.strip().partition(" ")
    word = word.lower()
    if word == "n":
        return Decision("n", reason.strip())
    word = _WORDS.get(word, word)
    return Decision(word) if word in ("y", "n", "a") and not reason.strip() else None


async def approve_always(conversation: AsyncConversation, id: str, always: Always) -> Line:
    """Approve a call and later calls of the same shape in this session. Returns a line that shows the shape."""
    shape = always.remember(conversation.state.waiting[id])
    if shape is None:
        await conversation.approve(id)
        return line(("  approved, this call only: a similar call asks again", "dim"), hang=2)
    await conversation.approve(id, reason=f"always: {shape}")
    return line((f"  approved in this session: {shape}", "dim"), hang=2)


async def _give(conversation: AsyncConversation, renderer: Renderer, id: str, answer: str) -> None:
    while True:
        try:
            return await conversation.answer(id, read_value(answer))
        except InvalidInput as error:
            renderer.note(line((f"{error.message}; {error.hint}", "warn")))
            next_answer = await _read_answer(renderer, _QUESTIONS["question"])
            if next_answer is None:
                return await conversation.reject(id)
            answer = next_answer


def read_value(text: str) -> Json:
    """Return a typed result: an object or a list if the text is JSON, else the text."""
    if text.lstrip()[:1] in ("{", "["):
        with suppress(ValueError):
            return json.loads(text)
    return text


def headline(call: JsonObject) -> str:
    """Return a call on one line: the tool, and its most informative argument, such as the path or command."""
    arguments: Json = call.get("arguments") or {}
    values = cast("JsonObject", arguments) if isinstance(arguments, dict) else {"": arguments}
    subjects = [text for name in SUBJECTS if isinstance(text := values.get(name), str)]
    if not subjects and values:
        subjects = [json.dumps(values, ensure_ascii=False)]
    return _cut_middle(one_line(" ".join([str(call.get("tool")), *subjects[:1]]), sys.maxsize))


def _cut_middle(text: str) -> str:
    """Shorten a text in its middle, because the end of a command or path matters too."""
    if len(text) <= _HEADLINE_CHARS:
        return text
    half = _HEADLINE_CHARS // 2
    return f"{text[:half].rstrip()} … {text[-half:].lstrip()}"


def call_lines(id: str, call: JsonObject) -> Iterator[Line]:
    """Yield a call in full, for a decision: tool, arguments, risk, reason. Nothing is cut off."""
    risk = str(call.get("risk") or "UNKNOWN")
    yield line((str(call.get("tool")), "strong"), (f"  risk {risk.lower()}", _RISKS.get(risk, "")), (f"  {id}", "dim"))
    arguments: Json = call.get("arguments") or {}
    for name, value in cast("JsonObject", arguments).items() if isinstance(arguments, dict) else [("", arguments)]:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        yield line((f"  {name}", "dim"))
        yield from _fold(text)
    if isinstance(request := call.get("request"), dict) and request:
        yield from _request_lines(cast("JsonObject", request))
    if call.get("reason"):
        yield line(("  because ", "dim"), str(call["reason"]), hang=4)


def _fold(text: str) -> Iterator[Line]:
    """Yield the lines of an argument. Repeated lines and runs of blank lines are folded into one line."""
    for content, run in groupby(text.splitlines(), key=lambda part: part if is_visible(part) else ""):
        lines = list(run)
        if len(lines) <= _SHOWN_REPEATS:
            yield from (line("    ", part, hang=4) for part in lines)
        elif content:
            yield line("    ", content, hang=4)
            yield line((f"    … {len(lines) - 1} more lines like it", "dim"))
        else:
            yield line((f"    … {len(lines)} blank lines", "dim"))


def summarize_call(call: JsonObject) -> Line:
    """Return a call on one line. It is shown last, because the arguments may fill more than the screen."""
    arguments: Json = call.get("arguments") or {}
    values = cast("JsonObject", arguments).values() if isinstance(arguments, dict) else [arguments]
    lines = sum(len(value.splitlines()) for value in values if isinstance(value, str))
    size = f"  {lines} lines, all of them above" if lines > _LONG_CALL_LINES else ""
    return line((headline(call), "strong"), (size, "warn"))


def _request_lines(request: JsonObject) -> Iterator[Line]:
    for name, value in request.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        yield line((f"  {name}  ", "dim"), text, hang=4)


def make_unanswered_error(conversation: AsyncConversation) -> PermissionDenied:
    """Return the error of a run that ends because calls wait for a person and no terminal can ask one."""
    waiting = conversation.state.waiting
    calls = "; ".join(f"{headline(call)} ({id})" for id, call in waiting.items())
    name = conversation.short_id
    kinds = {str(call.get("kind") or "approval") for call in waiting.values()}
    hints = [f'`bough approve {name}` lets them run, `bough reject {name} --reason "…"` refuses them'] * (
        "approval" in kinds
    )
    hints += [f'`bough answer {name} "…"` answers'] * bool(kinds & {"question", "external"})
    hints += ["`bough tasks list` has the task that asks"] * ("task" in kinds)
    return PermissionDenied(
        f"{len(waiting)} tool call{'s wait' if len(waiting) != 1 else ' waits'} for a person: {calls}",
        hint="; ".join(hints),
        details={"waiting": waiting},
    )


async def _read_answer(renderer: Renderer, question: str) -> str | None:
    """Return a typed answer; None at the end of input. Asks again after an empty line."""
    while True:
        with _line_mode():
            renderer.prompt(question)
            answer = await _read_line()
        if not answer:
            renderer.note(line(""))
            return None
        if answer.strip():
            return answer.strip()


async def _read_line() -> str:
    """Return the next line from the terminal. Ctrl+C cancels the wait; it could not cancel a blocking read."""
    loop = asyncio.get_running_loop()
    next_line: asyncio.Future[str] = loop.create_future()
    fd = sys.stdin.fileno()
    loop.add_reader(fd, lambda: next_line.done() or next_line.set_result(sys.stdin.readline()))
    try:
        return await next_line
    finally:
        loop.remove_reader(fd)


@contextmanager
def _line_mode() -> Generator[None]:
    """Make the terminal deliver whole lines and echo them. Input typed before the block is discarded."""
    import termios

    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    attributes = [*before]
    attributes[3] |= termios.ICANON | termios.ECHO
    # TCSAFLUSH discards pending input, because text that was typed before the question was shown must not answer it.
    termios.tcsetattr(fd, termios.TCSAFLUSH, attributes)
    try:
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
