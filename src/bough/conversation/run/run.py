"""One run from its lease to its end: what starts it, what it may do, and how its end is written down."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import UUID

from pydantic import ValidationError
from pydantic_ai import Agent
from pydantic_ai.models import Model

from bough.agents.build import Blueprint
from bough.agents.context import ToolContext
from bough.agents.delegation import Delegation, SharedBound
from bough.agents.models.streaming import can_stream
from bough.agents.output_type import read_output
from bough.agents.retry import RetryPolicy
from bough.conversation.agent import require_prices, resolved_model
from bough.conversation.log.condenser import Condenser, NoCondenser, SummarizingCondenser
from bough.conversation.log.ending import Ending
from bough.conversation.log.journal import Journal
from bough.conversation.parts import Surroundings
from bough.conversation.result import RunResult
from bough.conversation.rules import Rules, RulesInForce, RulesOfRun
from bough.conversation.run.ask import summarize
from bough.conversation.run.checks import Supervisor, condense
from bough.conversation.run.recorder import Recorder
from bough.conversation.run.results import find_result
from bough.conversation.run.retry import Retries
from bough.conversation.run.run_logging import logged_run
from bough.conversation.run.shared_bounds import SharedBounds
from bough.conversation.run.step import Loop, NodeListener
from bough.conversation.run.stop import StopNote, StopReason
from bough.conversation.run.tracing import run_span
from bough.conversation.run.waits import release_ended
from bough.errors import BoughError, Conflict
from bough.events.lease import held_lease
from bough.events.model import ErrorRaised, Event, LimitReached, StateChanged
from bough.events.record import Lease, Status
from bough.portal import threads
from bough.types import JsonObject, SystemClock, new_id


class Runner:
    """Runs one conversation once.

    Args:
        root: The first conversation of its tree, whose requests begin alike: a provider may cache that beginning.
        delegation: Runs the tasks of its sub-agents.
        ancestors: Bounds of the conversations above it, which its task has to keep.
        on_node: Awaited for every node of PydanticAI's graph before that node runs.
    """

    def __init__(
        self,
        journal: Journal,
        blueprint: Blueprint,
        surroundings: Surroundings,
        rules: RulesInForce | RulesOfRun,
        *,
        root: UUID,
        delegation: Delegation | None = None,
        ancestors: Sequence[SharedBound] = (),
        on_node: NodeListener | None = None,
    ) -> None:
        self._journal = journal
        self._blueprint = blueprint
        self._surroundings = surroundings
        self._in_force = rules
        self._root = root
        self._delegation = delegation
        self._shared: SharedBounds | None = None
        if delegation is not None:
            self._shared = SharedBounds(delegation, journal.cid, ancestors, rules)
        self._on_node = on_node
        self._steps = 0
        self._data: Any = None
        self._lease: Lease | None = None
        self._ending: Ending | None = None
        self._note = StopNote()
        self._task: asyncio.Task[Any] | None = None

    async def run(self, *, lease: Lease | None = None, ending: Ending | None = None) -> RunResult:
        """Run to the end, and return how it ended; without work, at once.

        Args:
            lease: Taken, renewed and released by its giver; None takes one and gives it back.
            ending: Made with the run's last events, and so exactly once, under the lease; also without work.
        """
        self._task, self._ending = asyncio.current_task(), ending
        await self._journal.catch_up()
        state = self._journal.state
        start = state.head
        unfinished = state.has_work or state.status in ("running", "paused")
        has_work = unfinished and not state.waiting
        if ending is None:
            if not has_work:
                return self.result(start)
            self._model()  # what is wrong with it is nothing that happened: it is not recorded
        spec = self._blueprint.spec
        named: Any = {"run": new_id(), "agent": spec.name, "model": spec.model_name}
        with run_span(self._journal.cid, **named) as span, logged_run(self._journal, **named) as book:
            async with self._held_lease(lease) as held:
                self._lease = held
                self._journal = self._journal.leased(held.generation)
                await (self._held() if has_work else self._end_without_work())
            result = self.result(start)
            span.end(result)
            book.result = result
        return result

    def stop(self, reason: StopReason) -> None:
        """End the run now: its tools are killed as a tree. `reason` decides what it still writes down."""
        if self._task is not None and not self._task.done():
            self._note.reason = self._note.reason or reason
            self._task.cancel()

    def hand_back(self, told: Callable[[], None]) -> None:
        """End the run at the end of its step, so that another worker goes on; `told` is called when it does so."""
        self._note.on_hand_back = told

    @asynccontextmanager
    async def _held_lease(self, given: Lease | None) -> AsyncGenerator[Lease]:
        if given is not None:
            yield given
            return
        async with held_lease(self._surroundings.store, self._journal.cid) as lease:
            yield lease

    async def _end_without_work(self) -> None:
        """Make the ending of a run that has nothing to do; a message that came meanwhile is work."""
        state = self._journal.state
        done = await (self._leave(state.status) if state.waiting else self._finish())
        if not done:
            self._journal = self._journal.leased(self._generation)
            await self._held()

    async def _held(self) -> None:
        """Run while the lease is held; whatever ends the run is in the log afterwards."""
        try:
            model = self._model()
            await self._journal.render()  # now, while nothing is staged that would be written without what follows it
            begun = {"status": "running", **await self._measure_spent()}
            self._journal.stage(*self._in_force.recorded(), StateChanged(changes=begun))
            while not await self._leave(await self._bounded(model)):
                self._journal = self._journal.leased(self._generation)
        except asyncio.CancelledError:
            if self._note.reason != "fenced" and not self._is_ended:
                why = "handed back" if self._note.reason == "hand_back" else "interrupted"
                with suppress(BoughError):  # what ends the run is the cancellation
                    await self._last_words(StateChanged(changes={"status": "paused"}, reason=why))
            raise
        except BoughError as error:
            await self._record(error)
            raise
        except Exception as error:
            failure = BoughError(f"the run failed: {type(error).__name__}: {error}")
            await self._record(failure)
            raise failure from error

    async def _measure_spent(self) -> JsonObject:
        """Return what the conversation and the tasks below it have used, where it may start some."""
        if self._delegation is None or not self._blueprint.spec.sub_agents:
            return {}
        now = await self._delegation.spent(self._journal.cid)
        return {"spent": {"usage": now.usage.model_dump(mode="json"), "tasks": now.tasks}}

    @property
    def _is_ended(self) -> bool:
        return self._ending is not None and self._ending.is_made

    def _model(self) -> Model:
        """Return the model, whose prices are known where cost is bounded."""
        model = resolved_model(self._blueprint.spec, self._surroundings.settings)[0]
        require_prices(model, self._rules.limits)
        return model

    @property
    def _generation(self) -> int:
        return 0 if self._lease is None else self._lease.generation

    async def _bounded(self, model: Any) -> Status:
        """Run the loop no longer than the limits allow, a tool that hangs included."""
        bound = self._rules.limits.wall_seconds
        started, timer = time.monotonic(), asyncio.timeout(bound)
        try:
            async with timer:
                return await self._loop(model)
        except TimeoutError:
            if bound is None or not timer.expired():
                raise
            elapsed = round(time.monotonic() - started, 6)
            self._journal.stage(LimitReached(limit="wall_seconds", value=elapsed, bound=bound))
            return "paused"

    async def _loop(self, model: Any) -> Status:
        """Run the loop and return the status to leave with."""
        journal, rules = self._journal, self._rules
        agent = self._usable().agent(model, instructions=journal.state.instructions)
        result_chars = _result_chars(self._blueprint.spec.result_tokens, model)
        recorder = Recorder(
            journal,
            lambda: supervisor.guard(),
            result_chars=result_chars,
            cache_key=str(self._root),
            streams=can_stream(model),
            note=self._note,
        )
        condenser = _with_model(rules.condenser, model)
        supervisor = Supervisor(
            journal, recorder, rules=self._in_force, condenser=condenser, clock=SystemClock(), note=self._note,
            shared=self._shared,
        )  # fmt: skip
        spec = self._blueprint.spec
        retries = Retries(
            journal,
            model,
            policy=spec.retry or RetryPolicy(),
            fallback=tuple(spec.fallback),
            resolve=self._fallback_model,
        )
        loop = Loop(
            agent,
            journal,
            self._context(result_chars),
            recorder,
            supervisor,
            self._finish,
            retries=retries,
            output_type=spec.output_type,
            on_node=self._on_node,
        )
        journal.watchers.extend((supervisor.watch, retries.watch))
        try:
            with Agent.using_thread_executor(threads()):  # a tool that blocks for ever keeps no program from ending
                async with agent:
                    return await loop.run()
        finally:
            self._steps, self._data = loop.steps, loop.data
            journal.watchers.remove(supervisor.watch)
            journal.watchers.remove(retries.watch)

    def _fallback_model(self, name: str) -> Model:
        """Return the model that a fallback names, where its prices are known as a bound of cost needs them."""
        spec = self._blueprint.spec.model_copy(update={"model": name})
        model = resolved_model(spec, self._surroundings.settings)[0]
        require_prices(model, self._rules.limits)
        return model

    @property
    def _rules(self) -> Rules:
        """The rules in force now."""
        return self._in_force()

    async def condense(self) -> bool:
        """Condense what the model sees now, by the conversation's condenser or else by its model."""
        model = resolved_model(self._blueprint.spec, self._surroundings.settings)[0]
        condenser = _with_model(self._rules.condenser, model)
        if isinstance(condenser, NoCondenser):
            condenser = _with_model(SummarizingCondenser(), model)
        await self._journal.catch_up()
        async with held_lease(self._surroundings.store, self._journal.cid) as lease:
            return await condense(self._journal.leased(lease.generation), condenser, force=True)

    def _usable(self) -> Blueprint:
        """Return the blueprint with the tools that the workspace allows."""
        spec = self._blueprint.spec
        if not self._readonly or spec.workspace_access in ("none", "read"):
            return self._blueprint
        return replace(self._blueprint, spec=spec.model_copy(update={"workspace_access": "read"}))

    @property
    def _readonly(self) -> bool:
        return self._journal.state.workspace_policy == "readonly"

    def _context(self, result_chars: int) -> ToolContext:
        state, shared = self._journal.state, self._shared
        return ToolContext(
            read_result=partial(find_result, self._surroundings.store, self._journal.cid),
            result_chars=result_chars,
            workspace=self._journal.state.workspace,
            readonly=self._readonly,
            executor=self._surroundings.executor,
            emit=self._journal.append,
            active_skills=lambda: self._journal.state.active_skills,
            skill_trees=lambda: self._journal.state.skill_trees,
            secrets=self._rules.secrets.for_script,
            timeout_seconds=self._surroundings.settings.timeout_seconds,
            conversation=self._journal.cid,
            lease=self._lease,
            rules=self._rules.as_given,
            delegation=self._delegation,
            bounds=tuple if shared is None else lambda: shared.list_for_child(state),
            untold_tasks=lambda: state.untold_tasks,
            task_of_call=lambda call: next((id for id, link in state.tasks.items() if link.call == call), None),
            leaves_calls_open=lambda: self._note.leaves_calls_open,
        )

    async def _finish(self) -> bool:
        """Write down that the run is finished, unless a message came first: it is seen by the run, or finds none."""
        state = self._journal.state
        return await self._journal.append_while(
            lambda: not state.has_work, StateChanged(changes={"status": "finished"}), ending=self._ending
        )

    async def _leave(self, status: Status) -> bool:
        """Write down the status the run ends with, unless what ended it has; all of the run is durable then.

        Returns:
            Whether the run has ended: with an ending, a message that came in between is answered first.
        """
        state = self._journal.state
        if self._ending is None:
            if state.status != status:
                self._journal.stage(StateChanged(changes={"status": status}))
            await self._journal.settled()
            return not await self._release_waits()
        if status == "finished":
            return True  # the ending was made when that was written down
        while True:
            await self._journal.settled()
            if await self._release_waits():
                return False
            head = state.head
            events = [StateChanged(changes={"status": status})] if state.status != status else []
            try:
                await self._journal.finish(*events, ending=self._ending, expected_head=head)
            except Conflict:
                self._journal = self._journal.leased(self._generation)
                await self._journal.catch_up()
                if state.head == head:
                    raise  # not because of the head: the lease is lost
                if status == "waiting_for_confirmation" and not state.waiting:
                    return False  # somebody decided meanwhile
            else:
                return True

    async def _release_waits(self) -> bool:
        """Let calls go on whose task ended before the log said that they wait; say whether none waits any more.

        A task that ends later finds them in the log, and lets them go on itself.
        """
        state = self._journal.state
        if (changes := release_ended(state)) is None:
            return False
        released = StateChanged(changes=changes, reason="its task ended")
        await self._journal.append_while(lambda: release_ended(state) == changes, released)
        return not state.waiting

    async def _last_words(self, *events: Event, error: BoughError | None = None) -> None:
        """Append how the run ended, whether or not what it staged before could be written."""
        journal = self._journal.leased(self._generation)
        if self._ending is None:
            await journal.append(*events)
        else:
            await journal.finish(*events, ending=self._ending, error=error)

    async def _record(self, error: BoughError) -> None:
        """Write the error into the log, unless the log itself is what failed."""
        try:
            await self._last_words(
                ErrorRaised(code=error.code, message=error.message, hint=error.hint),
                StateChanged(changes={"status": "error"}),
                error=error,
            )
        except BoughError as unrecorded:
            error.details["unrecorded"] = unrecorded.message

    def result(self, start: int) -> RunResult:
        """Return what the run that began at seq `start` has come to so far."""
        state = self._journal.state
        return RunResult(
            status=state.status,
            output=state.output,
            steps=self._steps,
            start=start,
            stop=state.head,
            usage=state.own,
            limit=state.limit,
            data=self._output(state.data),
        )

    def _output(self, given: Any) -> Any:
        """Return the value this run gave; of a run that had ended before, the recorded one as its type reads it."""
        if self._data is not None or given is None:
            return self._data
        try:
            return read_output(self._blueprint.spec.output_type, given)
        except ValidationError:
            return given


def _result_chars(result_tokens: int, model: Any) -> int:
    """Return how many characters of a result the model is shown: never more than an eighth of its window."""
    window = model.profile.get("context_window")
    return 4 * (result_tokens if window is None else min(result_tokens, window // 8))


def _with_model(condenser: Condenser, model: Any) -> Condenser:
    """Return the condenser; one that summarizes can ask, and without a model of its own uses the conversation's."""
    if not isinstance(condenser, SummarizingCondenser):
        return condenser
    return replace(condenser, model=condenser.model or model, summarize=condenser.summarize or summarize)
