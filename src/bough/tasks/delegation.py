"""Delegation through a broker: the sub-agents of conversations run as tasks.

A parent never blocks its child: `delegate` claims the child in the transaction that submits it, and runs it in the
parent's process without a second slot. A parent inside `wait` lends its slot to its pending children.
"""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast
from uuid import UUID, uuid5

from bough.agents.delegation_protocol import Asking, Child, SharedBound, Spent
from bough.cancellation import finish
from bough.connect.mcp_pool import McpPool
from bough.conversation.fork.workspace import ForkedWorkspace, fork_workspace
from bough.conversation.rules import GivenRules, Rules
from bough.conversation.run.shared_bounds import check_usage, measure_since, subtract_from
from bough.errors import LimitExceeded, NotFound
from bough.events.record import ConversationRecord
from bough.events.side_tables import Tables
from bough.events.store import EventStore
from bough.settings import Settings
from bough.tasks.agents import AGENT_PATH, find_by_path, find_configured
from bough.tasks.model import Task
from bough.tasks.notify import Until, has_stopped
from bough.tasks.state import TaskState
from bough.tasks.store import Claim
from bough.tasks.stores.relational import RelationalTaskStore, sum_spent
from bough.tasks.stores.rows import FORMAT, TaskRow, find_live_row, find_row, parse_id, read_first
from bough.tasks.stores.submission import ParentLink, Submitted
from bough.tasks.submitting import SubmissionRequest, task_id_for_key
from bough.tasks.worker import Worker
from bough.types import JsonObject

if TYPE_CHECKING:
    from bough.agents.spec import AgentSpec


_CALLS = UUID("0f0c5f5e-9d3b-5d0b-8a43-6a7a4a3d1c22")
"""UUID namespace for the ids of tasks that tool calls start."""

_SHORTEST_PREFIX = 8
_OWN_FOLDER = "own_workspace"
"""Metadata key of a task: the folder that was created for it."""


def task_id_for_call(conversation: UUID, call: str) -> UUID:
    """Return the id of the task that a tool call starts. The same call always has the same id."""
    return uuid5(_CALLS, f"{conversation}:{call}")


