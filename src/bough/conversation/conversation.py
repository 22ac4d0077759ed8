"""The asynchronous conversation: sending messages, running the agent, forking. See also `bough.conversation.sync`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, suppress
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, Self, Unpack, cast, overload
from uuid import UUID

from pydantic_ai.messages import ModelMessage
from pydantic_ai.models import Model
from typing_extensions import override

from bough.agents.delegation_protocol import Delegation
from bough.agents.spec import AgentSpec
from bough.conversation.agent import (
    AgentInForce,
    AgentLike,
    AgentOf,
    apply_defaults,
    require_prices,
    resolve_spec_model,
    with_other_model,
)
from bough.conversation.base import ConversationBase
from bough.conversation.check import CHECK_SECONDS, RunCheck
from bough.conversation.collection import ConversationCollection
from bough.conversation.current_run import CurrentRun
from bough.conversation.explore_methods import ExploreMethods
from bough.conversation.follow import follow
from bough.conversation.fork.compare import Comparison, compare, make_graft
from bough.conversation.fork.opened import fork_opened
from bough.conversation.fork.orphans import remove_temporary
from bough.conversation.fork.request import ForkOptions, ForkRequest
from bough.conversation.fork.workspace import ForkedWorkspace
from bough.conversation.log.condenser import NoCondenser, SummarizingCondenser
from bough.conversation.log.journal import Journal
from bough.conversation.log.listeners import OnEvent, Update
from bough.conversation.log.state import State
from bough.conversation.log.tool_result import encode_result, result_chars
from bough.conversation.log.turns import Turn
from bough.conversation.message import (
    add_inputs,
    check_message,
    fetch_inputs,
    find_message,
    is_sent,
    make_hook_events,
    make_message_events,
    refuse_untrusted,
)
from bough.conversation.open import Beginning, create_or_open, make_read_only_error, open_to_read, reopen
from bough.conversation.parts import Parts, require_delegation
from bough.conversation.quarantine import adopt
from bough.conversation.result import OutputT, RunResult, T
from bough.conversation.rules import UNBOUNDED, GivenRules, Rules, split_limits
from bough.conversation.run import ask
from bough.conversation.run.checks import condense
from bough.conversation.run.loop import NodeListener
from bough.conversation.run.run import RunModels, Runner
from bough.conversation.run.spending import RunBudgets, follow_budgets
from bough.conversation.run.waiting.approval import Decisions
from bough.errors import Conflict, InvalidInput, NotFound, PermissionDenied, Unavailable
from bough.events.blob.blob import read_file
from bough.events.content import Source
from bough.events.draft import parse_id
from bough.events.lease import hold_lease
from bough.events.model import (
    BaseEvent,
    Event,
    FilePart,
    ImagePart,
    PauseRequested,
    StateChanged,
    UsageAdded,
    UserMessage,
)
from bough.events.record import Ancestry, StoredEvent
from bough.events.store import EventStore
from bough.execution.base import CodeExecutor
from bough.guard import Limits, Policy
from bough.settings import Settings
from bough.skills import SkillRegistry
from bough.skills.match.triggers import TriggerIndex
from bough.types import JsonObject, require_type

if TYPE_CHECKING:
    from bough.conversation.remote.remote import RemoteConversation


class AsyncConversation(ConversationBase[T], ExploreMethods, ConversationCollection):
    """An open conversation whose agent answers with `T`.

    Create one with `create`, `open` or `fork`. Close it with `aclose` or `async with`.

    Every step is recorded in the log first, so nothing is lost if the conversation is closed or the process ends.
    """

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts.record, parts.journal.listeners)
        self._parts = parts
        self._log = parts.journal
        self._rules_in_force = parts.rules
        self._agent = AgentInForce(parts.journal.state, parts.agent, parts.environment.settings)
        self._environment = parts.environment.retain()
        if parts.journal.state.policies.get("budgets") or parts.rules.local.budgets:
            follow_budgets(self.store)
        self._closed = False
        self._temporary: ForkedWorkspace | None = None

    @overload
    @classmethod
    async def create(
        cls,
        agent: AgentOf[OutputT] | None = None,
        *,
        server: str,
        api_key: str | None = None,
        workspace: str | Path = ".",
        id: UUID | None = None,
        title: str | None = None,
        tags: Mapping[str, str] | None = None,
        exist_ok: bool = False,
        **rules: Unpack[GivenRules],
    ) -> RemoteConversation[OutputT]: ...

    @overload
    @classmethod
    async def create(
        cls,
        agent: AgentOf[OutputT] | None = None,
        *,
        workspace: str | Path = ".",
        store: EventStore | str | None = None,
        id: UUID | None = None,
        title: str | None = None,
        tags: Mapping[str, str] | None = None,
        executor: CodeExecutor | None = None,
        settings: Settings | None = None,
        exist_ok: bool = False,
        broker: Delegation | None = None,
        server: None = None,
        api_key: str | None = None,
        **rules: Unpack[GivenRules],
    ) -> AsyncConversation[OutputT]: ...

    @classmethod
    async def create(
        cls,
        agent: AgentOf[OutputT] | None = None,
        *,
        workspace: str | Path = ".",
        store: EventStore | str | None = None,
        id: UUID | None = None,
        title: str | None = None,
        tags: Mapping[str, str] | None = None,
        executor: CodeExecutor | None = None,
        settings: Settings | None = None,
        exist_ok: bool = False,
        broker: Delegation | None = None,
        server: str | None = None,
        api_key: str | None = None,
        **rules: Unpack[GivenRules],
    ) -> AsyncConversation[Any] | RemoteConversation[Any]:
        """Start a conversation; its first event is durable on return.

        Args:
            agent: A spec, a PydanticAI agent, or a model string for the default agent with that model; None for the
                default agent, which works in the workspace and runs commands in the sandbox.
            workspace: The working folder of its tools and scripts.
            store: A store or its URL; None for the store of the settings.
            executor: Runs scripts; None for the agent's executor, or else that of the settings.
            exist_ok: Whether to open the conversation if `id` exists, with these arguments as in `open`. `agent`
                replaces the recorded agent if it differs.
            broker: Runs the tasks of the agent's sub-agents; its log is the store.
            server: The address of an agent server that stores and runs the conversation. The result is then a
                `RemoteConversation`, whose methods take the same arguments.
            api_key: A key of that server; None for the environment variable `BOUGH_API_KEY`.
            rules: The rules of the conversation; see `GivenRules`.

        Raises:
            NotSupported: An argument cannot be used together with `server`. Nothing was sent.
            InvalidInput: The workspace is not a folder, the agent's model, prompt or skills are invalid, it has
                sub-agents but there is no broker, or `exist_ok` is used without `id`.
            Conflict: `id` exists, and `exist_ok` is False.
            StoreError: The store cannot be opened or written.
        """
        if server is not None:
            from bough.conversation.remote.remote import RemoteConversation, require_absent

            require_absent(store=store, executor=executor, settings=settings, broker=broker)
            options: Any = {"workspace": workspace, "id": id, "title": title, "tags": tags, "exist_ok": exist_ok}
            return await RemoteConversation.create(agent, server=server, api_key=api_key, **options, **rules)
        require_type(tags, (Mapping, NoneType), "tags", 'for example {"team": "sales"}')
        settings = settings or Settings.load()
        spec, rules = apply_defaults(agent, executor, settings, rules)
        new = Beginning(agent=spec, workspace=workspace, id=id, title=title, tags=dict(tags or {}))
        if exist_ok:
            return cls(await create_or_open(new, store, executor, settings, broker, **rules))
        return cls(await new.start(store, executor, settings, Rules.build(settings, **rules), broker))

    @overload
    @classmethod
    async def open(
        cls, id: UUID | str, *, server: str, api_key: str | None = None, **rules: Unpack[GivenRules]
    ) -> RemoteConversation[OutputT]: ...

    @overload
    @classmethod
    async def open(
        cls,
        id: UUID | str,
        *,
        store: EventStore | str | None = None,
        agent: AgentOf[OutputT] | None = None,
        executor: CodeExecutor | None = None,
        settings: Settings | None = None,
        broker: Delegation | None = None,
        server: None = None,
        api_key: str | None = None,
        workspace: str | Path | None = None,
        read_only: bool = False,
        **rules: Unpack[GivenRules],
    ) -> AsyncConversation[OutputT]: ...

    @classmethod
    async def open(
        cls,
        id: UUID | str,
        *,
        store: EventStore | str | None = None,
        agent: AgentOf[OutputT] | None = None,
        executor: CodeExecutor | None = None,
        settings: Settings | None = None,
        broker: Delegation | None = None,
        server: str | None = None,
        api_key: str | None = None,
        workspace: str | Path | None = None,
        read_only: bool = False,
        **rules: Unpack[GivenRules],
    ) -> AsyncConversation[Any] | RemoteConversation[Any]:
        """Open an existing conversation. Reads only the events since the latest kept state of its log.

        Args:
            id: Its id, a unique start or end of it, or `-` for the most recent one.
            agent: The agent to continue with; None for the recorded one. Required if that agent has Python
                tools or skills given as code, because a log has only their names.
            executor: As in `create`. A conversation that was started in the sandbox stays in the sandbox.
            broker: As in `create`, like `server` and `api_key`. A server needs the complete id.
            workspace: The folder of an imported conversation that is opened for the first time; None creates an empty
                one in bough's home.
            read_only: Only read and follow it. This needs no agent, hooks or broker, and writes nothing. Methods that
                write or run raise `Unavailable`.
            rules: Applied in addition to the recorded rules. Pass your own hooks, secrets and analyzers again, because
                a log only has their names.

        Raises:
            NotFound: The conversation does not exist.
            InvalidInput: The recorded agent cannot be rebuilt from its record, or has sub-agents and no broker.
        """
        if server is not None:
            from bough.conversation.remote.remote import RemoteConversation, require_absent

            require_absent(store=store, agent=agent, executor=executor, settings=settings, broker=broker)
            require_absent(workspace=workspace, read_only=read_only)
            return await RemoteConversation.open(id, server=server, api_key=api_key, **rules)
        settings = settings or Settings.load()
        if read_only:
            unused: JsonObject = {"agent": agent, "executor": executor, "broker": broker, "workspace": workspace}
            return cls(await open_to_read(id, store, settings, unused | rules))
        given_rules = Rules.build(settings, **rules)
        parts = await reopen(id, store, agent, executor, settings, given_rules, broker, workspace)
        async with parts.environment.close_on_failure():
            require_delegation(parts.agent.spec, broker)
        return cls(parts)

    @property
    def state(self) -> State:
        """The state after the events that this object has read."""
        return self._log.state

    @property
    def _journal(self) -> Journal:
        """The journal, for what writes or runs. Raises `Unavailable` if the conversation is closed or read-only."""
        if self._parts.is_read_only:
            raise make_read_only_error()
        return self._open_log

    @property
    def _open_log(self) -> Journal:
        if self._closed:
            raise Unavailable("the conversation is closed", hint=f"open it again: Conversation.open({self.short_id!r})")
        return self._log

    @property
    def agent(self) -> AgentSpec:
        """The agent in use."""
        return self._agent.builder.spec

    @property
    def skills(self) -> SkillRegistry:
        """The skills the agent may use."""
        return self._agent.builder.blueprint.registry

    @property
    def executor(self) -> CodeExecutor:
        """The executor of scripts."""
        return self._environment.executor

    @property
    def settings(self) -> Settings:
        """The settings with which the conversation was opened."""
        return self._environment.settings

    @property
    def store(self) -> EventStore:
        """The store of its log."""
        return self._log.store

    @property
    def events(self) -> AsyncIterator[StoredEvent]:
        """Iterate all events, including shared ones, from the store. For a range use `store.read`."""
        return self.store.read(self.id)

    async def messages(self) -> list[ModelMessage]:
        """Return the messages that the model is shown, in PydanticAI's form. O(events) once, then O(messages)."""
        return await self._open_log.messages()

    async def read_file(self, digest: str) -> bytes:
        """Return the bytes of an image or file of a message or result, by `sha256`. Raises: see `blob.read_file`."""
        return await read_file(self.store, self.id, digest)

    async def pause(self, *, by: str = "user", reason: str = "") -> None:
        """Ask the run to stop at its next step, in whichever process it is. `run` continues from there."""
        await self._journal.append(PauseRequested(by=by, reason=reason))

    async def adopt(self, *, by: str = "user", policy: Policy | None = None) -> None:
        """End the quarantine of an imported conversation. Its recorded rules apply, narrowed by yours and by `policy`.

        In quarantine, every call needs an approval, and scripts run sandboxed without secrets. Calls that are open when
        the quarantine ends still need an approval.

        Raises:
            Conflict: The conversation is not in quarantine.
        """
        await adopt(self._journal, self._rules_in_force.local, by=by, policy=policy)

    async def approve(
        self, *calls: str, by: str = "user", reason: str = "", arguments: JsonObject | None = None
    ) -> None:
        """Approve waiting calls. The next `run` runs them.

        Args:
            calls: Ids of calls, as in `state.waiting`; none for all calls that wait for an approval.
            reason: Why, for the record.
            arguments: Replace the arguments of the only call in `calls`. The guard reviews the call again, the log has
                both versions, and the model is informed.

        Raises:
            Conflict: No call waits for an approval, or a call in `calls` does not wait for one.
            InvalidInput: A call in `calls` waits for an answer, or `arguments` is given and `calls` is not one call.
        """
        await Decisions(self._journal).approve(calls, by=by, reason=reason, arguments=arguments)

    async def reject(self, *calls: str, reason: str = "", by: str = "user") -> None:
        """Reject waiting calls. The next `run` tells the model the reason.

        Args:
            calls: Ids of calls; none for all waiting calls.

        Raises:
            Conflict: No call waits, or a call in `calls` does not wait. No call is rejected then.
        """
        await Decisions(self._journal).reject(calls, by=by, reason=reason)

    async def answer(self, call: str, value: object, *, by: str = "user") -> None:
        """Set the result of a waiting call: of an external tool, or the answer to a question. The tool does not run.

        Args:
            value: A value that a tool may return.

        Raises:
            Conflict: The call does not wait.
            InvalidInput: The value is not one of the question's choices, or cannot be encoded.
        """
        max_chars = result_chars(self.agent.result_tokens, resolve_spec_model(self.agent, self.settings)[0])
        await Decisions(self._journal).answer(call, encode_result(value), by=by, max_chars=max_chars)

    async def append(self, *events: Event) -> None:
        """Append events unchanged, all or none, for example a program's notes or events from elsewhere.

        Raises:
            Conflict: Another writer has appended events since this object last read the log.
        """
        for event in events:
            require_type(event, BaseEvent, "what is appended", "give events, such as UserMessage.text(…)")
        await self._journal.append(*events, expected_head=self.state.head)

    async def set_title(self, title: str) -> None:
        """Set the title."""
        await self._journal.append(StateChanged(changes={"title": title}))

    async def set_tags(self, tags: Mapping[str, str]) -> None:
        """Replace all tags."""
        require_type(tags, Mapping, "tags", 'for example {"team": "sales"}')
        await self._journal.append(StateChanged(changes={"tags": dict(tags)}))

    async def set_confirmation_policy(self, policy: Policy) -> None:
        """Change which calls wait for a person, from the next call on, in whichever process the conversation runs.

        The new policy may be wider than the old one. Rules that were passed to another object of the conversation still
        narrow the policy of that object.
        """
        local = self._rules_in_force.local.override({"confirmation_policy": policy})
        recorded = {"policy": policy.to_json()} | ({"analyzer": local.analyzer.to_json()} if local.analyzer else {})
        await self._journal.append(StateChanged(changes={"policies": recorded}))
        self._rules_in_force.local = local

    async def set_limits(self, *limits: Limits) -> None:
        """Change the limits of each run, of the conversation, or both, from the next step on. They may be raised.

        Raises:
            InvalidInput: No limits are given, or two have the same `per`.
        """
        changes = split_limits(limits)
        if not changes:
            raise InvalidInput("no limits were given", hint="give Limits(…); Limits(steps=None) does not limit steps")
        recorded = {name: bounds.to_json() for name, bounds in changes.items()}
        if "limits" not in recorded and self._rules_in_force().limits != UNBOUNDED:
            recorded["limits"] = self._rules_in_force().limits.to_json()
        await self._journal.append(StateChanged(changes={"policies": recorded}))
        self._rules_in_force.local = replace(self._rules_in_force.local, **changes)

    async def set_model(self, model: str | Model, *, base_url: str | None = None) -> None:
        """Continue with another model, from the next step on, in whichever process the conversation runs.

        Args:
            model: A model string, or a PydanticAI model. The log records only the name of a PydanticAI model, so a run
                in a process without that object is paused with an error.
            base_url: Another address for the model, to which the agent's key is not sent; None keeps the address.

        Raises:
            InvalidInput: The model is unknown, or a limit of cost needs its prices, which are unknown.
        """
        spec = with_other_model(self.agent, model, base_url or self.agent.base_url)
        resolved, name = resolve_spec_model(spec, self.settings)
        rules = self._rules_in_force()
        require_prices(resolved, rules.limits, self.settings.prices, rules.budgets)
        if isinstance(model, str):
            spec = spec.model_copy(update={"model": name})
        self._agent.remember_model(spec)
        await self._journal.append(StateChanged(changes={"agent": spec.snapshot()}))
        self._agent.follow_log()

    @property
    @override
    def result(self) -> RunResult[T] | None:
        return self._current_run.result

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
        await self._join_abandoned_run()
        networks = self.settings.fetch_networks
        with_inputs = add_inputs(message, images, files, sender=sender)
        if id is not None:
            with_inputs = check_message(with_inputs, sender=sender).model_copy(update={"id": parse_id(id)})
            # Before the hooks: they ran when the message was sent the first time.
            if await is_sent(self._journal, with_inputs, networks):
                return with_inputs.id
        events = await self.prepare_message(with_inputs, sender=sender)
        sent_message = cast("UserMessage", events[0])
        try:
            if self.state.waiting and sent_message.sender == "user":
                await Decisions(self._journal).reply(events, sent_message.plain, by=sent_message.sender)
            else:
                await self._journal.append(*events, alone=id is not None)
        except Conflict:
            if not await is_sent(self._journal, sent_message, networks):
                raise
        return sent_message.id

    async def prepare_message(self, message: str | UserMessage, *, sender: str = "user") -> list[Event]:
        """Return the events that sending a message would append: the message first, with secrets masked.

        The message object contains the bytes of its images and files, for the store to which it is appended.

        Raises: see `send_message`. The refusal of a hook is appended to the log.
        """
        fetched = await fetch_inputs(message, self.settings.fetch_networks)
        checked = check_message(fetched, sender=sender)
        if (refusal := refuse_untrusted(checked, self.skills)) is not None:
            error, record = refusal
            await self._journal.append(*record)
            raise error
        verdict = await self._rules_in_force().guard(self.id, self.workspace).on_prompt(checked.plain)
        if verdict.decision == "deny":
            await self._journal.append(*verdict.events)
            raise PermissionDenied(f"a hook refused the message: {verdict.reason}", hint="rephrase it")
        events = [*self._make_message_events(checked), *self._rules_in_force.make_events(), *make_hook_events(verdict)]
        return list(self._journal.mask(events))  # masked here, because the caller may append them without this journal

    async def run(
        self,
        *,
        on_event: OnEvent | None = None,
        on_node: NodeListener | None = None,
        limits: Limits | None = None,
        until: str | None = None,
        check_timeout: float = CHECK_SECONDS,
    ) -> RunResult[T]:
        """Run until the model has answered everything, and return the result.

        Without work it returns at once with 0 steps. After a crash it continues where the log ends: recorded responses
        are not requested again, finished tools do not run again, and a call that had started is closed as interrupted.

        Args:
            on_event: A function or coroutine function, called for durable events and pieces of text, in order. This
                method returns after the last call. If `on_event` raises, the error is reported to the event loop, and
                it is not called again.
            on_node: Awaited for every node of PydanticAI's graph before that node runs.
            limits: Limits of this run, in addition to those of the conversation.
            until: A bash command that runs in the sandbox, in the workspace, whenever the agent has finished. If it
                exits with 0, the run ends with the reason `check_passed`; otherwise the end of its output is sent to
                the agent, which continues. Limits end the run too.
            check_timeout: Seconds after which the command is killed and has failed.

        Raises:
            Conflict: The conversation is running, here or in another process.
            PermissionDenied: There is a check, and the workspace is read-only.
            ModelError: The model failed. The conversation's status is `error`, and it can be run again.
            StoreError: An event could not be written.
        """
        if on_event is not None and not callable(on_event):
            raise InvalidInput("on_event is not a function", hint="give a function of one argument: the update")
        check = None if until is None else RunCheck(command=until, timeout_seconds=check_timeout, until=True)
        current_run = await self._begin_run(limits, on_node, check)
        if on_event is None:
            return await current_run.wait()
        async with self._journal.call_for_updates(on_event):  # entered before the run's task is scheduled
            return await current_run.wait()

    @override
    async def start(self, *, limits: Limits | None = None, close: bool = False) -> None:
        current_run = await self._begin_run(limits)
        await current_run.start(self.aclose if close else None)

    @override
    async def _iterate_updates(self, after: int) -> AsyncGenerator[Update]:
        # Joined: the last event is visible before the result of the run, which the caller reads next.
        async with self._current_run.join_after(), aclosing(follow(self.store, self.id, after)) as updates:
            async for update in updates:
                yield update
        if not self._closed:
            with suppress(NotFound):  # the conversation was deleted
                await self._log.catch_up()

    async def _begin_run(
        self, limits: Limits | None, on_node: NodeListener | None = None, check: RunCheck | None = None
    ) -> CurrentRun[T]:
        require_type(limits, (Limits, NoneType), "limits", "give Limits(…)")
        await self._join_abandoned_run()
        self._current_run.begin(self._make_runner(limits, on_node, check))
        return self._current_run

    @override
    async def _run_until_checked(self, check: RunCheck | None) -> None:
        await (await self._begin_run(None, check=check)).wait()

    async def ask(self, question: str) -> str:
        """Return the model's answer to a question about the conversation.

        The log records the usage, but not the question and the answer, so later requests do not contain them.

        Raises:
            ModelError: The model could not answer.
            InvalidInput: The question is not text, or is empty; or a budget of dollars needs the model's price.
            LimitExceeded: A budget of the conversation is used up.
        """
        require_type(question, str, "a question", "ask in words")
        if not question.strip():
            raise InvalidInput("the question is empty", hint="ask in words")
        await self._join_abandoned_run()
        await self._journal.catch_up()
        model = resolve_spec_model(self._agent.follow_log(), self.settings)[0]
        messages = await self._journal.messages()
        instructions, prices = self.state.instructions, self.settings.prices
        budgets = RunBudgets(self._journal, self._rules_in_force, 0, prices)
        async with budgets.hold_question(model, messages):
            answer, usage = await ask.ask(model, messages, question, instructions=instructions, prices=prices)
            await self._journal.append(UsageAdded(purpose="ask", model=model.model_name, usage=usage))
        return answer

    async def interrupt(self, *, by: str = "user", reason: str = "") -> None:
        """Stop the run now and kill its tools and scripts. The conversation is `paused` and can be resumed.

        Returns when a run of this object has ended. A run of another object or process is asked through the log, and
        ends as soon as it has read the request. Does nothing if there is no run.
        """
        if self._current_run.is_active:
            await self._current_run.interrupt()
            return
        await self._journal.catch_up()
        if self.status == "running":
            await self._journal.append(PauseRequested(by=by, reason=reason, now=True))

    async def condense(self, *, keep: str = "") -> bool:
        """Replace older messages that the model is shown by a summary. Returns whether any were replaced.

        Args:
            keep: What the summary must keep, in words, for the model that writes it.

        Raises:
            Conflict: The conversation is running.
            LimitExceeded: A budget is used up.
        """
        models = RunModels(self.settings, self._rules_in_force)
        configured = self._rules_in_force().condenser
        condenser = SummarizingCondenser() if isinstance(configured, NoCondenser) else configured
        await self._journal.catch_up()
        agent = self._agent.follow_log()
        model = models.find_model(agent)
        async with hold_lease(self.store, self.id) as lease:
            journal = self._journal.use_lease(lease.generation)
            budgets = RunBudgets(journal, self._rules_in_force, lease.generation, self.settings.prices)
            condenser = models.with_model(condenser, agent, model, partial(budgets.summarize, keep=keep))
            return await condense(journal, condenser, force=True)

    @overload
    async def fork(self, *, agent: None = None, **options: Unpack[ForkOptions]) -> AsyncConversation[T]: ...

    @overload
    async def fork(self, *, agent: AgentOf[OutputT], **options: Unpack[ForkOptions]) -> AsyncConversation[OutputT]: ...

    async def fork(self, *, agent: AgentLike | None = None, **options: Unpack[ForkOptions]) -> AsyncConversation[Any]:
        """Fork the conversation and return the fork. This one is not changed, blocked or stopped.

        Source and fork share the rows of their common events, so the cost does not depend on the length of the log. No
        call made before the cut runs in the fork without a new approval. The rules of the fork are the rules at the cut
        combined with the present ones; they are never wider.

        Args:
            agent: Replaces the agent.
            options: Where to cut and what to change; see `ForkOptions`.

        Raises:
            InvalidInput: The cut is negative or beyond the head, the new agent lacks a tool that a carried call
                needs, or an override would widen a rule.
            NotFound: `at` names an event, or is a turn, that is not in this log.
            Conflict: `id` belongs to another conversation.

        Source: OpenHands `Conversation.fork()`.
        """
        request = ForkRequest.of(agent, options)
        await self._join_abandoned_run()
        await self._journal.catch_up()  # a stricter rule of another process must hold in the fork
        if request.agent is None and "model" not in request.overrides:
            self._agent.adopt_recorded()  # the fork must use the model that its log will record
        fork_parts, written = await fork_opened(replace(self._parts, agent=self._agent.builder), request)
        new: AsyncConversation[Any] = type(self)(fork_parts)
        new._temporary = written.workspace if request.ephemeral else None
        return new

    async def repeat(self, turn: Turn, *, id: UUID | None = None) -> UUID:
        """Send the message of a recorded turn again, with its images and files, as a new message. `run` answers it.

        It passes the same checks and hooks as any message of `send_message`.

        Args:
            turn: `Turn(n)` for the n-th turn of this conversation, or a record of `turns()`, of this conversation or of
                one that it is related to by forks, such as its source.
            id: As in `send_message`.

        Returns:
            The id of the new event.

        Raises:
            InvalidInput: There is no such turn, or the record is of a conversation that is not related to this one.
            NotFound: The conversation of the record was deleted, or the message or its files were erased.
            Other errors: See `send_message`.
        """
        await self._journal.catch_up()
        return await self.send_message(await find_message(self._journal, self._record.root, turn), id=id)

    async def compare(self, other: AsyncConversation[Any], *, until: Turn | None = None) -> Comparison:
        """Compare this conversation (`a`) with another one of the same store (`b`).

        Args:
            until: The last turn to compare in both, such as `Turn(3)`; a conversation with fewer turns is compared to
                its end. By default it is the last turn that both have, so that what the source did in later turns does
                not count against its fork. As long as the model has answered in only one of them after the common
                events, all events are compared.

        Raises:
            InvalidInput: `until` is not a turn, or neither conversation has it.
        """
        folders = (self.workspace, other.workspace)
        return await compare(self.store, self.id, other.id, until=until, workspaces=folders)

    async def graft(
        self, source: AsyncConversation[Any], *, start: int | None = None, stop: int | None = None, summary: str = ""
    ) -> None:
        """Append a message that describes what happened in another conversation. The histories are not merged.

        Args:
            start: The first event to describe; None for the first one that the two conversations do not share.
            stop: The event after the last one to describe; None for the end.
            summary: Used instead of a description of the events.

        Raises:
            InvalidInput: There are no events to describe.
        """
        await self._journal.append(*await make_graft(self.id, source.store, source.id, start, stop, summary))

    async def lineage(self) -> Ancestry:
        """Return the conversations from which this one was forked, oldest first, and this one last."""
        return Ancestry([*await self.store.ancestry(self.id), await self.store.get(self.id)])

    async def aclose(self) -> None:
        """Interrupt a run in progress and release all resources, even if releasing one of them fails. Idempotent."""
        if self._closed:
            return
        self._closed = True
        async with AsyncExitStack() as releases:  # last in, first out
            releases.callback(self.on_closed)
            releases.push_async_callback(self._environment.release)
            releases.push_async_callback(self._log.aclose)
            if (workspace := self._temporary) is not None:
                releases.push_async_callback(remove_temporary, self.store, self.settings.home, self._record, workspace)
            releases.push_async_callback(self._agent.builder.aclose)
            if self._rules_in_force.local.hooks.hooks and not self._parts.is_read_only:  # a log only names hooks
                releases.push_async_callback(self._run_end_hooks)
            await self._current_run.interrupt()
            await self._join_abandoned_run()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    @cached_property
    def _current_run(self) -> CurrentRun[T]:
        return CurrentRun(f"run {self.id}")

    @cached_property
    def _triggers(self) -> TriggerIndex:
        return TriggerIndex(self.skills.list_all())

    async def _stop_run(self, run: asyncio.Task[RunResult[T]]) -> None:
        """Interrupt a run. Unlike a cancelled run, an interrupted one records its end."""
        if self._current_run.is_active:
            await self._current_run.interrupt()
        else:
            run.cancel()  # it has not started

    def _abandon(self, run: asyncio.Task[RunResult[T]]) -> None:
        self._current_run.stop()  # before the event loop runs anything else, so that no tool starts
        super()._abandon(run)

    def _follow(self, watch: Callable[[Event], None]) -> Callable[[UserMessage], None]:
        """Call `watch` for every new event, and return a function that appends a message. Used by replays.

        The returned function runs no hooks, and its message becomes durable with the next events.
        """
        self._journal.watchers.append(watch)
        return lambda message: self._journal.stage(*self._make_message_events(message))

    def _make_message_events(self, message: UserMessage) -> list[Event]:
        return make_message_events(
            message, self.state, self._triggers, self.skills, self._agent.builder.blueprint.toolset
        )

    def _make_runner(
        self, limits: Limits | None = None, on_node: NodeListener | None = None, check: RunCheck | None = None
    ) -> Runner:
        return Runner(
            self._journal,
            self._agent,
            self._environment,
            self._rules_in_force,
            root=self._record.root,
            limits=limits,
            delegation=self._environment.delegation,
            on_node=on_node,
            check=check,
        )

    async def _run_end_hooks(self) -> None:
        verdict = await self._rules_in_force().guard(self.id, self.workspace).on_end()
        if verdict.events:
            await self._log.append(*verdict.events)
