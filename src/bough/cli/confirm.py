"""Tool calls that wait for a person: shown in full, and asked about one by one."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

from bough.cli.render import Renderer
from bough.cli.text import Line, Style, line, paragraph
from bough.errors import PermissionDenied
from bough.types import Json, JsonObject

if TYPE_CHECKING:
    from bough.conversation import AsyncConversation

_QUESTION = "allow it? y, n, or why not: "
_RISKS: dict[str, Style] = {"HIGH": "bad", "MEDIUM": "warn"}


def can_ask() -> bool:
    """Whether somebody is there to be asked."""
    return sys.stdin.isatty() and sys.stderr.isatty()


async def ask(conversation: AsyncConversation, renderer: Renderer) -> bool:
    """Ask about every call that waits, and record each answer at once; False where no answer came."""
    for id, call in dict(conversation.state.waiting).items():
        for shown in call_lines(id, call):
            renderer.note(shown)
        answer = await _answered(renderer)
        if answer is None:
            return False
        if answer.lower() in ("y", "yes"):
            await conversation.approve(id)
        else:
            await conversation.reject("" if answer.lower() in ("n", "no") else answer, id)
    return True


def call_lines(id: str, call: JsonObject) -> Iterator[Line]:
    """Yield what a person has to know of a call, nothing of it cut off: tool, arguments, risk, reason."""
    risk = str(call.get("risk") or "UNKNOWN")
    yield line((str(call.get("tool")), "strong"), (f"  risk {risk.lower()}", _RISKS.get(risk, "")), (f"  {id}", "dim"))
    arguments: Json = call.get("arguments") or {}
    for name, value in cast("JsonObject", arguments).items() if isinstance(arguments, dict) else [("", arguments)]:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        yield line((f"  {name}", "dim"))
        yield from paragraph(text, indent=4)
    if call.get("reason"):
        yield line(("  because ", "dim"), str(call["reason"]), hang=4)


def unanswered(conversation: AsyncConversation) -> PermissionDenied:
    """Return the error of a run that ends because calls wait and nobody is there to be asked."""
    waiting = conversation.state.waiting
    calls = ", ".join(f"{call.get('tool')} ({id})" for id, call in waiting.items())
    name = conversation.short_id
    return PermissionDenied(
        f"{len(waiting)} tool call{'s wait' if len(waiting) != 1 else ' waits'} for a person: {calls}",
        hint=f'`bough approve {name}` lets them run, `bough reject {name} --reason "…"` does not',
        details={"waiting": waiting},
    )


async def _answered(renderer: Renderer) -> str | None:
    """Return what was typed, asking again after an empty line; None at the end of input."""
    while True:
        renderer.prompt(_QUESTION)
        typed = await _line()
        if not typed:
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
