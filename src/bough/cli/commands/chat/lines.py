"""Chat without a terminal: each line of stdin is a message or a command; it is answered before the next is read."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from bough.cli.commands.chat.commands import ChatCommands
from bough.cli.commands.chat.session import ChatSession
from bough.cli.text import layout, line
from bough.cli.turns.turn import WatchedRun
from bough.cli.turns.untrusted import refuse_untrusted_request
from bough.errors import BoughError

if TYPE_CHECKING:
    import asyncio

    from bough.cli.render import Renderer


class LineChat:
    """Reads lines, and shows answers as `bough run` does: results on stdout, everything else on stderr.

    The output of commands goes to stderr. If no person can be asked, a call that needs an approval waits until the next
    message, which rejects it.
    """

    def __init__(self, session: ChatSession, renderer: Renderer) -> None:
        self._session = session
        self._renderer = renderer
        self._commands = ChatCommands(session)

    def loop(self, runner: asyncio.Runner) -> None:
        """Read and answer until the end of input, `/quit`, or Ctrl-C twice in a row."""
        runner.run(self._greet())
        is_interrupted = False
        while True:
            try:
                text = self._read()
                if text is None:
                    return
                if text.strip() and not runner.run(self._answer(text)):
                    return
                is_interrupted = False
            except KeyboardInterrupt:
                if is_interrupted:
                    return
                is_interrupted = True
                self._note("Ctrl+C once more quits")
            except BoughError as error:
                self._renderer.error(error)

    def _read(self) -> str | None:
        """Return the next line; None at the end. Bytes that are not UTF-8 are replaced."""
        if sys.stdin.isatty():
            try:
                return input("> ")
            except EOFError:
                return None
        row = sys.stdin.buffer.readline()
        return row.decode("utf-8", "replace").rstrip("\r\n") if row else None

    async def _greet(self) -> None:
        for row in (*self._session.list_warnings(), await self._session.describe()):
            self._renderer.note(row)
        self._note("/help lists the commands")

    async def _answer(self, text: str) -> bool:
        """Run a command or send a message. Returns False if the chat ends."""
        command = self._commands.find(text)
        if command is None:
            await self._send(text[1:] if text.startswith("//") else text)
            return True
        result = await self._commands.run(text, command)
        for block in result.blocks:
            for row in layout(block, None):
                self._renderer.note(row)
        if result.message:
            await self._send(result.message)
        if result.then == "run":
            await self._watch(None)
        return result.then != "leave"

    async def _send(self, text: str) -> None:
        conversation = self._session.conversation
        start = conversation.state.head
        refuse_untrusted_request(conversation, text)
        await conversation.send_message(text)
        await self._watch(start)

    async def _watch(self, start: int | None) -> None:
        run = WatchedRun(
            self._session.conversation,
            self._renderer,
            command="chat",
            json=False,
            stream=sys.stdout.isatty(),
            always=self._session.always,
        )
        await run.run(show_from=start)

    def _note(self, text: str) -> None:
        self._renderer.note(line((text, "dim")))
