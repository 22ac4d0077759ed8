"""The terminal of a chat: finished text scrolls up; the last lines show unfinished text, the input and the status.

Only the last lines are redrawn. Input is read at all times, even during a run.
"""

from __future__ import annotations

import asyncio
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Protocol, cast

from prompt_toolkit.application import Application, run_in_terminal
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition, has_focus
from prompt_toolkit.formatted_text import ANSI, StyleAndTextTuples
from prompt_toolkit.input.defaults import create_input
from prompt_toolkit.input.vt100_parser import Vt100Parser
from prompt_toolkit.key_binding import KeyBindings, KeyPress, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout import (
    BufferControl,
    CompletionsMenu,
    ConditionalContainer,
    Dimension,
    FormattedTextControl,
    HSplit,
    Layout,
    VerticalAlign,
    Window,
)
from prompt_toolkit.output import ColorDepth
from prompt_toolkit.output.vt100 import Vt100_Output
from prompt_toolkit.styles import Style
from prompt_toolkit.widgets import SearchToolbar
from typing_extensions import override

from bough.cli.commands.chat.paint import Painter
from bough.cli.render.base import wants_colour
from bough.cli.text import Line, line

if TYPE_CHECKING:
    from prompt_toolkit.completion import Completer
    from prompt_toolkit.history import History

PROMPT = "> "
SHOWN_PASTE_LINES = 10
"""A longer paste is shown as one word in the input, so that the status below stays on the screen."""
_MAX_INPUT_ROWS = 12
_MENU_ROWS = 8
_TWICE_SECONDS = 1.0
"""Two presses of Escape within this time are one command."""
_STYLE = Style.from_dict(
    {
        "prompt": "bold",
        "question": "bold",
        "status": "dim",
        "completion-menu": "noreverse bg:default fg:default",
        "completion-menu.completion": "bg:default fg:default",
        "completion-menu.completion.current": "reverse bg:default fg:default",
        "completion-menu.meta.completion": "dim bg:default fg:default",
        "completion-menu.meta.completion.current": "reverse bg:default fg:default",
    }
)


class ScreenOwner(Protocol):
    """Supplies what the screen shows below the finished text, and handles its input."""

    def live_lines(self, width: int) -> str:
        """Return the unfinished text as ANSI, each line at most `width` cells."""
        ...

    def status_line(self, width: int) -> str:
        """Return the status, at most `width` cells of plain text."""
        ...

    def submit(self, text: str) -> None:
        """Handle a text that was sent with Enter. It is never empty."""
        ...

    def stop(self) -> bool:
        """Stop the run. Returns False if nothing is running."""
        ...

    def edit_last(self) -> None:
        """Put the last message into the empty input, to be edited and sent again."""
        ...


class _Output(Vt100_Output):
    """An output that keeps bracketed paste enabled until the end.

    Each erasure of the last lines would disable it, and lines pasted at that moment would be sent one by one.
    """

    keeps_paste_mode = True

    @property
    @override
    def responds_to_cpr(self) -> bool:
        """False, because the terminal's answer would mix with typed keys."""
        return False

    @override
    def disable_bracketed_paste(self) -> None:
        if not self.keeps_paste_mode:
            super().disable_bracketed_paste()