class BrokerDelegation:
    """Starts, watches and stops the tasks of conversations. See `agents.delegation_protocol.Delegation`.

    Args:
        broker: Submits tasks, waits for them and cancels them.
        agents: Specs by name.
        log: A view of the broker's log, for conversations that are read through it; None uses the log itself.
    """

    def __init__(self, broker: TaskRunning, agents: Mapping[str, AgentSpec], log: EventStore | None = None) -> None:
        self._broker = broker
        self._agents = agents
        self._log = log

    @property
    def log(self) -> EventStore:
        """The log of the delegating conversations."""
        return self._log or self._broker.store.log

    @property
    def pool(self) -> McpPool:
        """The pool that runs the MCP servers of the delegating conversations."""
        return self._broker.worker.pool

    async def start(self, asking: Asking, agent: str, prompt: str, *, background: bool) -> Child:
        """Start a task and return when it is committed. See `Delegation.start`."""
        broker = self._broker
        broker.require_open()
        await broker.store.open()
        record = await self.log.get(asking.conversation)
        id = task_id_for_call(asking.conversation, asking.call)
        position, existing = await broker.store.look(
            lambda tables: (_read_position(tables, asking.conversation), find_row(tables, id)), small=True
        )
        path = position.path or (str(record.config.get("agent")),)
        spec = await self._find_agent(agent, path)
        rules = Rules.build(broker.settings, **cast(GivenRules, asking.rules))
        bounds = _with_own_level(asking, position.level)
        if existing is None:
            rules = await self._limit_rules(asking, bounds, rules, position.level)
        workspace = await self._make_workspace(spec, asking, record, id, is_new=existing is None)
        own_folder = {} if workspace.own_folder is None else {_OWN_FOLDER: str(workspace.path)}
        request = SubmissionRequest(
            input=prompt,
            metadata={
                "agent_name": spec.name,
                AGENT_PATH: [*path, spec.name],
                "id": id,
                "idempotency_key": f"{asking.conversation}:{asking.call}",
                "workspace": str(workspace.path),
                **own_folder,
            },
            workspace_policy=workspace.policy,
            parent=ParentLink(
                conversation=asking.conversation, call=asking.call, background=background, lease=asking.lease
            ),
            owner=record.owner,
            rules=rules,
            bounds=tuple(bound.to_json() for bound in bounds),
            changed_rules=asking.changed_rules,
            check=lambda tables: _check_task_count(tables, asking, bounds),
            sender=str(record.config.get("agent") or "user"),
        )
        # Before the row is written, since a worker may claim the task before `submit_child` returns. Without these
        # rules the child would run without its parent's hooks and secrets.
        previous_rules = broker.worker.parent_rules.get(str(id))
        broker.worker.parent_rules[str(id)] = rules
        try:
            submitted = await broker.submit_child(request, claim=not background)
        except BaseException:
            if previous_rules is None:
                broker.worker.parent_rules.pop(str(id), None)
            else:
                broker.worker.parent_rules[str(id)] = previous_rules
            await workspace.remove()
            raise
        if submitted.row.is_terminal:
            broker.worker.parent_rules.pop(str(id), None)
        if submitted.claimed is None:  # a background task, or a task that exists already and runs elsewhere
            return await self._describe(str(id))
        claimed = submitted.claimed
        broker.worker.start(Claim(claimed.task, claimed.lease, claimed.row.last))
        return self._make_child(claimed.task)

    async def _make_workspace(
        self, spec: AgentSpec, asking: Asking, record: ConversationRecord, id: UUID, *, is_new: bool
    ) -> ForkedWorkspace:
        """Return the workspace of a child: its parent's folder, or a new copy or git worktree.

        Raises: see `fork_workspace`.
        """
        source = Path(str(record.config.get("workspace", ".")))
        if not is_new:
            return ForkedWorkspace(source, "shared")  # not used: the existing task has its folder
        policy = "readonly" if asking.readonly and spec.workspace == "shared" else spec.workspace
        folder = self._broker.settings.home / "workspaces" / str(id)
        # The folder may be left over from a parent that died before it submitted the child.
        if policy in ("copy", "worktree") and folder.exists():
            await ForkedWorkspace(folder, policy, folder).remove()
        return await fork_workspace(policy, source, folder)

    async def wait(
        self, asking: Asking, tasks: Collection[str] | None = None, timeout: float | None = None
    ) -> tuple[Child, ...]:
        """Return the tasks as soon as one of them has ended or asks for input. See `Delegation.wait`."""
        ids = list(asking.unreported) if tasks is None else [await self._find_own_task(asking, id) for id in tasks]
        ended: list[Task] = []
        if ids:
            lending = asyncio.create_task(
                self._run_children(asking.conversation), name="children of a waiting conversation"
            )
            waits = [asyncio.create_task(self._broker.wait_until(id, has_stopped, timeout)) for id in ids]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError:
                if tasks is not None and not self._is_continued_elsewhere(asking.conversation):
                    for id in ids:  # an interrupted `delegate` cancels its children, whose results would not be read
                        await finish(self._broker.cancel(id))
                raise
            finally:
                for task in (lending, *waits):
                    task.cancel()
                await asyncio.gather(lending, *waits, return_exceptions=True)
            ended = [wait.result() for wait in waits if wait.done() and not wait.cancelled()]
        children = {task.id: self._make_child(task) for task in ended}
        return tuple([children[id] if id in children else await self._describe(id) for id in ids])

    async def result(self, asking: Asking, task_id: str) -> Child:
        """Return the current state of a task. See `Delegation.result`."""
        return await self._describe(await self._find_own_task(asking, task_id))

    async def cancel(self, asking: Asking, task_id: str) -> Child:
        """Cancel a task and return it. See `Delegation.cancel`."""
        id = await self._find_own_task(asking, task_id)
        await self._broker.cancel(id)
        return await self._describe(id)

    async def read_spent(self, conversation: UUID) -> Spent:
        """Return the usage of a conversation and its descendants. One statement."""
        return await self._broker.store.read_spent(conversation)

    async def run(
        self, conversation: UUID, message: str | None, key: str, check: JsonObject | None, *, queue: str | None = None
    ) -> Child:
        """Run a conversation as a task, until it ends or asks for input. See `Delegation.run`."""
        task_id = await self._submit_run(conversation, message, key, {"check": check, "queue": queue})
        try:
            return self._make_child(await self._broker.wait_until(task_id, has_stopped))
        except asyncio.CancelledError:
            if not self._is_continued_elsewhere(conversation):
                await finish(self._broker.cancel(task_id))
            raise

    async def _submit_run(self, conversation: UUID, message: str | None, key: str, metadata: JsonObject) -> str:
        """Submit the task of a key, or its continuation if it failed or was cancelled. Returns the task's id."""
        broker = self._broker
        await broker.store.open()
        # A key names one task for ever, so that of an attempt that did not succeed leads to the key of the next one.
        for attempt in count():
            attempt_key = f"{key}:{attempt}" if attempt else key
            row = await broker.store.look(lambda tables, key=attempt_key: find_row(tables, task_id_for_key(key)))
            if row is not None and row.current in (TaskState.FAILED, TaskState.CANCELLED):
                continue
            if row is not None:
                broker.wake(row.task_id, row.queue)
                return row.task_id
            # Only the first task sends the message: the log has it afterwards.
            text = None if attempt else message
            task_id = await broker.run(conversation, text, idempotency_key=attempt_key, **metadata)
            assert task_id is not None  # noqa: S101 - a run that is started has a task
            return task_id
        raise AssertionError

    async def _find_agent(self, agent: str, path: Sequence[str]) -> AgentSpec:
        """Return the sub-agent named `agent` of the agent at `path`.

        If no agent is known at `path`, returns the registered agent of that name.

        Raises:
            NotFound: There is no such agent; `details` has `known` and `nearest`.
        """
        parent_spec = find_by_path(self._agents, path)
        if parent_spec is None:
            parent_spec = await find_configured({AGENT_PATH: path}, path[-1], self._broker.settings)
        candidates = self._agents if parent_spec is None else {sub.name: sub for sub in parent_spec.sub_agents}
        if agent in candidates:
            return candidates[agent]
        names = list(candidates)
        nearest = difflib.get_close_matches(agent, names, n=1)
        raise NotFound(
            f"no sub-agent named {agent!r}",
            hint=f"did you mean {nearest[0]!r}?" if nearest else "",
            details={"agent": agent, "known": sorted(names), "nearest": nearest[0] if nearest else None},
        )

    async def _limit_rules(self, asking: Asking, bounds: Sequence[SharedBound], rules: Rules, level: int) -> Rules:
        """Check that the limits allow one more task, and return the rules with the remaining amounts as limits.

        Raises:
            LimitExceeded: A limit is reached: `tasks`, `depth`, a usage limit, or `parent.…` for an ancestor's.
        """
        for bound in bounds:
            spent = await self._broker.store.read_spent(bound.conversation)
            is_own = bound.conversation == asking.conversation
            _check_bound(bound, spent, level=level, prefix="" if is_own else "parent.")
            if is_own:
                remaining = subtract_from(bound.limits, measure_since(bound, spent))
                rules = rules.override({"limits": replace(bound.limits, **remaining)})
        return rules

    async def _find_own_task(self, asking: Asking, task_id: str) -> str:
        """Return the full id of a task of this conversation, given the id or a prefix of at least 8 digits."""
        digits = task_id.lower().replace("-", "")
        full_id = parse_id(task_id)
        rows = await self._broker.store.look(
            lambda tables: _read_children(tables, asking.conversation, full_id), small=full_id is not None
        )
        matches = [row.task_id for row in rows if row.id == (full_id.bytes if full_id else None)]
        if not matches and len(digits) >= _SHORTEST_PREFIX:
            matches = [row.task_id for row in rows if row.id.hex().startswith(digits)]
        if len(matches) != 1:
            raise NotFound(
                f"this conversation has no task {task_id!r:.60}", hint="use an id that submit_task or wait returned"
            )
        return matches[0]

    async def _run_children(self, conversation: UUID) -> None:
        """Run the pending children of a waiting conversation in its slot, one at a time."""
        worker = self._broker.worker
        while True:
            rows = await self._broker.store.look(
                lambda tables: tables.run(
                    "task.children_running", parent=tables.number(conversation), format=FORMAT, limit=1
                ),
                small=True,
            )
            claim = await worker.claim_task(str(UUID(bytes=rows[0][0]))) if rows else None
            if claim is None:
                return
            # Shielded: the parent's wait ends when its first child ends, but the child that runs here must continue.
            await asyncio.shield(worker.start(claim))

    def _is_continued_elsewhere(self, conversation: UUID) -> bool:
        """Whether this process handed back or lost the conversation's run, so that another worker continues it."""
        active = [run for run in self._broker.worker.active.values() if run.claim.lease.conversation == conversation]
        return any(run.stopped in ("hand_back", "fenced") for run in active)

    async def _describe(self, task_id: str) -> Child:
        return self._make_child(await self._broker.poll(task_id))

    def _make_child(self, task: Task) -> Child:
        if task.is_terminal:
            self._broker.worker.parent_rules.pop(task.id, None)
        assert task.conversation is not None  # noqa: S101 - what a store returns has one
        last = task.events[-1].payload if task.events else {}
        text = last.get("message") or last.get("tool") or last.get("state") or ""
        return Child(
            task_id=task.id,
            conversation=task.conversation,
            agent=task.agent_name or "",
            state=task.state.value,
            result=task.result,
            data=task.data,
            error=task.error,
            code=task.code,
            usage=task.usage,
            request=task.request,
            seconds=(datetime.now(UTC) - task.created_at).total_seconds(),
            last=str(text).splitlines()[0][:200] if text else "",
            workspace=task.metadata.get(_OWN_FOLDER),
        )


