"""One run of a conversation, from taking the lease to recording its end."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from uuid import UUID

from pydantic_ai import Agent
from pydantic_ai.models import Model

from bough.agents.build import Blueprint
from bough.agents.context import ToolContext
from bough.agents.delegation_protocol import Delegation, SharedBound
from bough.agents.models.resolve import can_stream
from bough.agents.retry_policy import RetryPolicy
from bough.agents.spec import AgentSpec
from bough.cancellation import finish
from bough.conversation.agent import AgentInForce, require_prices, resolve_spec_model, with_other_model
from bough.conversation.check import RunCheck
from bough.conversation.file_store import read_bounds
from bough.conversation.follow import HANDED_BACK
from bough.conversation.log.condenser import Condenser, Summarize, SummarizingCondenser
from bough.conversation.log.journal import Journal
from bough.conversation.log.listeners import Update
from bough.conversation.log.staged_write import Ending, is_control
from bough.conversation.log.tool_result import find_result, result_chars
from bough.conversation.parts import Environment
from bough.conversation.result import RunResult
from bough.conversation.rules import Rules, RulesInForce
from bough.conversation.run.check_command import CheckAtEnd
from bough.conversation.run.checks import FindReached, Supervisor
from bough.conversation.run.keeper import Keeper
from bough.conversation.run.loop import REMINDER, Loop, NodeListener
from bough.conversation.run.outcome import RunOutcome, read_data
from bough.conversation.run.recorder import Recorder
from bough.conversation.run.retry import Retries
from bough.conversation.run.shared_bounds import SharedBounds
from bough.conversation.run.spending import RunBudgets
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
    """Makes the models of one run. The first use of a provider imports it, which takes up to a second.

    Args:
        rules: Returns the rules in force now. If they limit the cost, the prices of each model must be known.
    """

    def __init__(self, settings: Settings, rules: Callable[[], Rules]) -> None:
        self._settings = settings
        self._rules = rules

    def find_model(self, spec: AgentSpec) -> Model:
        """Return the agent's model.

        Raises:
            InvalidInput: The model is unknown, or its prices are needed and unknown.
            Unavailable: The model's API key or package is missing.
        """
        model = resolve_spec_model(spec, self._settings)[0]
        rules = self._rules()
        require_prices(model, rules.limits, self._settings.prices, rules.budgets)
        return model

    def resolve_named(self, name: str, spec: AgentSpec) -> Model:
        """Return another model by name, at the agent's address, with the agent's key if the provider is the same.

        Raises: see `find_model`.
        """
        return self.find_model(with_other_model(spec, name, spec.base_url))

    def with_model(self, condenser: Condenser, spec: AgentSpec, model: Model, summarize: Summarize) -> Condenser:
        """Return the condenser with what it needs to make summaries: its own model, or else `model`.

        Args:
            summarize: Asks the model, unless the condenser has a function of its own.

        Raises: see `find_model`.
        """
        if not isinstance(condenser, SummarizingCondenser):
            return condenser
        own_model = self.resolve_named(condenser.model, spec) if isinstance(condenser.model, str) else condenser.model
        return replace(condenser, model=own_model or model, summarize=condenser.summarize or summarize)


CONTINUE = (
    "Your answer was cut off. Continue exactly where it stopped: repeat nothing, do not mention the interruption."
)


class Runner:
    """Runs one conversation once.

    Args:
        root: The root conversation of its tree. Requests of one tree share a prefix, which a provider may cache.
        limits: Limits of this run, in addition to those of the rules.
        delegation: Runs the tasks of the agent's sub-agents.
        ancestors: Limits of the conversations above this one, which also apply to this run.
        on_node: Awaited for every node of PydanticAI's graph before that node runs.
        find_reached: Called before each request. Returns a limit of the caller (not of the log) that was reached.
        check: A command that tests the files whenever the agent has finished.

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
        check: RunCheck | None = None,
    ) -> None:
        self._journal = journal
        self._agent = agent
        self._spec = agent.builder.spec
        self._environment = environment
        self._rules_in_force = rules
        self._limits = limits
        self._models = RunModels(environment.settings, self._read_rules)
        self._root = root
        self._delegation = delegation
        self._shared: SharedBounds | None = None
        if delegation is not None:
            self._shared = SharedBounds(delegation, journal.cid, ancestors, self._read_rules)
        self._on_node = on_node
        self._find_reached = find_reached
        self._check = check
        self._start = journal.state.head
        self._current_loop: Loop | None = None
        self._outcome = RunOutcome()
        self._seq_after_control = 0
        self._lease: Lease | None = None
        self._ending: Ending | None = None
        self._stop_note = StopNote()
        self._task: asyncio.Task[Any] | None = None
        self._keeper: Keeper | None = None
        self._listen_after: int | None = None
        self._on_event: Callable[[StoredEvent], None] = self._stop_if_asked
        self.has_lease = asyncio.Event()

    async def run(self, *, lease: Lease | None = None, ending: Ending | None = None) -> RunResult:
        """Run to the end and return the result. Returns immediately if there is no work and no `ending`.

        Args:
            lease: A lease that the caller takes, renews and releases; None takes and releases one here.
            ending: A change that is made exactly once, in the transaction of the run's last events; also without work.
        """
        self._task, self._ending = asyncio.current_task(), ending
        await self._journal.catch_up()
        state = self._journal.state
        self._start = state.head
        unfinished = state.has_work or state.status in ("running", "paused") or self._check is not None
        has_work = unfinished and not state.waiting
        if ending is None:
            if not has_work:
                return self.result()
            self._models.find_model(self._agent().spec)  # raises for an unusable model before anything is recorded
        # Before the first event: masking is synchronous and cannot read a secret's file or command.
        await self._rules.secrets.resolve()
        spec = self._agent().spec
        attributes: Any = {"run": new_id(), "agent": spec.name, "model": spec.model_name}
        with run_span(self._journal.cid, **attributes) as span, log_run(self._journal, **attributes) as run_logger:
            # Closed after the lease: the keeper's first look may take a minute, and the next run must not wait for it.
            async with self._close_keeper(), self._hold_lease(lease) as run_lease:
                self._lease = run_lease
                self.has_lease.set()
                self._journal = self._journal.use_lease(run_lease.generation)
                self._journal.watchers.append(self._outcome.watch)
                try:
                    async with self._follow_control():
                        await (self._run_leased() if has_work else self._end_without_work())
                finally:
                    self._journal.watchers.remove(self._outcome.watch)
            result = self.result()
            span.end(result)
            run_logger.result = result
        return result

    def stop(self, reason: StopReason) -> None:
        """Stop the run now and kill the process trees of its tools. `reason` decides which last events are recorded."""
        if self._task is None:
            self._stop_note.reason = reason
        elif not self._task.done():
            if self._stop_note.reason is None:  # the first reason decides: after `fenced`, nothing may be written
                self._stop_note.reason = reason
            self._task.cancel()

    def hand_back(self, on_hand_back: Callable[[], None]) -> None:
        """Stop the run after the current step so that another worker continues it, and call `on_hand_back` then."""
        self._stop_note.on_hand_back = on_hand_back

    def listen(self, after: int, on_event: Callable[[StoredEvent], None]) -> None:
        """Call `on_event` with every event after seq `after` during the run.

        This replaces the run's own check for interrupts, so `on_event` must call `stop` for them.
        """
        self._listen_after, self._on_event = after, on_event

    @property
    def was_interrupted(self) -> bool:
        """Whether the run was interrupted, from any process."""
        return self._stop_note.reason == "interrupt"

    @asynccontextmanager
    async def _follow_control(self) -> AsyncGenerator[None]:
        """During the block, follow the log for events by which other processes control the run."""
        following = asyncio.create_task(self._follow_log(), name=f"tail of {self._journal.cid}")
        try:
            yield
        finally:
            following.cancel()
            await asyncio.wait({following})

    async def _follow_log(self) -> None:
        """Pass each event to the listener, and remember the seq after the latest event that controls this run."""
        last_seq = self._journal.durable - 1
        after = last_seq if self._listen_after is None else min(self._listen_after, last_seq)
        with suppress(BoughError):  # the run itself reports a store that is unavailable
            async for stored in self._environment.store.subscribe(self._journal.cid, after):
                self._on_event(stored)
                is_control_event = stored.kind in ("PauseRequested", "StateChanged") and is_control(stored.event)
                if is_control_event and stored.seq > last_seq:
                    self._seq_after_control = stored.seq + 1

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
        """Record the end of a run without work. If work has arrived in the meantime, do it first."""
        state = self._journal.state
        has_ended = await (self._record_status(state.status) if state.waiting else self._finish())
        if not has_ended:
            self._journal = self._journal.use_lease(self._generation)
            await self._run_leased()

    async def _run_leased(self) -> None:
        """Run under the lease, and record the end of the run in the log, even after an error or a cancellation."""
        try:
            # Before `_begin` stages events: during a slow rendering, staged events would be written on their own.
            await self._journal.render()
            self._begin(await self._measure_spent())
            while not await self._record_status(await self._run_within_limits()):
                self._journal = self._journal.use_lease(self._generation)
        except asyncio.CancelledError:
            # A fenced run has lost its lease, so its appends would be refused. Nothing may follow a run's last event.
            if self._stop_note.reason != "fenced" and not self._has_made_ending:
                is_handed_back = self._stop_note.reason == "hand_back"
                self._outcome.interrupted = not is_handed_back
                reason = HANDED_BACK if is_handed_back else "interrupted"
                with suppress(BoughError):  # the cancellation must reach the caller
                    await self._append_end(StateChanged(changes={"status": "paused"}, reason=reason))
            raise
        except BoughError as error:
            await self._record_error(error)
            raise
        except Exception as error:
            failure = BoughError(f"the run failed: {type(error).__name__}: {error}")
            await self._record_error(failure)
            raise failure from error

    async def _measure_spent(self) -> JsonObject:
        """Return the entry `spent` of a run's first event: what the conversation and its tasks have used so far.

        Empty for an agent without sub-agents.
        """
        if self._delegation is None or not self._spec.sub_agents:
            return {}
        spent = await self._delegation.read_spent(self._journal.cid)
        return {"spent": {"usage": spent.usage.model_dump(mode="json"), "tasks": spent.tasks}}

    def _begin(self, spent: JsonObject) -> None:
        """Record that the run has started. Asks the model to continue a truncated answer if there is no other work.

        Args:
            spent: The entry that `_measure_spent` returns.
        """
        state = self._journal.state
        if state.status == "running" and not state.has_work:
            self._outcome.take_over(state)
        cut_off = state.status == "paused" and state.partial and not state.has_work and bool(state.output)
        self._journal.stage(*self._rules_in_force.make_events(), StateChanged(changes={"status": "running", **spent}))
        if cut_off:
            self._journal.stage(UserMessage.text(CONTINUE, sender=REMINDER))

    @property
    def _has_made_ending(self) -> bool:
        return self._ending is not None and self._ending.is_made

    @property
    def _generation(self) -> int:
        return 0 if self._lease is None else self._lease.generation

    async def _run_within_limits(self) -> Status:
        """Run the loop within its time limit, which also ends a tool that hangs."""
        limit = self._rules.limits.wall_seconds
        started, timer = time.monotonic(), asyncio.timeout(limit)
        try:
            async with timer:
                return await self._run_with_new_keeper()
        except TimeoutError:
            if limit is None or not timer.expired():  # the error came from the run itself
                raise
            elapsed = round(time.monotonic() - started, 6)
            self._journal.stage(LimitReached(limit="wall_seconds", value=elapsed, bound=limit))
            return "paused"

    async def _run_with_new_keeper(self) -> Status:
        """Run the loop with a new keeper of the files, and return the final status."""
        if self._keeper is not None:
            await finish(self._keeper.aclose())
        self._keeper = self._make_keeper()
        return await self._run_loop(self._keeper)

    @asynccontextmanager
    async def _close_keeper(self) -> AsyncGenerator[None]:
        """After the block, end the work of the keeper, which may still be reading files of the workspace."""
        try:
            yield
        finally:
            if self._keeper is not None:
                await finish(self._keeper.aclose())

    def _make_keeper(self) -> Keeper | None:
        """Return a keeper of the workspace's files; None if the settings, the rules or the workspace exclude it."""
        settings, file_store = self._environment.settings, self._environment.file_store
        if not settings.keep_files or not self._rules.keep_files or self._readonly or file_store is None:
            return None
        return Keeper(self._journal, file_store, self._journal.state.workspace, read_bounds(settings))

    async def _run_loop(self, keeper: Keeper | None) -> Status:
        """Run the loop and return the final status. A model set during the run applies from the next step on."""
        journal = self._journal
        budgets = RunBudgets(journal, self._read_rules, self._generation, self._environment.settings.prices)
        recorder = Recorder(
            journal,
            lambda: supervisor.guard(),
            budgets=budgets,
            cache_key=str(self._root),
            note=self._stop_note,
            idle_seconds=self._environment.settings.stream_idle_seconds,
            keeper=keeper,
        )
        supervisor = Supervisor(
            journal,
            recorder,
            rules=self._read_rules,
            clock=SystemClock(),
            note=self._stop_note,
            shared=self._shared,
            find_reached=self._find_reached,
            run_check=self._make_check(keeper),
        )
        retries = Retries(journal, resolve=lambda name: self._models.resolve_named(name, self._spec))
        loop = Loop(journal, recorder, supervisor, self._finish, retries=retries, on_node=self._on_node)
        loop.steps, self._current_loop = self._steps, loop
        journal.watchers.extend((supervisor.watch, retries.watch))
        try:
            # Daemon threads: a blocked tool must not keep the program alive.
            with Agent.using_thread_executor(threads()):
                status = None
                while status is None:
                    status = await self._loop_with_agent(loop, recorder, supervisor, retries)
                return status
        finally:
            journal.watchers.remove(supervisor.watch)
            journal.watchers.remove(retries.watch)

    def _make_check(self, keeper: Keeper | None) -> Callable[[], Awaitable[None]] | None:
        if self._check is None:
            return None
        return CheckAtEnd(self._check, self._journal, self._environment.executor, lambda: self._guards, keeper).run

    async def _loop_with_agent(
        self, loop: Loop, recorder: Recorder, supervisor: Supervisor, retries: Retries
    ) -> Status | None:
        """Run the loop with the current agent, and return the final status; None if another agent was set."""
        try:
            blueprint = self._agent()
            spec = self._spec = blueprint.spec
            model = self._models.find_model(spec)
            condenser = self._models.with_model(self._rules.condenser, spec, model, recorder.budgets.summarize)
        except InvalidInput as error:  # the model object exists only in another process, which can continue
            self._journal.stage(ErrorRaised(code=error.code, message=public_message(error), hint=error.hint))
            return "paused"
        shown_chars = result_chars(spec.result_tokens, model)
        recorder.configure(shown_chars, streams=can_stream(model))
        supervisor.condenser = condenser
        retries.configure(model, spec.retry or RetryPolicy(), tuple(spec.fallback))
        agent = self._without_write_tools(blueprint).agent(model, instructions=self._journal.state.instructions)
        async with agent:
            is_current = partial(self._is_current, blueprint)
            return await loop.run(agent, self._make_tool_context(shown_chars), spec.output_type, is_current=is_current)

    async def _is_current(self, blueprint: Blueprint) -> bool:
        """Whether the blueprint is still that of the conversation's agent, which any process may change."""
        if self._seq_after_control > self._journal.durable:
            await self._journal.catch_up()
        try:
            return self._agent() is blueprint
        except InvalidInput:
            return False

    @property
    def _steps(self) -> int:
        return 0 if self._current_loop is None else self._current_loop.steps

    @property
    def _data(self) -> Any:
        return None if self._current_loop is None else self._current_loop.data

    @property
    def _rules(self) -> Rules:
        """The rules in force now."""
        return self._read_rules()

    def _read_rules(self) -> Rules:
        """Return the rules in force now, narrowed by the limits of this run, which are not recorded."""
        rules = self._rules_in_force()
        return rules if self._limits is None else replace(rules, limits=narrower(rules.limits, self._limits))

    def _without_write_tools(self, blueprint: Blueprint) -> Blueprint:
        """Return the blueprint. In a read-only workspace, it lacks the tools that write."""
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
        return self._environment.list_guards(self._spec, self._rules, self._journal.state.workspace)

    def _make_tool_context(self, shown_chars: int) -> ToolContext:
        """Return what the tools need of this run.

        Args:
            shown_chars: Maximum number of characters of a result that the model is shown.
        """
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
            unreported_tasks=lambda: state.tasks_to_report,
            task_of_call=lambda call: next((id for id, link in state.tasks.items() if link.call == call), None),
            leaves_calls_open=lambda: self._stop_note.leaves_calls_open,
        )

    async def _finish(self) -> bool:
        """Record that the run is finished, unless there is new work. Returns whether the run is finished."""
        state = self._journal.state
        return await self._journal.append_while(
            lambda: not state.has_work, StateChanged(changes={"status": "finished"}), ending=self._ending
        )

    async def _record_status(self, status: Status) -> bool:
        """Record the final status, unless the event that ended the run has set it. All events are durable afterwards.

        Returns:
            Whether the run has ended. False if the calls that waited have been decided, so that the run must continue.
        """
        state = self._journal.state
        if self._ending is None:
            if state.status != status:
                self._journal.stage(StateChanged(changes={"status": status}))
            await self._journal.settle()
            return not await self._release_waits()
        if status == "finished":
            return True  # `_finish` made the ending in the transaction that recorded the status
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
                    raise  # no other writer appended, so the lease was lost
                if status == "waiting_for_confirmation" and not state.waiting:
                    return False  # the calls were decided in the meantime
            else:
                return True

    async def _release_waits(self) -> bool:
        """Release calls whose task ended before their wait was recorded. Returns whether no call waits after that.

        A task that ends later finds the recorded wait and releases the call itself.
        """
        state = self._journal.state
        changes = release_ended(state)
        if changes is None:
            return False
        released = StateChanged(changes=changes, reason="its task ended")
        await self._journal.append_while(lambda: release_ended(state) == changes, released)
        return not state.waiting

    async def _append_end(self, *events: Event, error: BoughError | None = None) -> None:
        """Append the last events, even if an earlier append of this run failed."""
        # A new writer: after a failed append, the old one refuses all others.
        journal = self._journal.use_lease(self._generation)
        if self._ending is None:
            await journal.append(*events)
        else:
            await journal.finish(*events, ending=self._ending, error=error)

    async def _record_error(self, error: BoughError) -> None:
        """Record the error in the log. If that fails, put the reason into `details["unrecorded"]` of the error."""
        try:
            await self._append_end(
                ErrorRaised(code=error.code, message=public_message(error), hint=error.hint),
                StateChanged(changes={"status": "error"}),
                error=error,
            )
        except BoughError as write_error:
            error.details["unrecorded"] = public_message(write_error)

    def result(self) -> RunResult:
        """Return the result of the run so far."""
        state, outcome = self._journal.state, self._outcome
        if self.was_interrupted and self._task is None:  # interrupted before it started
            outcome.interrupted = True
        data = read_data(self._spec.output_type, self._data, state.data)
        return outcome.result(state, self._journal.cid, start=self._start, steps=self._steps, data=data)


