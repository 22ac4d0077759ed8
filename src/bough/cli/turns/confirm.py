"""Tool calls that wait for a person: shown in full, and asked about one by one."""

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
    """Whether somebody is there to be asked."""
    return sys.stdin.isatty() and sys.stderr.isatty()


async def ask(conversation: AsyncConversation, renderer: Renderer, always: Always) -> bool:
    """Ask about every call that waits, and record each answer at once; False where it is not answered here.

    What was typed before a call was shown answers nothing. The end of input (Ctrl-D) is a no.
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
    """Record the decision on a call, asking again while the answer is not one."""
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
    """What a person typed about a call: `y`, `n` or `a`, and the reason of a `n`."""

    word: str
    reason: str = ""


_WORDS = {"yes": "y", "no": "n", "always": "a"}


def parse_decision(text: str) -> Decision | None:
    """Return the decision; None for a text that is not one. Only `n` and what follows `n ` rejects."""
    word, _, reason = text.strip().partition(" ")
    word = word.lower()
    if word == "n":
        return Decision("n", reason.strip())
    word = _WORDS.get(word, word)
    return Decision(word) if word in ("y", "n", "a") and not reason.strip() else None


async def approve_always(conversation: AsyncConversation, id: str, always: Always) -> Line:
    """Approve a call and those like it in this session, and return a line that says which these are."""
    shape = always.remember(conversation.state.waiting[id])
    if shape is None:
        await conversation.approve(id)
        return line(("  approved, only this call: one like it is asked about again", "dim"), hang=2)
    await conversation.approve(id, reason=f"always: {shape}")
    return line((f"  approved in this session: {shape}", "dim"), hang=2)


async def _give(conversation: AsyncConversation, renderer: Renderer, id: str, answer: str) -> None:
    while True:
        try:
            return await conversation.answer(id, read_value(answer))
        except InvalidInput as error:
            renderer.note(line((f"{error.message}; {error.hint}", "warn")))
            again = await _read_answer(renderer, _QUESTIONS["question"])
            if again is None:
                return await conversation.reject(id)
            answer = again


def read_value(text: str) -> Json:
    """Return what was typed as a result: an object or list where it is JSON, else the text."""
    if text.lstrip()[:1] in ("{", "["):
        with suppress(ValueError):
            return json.loads(text)
    return text


def headline(call: JsonObject) -> str:
    """Return a call on one line: the tool, and the path or command that says most of it."""
    arguments: Json = call.get("arguments") or {}
    values = cast("JsonObject", arguments) if isinstance(arguments, dict) else {"": arguments}
    telling = [text for name in SUBJECTS if isinstance(text := values.get(name), str)]
    if not telling and values:
        telling = [json.dumps(values, ensure_ascii=False)]
    return _both_ends(one_line(" ".join([str(call.get("tool")), *telling[:1]]), sys.maxsize))


def _both_ends(text: str) -> str:
    """Return a text cut in its middle: what matters may come last."""
    if len(text) <= _HEADLINE_CHARS:
        return text
    half = _HEADLINE_CHARS // 2
    return f"{text[:half].rstrip()} … {text[-half:].lstrip()}"


def call_lines(id: str, call: JsonObject) -> Iterator[Line]:
    """Yield what a person has to know of a call, nothing of it cut off: tool, arguments, risk, reason."""
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
    """Yield the lines of an argument; of blank ones in a row, and of the same one again and again, only the first."""
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
    """Return a call on one line, shown last: its arguments may fill more than the screen."""
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
    """Return the error of a run that ends because calls wait and there is no terminal to ask on."""
    waiting = conversation.state.waiting
    calls = "; ".join(f"{headline(call)} ({id})" for id, call in waiting.items())
    name = conversation.short_id
    kinds = {str(call.get("kind") or "approval") for call in waiting.values()}
    hints = [f'`bough approve {name}` lets them run, `bough reject {name} --reason "…"` does not'] * (
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
    """Return what was typed, asking again after an empty line; None at the end of input."""
    while True:
        with _lines_typed():
            renderer.prompt(question)
            typed = await _line()
        if not typed:
            renderer.note(line(""))
            return None
        if typed.strip():
            return typed.strip()


async def _line() -> str:
    """Return the next line from the terminal. Ctrl+C cancels the wait, which a blocking read would not let it do."""
    loop = asyncio.get_running_loop()
    typed: asyncio.Future[str] = loop.create_future()
    fd = sys.stdin.fileno()
    loop.add_reader(fd, lambda: typed.done() or typed.set_result(sys.stdin.readline()))
    try:
        return await typed
    finally:
        loop.remove_reader(fd)


@contextmanager
def _lines_typed() -> Generator[None]:
    """Make the terminal deliver whole lines and echo them. Input typed before the block is discarded."""
    import termios

    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    attributes = [*before]
    attributes[3] |= termios.ICANON | termios.ECHO
    # TCSAFLUSH discards pending input, because text typed before the question was shown does not answer it.
    termios.tcsetattr(fd, termios.TCSAFLUSH, attributes)
    try:
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
