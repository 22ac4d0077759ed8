"""Attempts as tasks: each message of a case is a task of a broker, submitted after the previous one completed.

Idempotency keys derive from the run: a process that resumes a killed run submits the same tasks and gets the existing
tasks. The broker handles leases, take-over and concurrency.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import anyio

from bough.agents.spec import AgentSpec
from bough.cancellation import finish
from bough.errors import BoughError, NotFound
from bough.evals.metrics.deterministic import uses_skill
from bough.evals.run.attempt import AttemptEnd, AttemptRunner, make_workspace
from bough.evals.run.plan import PlannedAttempt
from bough.evals.trace import Trace
from bough.events.model import UserMessage
from bough.events.record import StoredEvent
from bough.tasks.agents import AGENT_PATH
from bough.tasks.broker import TaskBroker
from bough.tasks.model import Task
from bough.tasks.notify import TaskStanding, has_stopped
from bough.tasks.state import TaskState
from bough.tasks.submitting import MAX_KEY_CHARACTERS, task_id_for_key

MAX_CLAIMS = 1000
"""Maximum claims of a turn's task: each time a killed run resumes, it claims the task again."""

_SKILL_USE_KINDS = frozenset({"SkillActivated", "ScriptRan", "ToolReturned"})
"""Kinds of events that can show that a skill is in use."""


@dataclass(kw_only=True)
class TaskAttemptRunner(AttemptRunner):
    """Runs attempts as tasks of a broker.

    Attributes:
        broker: A broker over the run's store, already entered. It serves no queue and runs only tasks submitted here.
    """

    broker: TaskBroker

    async def run(self, planned: PlannedAttempt) -> AttemptEnd:
        """Run the turns of an attempt one after another; an interrupted attempt continues."""
        if not self.has_budget:
            return AttemptEnd(status="", reason="the cost limit is reached")
        workspace = self.folder.workspace(planned.case.id, planned.number, planned.side)
        try:
            await anyio.to_thread.run_sync(make_workspace, workspace, planned.case.input)
            async with self._open_agent(planned, workspace) as spec:
                return await self._run_turns(planned, spec, workspace)
        except BoughError as error:
            await self._cancel_turns(planned)
            return AttemptEnd(status="error", error=error)
        except OSError as error:
            return AttemptEnd(status="error", reason=f"the workspace could not be created: {error}")

    @asynccontextmanager
    async def _open_agent(self, planned: PlannedAttempt, workspace: Path) -> AsyncGenerator[AgentSpec]:
        """Yield the agent of an attempt, prepared by the hook `prepare` if there is one."""
        spec = self.spec_for(planned)
        if self.prepare is None:
            yield spec
            return
        async with self.prepare(planned, spec, workspace) as prepared:
            yield prepared

    async def _run_turns(self, planned: PlannedAttempt, spec: AgentSpec, workspace: Path) -> AttemptEnd:
        """Run the turns in order until one does not finish, and return how the last turn ended."""
        # Registered under the attempt's name: attempts share the agent's name but have separate tools.
        self.broker.register_agents({planned.name: spec})
        end = AttemptEnd(status="idle")
        try:
            for number in range(1, len(planned.case.input.turns) + 1):
                task_id = await self._submit_turn(planned, number, spec, workspace)
                end = read_end(await self._wait_for_turn(planned, task_id))
                if end.status != "finished":
                    break
        except asyncio.CancelledError:
            # Drained before the attempt's tools close: otherwise a running call could fail, and the log would keep it.
            await finish(self.broker.drain(0))
            raise
        finally:
            self.broker.forget_agents([planned.name])
        return end

    async def _submit_turn(self, planned: PlannedAttempt, number: int, spec: AgentSpec, workspace: Path) -> str:
        """Submit a turn, or wake the task an earlier process submitted for it; return the task's id."""
        key = _turn_key(planned, number)
        task_id = str(task_id_for_key(key))
        if await self.broker.store.get(task_id) is not None:
            self.broker.wake(task_id)
            return task_id
        if number == 1:
            title = f"eval {planned.name}"
            opening = self.host.open(planned.conversation, spec, workspace, planned.tags, title)
        else:
            opening = self.host.reopen(planned.conversation, spec)
        async with await opening as conversation:
            message, *activated = await conversation.prepare_message(planned.case.input.turns[number - 1].user)
        metadata: dict[str, Any] = {AGENT_PATH: [planned.name], "max_attempts": MAX_CLAIMS}
        submitted = await self.broker.run(
            planned.conversation,
            cast("UserMessage", message),
            activated=activated,
            agent_name=spec.name,
            idempotency_key=key,
            **metadata,
        )
        return submitted or task_id

    async def _cancel_turns(self, planned: PlannedAttempt) -> None:
        """Cancel the tasks of an attempt that cannot continue, since an earlier process may have submitted them."""
        for number in range(1, len(planned.case.input.turns) + 1):
            with suppress(NotFound):
                await self.broker.cancel(str(task_id_for_key(_turn_key(planned, number))))

    async def _wait_for_turn(self, planned: PlannedAttempt, task_id: str) -> Task:
        """Wait until a task stops, and return it; a task that waits for input or for a retry is then cancelled.

        The returned task has the state before the cancellation. A trigger query is interrupted as soon as its skill is
        in use.
        """
        case = planned.case.input
        skill_watch = None
        if case.should_trigger is not None and case.skill is not None:
            skill_watch = asyncio.create_task(self._interrupt_on_skill_use(planned.conversation, case.skill))
        try:
            task = await self.broker.wait_until(task_id, _is_over)
        finally:
            if skill_watch is not None:
                skill_watch.cancel()
                await asyncio.gather(skill_watch, return_exceptions=True)
        if skill_watch is not None and not skill_watch.cancelled():
            skill_watch.result()  # raises the error of the watch
        if not task.is_terminal:
            await self.broker.cancel(task_id)
        return task

    async def _interrupt_on_skill_use(self, conversation: UUID, skill: str) -> None:
        """Follow the log and interrupt its run when the skill is in use."""
        events: list[StoredEvent] = []
        async for stored in self.host.store.subscribe(conversation):
            events.append(stored)
            if stored.kind in _SKILL_USE_KINDS and uses_skill(Trace.of(events), skill):
                await self.broker.interrupt(conversation, by="eval", reason=f"{skill} is in use")
                return


