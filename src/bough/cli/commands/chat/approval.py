"""Ask about tool calls that wait for a person: show them in full, files as diffs, and let the arguments be edited."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, cast

import yaml

from bough.cli.commands.chat.paint import diff_lines
from bough.cli.text import Line, line, one_line
from bough.cli.turns.confirm import (
    APPROVAL_ANSWERS,
    approve_always,
    call_lines,
    parse_decision,
    read_value,
    summarize_call,
)
from bough.errors import BoughError, InvalidInput
from bough.types import Json, JsonObject

if TYPE_CHECKING:
    from bough.cli.commands.chat.screen import Screen
    from bough.cli.commands.chat.session import ChatSession

_MAX_FILE_BYTES = 1 << 20
_QUESTIONS = {"question": "answer: ", "external": "result: "}


class Approvals:
    """Asks about the waiting calls of a conversation, one by one, and records each answer at once."""

    def __init__(self, session: ChatSession, screen: Screen) -> None:
        self._session = session
        self._screen = screen

    async def ask_all(self) -> bool:
        """Ask about every waiting call. Returns False if a person left one undecided, so that it still waits."""
        conversation = self._session.conversation
        for id, call in dict(conversation.state.waiting).items():
            kind = str(call.get("kind") or "approval")
            shape = self._session.always.find(call)
            if kind == "approval" and shape is not None:
                await conversation.approve(id, reason=f"always: {shape}")
                self._screen.print_lines([line((f"  approved: {shape} (always in this session)", "dim"))])
                continue
            self._screen.print_lines([line(), *describe_call(id, call, conversation.workspace), summarize_call(call)])
            is_decided = False
            if kind == "approval":
                is_decided = await self._ask_approval(id)
            elif kind in _QUESTIONS:
                is_decided = await self._ask_value(id, _QUESTIONS[kind])
            if not is_decided:
                return False
        return True

    async def _ask_approval(self, id: str) -> bool:
        conversation = self._session.conversation
        self._screen.print_lines([line((f"{APPROVAL_ANSWERS}, e (edit the arguments)", "dim"), hang=0)])
        while (typed := await self._screen.ask("allow? ", find_mistake=_find_mistake)) is not None:
            if _asks_to_edit(typed):
                if await self._approve_edited(id):
                    return True
                continue
            decision = parse_decision(typed)
            if decision is None:
                continue
            if decision.word == "n":
                await conversation.reject(id, reason=decision.reason)
                reason = f": {decision.reason}" if decision.reason else ""
                self._screen.print_lines([line((f"  rejected{reason}", "dim"), hang=4)])
                return True
            elif decision.word == "a":
                self._screen.print_lines([await approve_always(conversation, id, self._session.always)])
                return True
            else:
                await conversation.approve(id)
                self._screen.print_lines([line(("  approved", "dim"))])
                return True
        return False

    async def _ask_value(self, id: str, question: str) -> bool:
        while (typed := await self._screen.ask(question)) is not None:
            if not typed.strip():
                continue
            try:
                await self._session.conversation.answer(id, read_value(typed.strip()))
            except InvalidInput as error:
                self._note_mistake("; ".join(filter(None, (error.message, error.hint))))
            else:
                self._screen.print_lines([line((f"  {question}", "dim"), typed.strip(), hang=4)])
                return True
        return False

    async def _approve_edited(self, id: str) -> bool:
        """Let a person edit the arguments, then approve the call with them. False if they are unchanged or invalid."""
        conversation = self._session.conversation
        recorded: Json = conversation.state.waiting[id].get("arguments") or {}
        try:
            edited = await self._edit(cast("JsonObject", recorded))
            if edited is None or edited == recorded:
                self._note_mistake("the arguments are unchanged")
                return False
            # The guard reviews the call again: with these arguments it may be refused, or wait once more.
            await conversation.approve(id, arguments=edited)
        except BoughError as error:
            self._note_mistake("; ".join(filter(None, (error.message, error.hint))))
            return False
        lines = [line(("  approved with ", "dim"), json.dumps(edited, ensure_ascii=False), hang=4)]
        self._screen.print_lines(lines)
        return True

    async def _edit(self, arguments: JsonObject) -> JsonObject | None:
        """Return edited arguments; None if editing was cancelled. In `$EDITOR` as YAML, else as JSON on one line."""
        editor = find_editor()
        if editor is None:
            typed = await self._screen.ask("arguments: ", text=json.dumps(arguments, ensure_ascii=False))
            return None if typed is None else parse_arguments(typed)
        with tempfile.TemporaryDirectory(prefix="bough-") as folder:
            file = Path(folder) / "arguments.yaml"
            file.write_text(yaml.safe_dump(arguments, allow_unicode=True, sort_keys=False), "utf-8")
            try:
                await self._screen.edit_file([*editor, str(file)])
                return parse_arguments(file.read_text("utf-8"))
            except (OSError, UnicodeDecodeError) as error:
                raise InvalidInput(
                    f"the editor failed: {error}", hint="set EDITOR to a program that edits a file"
                ) from error

    def _note_mistake(self, text: str) -> None:
        self._screen.print_lines([line((f"  {text}", "warn"), hang=4)])


def _asks_to_edit(text: str) -> bool:
    return text.strip().lower() in ("e", "edit")


def _find_mistake(text: str) -> str | None:
    """Return an error text for an invalid answer to an approval; None if the answer is valid."""
    if parse_decision(text) is not None or _asks_to_edit(text):
        return None
    return f"not an answer: {one_line(text, 40)!r}; nothing was decided" if text.strip() else "type y, n, a or e"


def find_editor() -> list[str] | None:
    """Return the command of `$VISUAL` or `$EDITOR`; None if neither names a program."""
    for name in ("VISUAL", "EDITOR"):
        with suppress(ValueError):  # the value has an unclosed quotation mark
            words = shlex.split(os.environ.get(name, ""))
            if words and shutil.which(words[0]):
                return words
    return None


def parse_arguments(text: str) -> JsonObject:
    """Return the arguments of a call from YAML or JSON.

    Raises:
        InvalidInput: The text is not a mapping.
    """
    try:
        value = yaml.safe_load(text)
        json.dumps(value)
    except (yaml.YAMLError, TypeError, RecursionError) as error:
        raise InvalidInput(f"the arguments cannot be read: {error}", hint="nothing was approved") from error
    if not isinstance(value, dict):
        raise InvalidInput("the arguments are not `key: value` lines", hint="nothing was approved")
    return cast("JsonObject", value)


def describe_call(id: str, call: JsonObject, workspace: Path) -> Iterator[Line]:
    """Yield a call for a decision. A change to a file is shown as a diff, everything else in full."""
    arguments: Json = call.get("arguments") or {}
    values = cast("JsonObject", arguments) if isinstance(arguments, dict) else {}
    change = _find_change(call, values, workspace)
    if change is None:
        yield from call_lines(id, call)
        return
    before, after, names = change
    yield from call_lines(id, {**call, "arguments": {key: values[key] for key in values if key not in names}})
    yield from diff_lines(before, after)


def _find_change(call: JsonObject, values: JsonObject, workspace: Path) -> tuple[str, str, tuple[str, ...]] | None:
    """Return the text before and after an edit, and the arguments that the diff shows."""
    path, content = values.get("path"), values.get("content")
    if call.get("tool") == "edit_file" and isinstance(values.get("old"), str) and isinstance(values.get("new"), str):
        before, after = values["old"], values["new"]
        present = _read_present(workspace, str(path))
        if present is not None and present.count(before) == 1:  # shows the edit within its lines of the file
            before, after = present, present.replace(before, after)
        return before, after, ("old", "new")
    if call.get("tool") == "write_file" and isinstance(path, str) and isinstance(content, str):
        present = _read_present(workspace, path)
        return None if present is None else (present, content, ("content",))
    return None


def _read_present(workspace: Path, path: str) -> str | None:
    """Return the text of the file that a call would replace; None if it is missing, too large or not text."""
    file = (workspace / path).resolve()
    try:
        if not file.is_relative_to(workspace.resolve()) or file.stat().st_size > _MAX_FILE_BYTES:
            return None
        return file.read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return None