LOGGER_NAME = "bough.run"


@dataclass
class RunLogger:
    """Writes the durable events of one run to Python's log.

    Attributes:
        fields: Fields of every log record.
        result: Set by the caller when the run has ended.
    """

    fields: dict[str, Any]
    result: RunResult | None = None

    def log_update(self, update: Update) -> None:
        """Log a durable event."""
        if isinstance(update, StoredEvent):
            event_fields = {"event": update.kind, "seq": update.seq, **_make_log_fields(update.event)}
            logging.getLogger(LOGGER_NAME).info("event %s", update.kind, extra=self.fields | event_fields)


@contextmanager
def log_run(journal: Journal, *, run: UUID, agent: str, model: str | None) -> Generator[RunLogger]:
    """Write start, events and end of a run to Python's log. Does nothing if its level is above INFO."""
    log = logging.getLogger(LOGGER_NAME)
    run_logger = RunLogger({"conversation": str(journal.cid), "run": str(run)})
    if not log.isEnabledFor(logging.INFO):
        yield run_logger
        return
    started = time.monotonic()
    log.info("run started", extra=run_logger.fields | {"agent": agent, "model": model})
    journal.listeners.append(run_logger.log_update)
    end_fields: dict[str, Any] = {"status": "interrupted"}
    try:
        yield run_logger
        result = run_logger.result
        end_fields = {} if result is None else {"status": result.status, "steps": result.steps}
    except BoughError as error:
        end_fields = {"status": "error", "code": error.code}
        raise
    finally:
        if run_logger.log_update in journal.listeners:
            journal.listeners.remove(run_logger.log_update)
        duration = {"duration_seconds": round(time.monotonic() - started, 6)}
        log.info("run ended", extra=run_logger.fields | end_fields | duration)


def _make_log_fields(event: Event) -> dict[str, Any]:
    """Return the fields of a log record for an event: names, durations and amounts, never texts."""
    match event:
        case ModelResponded():
            return {
                "model": event.model,
                "duration_seconds": event.latency_seconds,
                "input_tokens": event.usage.input_tokens,
                "output_tokens": event.usage.output_tokens,
                "cost_usd": event.usage.cost_usd,
            }
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
