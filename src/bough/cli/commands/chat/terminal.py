"""Chat in a terminal: a task handles the sent messages, while the screen accepts the next input."""

from __future__ import annotations

import asyncio
import signal
from collections import deque
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING

from bough.cli.commands.chat.approval import Approvals
from bough.cli.commands.chat.assist import ChatCompleter, ProjectHistory
from bough.cli.commands.chat.commands import ChatCommand, ChatCommands
from bough.cli.commands.chat.screen import PROMPT, Screen
from bough.cli.commands.chat.session import ChatSession
from bough.cli.commands.chat.view import TurnView
from bough.cli.text import Line, line, shorten
from bough.cli.turns.ending import NextSteps, explain_ending
from bough.cli.turns.untrusted import refuse_untrusted_request
from bough.errors import OUTCOMES, BoughError, Conflict
from bough.events.model import UserMessage

if TYPE_CHECKING:
    from collections.abc import Coroutine

_NEXT_STEPS = NextSteps(resume="a message", fork="/fork", retry="/retry, or the message reworded,")
_ECHO_ROWS = 12
_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


class TerminalChat:
    """Owns the screen: queues submitted texts, shows the run in progress, and asks about waiting calls."""

    def __init__(self, session: ChatSession) -> None:
        self._session = session
        self._commands = ChatCommands(session)
        conversation = session.conversation
        history = ProjectHistory(session.settings.home, conversation.workspace, session.mask)
        self._screen = Screen(self, history, ChatCompleter(self._commands, conversation.workspace))
        self._view = TurnView(
            self._screen.painter,
            self._screen.print,
            get_width=lambda: self._screen.width,
            is_plain=lambda: session.conversation.agent.model_name == "offline",
        )
        self._approvals = Approvals(session, self._screen)
        self._queue: deque[str] = deque()
        self._sending = ""
        self._arrived = asyncio.Event()
        self._is_running = False
        self._is_busy = False
        self._is_asking = False
        self._is_stopping = False
        self._exit_code = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> int:
        """Chat until the person leaves, and return the exit code."""
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._end_by_signal)
        with self._screen.raw_mode():
            self._show(
                [
                    *self._session.list_warnings(),
                    await self._session.describe(),
                    line(("/help lists the commands", "dim"), hang=0),
                ]
            )
            worker = asyncio.create_task(self._work())
            worker.add_done_callback(lambda _: self._screen.leave())
            try:
                await self._screen.run()
            finally:
                for number in _SIGNALS:
                    loop.remove_signal_handler(number)
                await self._end(worker)
        return self._exit_code

    def live_lines(self, width: int) -> str:
        """Return the unfinished part of the run as ANSI text, followed by the queued messages."""
        rows = [self._view.live_lines(width)] if self._is_running and not self._is_asking else []
        rows += [shorten(f"queued: {' '.join(text.split())}", max(width - 1, 1)) for text in list(self._queue)[:3]]
        return "\n".join(filter(None, rows))

    def status_line(self, width: int) -> str:
        """Return model, waiting calls, queue, policy, context and cost, shortened to the width."""
        conversation = self._session.conversation
        usage, state = conversation.usage, conversation.state
        parts = [conversation.agent.model_name or "?", conversation.short_id]
        if self._screen.leaves_next:
            parts.insert(0, "Ctrl+C again leaves")
        elif self._is_stopping:
            parts.insert(0, "stopping")
        if state.waiting:
            parts.append(f"waiting {len(state.waiting)}")
        if self._queue:
            parts.append(f"{len(self._queue)} queued")
        parts.append(f"policy {self._session.policy_name}")
        if state.request_tokens:
            window = self._session.context_window
            share = f" ({state.request_tokens / window:.0%})" if window else ""
            parts.append(f"context {_count(state.request_tokens)}{share}")
        if usage.cost_usd:
            parts.append(f"${usage.cost_usd:.4f}")
        if usage.cache_read_tokens:
            parts.append(f"{usage.cached_share:.0%} cached")
        return shorten(" · ".join(parts), max(width - 1, 1))

    def submit(self, text: str) -> None:
        """Handle a submitted text: run a command that works during a run now, queue everything else."""
        command = self._find_command_for_run(text) if self._is_busy else None
        self._show([line(), *_echo(text, is_queued=self._is_busy and command is None)])
        if command is not None:
            self._start(self._run_command(text, command))
            return
        self._queue.append(text)
        self._arrived.set()
        self._screen.refresh()

    def stop(self) -> bool:
        """Interrupt the run. Queued texts return to the input."""
        if not self._is_running:
            return False
        self._is_stopping = True
        self._start(self._session.conversation.interrupt())
        return True

    def edit_last(self) -> None:
        """Put a `/fork` command into the input that sends the last message again, for editing."""
        if not self._is_busy:
            self._start(self._draft_last())

    async def _draft_last(self) -> None:
        turns = await self._session.conversation.turns()
        if turns and not self._screen.draft:
            self._screen.put_back([f"/fork msg:{turns[-1].number} {turns[-1].message.plain}"])

    def _find_command_for_run(self, text: str) -> ChatCommand | None:
        try:
            command = self._commands.find(text)
        except BoughError:
            return None  # queued: the error of an unknown command is shown when its turn comes
        return command if command is not None and command.during_run else None

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _work(self) -> None:
        """Handle the submitted messages and commands, one after another."""
        with suppress(_LeaveChat):
            if self._session.conversation.state.waiting:
                await self._guard(self._answer())
            while True:
                while not self._queue:
                    self._arrived.clear()
                    await self._arrived.wait()
                await self._guard(self._handle(self._queue.popleft()))

    async def _guard(self, work: Coroutine[None, None, None]) -> None:
        """Await `work`. A `BoughError` is shown and returns the queue to the input; it does not end the chat."""
        self._is_busy = True
        try:
            await work
        except BoughError as error:
            self._show(_error_lines(error))
            self._return_queue()
        finally:
            self._is_busy = self._is_running = self._is_stopping = False
            self._screen.refresh()

    async def _handle(self, text: str) -> None:
        command = self._commands.find(text)
        if command is not None:
            await self._run_command(text, command)
            return
        await self._send(text[1:] if text.startswith("//") else text)

    async def _send(self, text: str) -> None:
        message = UserMessage.text(text)
        refuse_untrusted_request(self._session.conversation, message.plain)
        self._view.own_messages.add(str(message.id))
        self._sending = text  # neither in the queue nor in the log: if the chat ends now, it is reported as not sent
        await self._session.conversation.send_message(message)
        self._sending = ""
        await self._answer()

    async def _run_command(self, text: str, command: ChatCommand) -> None:
        try:
            result = await self._commands.run(text, command)
        except BoughError as error:
            self._show(_error_lines(error))
            return
        self._screen.print(self._screen.painter.blocks(result.blocks, self._screen.width))
        if result.draft:
            self._screen.put_back([result.draft])
        if result.message:
            await self._send(result.message)
        if result.then == "leave":
            raise _LeaveChat
        if result.then == "run":
            await self._answer()

    async def _answer(self) -> None:
        """Run until every message is answered, and ask about waiting calls in between."""
        conversation = self._session.conversation
        self._view.begin()
        while True:
            if conversation.state.waiting:
                self._is_asking = True
                try:
                    if not await self._approvals.ask_all():
                        self._note_waiting()
                        self._return_queue()
                        return
                finally:
                    self._is_asking = False
            await self._run_once()
            if self._is_stopping:
                self._return_queue()
                break
            has_more = conversation.state.unanswered and conversation.status == "finished"
            if not conversation.state.waiting and not has_more:
                break
        self._show_ending()

    async def _run_once(self) -> None:
        conversation = self._session.conversation
        self._view.begin_run()
        self._is_running = True
        ended = asyncio.Event()
        steering = asyncio.create_task(self._steer(ended))
        try:
            async with aclosing(conversation.run_stream()) as updates:
                async for update in updates:
                    self._view.show(update)
                    self._screen.refresh()
        finally:
            self._is_running = False
            self._view.end()
            ended.set()
            self._arrived.set()  # wakes the steering task, which would wait for the next message
            await steering

    async def _steer(self, ended: asyncio.Event) -> None:
        """Send messages that are typed during a run, in order, so that the model sees them at its next step."""
        while not ended.is_set():
            while self._queue and not ended.is_set() and not self._is_stopping and self._is_message(self._queue[0]):
                try:
                    if not await self._send_to_run(self._queue[0], ended):
                        break
                    self._queue.popleft()
                except BoughError as error:
                    self._show(_error_lines(error))
                    self._screen.put_back([self._queue.popleft()])
            self._arrived.clear()
            if ended.is_set():
                break
            await self._arrived.wait()

    async def _send_to_run(self, text: str, ended: asyncio.Event) -> bool:
        """Append a message to the log of the run. False if it must wait: calls need a decision, or the run has ended.

        A message that is sent while calls wait rejects them, so it is appended only to the state that was checked.
        """
        conversation = self._session.conversation
        message = UserMessage.text(text[1:] if text.startswith("//") else text)
        refuse_untrusted_request(conversation, message.plain)
        events = await conversation.prepare_message(message)
        self._view.own_messages.add(str(message.id))
        while not ended.is_set() and not conversation.state.waiting and conversation.status == "running":
            try:
                await conversation.append(*events)
            except Conflict:  # the run has written an event in between
                await asyncio.sleep(0)
            else:
                return True
        return False

    def _is_message(self, text: str) -> bool:
        try:
            return self._commands.find(text) is None
        except BoughError:
            return False

    def _return_queue(self) -> None:
        """Put queued texts back into the input, so that they are neither lost nor sent after an error."""
        if self._queue:
            self._screen.put_back([*self._queue])
            self._queue.clear()

    def _show(self, lines: list[Line]) -> None:
        self._screen.print_lines(lines)

    def _note_waiting(self) -> None:
        name, count = self._session.conversation.short_id, len(self._session.conversation.state.waiting)
        calls = "1 tool call waits" if count == 1 else f"{count} tool calls wait"
        text = f"{calls}; `bough approve {name}` approves, a message rejects"
        self._show([line((text, "warn"), hang=2)])

    def _show_ending(self) -> None:
        conversation = self._session.conversation
        error = explain_ending(conversation, self._view.stopped, _NEXT_STEPS)
        if error is not None:
            self._show(_error_lines(error))
        elif conversation.status == "paused":
            self._show([line(("  stopped; a message continues", "dim"))])
        else:
            parts = [f"{self._view.steps} step{'s' * (self._view.steps != 1)}"]
            if self._view.tokens:
                parts.append(f"{_count(self._view.tokens)} tokens")
            parts.append(f"{self._view.seconds:.1f} s")
            self._show([line(), line((f"  {' · '.join(parts)}", "dim"))])

    def _end_by_signal(self) -> None:
        self._exit_code = OUTCOMES["interrupted"].exit_code
        self._screen.leave()

    async def _end(self, worker: asyncio.Task[None]) -> None:
        """Interrupt the run, which records it, and end the tasks of this chat."""
        self._is_stopping = True
        await self._session.conversation.interrupt()  # first: a run that is only cancelled stays `running` in the log
        worker.cancel()
        outcome = (await asyncio.gather(worker, *self._tasks, return_exceptions=True))[0]
        unsent = [text for text in (self._sending, *self._queue, self._screen.draft) if text.strip()]
        name = self._session.conversation.short_id
        self._show([*(line(("not sent: ", "warn"), text, hang=10) for text in unsent)])
        self._show([line((f"bough chat {name} returns to this conversation", "dim"), hang=0)])
        if isinstance(outcome, Exception):
            raise outcome


class _LeaveChat(Exception):
    """A command ends the chat."""


def _echo(text: str, *, is_queued: bool) -> list[Line]:
    """Return the lines of a submitted text; only the first ones of a long text, because the log has all of it."""
    rows = text.splitlines()
    visible_rows = (
        rows if len(rows) <= _ECHO_ROWS else [*rows[: _ECHO_ROWS // 2], f"… {len(rows) - _ECHO_ROWS // 2} more lines"]
    )
    lines = [
        line((PROMPT if number == 0 else " " * len(PROMPT), "dim"), (row, "dim" if is_queued else "strong"), hang=2)
        for number, row in enumerate(visible_rows)
    ]
    return [*lines, line(("  queued", "dim"))] if is_queued else lines


def _error_lines(error: BoughError) -> list[Line]:
    lines = [line(("error: ", "bad"), error.message, hang=7)]
    return [*lines, line(("hint: ", "strong"), error.hint, hang=6)] if error.hint else lines


def _count(tokens: int) -> str:
    return str(tokens) if tokens < 1000 else f"{tokens / 1000:.1f}k"
