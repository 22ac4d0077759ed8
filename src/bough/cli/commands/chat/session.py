"""The conversation of a chat and its sources. Every switch to another conversation is made here."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from bough.cli.agent_file import may_write, resolve_agent
from bough.cli.rule_options import RuleOptions, secrets_named
from bough.cli.text import Line, line
from bough.cli.turns.always import Always
from bough.cli.turns.turn import heading_line
from bough.conversation import AsyncConversation, Turn
from bough.conversation.agent import resolve_spec_model
from bough.conversation.fork.file_changes import FileChanges
from bough.errors import BoughError, InvalidInput, NotFound, Unavailable
from bough.guard import policy_named
from bough.settings import Settings

if TYPE_CHECKING:
    from bough.conversation import TurnRecord


class ChatSession:
    """The state of a chat: its present conversation, and those to which `/back` returns.

    Attributes:
        conversation: The present one. A fork, `/clear` and `/back` replace it.
        settings: The settings of the command line.
        always: The calls that are approved for the rest of the session.
    """

    def __init__(self, conversation: AsyncConversation, settings: Settings, rules: RuleOptions) -> None:
        self.conversation = conversation
        self.settings = settings
        self.always = Always()
        self._rules = rules
        self._opened = [conversation]
        self._window: int | None = None
        self._window_model: object = None
        self._sources: list[AsyncConversation] = []
        self._restored: AsyncConversation | None = None

    async def aclose(self) -> None:
        """Close every conversation that was used."""
        for conversation in reversed(self._opened):
            await conversation.aclose()

    @property
    def policy_name(self) -> str:
        """The name of the recorded policy as in `--policy`; its JSON if it has no name."""
        recorded = self.conversation.state.policies.get("policy") or policy_named("allow").to_json()
        names = (name for name in ("allow", "ask", "rules") if policy_named(name).to_json() == recorded)
        return next(names, str(recorded))

    @property
    def context_window(self) -> int | None:
        """Maximum number of tokens of a request to the model; None if unknown."""
        model = self.conversation.agent.model
        if model != self._window_model:
            self._window_model, self._window = model, None
            with suppress(BoughError):  # a model that cannot be used here has no known window
                resolved, _ = resolve_spec_model(self.conversation.agent, self.settings)
                self._window = resolved.profile.get("context_window")
        return self._window

    def mask(self, text: str) -> str:
        """Return a text with the secrets of the options replaced."""
        return secrets_named(self._rules.secret or ()).masker().text(text)

    async def describe(self) -> Line:
        """Return a line with conversation, agent, model and executor."""
        return heading_line(self.conversation, works=await self.conversation.executor.healthy())

    def list_warnings(self) -> list[Line]:
        """Return a line for each option that has no effect, and for each file of hooks that does not apply."""
        conversation = self.conversation
        texts = [
            *self._rules.list_kept_rules(conversation.state.policies),
            *self._rules.warnings(self.settings.home, conversation.workspace, conversation.agent.model_name),
        ]
        return [line(("warning: ", "warn"), text, hang=9) for text in texts]

    async def fork(self, at: UUID | Turn | int | None = None) -> None:
        """Continue in a fork that shares the events before `at`; all events for None.

        Raises: see `AsyncConversation.fork`.
        """
        self._enter(await self.conversation.fork(at=at))

    async def fork_with_agent(self, name: str) -> None:
        """Continue in a fork with another agent: a name in `config.yaml`, or a file.

        Raises:
            InvalidInput: There is no such agent, or it lacks what the conversation needs.
        """
        self._enter(await self.conversation.fork(agent=resolve_agent(Path(name), self.settings)))

    def go_back(self) -> None:
        """Return to the conversation that the present one was forked from in this session.

        Raises:
            InvalidInput: There is none.
        """
        if not self._sources:
            raise InvalidInput("no conversation to return to", hint="/tree shows all branches; bough chat ID opens one")
        self.conversation = self._sources.pop()

    async def start_new(self) -> None:
        """Continue in a new conversation with the same agent, folder and rules.

        Raises: see `AsyncConversation.create`.
        """
        source = self.conversation
        rules = self._rules.make_rules(self.settings, source.workspace, may_write=may_write(source.agent))
        self._enter(
            await AsyncConversation.create(
                source.agent, workspace=source.workspace, settings=self.settings, store=source.store, **rules
            )
        )

    async def undo(self) -> str:
        """Continue in a fork without the last turn, and return the text of its message. Files stay as they are.

        Raises:
            InvalidInput: The conversation has no turn.
        """
        last = await self._find_last_turn()
        await self.fork(Turn(last.number - 1))
        return last.message.plain

    async def compare_last_turn(self) -> FileChanges:
        """Return what the last turn did to the files; nothing if no files were kept.

        Raises:
            InvalidInput: The conversation has no turn.
        """
        last = await self._find_last_turn()
        try:
            return await self.conversation.diff(last.start, own=True)
        except (NotFound, Unavailable):
            return FileChanges()

    async def restore_files(self) -> FileChanges:
        """Put the files back to their state before the last turn; what others changed since stays.

        Raises:
            InvalidInput: The conversation has no turn.
            NotFound: The files were not kept.
        """
        last = await self._find_last_turn()
        changes = await self.conversation.restore(last.start, conflicts="leave")
        self._restored = self.conversation
        return changes

    async def redo_files(self) -> FileChanges:
        """Bring back the files that `restore_files` changed, also in an earlier session.

        Raises:
            InvalidInput: Nothing was restored that can be taken back.
        """
        try:
            changes, self._restored = await (self._restored or self.conversation).redo(), None
        except NotFound as error:
            raise InvalidInput("no restore of files can be taken back", hint=await self._name_restores()) from error
        return changes

    async def _name_restores(self) -> str:
        """Return how to restore files, or to bring back those that an earlier session restored before its fork."""
        conversation = self.conversation
        source = (await conversation.store.get(conversation.id)).forked_from
        if source is None:
            return "/undo files restores files"
        return (
            f"/undo files restores files; bough conv restore {source.hex[-8:]} --redo brings back those of the source"
        )

    async def retry(self) -> None:
        """Send the last message again, in a fork without the last turn. The next run answers it.

        Raises:
            InvalidInput: The conversation has no turn.
        """
        last = await self._find_last_turn()
        await self.fork(Turn(last.number - 1))
        await self.conversation.repeat(last)

    async def _find_last_turn(self) -> TurnRecord:
        # A restore ends with a message of bough, which is a turn of the log and not one of the person.
        turns = [turn for turn in await self.conversation.turns() if turn.message.sender != "bough"]
        if not turns:
            raise InvalidInput("nothing was sent yet", hint="type a message")
        return turns[-1]

    def _enter(self, conversation: AsyncConversation[Any]) -> None:
        self._opened.append(conversation)
        self._sources.append(self.conversation)
        self.conversation = conversation