def _make_limit_error(limit: str, value: float, bound: float) -> LimitExceeded:
    return LimitExceeded(
        f"the limit of {limit} is reached: {value:g} of {bound:g}",
        hint="do the remaining work without another agent",
        details={"limit": limit, "value": value, "bound": bound},
    )


class TreePosition(NamedTuple):
    """The position of a conversation in its tree of tasks: its depth, and the agent names from the root down."""

    level: int
    path: tuple[str, ...]


def _read_position(tables: Tables, conversation: UUID) -> TreePosition:
    """Return the position of a conversation in its tree of tasks. The path is empty if no agent delegated to it."""
    number = tables.number(conversation)
    row = tables.one("task.depth", cid=number)
    live = find_live_row(tables, number)
    first = None if live is None else read_first(tables, UUID(bytes=live.id))
    path = () if first is None else first.metadata.get(AGENT_PATH, ())
    return TreePosition(0 if row is None else int(row[0] or 0), tuple(path))


def _with_own_level(asking: Asking, level: int) -> tuple[SharedBound, ...]:
    """Return the limits of a conversation and its ancestors, with the level of the conversation's own set."""
    return tuple(
        bound._replace(level=level) if bound.conversation == asking.conversation else bound for bound in asking.bounds
    )


def _check_bound(bound: SharedBound, spent: Spent, *, level: int, prefix: str) -> None:
    """Raise `LimitExceeded` unless a limit allows one more task.

    Args:
        spent: Usage and number of tasks of the limit's conversation and its descendants.
        level: Depth of the conversation that starts the task.
        prefix: Put before the limit's name in the error.
    """
    limits = bound.limits
    tasks, depth = spent.tasks - bound.spent_at_start.tasks, level - bound.level
    if limits.tasks is not None and tasks >= limits.tasks:
        raise _make_limit_error(f"{prefix}tasks", tasks, limits.tasks)
    if limits.depth is not None and depth >= limits.depth:
        raise _make_limit_error(f"{prefix}depth", depth, limits.depth)
    if (reached := check_usage(bound, spent)) is not None:
        raise _make_limit_error(f"{prefix}{reached.limit}", reached.value, reached.bound)


