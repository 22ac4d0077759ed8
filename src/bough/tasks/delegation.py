"""A broker as the delegation of conversations: their sub-agents run as tasks.

A parent never starves its child: `delegate` claims its child in the transaction that submits it and runs it in the
parent's process without a second slot; a parent inside `wait` lends its slot to its own pending children.
"""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast
from uuid import UUID, uuid5

from bough.agents.delegation_protocol import Asking, Child, SharedBound, Spent
from bough.cancellation import finish
from bough.connect.mcp_pool import McpPool
from bough.conversation.fork.workspace import ForkedWorkspace, fork_workspace
from bough.conversation.rules import GivenRules, Rules
from bough.conversation.run.shared_bounds import check_usage, measure_since, subtract_from
from bough.errors import InvalidInput, LimitExceeded, NotFound
from bough.events.beside import Tables
from bough.events.record import ConversationRecord
from bough.events.store import EventStore
from bough.settings import Settings
from bough.tasks.agents import AGENT_PATH, find_by_path, find_configured
from bough.tasks.model import Task
from bough.tasks.notify import Until, has_stopped
from bough.tasks.store import Claim
from bough.tasks.stores.relational import RelationalTaskStore, sum_spent
from bough.tasks.stores.rows import FORMAT, TaskRow, find_live_row, find_row, parse_id, read_first
from bough.tasks.stores.submission import ParentLink, Submitted
from bough.tasks.submitting import SubmissionRequest
from bough.tasks.worker import Worker
from bough.types import JsonObject

if TYPE_CHECKING:
    from bough.agents.spec import AgentSpec


_CALLS = UUID("0f0c5f5e-9d3b-5d0b-8a43-6a7a4a3d1c22")
"""Namespace of the ids of tasks that tool calls start."""

_SHORTEST_PREFIX = 8
_OWN_FOLDER = "own_workspace"
"""In a task's metadata: the folder that was made for it."""


def id_of_call(conversation: UUID, call: str) -> UUID:
    """Return the id of the task that a tool call starts: the same call, the same task."""
    return uuid5(_CALLS, f"{conversation}:{call}")


