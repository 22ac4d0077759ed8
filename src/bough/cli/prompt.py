"""The prompt of a run: from the command line, a file or stdin, and texts beside it."""

from __future__ import annotations

import os
import select
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bough.errors import InvalidInput

if TYPE_CHECKING:
    from bough.events.model import FilePart

_STDIN = "-"
_MAX_CHARACTERS = 1 << 20
_WAIT_SECONDS = 0.2
"""How long the first byte of a pipe is waited for if there is a prompt: many programs leave a pipe open and silent."""


class Attachment(NamedTuple):
    """A text that a model reads beside the prompt.

    Attributes:
        name: `stdin`, or the name of the file.
    """

    name: str
    text: str

    def as_part(self) -> FilePart:
        """Return the text as a part of a message."""
        from bough.events.model import FilePart

        return FilePart.of(self.text.encode(), name=f"{self.name}.txt" if self.name == "stdin" else self.name)


def read_prompt(prompt: str | None, file: Path | None) -> tuple[str, list[Attachment]]:
    """Return the prompt, and the texts beside it: those of `file` and of stdin, where they are not the prompt.

    Raises:
        InvalidInput: The prompt is missing or empty, stdin is named twice, or a text is unreadable or too large.
    """
    is_file_stdin = file is not None and str(file) == _STDIN
    is_prompt_stdin = prompt == _STDIN or (prompt is None and file is None)
    if is_file_stdin and is_prompt_stdin:
        raise InvalidInput("stdin is named twice", hint="pass - once")
    # Reading stdin from a terminal would wait without telling the user to type something.
    if prompt is None and file is None and sys.stdin.isatty():
        raise InvalidInput(
            "no prompt was given", hint='bough run "…", bough run -f FILE, or a pipe; `bough chat` asks for one'
        )
    attachments: list[Attachment] = []
    if file is not None:
        name = "stdin" if is_file_stdin else file.name
        attachments.append(Attachment(name, _read(None if is_file_stdin else file)))
    text = prompt or ""
    if is_prompt_stdin:
        text = _read(None)
    elif prompt is None:
        text = attachments.pop().text
    if not text.strip():
        raise InvalidInput("the prompt is empty", hint="say what should be done")
    if not (is_file_stdin or is_prompt_stdin) and _has_data() and (piped := _read(None)):
        attachments.append(Attachment("stdin", piped))
    for attachment in attachments:
        if len(attachment.text) > _MAX_CHARACTERS:
            raise InvalidInput(
                f"{attachment.name} has more than {_MAX_CHARACTERS} characters",
                hint="put it into the working folder and name the file in the prompt",
            )
    return text, attachments


def _read(file: Path | None) -> str:
    """Return the text of a file, or of stdin if it is None."""
    try:
        return sys.stdin.read() if file is None else file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"the prompt cannot be read: {error}", hint="give a text file in UTF-8") from error


def _has_data() -> bool:
    """Return whether stdin is a file, or a pipe that is closed or has data soon."""
    mode = os.fstat(sys.stdin.fileno()).st_mode
    if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
        return bool(select.select([sys.stdin], [], [], _WAIT_SECONDS)[0])
    return stat.S_ISREG(mode)