class Screen:
    """The terminal while the chat runs.

    Args:
        owner: Supplies the live lines and the status at each redraw, and handles input.
        history: Remembers the sent texts.
        completer: Completes the word before the cursor when Tab is pressed.
    """

    def __init__(self, owner: ScreenOwner, history: History, completer: Completer) -> None:
        self._owner = owner
        self._pastes: dict[str, str] = {}
        self._answer_wait: asyncio.Future[str | None] | None = None
        self._question = ""
        self._find_mistake: Callable[[str], str | None] | None = None
        self._leaves_next = False
        self._escaped_at = 0.0
        self._early_keys: list[KeyPress] = []
        self.painter = Painter(has_colours=wants_colour(sys.stdout))
        self._output = cast("_Output", _Output.from_pty(sys.stdout, term=os.environ.get("TERM")))
        self._search = SearchToolbar()
        self._input = Buffer(
            multiline=True, history=history, completer=completer, on_text_changed=lambda _: self._cancel_leaving()
        )
        self._answer = Buffer(multiline=False)
        self._app: Application[None] = Application(
            layout=Layout(self._make_rows(), focused_element=self._input),
            key_bindings=self._bind_keys(),
            style=_STYLE,
            color_depth=ColorDepth.DEPTH_4_BIT if wants_colour(sys.stdout) else ColorDepth.DEPTH_1_BIT,
            output=self._output,
            input=create_input(sys.stdin),
            full_screen=False,
            erase_when_done=True,
            refresh_interval=1,
        )
        # Escape is a key and the first byte of other keys, of which terminals send all bytes at once.
        self._app.timeoutlen = self._app.ttimeoutlen = 0.05

    @property
    def width(self) -> int:
        """The columns of the terminal."""
        return self._app.output.get_size().columns

    @property
    def draft(self) -> str:
        """The text in the input."""
        return self._expand(self._input.text)

    @contextmanager
    def raw_mode(self) -> Generator[None]:
        """Read keys one by one in the block, including those that were typed before it."""
        with self._app.input.raw_mode():
            self._store_early_keys()
            yield

    async def run(self) -> None:
        """Show the last lines and read keys until `leave` is called. Call it in `raw_mode`."""
        try:
            await self._app.run_async(pre_run=self._start_early_keys, handle_sigint=False)
        finally:
            self._output.keeps_paste_mode = False  # else the shell would receive pastes with their brackets
            self._output.disable_bracketed_paste()
            self._output.flush()

    def leave(self) -> None:
        """End `run`. An open question gets no answer."""
        self._settle(None)
        if self._app.is_running and not self._app.is_done:
            self._app.exit()

    def refresh(self) -> None:
        """Schedule a redraw of the last lines."""
        self._app.invalidate()

    def print(self, text: str) -> None:
        """Print finished text above the last lines. `text` is ANSI that ends with a line break."""
        if not text:
            return
        is_shown = self._app.is_running and not self._app.is_done
        # Erased first: text printed over the last lines would be overwritten at the next redraw.
        if is_shown:
            self._app.renderer.erase(leave_alternate_screen=False)
        # Carriage returns, because the terminal is in raw mode and a line break alone keeps the column.
        self._output.write_raw(text.replace("\n", "\r\n"))
        self._output.flush()
        if is_shown:
            self._app.renderer.render(self._app, self._app.layout)

    def print_lines(self, lines: Sequence[Line]) -> None:
        """Print finished lines, laid out to the width."""
        self.print(self.painter.blocks(lines, self.width))

    def put_back(self, texts: Sequence[str]) -> None:
        """Insert unsent texts before the text in the input, so that they can be edited and sent again."""
        parts = [*texts, *([self._input.text] if self._input.text else [])]
        text = "\n".join(parts)
        self._input.set_document(Document(text, len(text)), bypass_readonly=True)

    async def ask(
        self, question: str, *, text: str = "", find_mistake: Callable[[str], str | None] | None = None
    ) -> str | None:
        """Ask a question and return the typed line; None if the person refused with Escape, Ctrl-C or Ctrl-D.

        The question replaces the input until it is answered. Keys pressed before it was shown go to the input.

        Args:
            text: The initial text of the line.
            find_mistake: Returns an error text for an invalid line: it is shown and the question stays. None if valid.
        """
        # Before the focus moves: these keys would answer a question that was not on the screen when they were pressed.
        self._process_keys(self._app.input.read_keys())
        self._answer_wait = asyncio.get_running_loop().create_future()
        self._question, self._find_mistake = question, find_mistake
        self._answer.set_document(Document(text, len(text)))
        self._app.layout.focus(self._answer)
        self.refresh()
        try:
            return await self._answer_wait
        finally:
            self._answer_wait = None
            self._app.layout.focus(self._input)
            self.refresh()

    async def edit_file(self, command: Sequence[str]) -> None:
        """Lend the terminal to an editor until it ends.

        Raises:
            OSError: The editor cannot be started.
        """
        await run_in_terminal(lambda: subprocess.run(command, check=False), in_executor=True)  # noqa: S603 - the user's editor

    def _store_early_keys(self) -> None:
        """Read keys typed while the chat started, when the terminal still turned Enter into a line break."""
        fd = self._app.input.fileno()
        data = b""
        with suppress(OSError):  # the terminal was closed, which the chat notices when it reads from it
            while select.select([fd], [], [], 0)[0] and (chunk := os.read(fd, 1 << 16)):
                data += chunk
        if data:
            parser = Vt100Parser(self._early_keys.append)
            parser.feed(data.decode("utf-8", "replace").replace("\n", "\r"))
            parser.flush()
            self._output.write_raw("\r\x1b[K")  # remove the terminal's echo
            self._output.flush()

    def _start_early_keys(self) -> None:
        # Not before the first drawing, because text is printed above the last lines.
        asyncio.get_running_loop().call_soon(self._process_keys, self._early_keys)

    def _process_keys(self, presses: list[KeyPress]) -> None:
        self._app.key_processor.feed_multiple(presses)
        self._app.key_processor.process_keys()

    def _settle(self, answer: str | None) -> None:
        if self._answer_wait is not None and not self._answer_wait.done():
            self._answer_wait.set_result(answer)

    def _take_answer(self, text: str) -> None:
        mistake = None if self._find_mistake is None else self._find_mistake(text)
        if mistake is None:
            self._settle(text)
            return
        # The question stays open, so that the next line is its answer too.
        self._answer.reset()
        self.print_lines([line((f"  {mistake}", "warn"), hang=4)])

    def _cancel_leaving(self) -> None:
        self._leaves_next = False

    def _make_rows(self) -> HSplit:
        is_asking = Condition(lambda: self._answer_wait is not None)
        answer_row = Window(
            BufferControl(self._answer),
            get_line_prefix=self._prefix_answer,
            dont_extend_height=True,
            wrap_lines=True,
        )
        input_row = Window(
            BufferControl(self._input, search_buffer_control=self._search.control),
            get_line_prefix=self._prefix_input,
            height=Dimension(min=1, max=_MAX_INPUT_ROWS),
            dont_extend_height=True,
            wrap_lines=True,
        )
        live = Window(FormattedTextControl(self._draw_live), dont_extend_height=True, wrap_lines=False)
        status = Window(
            FormattedTextControl(self._draw_status), height=1, dont_extend_height=True, style="class:status"
        )
        return HSplit(
            [
                ConditionalContainer(live, Condition(lambda: bool(self._owner.live_lines(self.width)))),
                ConditionalContainer(answer_row, is_asking),
                ConditionalContainer(input_row, ~is_asking),
                self._search,
                CompletionsMenu(max_height=_MENU_ROWS),
                status,
            ],
            align=VerticalAlign.TOP,
        )

    def _prefix_answer(self, number: int, wrap_count: int) -> StyleAndTextTuples:
        return [("class:question", self._question)] if number == 0 and wrap_count == 0 else []

    def _prefix_input(self, number: int, wrap_count: int) -> StyleAndTextTuples:
        return [("class:prompt", PROMPT if number == 0 and wrap_count == 0 else " " * len(PROMPT))]

    def _draw_live(self) -> ANSI:
        return ANSI(self._owner.live_lines(self.width))

    def _draw_status(self) -> str:
        return self._owner.status_line(self.width)

    def _expand(self, text: str) -> str:
        for word, pasted in self._pastes.items():
            text = text.replace(word, pasted)
        return text

    def _send(self) -> None:
        buffer = self._input
        text = self._expand(buffer.text)
        if not text.strip():
            return
        buffer.text = text  # so that the history has the whole paste
        buffer.append_to_history()
        buffer.reset()
        self._pastes.clear()
        self._owner.submit(text)

    def _insert_paste(self, data: str) -> None:
        text = data.replace("\r\n", "\n").replace("\r", "\n")
        count = len(text.splitlines())
        if count > SHOWN_PASTE_LINES:
            word = f"[pasted {count} lines]"
            if word in self._pastes:
                word = f"[pasted {count} lines, {len(self._pastes) + 1}]"
            self._pastes[word] = text
            text = word
        self._input.insert_text(text)

    def _on_interrupt(self, _: KeyPressEvent) -> None:
        """Handle Ctrl-C: refuse to answer, stop the run or clear the input. The second press in a row leaves."""
        if self._leaves_next:
            self.leave()
            return
        if self._answer_wait is not None:
            self._settle(None)
        elif not self._owner.stop() and self._input.text:
            self._input.append_to_history()  # the key Up brings back a text that was cleared by mistake
            self._input.reset()
            self._pastes.clear()
        self._leaves_next = True
        self.refresh()

    @property
    def leaves_next(self) -> bool:
        """Whether the next Ctrl-C leaves."""
        return self._leaves_next

    def _on_escape(self, _: KeyPressEvent) -> None:
        if self._answer_wait is not None:
            self._settle(None)
        elif self._input.complete_state is not None:
            self._input.cancel_completion()
        # A press that stopped a run, or with text in the input, does not count as the first of two.
        elif self._owner.stop() or self._input.text:
            self._escaped_at = 0.0
        elif time.monotonic() - self._escaped_at < _TWICE_SECONDS:
            self._escaped_at = 0.0
            self._owner.edit_last()
        else:
            self._escaped_at = time.monotonic()

    def _bind_keys(self) -> KeyBindings:
        keys = KeyBindings()
        typing, answering = has_focus(self._input), has_focus(self._answer)
        can_leave = Condition(lambda: self._answer_wait is not None or not self._input.text)
        keys.add("enter", filter=typing)(self._on_enter)
        keys.add("enter", filter=answering)(self._on_answer)
        keys.add("c-j", filter=typing)(_start_line)
        keys.add("escape", "enter", filter=typing)(_start_line)
        keys.add("tab", filter=typing)(_complete)
        keys.add("s-tab", filter=typing)(_complete_backwards)
        keys.add(Keys.BracketedPaste)(self._on_paste)
        keys.add("c-o", filter=typing)(self._on_expand)
        keys.add("c-c")(self._on_interrupt)
        keys.add("c-d", filter=can_leave)(self._on_end)
        keys.add("escape")(self._on_escape)
        return keys

    def _on_enter(self, event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.complete_state is not None and buffer.complete_state.current_completion is not None:
            buffer.complete_state = None
        elif buffer.document.text_before_cursor.endswith("\\"):
            buffer.delete_before_cursor()
            buffer.newline(copy_margin=False)
        else:
            self._send()

    def _on_answer(self, _: KeyPressEvent) -> None:
        self._cancel_leaving()
        self._take_answer(self._answer.text)

    def _on_paste(self, event: KeyPressEvent) -> None:
        self._insert_paste(
            event.data
        )  # always into the message, even while a question is open: a paste is never an answer

    def _on_expand(self, event: KeyPressEvent) -> None:
        text = self._expand(event.current_buffer.text)
        event.current_buffer.set_document(Document(text, len(text)))

    def _on_end(self, _: KeyPressEvent) -> None:
        if self._answer_wait is not None:
            self._settle(None)
        else:
            self.leave()


def _start_line(event: KeyPressEvent) -> None:
    event.current_buffer.newline(copy_margin=False)


def _complete(event: KeyPressEvent) -> None:
    buffer = event.current_buffer
    if buffer.complete_state is not None:
        buffer.complete_next()
    else:
        buffer.start_completion(insert_common_part=True)


def _complete_backwards(event: KeyPressEvent) -> None:
    event.current_buffer.complete_previous()
