"""Tool calls that wait for a person: shown in full, and asked about one by one."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from itertools import groupby
from typing import TYPE_CHECKING, cast

from bough.cli.describe import SUBJECTS
from bough.cli.keys import lines_typed
from bough.cli.render import Renderer
from bough.cli.text import Line, Style, is_visible, line, one_line
from bough.cli.turns.always import Always
from bough.errors import InvalidInput, PermissionDenied
from bough.types import Json, JsonObject

if TYPE_CHECKING:
    from bough.conversation import AsyncConversation

_RISKS: dict[str, Style] = {"HIGH": "bad", "MEDIUM": "warn"}
_QUESTIONS = {
    "approval": "allow it? y, n, n and a reason, or a (always in this session): ",
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
        for shown in call_lines(id, call):
            renderer.note(shown)
        if kind not in _QUESTIONS:
            return False
        renderer.note(_summary(call))
        answer = await _read_decision(renderer, kind)
        if kind != "approval":
            if answer is None:
                return False
            await _give(conversation, renderer, id, answer)
        elif answer is None or answer.lower() in ("n", "no"):
            await conversation.reject(id)
        elif answer.lower() in ("y", "yes"):
            await conversation.approve(id)
        elif answer.lower() in ("a", "always"):
            await _approve_always(conversation, renderer, id, call, always)
        else:
            await conversation.reject(id, reason=answer.partition(" ")[2].strip())
    return True


async def _read_decision(renderer: Renderer, kind: str) -> str | None:
    """Return the answer to a question, asking about an approval again until the answer decides."""
    answer = await _read_answer(renderer, _QUESTIONS[kind])
    while kind == "approval" and answer is not None and not is_decision(answer):
        renderer.note(line((f"not understood: {one_line(answer, 40)}", "warn")))
        answer = await _read_answer(renderer, _QUESTIONS[kind])
    return answer


def is_decision(answer: str) -> bool:
    """Whether an answer decides; a typo must neither allow a call nor refuse it. Only `n` may have a reason."""
    word, _, reason = answer.lower().partition(" ")
    return word == "n" or (not reason and word in ("no", "y", "yes", "a", "always"))


async def _approve_always(
    conversation: AsyncConversation, renderer: Renderer, id: str, call: JsonObject, always: Always
) -> None:
    shape = always.remember(call)
    if shape is None:
        renderer.note(line(("only this call: one like it is asked about again", "dim")))
        await conversation.approve(id)
    else:
        renderer.note(line((f"approved in this session: {shape}", "dim")))
        await conversation.approve(id, reason=f"always: {shape}")


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


def _summary(call: JsonObject) -> Line:
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
        with lines_typed():
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
