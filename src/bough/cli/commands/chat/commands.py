"""The commands of a chat: texts that begin with `/`."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from bough.cli.commands.chat.session import ChatSession
from bough.cli.commands.conv import diff, look, transfer
from bough.cli.commands.conv.past_files import list_changes, list_patch
from bough.cli.commands.tasks.look import list_ as list_tasks
from bough.cli.render import Report
from bough.cli.text import Block, line
from bough.conversation import Turn
from bough.conversation.fork.file_changes import FileChanges
from bough.errors import InvalidInput, NotFound
from bough.guard import policy_named
from bough.skills import SkillMetadata


@dataclass(frozen=True)
class CommandResult:
    """The result of a command.

    Attributes:
        blocks: The output to show.
        then: `run` if there is a message to answer, `leave` to end the chat.
        draft: A text for the input.
        message: The text to send to the agent; empty to send nothing.
    """

    blocks: Sequence[Block] = ()
    then: Literal["", "run", "leave"] = ""
    draft: str = ""
    message: str = ""


@dataclass(frozen=True)
class ChatCommand:
    """A command of the chat.

    Attributes:
        arguments: The arguments, as `/help` shows them.
        help: What the command does.
        do: Runs the command with the text after its name.
        during_run: Whether the command works while a run is in progress.
    """

    arguments: str
    help: str
    do: Callable[[str], Awaitable[CommandResult]]
    during_run: bool = False


class ChatCommands:
    """The commands of a chat session, by name."""

    def __init__(self, session: ChatSession) -> None:
        self._session = session
        self.table: dict[str, ChatCommand] = {
            "/help": ChatCommand("[COMMAND]", "list the commands", self._help, True),
            "/model": ChatCommand("[NAME]", "show or set the model, from the next step on", self._model, True),
            "/policy": ChatCommand("[allow|ask|rules]", "show or set which calls ask first", self._policy, True),
            "/agent": ChatCommand("[NAME]", "show the agent, or continue in a branch with another one", self._agent),
            "/skills": ChatCommand("[TEXT]", "list the skills; /NAME uses one", self._skills, True),
            "/fork": ChatCommand(
                "[N|msg:N] [TEXT]", "continue in a branch after N events or before message N; TEXT is sent", self._fork
            ),
            "/back": ChatCommand("", "return to where the branch began", self._back),
            "/undo": ChatCommand(
                "[both|chat|files]",
                "take back the last message, the files it changed, or both",
                self._undo,
            ),
            "/redo": ChatCommand("", "bring back the files of the last /undo", self._redo),
            "/retry": ChatCommand("", "send the last message again, in a branch", self._retry),
            "/clear": ChatCommand("", "start a new conversation", self._clear),
            "/compact": ChatCommand(
                "[TEXT]", "condense what the model is shown; TEXT says what to keep", self._compact
            ),
            "/tree": ChatCommand("", "show the branches", self._tree, True),
            "/diff": ChatCommand("[ID]", "show the last turn's changes of files, or compare with ID", self._diff, True),
            "/show": ChatCommand("[N]", "show event N in full, or the latest events", self._show, True),
            "/cost": ChatCommand("", "show requests, tokens and cost", self._cost, True),
            "/tasks": ChatCommand("", "list the tasks of this conversation", self._tasks, True),
            "/export": ChatCommand(
                "[FILE]", "write the conversation to a file, Markdown by default", self._export, True
            ),
            "/exit": ChatCommand("", "leave; bough chat ID returns", self._quit),
            "/quit": ChatCommand("", "the same as /exit", self._quit),
        }

    def find(self, text: str) -> ChatCommand | None:
        """Return the command of a text; None if the text is a message.

        Raises:
            NotFound: The text begins with a `/word` that is neither a command nor a skill.
        """
        word = text.split(maxsplit=1)[0]
        if not word.startswith("/") or word.startswith("//") or "/" in word[1:]:
            return None
        if command := self.table.get(word):
            return command
        skills = [skill.name for skill in self.list_skills()]
        if word[1:] in skills:
            return None
        names = [*self.table, *(f"/{name}" for name in skills)]
        near = difflib.get_close_matches(word, names, 1)
        question = f"; did you mean {near[0]}?" if near else ""
        raise NotFound(
            f"no command {word!r}{question}", hint=f"/help lists the commands; /{word} sends the text as a message"
        )

    async def run(self, text: str, command: ChatCommand) -> CommandResult:
        """Run the command that `find` returned for this text."""
        return await command.do(text.partition(" ")[2].strip())

    def list_skills(self) -> list[SkillMetadata]:
        """Return all skills, including untrusted ones: using one of these is refused with the reason."""
        registry = self._session.conversation.skills
        return [*registry.list_all(), *registry.withheld]

    async def _help(self, name: str) -> CommandResult:
        entries = {
            command: entry for command, entry in self.table.items() if not name or command == f"/{name.strip('/')}"
        }
        if not entries:
            raise NotFound(f"no command '/{name.strip('/')}'", hint="/help lists the commands")
        rows = [
            line((f"  {f'{command} {entry.arguments}':<26}", "strong"), entry.help, hang=28)
            for command, entry in entries.items()
        ]
        if name:
            return CommandResult(rows)
        keys = (
            "Enter sends, Alt+Enter or Ctrl+J starts a new line, Tab completes /commands and @files, Up is history",
            "Esc stops a run, Esc Esc edits the last message; Ctrl+C stops a run or clears the line, twice leaves",
            "//text sends /text",
        )
        return CommandResult([*rows, *(line(("  " + text, "dim"), hang=2) for text in keys)])

    async def _model(self, name: str) -> CommandResult:
        if name:
            await self._session.conversation.set_model(name)
        return CommandResult([line(f"model {self._session.conversation.agent.model_name}")])

    async def _policy(self, name: str) -> CommandResult:
        session = self._session
        if name:
            await session.conversation.set_confirmation_policy(policy_named(name))
            session.always.clear()
        shapes = [line(("  always: ", "dim"), shape) for shape in session.always.list()]
        return CommandResult([line(f"policy {session.policy_name}"), *shapes])

    async def _agent(self, name: str) -> CommandResult:
        if not name:
            return CommandResult([line(f"agent {self._session.conversation.agent.name}")])
        await self._session.fork_with_agent(name)
        return await self._describe("a branch with this agent; /back returns")

    async def _skills(self, text: str) -> CommandResult:
        needle = text.lower()
        skills = [
            skill
            for skill in self._session.conversation.skills.list_all()
            if needle in f"{skill.name} {skill.description}".lower()
        ]
        rows = [line(("  " + skill.name, "id"), f"  {skill.description}", hang=4) for skill in skills]
        return CommandResult(rows or [line(("no skills here" if not text else f"no skill matches {text!r}", "dim"))])

    async def _fork(self, arguments: str) -> CommandResult:
        position, _, text = arguments.partition(" ") if " " in arguments else arguments.partition("\n")
        at = _parse_position(position)
        await self._session.fork(at)
        result = await self._describe("a branch; /back returns")
        return CommandResult(result.blocks, message=text.strip())

    async def _back(self, _: str) -> CommandResult:
        self._session.go_back()
        return await self._describe()

    async def _undo(self, choice: str) -> CommandResult:
        if choice not in ("", "both", "chat", "files"):
            raise InvalidInput(f"/undo does not know {choice!r:.40}", hint="/undo both, /undo chat or /undo files")
        session = self._session
        changes = FileChanges() if choice == "chat" else await session.compare_last_turn()
        rows = list_changes(changes)
        if not choice and changes.changes:
            # The command to type next is the question: no file changes before a person has seen which ones.
            choices = line("  /undo both", ("  message and files", "dim"), "   /undo chat", "   /undo files", hang=2)
            return CommandResult([line("the last turn changed these files:"), *rows, choices])
        if choice == "files" and not changes.changes:
            return CommandResult([line(("the last turn changed no files that were kept", "dim"))])
        restored: list[Block] = []
        if changes.changes:
            written = await session.restore_files()
            restored = [*list_changes(written), line(("put back; /redo brings the files back", "dim"), hang=0)]
        if choice == "files":
            return CommandResult(restored)
        text = await session.undo()
        result = await self._describe(f"taken back; {'' if restored else 'files stay as they are; '}/back returns")
        return CommandResult([*restored, *result.blocks], draft=text)

    async def _redo(self, _: str) -> CommandResult:
        return CommandResult([*list_changes(await self._session.redo_files()), line(("brought back", "dim"))])

    async def _retry(self, _: str) -> CommandResult:
        await self._session.retry()
        return CommandResult((await self._describe("a branch; /back returns")).blocks, then="run")

    async def _clear(self, _: str) -> CommandResult:
        await self._session.start_new()
        return await self._describe("a new conversation; /back returns")

    async def _compact(self, text: str) -> CommandResult:
        is_condensed = await self._session.conversation.condense(keep=text)
        return CommandResult([line("condensed" if is_condensed else ("nothing to condense", "dim"))])

    async def _cost(self, _: str) -> CommandResult:
        usage = self._session.conversation.usage
        cost = "unknown" if usage.cost_usd is None else f"{usage.cost_usd:.4f} USD"
        text = (
            f"{usage.requests} requests, {usage.input_tokens} + {usage.output_tokens} tokens, "
            f"{usage.cached_share:.0%} of the input cached, cost {cost}"
        )
        return CommandResult([line(text, hang=0)])

    async def _tree(self, _: str) -> CommandResult:
        return await self._report(lambda: look.tree(self._id, **self._where))

    async def _diff(self, other: str) -> CommandResult:
        if not other:
            changes = await self._session.compare_last_turn()
            return CommandResult([*list_changes(changes), *list_patch(changes)])
        return await self._report(lambda: diff.diff(other, self._id, **self._where))

    async def _show(self, number: str) -> CommandResult:
        if not number:
            return await self._report(lambda: look.tail(self._id, **self._where))
        if not (number.isascii() and number.isdigit()):
            raise InvalidInput(f"{number!r} is not the number of an event", hint="/show 5 shows event 5")
        seq, head = int(number), self._session.conversation.state.head
        if seq >= head:
            raise InvalidInput(
                f"no event {seq}: the conversation has {head}", hint=f"give a number from 0 to {head - 1}"
            )
        report = await self._report(lambda: look.show(self._id, full=True, first=seq, stop=seq + 1, **self._where))
        return CommandResult([block for block in report.blocks if getattr(block, "plain", "").startswith(" ")])

    async def _tasks(self, _: str) -> CommandResult:
        return await self._report(lambda: list_tasks(parent=self._id, **self._where))

    async def _export(self, name: str) -> CommandResult:
        conversation = self._session.conversation
        file = Path(name or f"conversation-{conversation.short_id}.md")
        return await self._report(lambda: transfer.export(self._id, output=file, **self._where))

    async def _quit(self, _: str) -> CommandResult:
        return CommandResult(then="leave")

    @property
    def _id(self) -> str:
        return str(self._session.conversation.id)

    @property
    def _where(self) -> dict[str, Any]:
        settings = self._session.settings
        return {"home": str(settings.home), "store": settings.store}

    async def _describe(self, note: str = "") -> CommandResult:
        heading = await self._session.describe()
        return CommandResult([line(), heading, *([line((note, "dim"), hang=0)] if note else [])])

    async def _report(self, command: Callable[[], Report | int | None]) -> CommandResult:
        """Run a command of the command line; in a thread, because it has its own event loop and store."""
        report = await asyncio.to_thread(command)
        return CommandResult(report.blocks if isinstance(report, Report) else ())


def _parse_position(text: str) -> int | Turn | None:
    """Return where `/fork` cuts: after N events, before message N, or at the end for an empty text.

    Raises:
        InvalidInput: The text is neither `N` nor `msg:N`.
    """
    number = text.removeprefix("msg:")
    if not text:
        return None
    if not (number.isascii() and number.isdigit()) or (number != text and int(number) == 0):
        raise InvalidInput(
            f"{text!r} is not a position",
            hint="/fork 5 keeps the first 5 events; /fork msg:2 continues before the second message",
        )
    return int(number) if number == text else Turn(int(number) - 1)