def _check_task_count(tables: Tables, asking: Asking, bounds: Sequence[SharedBound]) -> None:
    """Check the `tasks` limits inside a submission, since calls of one response submit concurrently.

    Raises:
        LimitExceeded: A limit is reached.
    """
    # All submissions lock the root's count first; another order could deadlock.
    for bound in reversed(bounds):
        if bound.limits.tasks is None:
            continue
        tables.run("task.lock_count", cid=tables.number(bound.conversation))
        started = sum_spent(tables, bound.conversation).tasks - bound.spent_at_start.tasks
        if started >= bound.limits.tasks:
            prefix = "" if bound.conversation == asking.conversation else "parent."
            raise _make_limit_error(f"{prefix}tasks", started, bound.limits.tasks)


def _read_children(tables: Tables, conversation: UUID, id: UUID | None = None) -> list[TaskRow]:
    """Return the tasks that a conversation started; with `id` only that one, if the conversation started it."""
    if id is not None:
        row = find_row(tables, id)
        return [row] if row is not None and row.parent == tables.number(conversation) else []
    return [TaskRow(*row) for row in tables.run("task.rows_of_parent", parent=tables.number(conversation))]


class TaskRunning(Protocol):
    """Submits, waits for and cancels tasks of one store, and runs them."""

    settings: Settings
    store: RelationalTaskStore
    worker: Worker

    def require_open(self) -> None:
        """Raise `Unavailable` if the broker is closed."""
        ...

    async def submit_child(self, request: SubmissionRequest, *, claim: bool) -> Submitted:
        """Submit a task that a conversation starts; `claim` claims it for this process."""
        ...

    async def poll(self, task_id: str) -> Task:
        """Return the current state of a task."""
        ...

    async def wait_until(self, task_id: str, until: Until, timeout: float | None = None) -> Task:
        """Return a task once `until` is true of it, or its current state after `timeout` seconds."""
        ...

    async def cancel(self, task_id: str) -> Task:
        """Cancel a task and its open children."""
        ...

    async def run(self, conversation: UUID, message: str | None = None, **metadata: Any) -> str | None:
        """Run an existing conversation as a new task."""
        ...

    def wake(self, task_id: str | None = None, queue: str | None = None) -> None:
        """Run a pending task in this process."""
        ...
