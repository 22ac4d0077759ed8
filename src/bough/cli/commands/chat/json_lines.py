"""`bough chat --json`: JSON lines from a program on stdin, and the lines of `bough run --json` on stdout."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, cast

from bough.cli.commands.chat.commands import ChatCommands
from bough.cli.commands.chat.session import ChatSession
from bough.cli.text import layout
from bough.cli.turns.turn import WatchedRun
from bough.cli.turns.untrusted import refuse_untrusted_request
from bough.errors import BoughError, InvalidInput
from bough.types import JsonObject

if TYPE_CHECKING:
    from bough.cli.render import Renderer

_HINT = 'for example {"type": "message", "text": "hello"}'


class JsonChat:
    """Answers lines one after another. `interrupt` and `pause` take effect at once, even during a run.

    Lines in: `message` with `text`; `command` with `text`, such as "/fork 5"; `approve` with `call` and optional
    `arguments`; `reject` with `call` and optional `reason`; `answer` with `call` and `value`; `interrupt`; `pause`.

    Lines out: events and results as `bough run --json` writes them, `shown` with the output of a command, `waiting`
    with the calls that need a decision, `error` for a refused line, and `ready` when the next line can be sent.
    """

    def __init__(self, session: ChatSession, renderer: Renderer) -> None:
        self._session = session
        self._renderer = renderer
        self._commands = ChatCommands(session)
        self._lines: asyncio.Queue[JsonObject | BoughError | None] = asyncio.Queue()
        self._urgent: set[asyncio.Task[None]] = set()
        self._actions: dict[str, Callable[[JsonObject], Awaitable[bool]]] = {
            "message": self._send,
            "command": self._run_command,
            "approve": self._approve,
            "reject": self._reject,
            "answer": self._give_answer,
        }

    async def run(self) -> int:
        """Read lines to the end of input or `/quit`, and return the exit code."""
        # A thread, because the event loop cannot watch a file. A blocked read ends with the process.
        threading.Thread(target=self._read, args=(asyncio.get_running_loop(),), daemon=True).start()
        self._say_ready()
        while (line := await self._lines.get()) is not None:
            try:
                if isinstance(line, BoughError):
                    raise line
                if not await self._actions[line["type"]](line):
                    break
            except BoughError as error:
                self._renderer.record({"type": "error", "error": {"hint": "", **error.as_dict()}})
            self._say_ready()
        await asyncio.gather(*self._urgent)
        return 0

    def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        for row in sys.stdin.buffer:
            if row.strip():
                loop.call_soon_threadsafe(self._take, row)
        loop.call_soon_threadsafe(self._lines.put_nowait, None)

    def _take(self, row: bytes) -> None:
        try:
            line = self._parse(row)
        except InvalidInput as error:
            self._lines.put_nowait(error)
            return
        conversation = self._session.conversation
        match line["type"]:
            case "interrupt":
                self._do_now(conversation.interrupt())
            case "pause":
                self._do_now(conversation.pause())
            case _:
                self._lines.put_nowait(line)

    def _do_now(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._urgent.add(task)  # type: ignore[arg-type]

    def _parse(self, row: bytes) -> JsonObject:
        """Return the parsed line.

        Raises:
            InvalidInput: The line is not a JSON object, its type is unknown, or a field is missing or not text.
        """
        try:
            value = json.loads(row)
        except (ValueError, RecursionError) as error:
            raise InvalidInput(f"not JSON: {error}", hint=_HINT) from error
        if not isinstance(value, dict):
            raise InvalidInput("not a JSON object", hint=_HINT)
        line = cast("JsonObject", value)
        kind = line.get("type")
        if kind not in (*self._actions, "interrupt", "pause"):
            names = ", ".join((*self._actions, "interrupt", "pause"))
            raise InvalidInput(f"invalid type {kind!r}", hint=f"choose one of: {names}")
        required = {"message": "text", "command": "text", "approve": "call", "reject": "call", "answer": "call"}.get(
            kind
        )
        for name in filter(None, (required, "reason" if "reason" in line else None)):
            if not isinstance(line.get(name), str) or (name == required and not line[name].strip()):
                raise InvalidInput(f"{kind} needs {name!r}, a text", hint=_HINT)
        return line

    async def _send(self, line: JsonObject) -> bool:
        conversation, text = self._session.conversation, line["text"]
        start = conversation.state.head
        refuse_untrusted_request(conversation, text)
        await conversation.send_message(text)
        return await self._watch(start)

    async def _run_command(self, line: JsonObject) -> bool:
        command = self._commands.find(line["text"].strip())
        if command is None:
            raise InvalidInput(f"{line['text']!r} is not a command", hint="send other texts as messages")
        result = await self._commands.run(line["text"].strip(), command)
        rows = [row.plain.rstrip() for block in result.blocks for row in layout(block, None)]
        conversation = str(self._session.conversation.id)
        self._renderer.record({"type": "shown", "conversation": conversation, "text": "\n".join(rows)})
        if result.message:
            return await self._send({"text": result.message})
        if result.then == "run":
            return await self._watch(None)
        return result.then != "leave"

    async def _approve(self, line: JsonObject) -> bool:
        await self._session.conversation.approve(line["call"], arguments=line.get("arguments"))
        return await self._continue()

    async def _reject(self, line: JsonObject) -> bool:
        await self._session.conversation.reject(line["call"], reason=line.get("reason", ""))
        return await self._continue()

    async def _give_answer(self, line: JsonObject) -> bool:
        await self._session.conversation.answer(line["call"], line.get("value"))
        return await self._continue()

    async def _continue(self) -> bool:
        """Continue the run if no call needs a decision."""
        return True if self._session.conversation.state.waiting else await self._watch(None)

    async def _watch(self, start: int | None) -> bool:
        run = WatchedRun(self._session.conversation, self._renderer, command="chat", json=True, stream=False)
        await run.run(show_from=start)
        return True

    def _say_ready(self) -> None:
        conversation = self._session.conversation
        if conversation.state.waiting:
            self._renderer.record({"type": "waiting", "calls": conversation.state.waiting})
        self._renderer.record({"type": "ready", "conversation": str(conversation.id), "status": conversation.status})
