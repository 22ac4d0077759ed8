"""Messages to an open conversation, and its runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import NoneType
from typing import cast
from uuid import UUID

from bough.cancellation import is_cancelled
from bough.conversation.control import ConversationControl
from bough.conversation.inputs import fetch_inputs
from bough.conversation.log.condenser import NoCondenser, SummarizingCondenser
from bough.conversation.log.listeners import OnEvent
from bough.conversation.message import add_inputs, events_of, is_sent, make_hook_events, refuse_untrusted
from bough.conversation.message import check_message as message_event
from bough.conversation.result import RunResult, T
from bough.conversation.run import ask
from bough.conversation.run.checks import condense
from bough.conversation.run.loop import NodeListener
from bough.conversation.run.models import RunModels
from bough.conversation.run.run import Runner
from bough.conversation.run.waiting.approval import Decisions
from bough.errors import BoughError, Conflict, InvalidInput, PermissionDenied
from bough.events.content import Source
from bough.events.draft import parse_id
from bough.events.lease import hold_lease
from bough.events.model import Event, FilePart, ImagePart, PauseRequested, UsageAdded, UserMessage
from bough.guard import Limits
from bough.types import require_type


class ConversationRuns(ConversationControl[T]):
    """An open conversation with messages and runs, without forks."""

    async def send_message(
        self,
        message: str | UserMessage = "",
        *,
        images: Sequence[Source | ImagePart] = (),
        files: Sequence[Source | FilePart] = (),
        id: UUID | None = None,
        sender: str = "user",
    ) -> UUID:
        """Append a message and the skills it activates, durable on return. A run in progress sees it at its next step.

        A person's message rejects waiting calls, with its text as the reason.

        Args:
            images: Paths, bytes or URLs of images (png, jpeg, gif, webp), shown to the model after the text. A URL is
                fetched now, within 30 s. The same bytes are stored once, however often they are sent.
            files: The same for documents (pdf), texts and sounds (wav, mp3).
            id: The id of its event. A message sent again with the same id, after a lost response, is appended once.

        Returns:
            The id of its event.

        Raises:
            Conflict: `id` belongs to another event.
            InvalidInput: The message is neither text nor a `UserMessage`, is empty, or too long; or an image or a file
                cannot be read, or has an unsupported type.
            LimitExceeded: An image or a file has more than 20 MiB, or all of them more than 64 MiB.
            ConnectError: The server of a URL does not answer.
            PermissionDenied: A hook refuses the message, it calls an untrusted skill by `/name`, a URL is not https, or
                leads to a private network that is not in `Settings.fetch_networks`. Nothing is sent.
        """
        await self._settle_abandoned()
        whole = add_inputs(message, images, files, sender=sender)
        if id is not None:
            whole = message_event(whole, sender=sender).model_copy(update={"id": parse_id(id)})
            if await self._has_sent(whole):  # before the hooks run: they ran the first time
                return whole.id
        events = await self.prepare_message(whole, sender=sender)
        first = cast("UserMessage", events[0])
        try:
            if self.state.waiting and first.sender == "user":
                await Decisions(self._journal).reply(events, first.plain, by=first.sender)
            else:
                await self._journal.append(*events, alone=id is not None)
        except Conflict:
            if not await self._has_sent(first):
                raise
        return first.id

    async def prepare_message(self, message: str | UserMessage, *, sender: str = "user") -> list[Event]:
        """Return the events that sending a message appends, the message first, secrets masked. Appends none of them.

        The message carries the bytes of its images and files to the store it is appended to.

        Raises: see `send_message`; the refusal of a hook is recorded.
        """
        fetched = await fetch_inputs(message, self.settings.fetch_networks)
        checked = message_event(fetched, sender=sender)
        if (refused := refuse_untrusted(checked, self.skills)) is not None:
            error, record = refused
            await self._journal.append(*record)
            raise error
        verdict = await self._rules.guard(self.id, self.workspace).on_prompt(checked.plain)
        if verdict.decision == "deny":
            await self._journal.append(*verdict.events)
            raise PermissionDenied(f"a hook refused the message: {verdict.reason}", hint="rephrase it")
        # Masked here: the caller appends them without this journal, which masks otherwise.
        return list(
            self._journal.mask([*self._events_of(checked), *self._in_force.make_events(), *make_hook_events(verdict)])
        )

    async def run(
        self,
        *,
        on_event: OnEvent | None = None,
        on_node: NodeListener | None = None,
        limits: Limits | None = None,
    ) -> RunResult[T]:
        """Run until the model has answered everything, and return the result.

        Without work it returns at once with 0 steps. After a crash it continues where the log ends: recorded responses
        are not requested again, finished tools do not run again, and a call that had started is closed as interrupted.

        Args:
            on_event: A function or coroutine function, called for durable events and pieces of text, in order, all of
                them before this returns. If it raises, that is reported to the event loop and it is not called again.
            on_node: Awaited for every node of PydanticAI's graph before that node runs.
            limits: Limits of this run, in addition to those of the conversation.

        Raises:
            Conflict: It is being run elsewhere.
            ModelError: The model failed. The conversation's status is `error`, and it can be run again.
            StoreError: An event could not be written.
        """
        require_type(limits, (Limits, NoneType), "limits", "give Limits(…)")
        if on_event is not None and not callable(on_event):
            raise InvalidInput("on_event is not a function", hint="give a function of one argument: the update")
        await self._settle_abandoned()
        if self._run is not None:
            raise Conflict("the conversation is already running", hint="wait for that run, or interrupt it")
        if on_event is not None:
            async with self._journal.call_for_updates(on_event):
                return await self.run(on_node=on_node, limits=limits)
        self._result = None  # a run that raises must not leave the result of the previous one
        self._running = runner = self._runner(limits, on_node)
        self._run = asyncio.create_task(runner.run(), name=f"run {self.id}")
        try:
            self._result = await self._run
        except asyncio.CancelledError:
            self._result = runner.result()
            if not runner.was_interrupted or is_cancelled():
                raise
        except BoughError:
            self._result = runner.result()
            raise
        finally:
            self._run.cancel()
            self._run = self._running = None
        return self._result

    async def ask(self, question: str) -> str:
        """Return the model's answer to a question about the conversation.

        The log records the usage, but neither question nor answer, so later requests do not contain them.

        Raises:
            ModelError: The model could not answer.
            InvalidInput: The question is not text, or is empty.
        """
        require_type(question, str, "a question", "ask in words")
        if not question.strip():
            raise InvalidInput("the question is empty", hint="ask in words")
        await self._settle_abandoned()
        await self._journal.catch_up()
        model = self._resolve_model(self._agent.follow_log())
        messages = await self._journal.messages()
        answer, usage = await ask.ask(model, messages, question, instructions=self.state.instructions)
        await self._journal.append(UsageAdded(purpose="ask", model=model.model_name, usage=usage))
        return answer

    async def interrupt(self, *, by: str = "user", reason: str = "") -> None:
        """Stop the run now and kill its tools and scripts. The conversation is `paused` and can be resumed.

        Returns when a run of this object has ended. A run of another object or process is asked through the log, and
        ends as soon as it has read the request. Does nothing if there is no run.
        """
        if self._run is not None and self._running is not None:
            self._running.stop("interrupt")
            self._run.cancel()  # a task that has not started yet does not know itself, so `stop` cannot cancel it
            await asyncio.wait({self._run})  # not gather: a tool of this run may call `interrupt`
            return
        await self._journal.catch_up()
        if self.status == "running":
            await self._journal.append(PauseRequested(by=by, reason=reason, now=True))

    async def condense(self) -> bool:
        """Condense what the model is shown. Returns whether there was anything to condense.

        Raises:
            Conflict: It is being run.
        """
        models = RunModels(self.settings, self._in_force)
        configured = self._rules.condenser
        condenser = SummarizingCondenser() if isinstance(configured, NoCondenser) else configured
        await self._journal.catch_up()
        agent = self._agent.follow_log()
        condenser = models.give_model(condenser, agent, models.model_of(agent))
        async with hold_lease(self.store, self.id) as lease:
            return await condense(self._journal.use_lease(lease.generation), condenser, force=True)

    async def _has_sent(self, message: UserMessage) -> bool:
        """Whether the log has this message, which is folded then. Raises: see `is_sent`."""
        (masked,) = self._journal.mask([message])
        if not await is_sent(self.store, self.id, cast("UserMessage", masked), self.settings.fetch_networks):
            return False
        await self._journal.catch_up()
        return True

    async def _leave(self, run: asyncio.Task[RunResult[T]]) -> None:
        """Interrupt a run. Unlike a cancelled one, it records how it ended."""
        if self._run is None:
            run.cancel()  # it has not started
        else:
            await self.interrupt()

    def _abandon(self, run: asyncio.Task[RunResult[T]]) -> None:
        if self._running is not None:
            self._running.stop("interrupt")  # before the event loop runs anything else, so that no tool starts
        super()._abandon(run)

    def _follow(self, watch: Callable[[Event], None]) -> Callable[[UserMessage], None]:
        """Call `watch` for every new event. Returns a function that inserts a message at the current position.

        For replays: no hooks run, and the message becomes durable with the next events.
        """
        self._journal.watchers.append(watch)
        return lambda message: self._journal.stage(*self._events_of(message))

    def _events_of(self, message: UserMessage) -> list[Event]:
        return events_of(message, self.state, self._triggers, self.skills, self._agent.builder.blueprint.toolset)

    def _runner(self, limits: Limits | None = None, on_node: NodeListener | None = None) -> Runner:
        return Runner(
            self._journal,
            self._agent,
            self._environment,
            self._in_force,
            root=self._record.root,
            limits=limits,
            delegation=self._environment.delegation,
            on_node=on_node,
        )