class BrokerDelegation:
    """Starts, watches and stops the tasks of conversations. See `agents.delegation_protocol.Delegation`.

    Args:
        broker: Submits, waits and cancels.
        agents: Specs by name.
        log: A view of the broker's log, for conversations that are used through it; None: the log itself.
    """

    def __init__(self, broker: TaskRunning, agents: Mapping[str, AgentSpec], log: EventStore | None = None) -> None:
        self._broker = broker
        self._agents = agents
        self._log = log

    @property
    def log(self) -> EventStore:
        """Where the conversations are that it runs."""
        return self._log or self._broker.store.log

    @property
    def pool(self) -> McpPool:
        """Runs the MCP servers of conversations that delegate to it."""
        return self._broker.worker.pool

    async def start(self, asking: Asking, agent: str, prompt: str, *, background: bool) -> Child:
        """Start a task and return when it is committed. See `Delegation.start`."""
        broker = self._broker
        broker.require_open()
        await broker.store.open()
        record = await self.log.get(asking.conversation)
        id = id_of_call(asking.conversation, asking.call)
        place, known = await broker.store.look(
            lambda tables: (_read_place(tables, asking.conversation), find_row(tables, id)), small=True
        )
        path = place.path or (str(record.config.get("agent")),)
        spec = await self._find(agent, path)
        rules = Rules.build(broker.settings, **cast(GivenRules, asking.rules))
        bounds = _place_bounds(asking, place.level)
        if known is None:
            rules = await self._require_room(asking, bounds, rules, place.level)
        workspace = await self._make_workspace(spec, asking, record, id, is_new=known is None)
        own = {} if workspace.made is None else {_OWN_FOLDER: str(workspace.path)}
        request = SubmissionRequest(
            input=prompt,
            metadata={
                "agent_name": spec.name,
                AGENT_PATH: [*path, spec.name],
                "id": id,
                "idempotency_key": f"{asking.conversation}:{asking.call}",
                "workspace": str(workspace.path),
                **own,
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
        # Before the row is written: a worker may claim it before `submit_child` returns, and then looks for the rules.
        earlier = broker.worker.given.get(str(id))
        broker.worker.given[str(id)] = rules
        try:
            submitted = await broker.submit_child(request, claim=not background)
        except BaseException:
            if earlier is None:
                broker.worker.given.pop(str(id), None)
            else:
                broker.worker.given[str(id)] = earlier
            await workspace.remove()
            raise
        if submitted.row.is_terminal:
            broker.worker.given.pop(str(id), None)
        if submitted.claimed is None:
            return await self._describe(str(id))
        claimed = submitted.claimed
        broker.worker.start(Claim(claimed.task, claimed.lease, claimed.row.last))
        return self._child_of(claimed.task)

    async def _make_workspace(
        self, spec: AgentSpec, asking: Asking, record: ConversationRecord, id: UUID, *, is_new: bool
    ) -> ForkedWorkspace:
        """Return where a child works: in its parent's folder, or in a copy or git worktree that is made for it.

        Raises: see `fork_workspace`.
        """
        source = Path(str(record.config.get("workspace", ".")))
        if not is_new:
            return ForkedWorkspace(source, "shared")  # nothing is written: it has its folder
        policy = "readonly" if asking.readonly and spec.workspace == "shared" else spec.workspace
        place = self._broker.settings.home / "workspaces" / str(id)
        if policy in ("copy", "worktree") and place.exists():  # made by a parent that died before it wrote its child
            await ForkedWorkspace(place, policy, place).remove()
        return await fork_workspace(policy, source, place)

    async def wait(
        self, asking: Asking, tasks: Collection[str] | None = None, timeout: float | None = None
    ) -> tuple[Child, ...]:
        """Return tasks as they stand, as soon as one of them ended or asks. See `Delegation.wait`."""
        ids = list(asking.untold) if tasks is None else [await self._own(asking, id) for id in tasks]
        ended: list[Task] = []
        if ids:
            lending = asyncio.create_task(self._lend(asking.conversation), name="children of a waiting conversation")
            waits = [asyncio.create_task(self._broker.wait_until(id, has_stopped, timeout)) for id in ids]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError:
                if tasks is not None and not self._is_left_to_others(asking.conversation):
                    for id in ids:  # an interrupted `delegate` takes its child along
                        await finish(self._broker.cancel(id))
                raise
            finally:
                for task in (lending, *waits):
                    task.cancel()
                await asyncio.gather(lending, *waits, return_exceptions=True)
            ended = [wait.result() for wait in waits if wait.done() and not wait.cancelled()]
        seen = {task.id: task for task in ended}
        return tuple([self._child_of(seen[id]) if id in seen else await self._describe(id) for id in ids])

    async def result(self, asking: Asking, task_id: str) -> Child:
        """Return a task as it stands. See `Delegation.result`."""
        return await self._describe(await self._own(asking, task_id))

    async def cancel(self, asking: Asking, task_id: str) -> Child:
        """Cancel a task and return it. See `Delegation.cancel`."""
        id = await self._own(asking, task_id)
        await self._broker.cancel(id)
        return await self._describe(id)

    async def read_spent(self, conversation: UUID) -> Spent:
        """Return what a conversation and its descendants used. One statement."""
        return await self._broker.store.read_spent(conversation)

    async def run(self, conversation: UUID, message: str | None, key: str, check: JsonObject | None) -> Child:
        """Run a conversation as a task and return when it has ended or asks. See `Delegation.run`."""
        if check is not None:
            raise InvalidInput("a check after a task cannot be run yet", hint="leave it out", code="not_supported")
        found = await self._broker.run(conversation, message, idempotency_key=key)
        assert found is not None  # noqa: S101 - a run that is started has a task
        return self._child_of(await self._broker.wait_until(found, has_stopped))

    async def _find(self, agent: str, path: Sequence[str]) -> AgentSpec:
        """Return a sub-agent of the agent that asks; of an agent that nobody here knows, any that is known."""
        above = find_by_path(self._agents, path)
        if above is None:
            above = await find_configured({AGENT_PATH: path}, path[-1], self._broker.settings)
        below = self._agents if above is None else {each.name: each for each in above.sub_agents}
        if agent in below:
            return below[agent]
        known = list(below)
        nearest = difflib.get_close_matches(agent, known, n=1)
        raise NotFound(
            f"no sub-agent named {agent!r}",
            hint=f"did you mean {nearest[0]!r}?" if nearest else "",
            details={"agent": agent, "known": sorted(known), "nearest": nearest[0] if nearest else None},
        )

    async def _require_room(self, asking: Asking, bounds: Sequence[SharedBound], rules: Rules, level: int) -> Rules:
        """Check what a conversation that starts one more task shares with others; return its rules with what is left.

        Raises:
            LimitExceeded: A bound is reached: `tasks`, `depth`, one of usage, or `parent.…` for an ancestor's.
        """
        for bound in bounds:
            now = await self._broker.store.read_spent(bound.conversation)
            is_own = bound.conversation == asking.conversation
            _require_one(bound, now, level=level, prefix="" if is_own else "parent.")
            if is_own:
                name = "limits" if bound.limits.per == "run" else "total"
                left = subtract_from(bound.limits, measure_since(bound, now))
                rules = replace(rules, **{name: replace(bound.limits, **left)})
        return rules

    async def _own(self, asking: Asking, task_id: str) -> str:
        """Return the whole id of a task of this conversation, by itself or a prefix of at least 8 digits."""
        wanted = task_id.lower().replace("-", "")
        whole = parse_id(task_id)
        rows = await self._broker.store.look(
            lambda tables: _read_children(tables, asking.conversation, whole), small=whole is not None
        )
        matches = [row.task_id for row in rows if row.id == (whole.bytes if whole else None)]
        if not matches and len(wanted) >= _SHORTEST_PREFIX:
            matches = [row.task_id for row in rows if row.id.hex().startswith(wanted)]
        if len(matches) != 1:
            raise NotFound(
                f"this conversation has no task {task_id!r:.60}", hint="use an id that submit_task or wait gave"
            )
        return matches[0]

    async def _lend(self, conversation: UUID) -> None:
        """Run pending children of a conversation that waits, one after the other: in its slot."""
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
            await asyncio.shield(worker.start(claim))

    def _is_left_to_others(self, conversation: UUID) -> bool:
        """Whether the conversation is run here under a task that another worker continues with."""
        active = [run for run in self._broker.worker.active.values() if run.claim.lease.conversation == conversation]
        return any(run.stopped in ("hand_back", "fenced") for run in active)

    async def _describe(self, task_id: str) -> Child:
        return self._child_of(await self._broker.poll(task_id))

    def _child_of(self, task: Task) -> Child:
        if task.is_terminal:
            self._broker.worker.given.pop(task.id, None)
        assert task.conversation is not None  # noqa: S101 - what a store returns has one
        last = task.events[-1].payload if task.events else {}
        said = last.get("message") or last.get("tool") or last.get("state") or ""
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
            last=str(said).splitlines()[0][:200] if said else "",
            workspace=task.metadata.get(_OWN_FOLDER),
        )


def _make_limit_error(limit: str, value: float, bound: float) -> LimitExceeded:
    return LimitExceeded(
        f"the bound of {limit} is reached: {value:g} of {bound:g}",
        hint="do the rest without another agent",
        details={"limit": limit, "value": value, "bound": bound},
    )


class TreePosition(NamedTuple):
    """Where a conversation stands: how many are above it, and the names of the agents on the way down to it."""

    level: int
    path: tuple[str, ...]


def _read_place(tables: Tables, conversation: UUID) -> TreePosition:
    """Return where a conversation stands in the tree of tasks; without a path where no agent delegated to it."""
    number = tables.number(conversation)
    row = tables.one("task.depth", cid=number)
    live = find_live_row(tables, number)
    first = None if live is None else read_first(tables, UUID(bytes=live.id))
    path = () if first is None else first.metadata.get(AGENT_PATH, ())
    return TreePosition(0 if row is None else int(row[0] or 0), tuple(path))


def _place_bounds(asking: Asking, level: int) -> tuple[SharedBound, ...]:
    """Return the bounds of a conversation and of those above it, each at its level."""
    return tuple(
        bound._replace(level=level) if bound.conversation == asking.conversation else bound for bound in asking.bounds
    )


def _require_one(bound: SharedBound, now: Spent, *, level: int, prefix: str) -> None:
    """Check that a bound leaves room for one more task. Raises `LimitExceeded`."""
    limits = bound.limits
    tasks, depth = now.tasks - bound.then.tasks, level - bound.level
    if limits.tasks is not None and tasks >= limits.tasks:
        raise _make_limit_error(f"{prefix}tasks", tasks, limits.tasks)
    if limits.depth is not None and depth >= limits.depth:
        raise _make_limit_error(f"{prefix}depth", depth, limits.depth)
    if (reached := check_usage(bound, now)) is not None:
        raise _make_limit_error(f"{prefix}{reached.limit}", reached.value, reached.bound)


def _check_task_count(tables: Tables, asking: Asking, bounds: Sequence[SharedBound]) -> None:
    """Check inside a submission that bounds of `tasks` leave room: calls of one response start their tasks at once.

    Raises:
        LimitExceeded: One of them is reached.
    """
    for bound in reversed(bounds):  # the root's first, as every submission does, so that none waits in a circle
        if bound.limits.tasks is None:
            continue
        tables.run("task.lock_count", cid=tables.number(bound.conversation))
        started = sum_spent(tables, bound.conversation).tasks - bound.then.tasks
        if started >= bound.limits.tasks:
            prefix = "" if bound.conversation == asking.conversation else "parent."
            raise _make_limit_error(f"{prefix}tasks", started, bound.limits.tasks)


def _read_children(tables: Tables, conversation: UUID, id: UUID | None = None) -> list[TaskRow]:
    """Return the tasks that a conversation has started; with an id only that one, if it is one of them."""
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
        """Raise `Unavailable` once it was left."""
        ...

    async def submit_child(self, request: SubmissionRequest, *, claim: bool) -> Submitted:
        """Submit a task of a conversation, claimed for this process with `claim`."""
        ...

    async def poll(self, task_id: str) -> Task:
        """Return a task as it stands."""
        ...

    async def wait_until(self, task_id: str, until: Until, timeout: float | None = None) -> Task:
        """Return a task once `until` holds of it, or as it stands after `timeout` seconds."""
        ...

    async def cancel(self, task_id: str) -> Task:
        """Cancel a task and its open children."""
        ...

    async def run(self, conversation: UUID, message: str | None = None, **metadata: Any) -> str | None:
        """Run a conversation that is there as a task of its own."""
        ...