def read_end(task: Task) -> AttemptEnd:
    """Return how a turn ended, according to its task; a cancelled task counts as paused."""
    answer = task.result or ""
    if task.state is TaskState.COMPLETED:
        return AttemptEnd(status="finished", answer=answer)
    if task.state is TaskState.INPUT_REQUIRED:
        return AttemptEnd(status="waiting_for_confirmation", answer=answer)
    if task.state is TaskState.CANCELLED:
        return AttemptEnd(status="paused", answer=answer)
    last_payload: Mapping[str, object] = task.events[-1].payload if task.events else {}
    reason = str(last_payload.get("reason") or "")
    if task.code == "limit_exceeded" and reason == "stuck":
        return AttemptEnd(status="stuck", answer=answer)
    if task.code == "limit_exceeded" and reason:
        return AttemptEnd(status="paused", answer=answer, limit=reason)
    error = BoughError(task.error or "the run failed", code=task.code or "internal")
    return AttemptEnd(status="error", answer=answer, error=error)


def _is_over(task: TaskStanding) -> bool:
    """Return whether a turn is over: an eval answers no requests for input and does not retry failures."""
    return has_stopped(task) or (task.state is TaskState.PENDING and task.is_delayed)


def _turn_key(planned: PlannedAttempt, number: int) -> str:
    """Return the idempotency key of a turn; a key that is too long is replaced by its digest."""
    parts: Sequence[object] = (planned.run, planned.case.id, planned.number, planned.side, number)
    key = "/".join(map(str, parts))
    return key if len(key) <= MAX_KEY_CHARACTERS else f"{planned.run}/{sha256(key.encode()).hexdigest()}"
