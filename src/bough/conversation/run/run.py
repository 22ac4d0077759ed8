"""One run, from taking the lease to recording its end: setup, limits, and its last events."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from uuid import UUID

from pydantic_ai import Agent
from pydantic_ai.models import Model

from bough.agents.build import Blueprint
from bough.agents.config.file import find_config
from bough.agents.config.layers import list_files
from bough.agents.context import ToolContext
from bough.agents.delegation_protocol import Delegation, SharedBound
from bough.agents.models.resolve import can_stream
from bough.agents.retry_policy import RetryPolicy
from bough.agents.spec import AgentSpec
from bough.conversation.agent import AgentInForce, require_prices, resolve_spec_model, with_other_model
from bough.conversation.follow import HANDED_BACK
from bough.conversation.log.condenser import Condenser, SummarizingCondenser
from bough.conversation.log.journal import Journal
from bough.conversation.log.listeners import Update
from bough.conversation.log.staged_write import Ending, is_control
from bough.conversation.log.tool_result import find_result, result_chars
from bough.conversation.parts import Environment
from bough.conversation.result import RunResult
from bough.conversation.rules import Rules, RulesInForce
from bough.conversation.run.ask import summarize
from bough.conversation.run.checks import FindReached, Supervisor
from bough.conversation.run.loop import REMINDER, Loop, NodeListener
from bough.conversation.run.outcome import RunOutcome, read_data
from bough.conversation.run.recorder import Recorder
from bough.conversation.run.retry import Retries
from bough.conversation.run.shared_bounds import SharedBounds
from bough.conversation.run.stop import StopNote, StopReason
from bough.conversation.run.tracing import run_span
from bough.conversation.run.waiting.deferred import release_ended
from bough.errors import BoughError, Conflict, InvalidInput, public_message
from bough.events.lease import hold_lease
from bough.events.model import (
    ErrorRaised,
    Event,
    HookRan,
    LimitReached,
    ModelResponded,
    PauseRequested,
    ScriptRan,
    StateChanged,
    ToolCalled,
    ToolFailed,
    ToolInterrupted,
    ToolRejected,
    ToolReturned,
    UserMessage,
)
from bough.events.record import Lease, Status, StoredEvent
from bough.execution.base import Guards
from bough.guard.limits import Limits, narrower
from bough.portal import threads
from bough.settings import Settings
from bough.types import JsonObject, SystemClock, new_id


class RunModels:
    """Makes the models of one run. Importing a provider takes up to a second, once.

    Args:
        rules: Returns the rules in force now: where they bound the cost, the prices of each model must be known.
    """

    def __init__(self, settings: Settings, rules: Callable[[], Rules]) -> None:
        self._settings = settings
        self._rules = rules

    def model_of(self, spec: AgentSpec) -> Model:
        """Return the agent's model.

        Raises:
            InvalidInput: The model is unknown, or its prices are needed and unknown.
            Unavailable: Its key or its package is missing.
        """
        model = resolve_spec_model(spec, self._settings)[0]
        require_prices(model, self._rules().limits)
        return model

    def resolve_named(self, name: str, spec: AgentSpec) -> Model:
        """Return another model, by name: at the agent's address, and with its key where the provider is the same.

        Raises: see `model_of`.
        """
        return self.model_of(with_other_model(spec, name, spec.base_url))

    def with_model(self, condenser: Condenser, spec: AgentSpec, model: Model) -> Condenser:
        """Return the condenser; one that summarizes can ask then, `model` where it has none of its own.

        Raises: see `model_of`.
        """
        if not isinstance(condenser, SummarizingCondenser):
            return condenser
        own = self.resolve_named(condenser.model, spec) if isinstance(condenser.model, str) else condenser.model
        return replace(condenser, model=own or model, summarize=condenser.summarize or summarize)


CONTINUE = (
    "Your answer was cut off. Continue exactly where it stopped: repeat nothing, do not mention the interruption."
)


class Runner:
    """Runs one conversation once.

    Args:
        root: The root conversation of its tree. Requests of one tree share a prefix, which a provider may cache.
        limits: Bounds of this run, in addition to those of the rules.
        delegation: Runs the tasks of its sub-agents.
        ancestors: Limits of the conversations above it, which apply to its task too.
        on_node: Awaited for every node of PydanticAI's graph before that node runs.
        find_reached: Called before each request. Returns a limit of the caller (not of the log) that was reached.

    Attributes:
        has_lease: Set as soon as the run has the lease; a run without work takes none.
    """

    def __init__(
        self,
        journal: Journal,
        agent: AgentInForce,
        environment: Environment,
        rules: RulesInForce,
        *,
        root: UUID,
        limits: Limits | None = None,
        delegation: Delegation | None = None,
        ancestors: Sequence[SharedBound] = (),
        on_node: NodeListener | None = None,
        find_reached: FindReached | None = None,
    ) -> None:
        self._journal = journal
        self._agent = agent
        self._spec = agent.builder.spec
        self._environment = environment
        self._in_force = rules
        self._limits = limits
        self._models = RunModels(environment.settings, self._read_rules)
        self._root = root
        self._delegation = delegation
        self._shared: SharedBounds | None = None
        if delegation is not None:
            self._shared = SharedBounds(delegation, journal.cid, ancestors, self._read_rules)
        self._on_node = on_node
        self._find_reached = find_reached
        self._start = journal.state.head
        self._loop_now: Loop | None = None
        self._outcome = RunOutcome()
        self._controlled = 0
        self._lease: Lease | None = None
        self._ending: Ending | None = None
        self._note = StopNote()
        self._task: asyncio.Task[Any] | None = None
        self._heard: int | None = None
        self._hear: Callable[[StoredEvent], None] = self._stop_if_asked
        self.has_lease = asyncio.Event()

    async def run(self, *, lease: Lease | None = None, ending: Ending | None = None) -> RunResult:
        """Run to the end and return the result; at once if there is no work.

        Args:
            lease: A lease that the caller takes, renews and releases; None takes and releases one here.
            ending: A change made in the transaction of the run's last events, so exactly once; also without work.
        """
        self._task, self._ending = asyncio.current_task(), ending
        await self._journal.catch_up()
        state = self._journal.state
        self._start = state.head
        unfinished = state.has_work or state.status in ("running", "paused")
        has_work = unfinished and not state.waiting
        if ending is None:
            if not has_work:
                return self.result()
            self._models.model_of(self._agent().spec)  # an unusable model is raised before anything is recorded
        # Before the first event: masking is synchronous and cannot read a secret's file or command.
        await self._rules.secrets.resolve()
        spec = self._agent().spec
        attributes: Any = {"run": new_id(), "agent": spec.name, "model": spec.model_name}
        with run_span(self._journal.cid, **attributes) as span, log_run(self._journal, **attributes) as book:
            async with self._hold_lease(lease) as run_lease:
                self._lease = run_lease
                self.has_lease.set()
                self._journal = self._journal.use_lease(run_lease.generation)
                self._journal.watchers.append(self._outcome.watch)
                try:
                    async with self._follow_others():
                        await (self._run_leased() if has_work else self._end_without_work())
                finally:
                    self._journal.watchers.remove(self._outcome.watch)
            result = self.result()
            span.end(result)
            book.result = result
        return result

    def stop(self, reason: StopReason) -> None:
        """Stop the run now and kill the process trees of its tools. `reason` decides which last events are recorded."""
        if self._task is None:
            self._note.reason = reason
        elif not self._task.done():
            self._note.reason = self._note.reason or reason  # the first reason counts: `fenced` must not write
            self._task.cancel()

    def hand_back(self, on_hand_back: Callable[[], None]) -> None:
        """Stop the run after the current step so that another worker continues it, and call `on_hand_back` then."""
        self._note.on_hand_back = on_hand_back

    def listen(self, after: int, on_event: Callable[[StoredEvent], None]) -> None:
        """Call `on_event` with every event after seq `after` during the run. It replaces the check for interrupts."""
        self._heard, self._hear = after, on_event

    @property
    def was_interrupted(self) -> bool:
        """Whether the run was interrupted, from any process."""
        return self._note.reason == "interrupt"

    @asynccontextmanager
    async def _follow_others(self) -> AsyncGenerator[None]:
        """Subscribe to events of other processes that control the run, for the duration of the block."""
        following = asyncio.create_task(self._follow_log(), name=f"tail of {self._journal.cid}")
        try:
            yield
        finally:
            following.cancel()
            await asyncio.wait({following})

    async def _follow_log(self) -> None:
        begun = self._journal.durable - 1
        after = begun if self._heard is None else min(self._heard, begun)
        with suppress(BoughError):  # the run itself reports a store that is unavailable
            async for stored in self._environment.store.subscribe(self._journal.cid, after):
                self._hear(stored)
                controls = stored.kind in ("PauseRequested", "StateChanged") and is_control(stored.event)
                if controls and stored.seq > begun:
                    self._controlled = stored.seq + 1

    def _stop_if_asked(self, stored: StoredEvent) -> None:
        """Interrupt the run if the event requests it."""
        if stored.kind == "PauseRequested" and isinstance(event := stored.event, PauseRequested) and event.now:
            self.stop("interrupt")

    @asynccontextmanager
    async def _hold_lease(self, existing: Lease | None) -> AsyncGenerator[Lease]:
        if existing is not None:
            yield existing
            return
        async with hold_lease(self._environment.store, self._journal.cid) as lease:
            yield lease

    async def _end_without_work(self) -> None:
        """End a run that has nothing to do. Runs after all if a message arrived in the meantime."""
        state = self._journal.state
        done = await (self._leave(state.status) if state.waiting else self._finish())
        if not done:
            self._journal = self._journal.use_lease(self._generation)
            await self._run_leased()

    async def _run_leased(self) -> None:
        """Run under the lease. However the run ends, its end is recorded in the log."""
        try:
            # Before `_begin` stages events: rendering takes long enough for them to be written alone.
            await self._journal.render()
            self._begin(await self._measure_spent())
            while not await self._leave(await self._run_within_limits()):
                self._journal = self._journal.use_lease(self._generation)
        except asyncio.CancelledError:
            # A fenced run lost its lease, so its appends would be refused. An ending that was made is the last word.
            if self._note.reason != "fenced" and not self._is_ended:
                why = HANDED_BACK if self._note.reason == "hand_back" else "interrupted"
                self._outcome.interrupted = why == "interrupted"
                with suppress(BoughError):  # the cancellation must reach the caller
                    await self._append_end(StateChanged(changes={"status": "paused"}, reason=why))
            raise
        except BoughError as error:
            await self._record(error)
            raise
        except Exception as error:
            failure = BoughError(f"the run failed: {type(error).__name__}: {error}")
            await self._record(failure)
            raise failure from error

    async def _measure_spent(self) -> JsonObject:
        """Return the usage of the conversation and its tasks, if it may start any."""
        if self._delegation is None or not self._spec.sub_agents:
            return {}
        now = await self._delegation.read_spent(self._journal.cid)
        return {"spent": {"usage": now.usage.model_dump(mode="json"), "tasks": now.tasks}}

    def _begin(self, spent: JsonObject) -> None:
        """Record that the run has started. A truncated answer is continued unless there is a new message."""
        state = self._journal.state
        if state.status == "running" and not state.has_work:
            self._outcome.take_over(state)
        cut_off = state.status == "paused" and state.partial and not state.has_work and bool(state.output)
        self._journal.stage(*self._in_force.make_events(), StateChanged(changes={"status": "running", **spent}))
        if cut_off:
            self._journal.stage(UserMessage.text(CONTINUE, sender=REMINDER))

    @property
    def _is_ended(self) -> bool:
        return self._ending is not None and self._ending.is_made

    @property
    def _generation(self) -> int:
        return 0 if self._lease is None else self._lease.generation

    async def _run_within_limits(self) -> Status:
        """Run the loop within its time limit, which also ends a tool that hangs."""
        bound = self._rules.limits.wall_seconds
        started, timer = time.monotonic(), asyncio.timeout(bound)
        try:
            async with timer:
                return await self._loop()
        except TimeoutError:
            if bound is None or not timer.expired():
                raise
            elapsed = round(time.monotonic() - started, 6)
            self._journal.stage(LimitReached(limit="wall_seconds", value=elapsed, bound=bound))
            return "paused"

    async def _loop(self) -> Status:
        """Run the loop and return the final status. A model set during the run applies from the next step on."""
        journal = self._journal
        recorder = Recorder(journal, lambda: supervisor.guard(), cache_key=str(self._root), note=self._note)
        supervisor = Supervisor(
            journal,
            recorder,
            rules=self._read_rules,
            clock=SystemClock(),
            note=self._note,
            shared=self._shared,
            find_reached=self._find_reached,
        )
        retries = Retries(journal, resolve=lambda name: self._models.resolve_named(name, self._spec))
        loop = Loop(journal, recorder, supervisor, self._finish, retries=retries, on_node=self._on_node)
        loop.steps, self._loop_now = self._steps, loop
        journal.watchers.extend((supervisor.watch, retries.watch))
        try:
            with Agent.using_thread_executor(
                threads()
            ):  # daemon threads: a blocked tool must not keep the program alive
                status = None
                while status is None:
                    status = await self._loop_with_agent(loop, recorder, supervisor, retries)
                return status
        finally:
            journal.watchers.remove(supervisor.watch)
            journal.watchers.remove(retries.watch)

    async def _loop_with_agent(
        self, loop: Loop, recorder: Recorder, supervisor: Supervisor, retries: Retries
    ) -> Status | None:
        """Run the loop with the current agent. Returns None if another agent was set."""
        try:
            blueprint = self._agent()
            spec = self._spec = blueprint.spec
            model = self._models.model_of(spec)
            condenser = self._models.with_model(self._rules.condenser, spec, model)
        except InvalidInput as error:  # the model object exists only in another process, which can continue
            self._journal.stage(ErrorRaised(code=error.code, message=public_message(error), hint=error.hint))
            return "paused"
        shown_chars = result_chars(spec.result_tokens, model)
        recorder.configure(shown_chars, streams=can_stream(model))
        supervisor.condenser = condenser
        retries.configure(model, spec.retry or RetryPolicy(), tuple(spec.fallback))
        agent = self._usable(blueprint).agent(model, instructions=self._journal.state.instructions)
        async with agent:
            return await loop.run(
                agent, self._context(shown_chars), spec.output_type, is_current=partial(self._is_current, blueprint)
            )

    async def _is_current(self, blueprint: Blueprint) -> bool:
        """Whether no other process has set another agent."""
        if self._controlled > self._journal.durable:
            await self._journal.catch_up()
        try:
            return self._agent() is blueprint
        except InvalidInput:
            return False

    @property
    def _steps(self) -> int:
        return 0 if self._loop_now is None else self._loop_now.steps

    @property
    def _data(self) -> Any:
        return None if self._loop_now is None else self._loop_now.data

    @property
    def _rules(self) -> Rules:
        """The rules in force now."""
        return self._read_rules()

    def _read_rules(self) -> Rules:
        """Return the rules in force now, narrowed by the limits of this run, which no log records."""
        rules = self._in_force()
        return rules if self._limits is None else replace(rules, limits=narrower(rules.limits, self._limits))

    def _usable(self, blueprint: Blueprint) -> Blueprint:
        """Return the blueprint without tools that write, if the workspace is read-only."""
        spec = blueprint.spec
        if not self._readonly or spec.workspace_access in ("none", "read"):
            return blueprint
        return replace(blueprint, spec=spec.model_copy(update={"workspace_access": "read"}))

    @property
    def _readonly(self) -> bool:
        return self._journal.state.workspace_policy == "readonly"

    @property
    def _guards(self) -> Guards:
        """The paths that tools must not change: the default names, skill folders, configurations and hooks."""
        settings, workspace = self._environment.settings, self._journal.state.workspace
        roots = (*self._spec.skill_roots, *settings.skill_roots)
        configs = list_files(find_config(None, home=settings.home, cwd=workspace, env=os.environ))
        return Guards().extend(workspace, (*roots, *configs, *self._rules.hooks.guarded))

    def _context(self, shown_chars: int) -> ToolContext:
        state, shared = self._journal.state, self._shared
        return ToolContext(
            read_result=partial(find_result, self._environment.store, self._journal.cid),
            result_chars=shown_chars,
            workspace=self._journal.state.workspace,
            guards=self._guards,
            readonly=self._readonly,
            executor=self._environment.executor,
            emit=self._journal.append,
            active_skills=lambda: self._journal.state.active_skills,
            skill_trees=lambda: self._journal.state.skill_trees,
            changed_rules=lambda: self._journal.state.changed_rules,
            secrets=self._rules.secrets.for_script,
            mask=lambda text: self._rules.secrets.masker().text(text),
            secret_names=lambda: self._rules.secrets.names,
            timeout_seconds=self._environment.settings.timeout_seconds,
            conversation=self._journal.cid,
            lease=self._lease,
            rules=self._rules.as_arguments,
            delegation=self._delegation,
            bounds=tuple if shared is None else lambda: shared.list_for_child(state),
            untold_tasks=lambda: state.untold_tasks,
            task_of_call=lambda call: next((id for id, link in state.tasks.items() if link.call == call), None),
            leaves_calls_open=lambda: self._note.leaves_calls_open,
        )

    async def _finish(self) -> bool:
        """Record that the run is finished, unless a message came first. Returns False then: the run must answer it."""
        state = self._journal.state
        return await self._journal.append_while(
            lambda: not state.has_work, StateChanged(changes={"status": "finished"}), ending=self._ending
        )

    async def _leave(self, status: Status) -> bool:
        """Record the final status, unless the event that ended the run has set it. All events are durable afterwards.

        Returns:
            Whether the run has ended. With an ending, a message that arrived in the meantime is answered first.
        """
        state = self._journal.state
        if self._ending is None:
            if state.status != status:
                self._journal.stage(StateChanged(changes={"status": status}))
            await self._journal.settle()
            return not await self._release_waits()
        if status == "finished":
            return True  # `_finish` made the ending in the transaction of that status
        while True:
            await self._journal.settle()
            if await self._release_waits():
                return False
            head = state.head
            events = [StateChanged(changes={"status": status})] if state.status != status else []
            try:
                await self._journal.finish(*events, ending=self._ending, expected_head=head)
            except Conflict:
                self._journal = self._journal.use_lease(self._generation)
                await self._journal.catch_up()
                if state.head == head:
                    raise  # the head is unchanged, so the lease was lost
                if status == "waiting_for_confirmation" and not state.waiting:
                    return False  # the calls were decided in the meantime
            else:
                return True

    async def _release_waits(self) -> bool:
        """Release calls whose task ended before their wait was recorded. Returns whether no call waits any more.

        A task that ends later finds the recorded wait and releases it.
        """
        state = self._journal.state
        if (changes := release_ended(state)) is None:
            return False
        released = StateChanged(changes=changes, reason="its task ended")
        await self._journal.append_while(lambda: release_ended(state) == changes, released)
        return not state.waiting

    async def _append_end(self, *events: Event, error: BoughError | None = None) -> None:
        """Append the last events, even if events that the run staged earlier could not be written."""
        # A new writer: the old one refuses everything after a failure.
        journal = self._journal.use_lease(self._generation)
        if self._ending is None:
            await journal.append(*events)
        else:
            await journal.finish(*events, ending=self._ending, error=error)

    async def _record(self, error: BoughError) -> None:
        """Record the error in the log, unless the log itself failed."""
        try:
            await self._append_end(
                ErrorRaised(code=error.code, message=public_message(error), hint=error.hint),
                StateChanged(changes={"status": "error"}),
                error=error,
            )
        except BoughError as unrecorded:
            error.details["unrecorded"] = public_message(unrecorded)

    def result(self) -> RunResult:
        """Return the result of the run so far."""
        state, outcome = self._journal.state, self._outcome
        outcome.interrupted = outcome.interrupted or (self.was_interrupted and self._task is None)
        data = read_data(self._spec.output_type, self._data, state.data)
        return outcome.result(state, self._journal.cid, start=self._start, steps=self._steps, data=data)


NAME = "bough.run"


@dataclass
class RunLogger:
    """The log of one run, to be told how it ended."""

    fields: dict[str, Any]
    result: RunResult | None = None

    def tell(self, update: Update) -> None:
        """Log a durable event."""
        if isinstance(update, StoredEvent):
            event = {"event": update.kind, "seq": update.seq, **_numbers(update.event)}
            logging.getLogger(NAME).info("event %s", update.kind, extra=self.fields | event)


@contextmanager
def log_run(journal: Journal, *, run: UUID, agent: str, model: str | None) -> Generator[RunLogger]:
    """Log a run, and the error that leaves the block by its code. Costs nothing where nobody collects."""
    log = logging.getLogger(NAME)
    book = RunLogger({"conversation": str(journal.cid), "run": str(run)})
    if not log.isEnabledFor(logging.INFO):
        yield book
        return
    started = time.monotonic()
    log.info("run started", extra=book.fields | {"agent": agent, "model": model})
    journal.listeners.append(book.tell)
    how: dict[str, Any] = {"status": "interrupted"}
    try:
        yield book
        how = {} if book.result is None else {"status": book.result.status, "steps": book.result.steps}
    except BoughError as error:
        how = {"status": "error", "code": error.code}
        raise
    finally:
        if book.tell in journal.listeners:
            journal.listeners.remove(book.tell)
        duration = {"duration_seconds": round(time.monotonic() - started, 6)}
        log.info("run ended", extra=book.fields | how | duration)


def _numbers(event: Event) -> dict[str, Any]:
    match event:
        case ModelResponded():
            used = event.usage
            tokens = {"input_tokens": used.input_tokens, "output_tokens": used.output_tokens, "cost_usd": used.cost_usd}
            return {"model": event.model, "duration_seconds": event.latency_seconds, **tokens}
        case ToolReturned() | ToolFailed():
            return {"tool": event.tool, "call": event.tool_call_id, "duration_seconds": event.duration_seconds}
        case ToolCalled() | ToolRejected() | ToolInterrupted():
            return {"tool": event.tool, "call": event.tool_call_id}
        case HookRan():
            return {"hook": event.hook, "verdict": event.verdict, "duration_seconds": event.duration_seconds}
        case ScriptRan():
            return {"skill": event.skill, "script": event.script, "exit_code": event.exit_code}
        case LimitReached():
            return {"limit": event.limit}
        case ErrorRaised():
            return {"code": event.code}
        case _:
            return {}
