"""Routes for tasks: submit, list, follow, answer, cancel, retry."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Annotated
from uuid import UUID

from fastapi import Header, Path, Query, Request, Response
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.status import HTTP_201_CREATED

from bough.errors import NotFound
from bough.events.model import UserMessage
from bough.server.access import Access, TaskReader, TaskWriter
from bough.server.auth.owned import OwnedTasks, make_taken
from bough.server.bodies.agents import AgentForm
from bough.server.bodies.base import MAX_SEQ, ItemPage
from bough.server.bodies.conversations import drop_unset
from bough.server.bodies.rules import make_budget
from bough.server.bodies.tasks import NewTask, TaskAnswer, TaskEventInfo, TaskInfo, TaskQuery
from bough.server.bounds.etag import IdempotencyKey, compute_digest, id_from_key, mark_replayed
from bough.server.bounds.quotas import pay_by
from bough.server.conversations.conversation import Start, find_existing, open_conversation, say, start
from bough.server.requests.routing import router
from bough.tasks import Task, TaskFilter, TaskState
from bough.types import new_id

routes = router("Tasks")

TaskId = Annotated[UUID, Path(alias="task", description="Id of a task: a UUID.")]


@routes.post("/api/tasks", status_code=HTTP_201_CREATED, responses={200: {"model": TaskInfo}})
async def submit_task(
    body: NewTask, access: TaskWriter, request: Request, response: Response, idempotency_key: IdempotencyKey = None
) -> TaskInfo:
    """Submit a task. The same request with the same id returns the existing task (200)."""
    id = body.id or id_from_key(access.caller, request, idempotency_key) or new_id()
    digest = compute_digest(drop_unset(body.model_dump(mode="json")))
    new = _plan_start(access, body, id, digest)
    if await find_existing(access, id, digest) is None:
        await _require_free(access, id)
        await start(access, new)
    elif await access.services.runs.latest(id) is None:  # created, but never run: complete it
        async with open_conversation(access, id) as conversation:
            await say(access, conversation, _build_message(body), run=True, **new.task)
    else:
        response.status_code = 200
        if idempotency_key is not None:
            mark_replayed(response)
    return await _describe(access, await _open_tasks(access).get(str(id)))


async def _require_free(access: Access, id: UUID) -> None:
    """Check that no task has this id. Tasks of later runs have ids that are not those of conversations.

    Raises:
        Conflict: A task of any tenant has the id.
    """
    if await access.services.runs.broker.store.get(str(id)) is not None:
        raise make_taken()


def _build_message(body: NewTask) -> UserMessage:
    return UserMessage.text(body.input)


def _plan_start(access: Access, body: NewTask, id: UUID, digest: str) -> Start:
    agents = access.services.agents
    agent = body.agent if body.system_prompt is None else AgentForm(system_prompt=body.system_prompt)
    return Start(
        id=id,
        agent=agents.agent_for(access.caller, agent),
        workspace=access.services.workspaces.folder_for(access.caller, id, None),
        rules={} if body.budget is None else {"budget": make_budget(access.caller.owner, body.budget)},
        message=_build_message(body),
        run=True,
        task={"id": id, "queue": body.queue, "priority": body.priority, "deadline_seconds": body.deadline_seconds},
        about={"form": "ours", "request": digest},
    )


@routes.get("/api/tasks")
async def list_tasks(query: Annotated[TaskQuery, Query()], access: TaskReader) -> ItemPage[TaskInfo]:
    """List tasks, the newest first."""
    for id in (query.parent, query.root):
        if id is not None:
            await access.store.get(id)
    states = frozenset[TaskState]() if query.state is None else frozenset({TaskState(query.state)})
    filter = TaskFilter(states=states, agent=query.agent, queue=query.queue, parent=query.parent, root=query.root)
    page = await _open_tasks(access).list(filter, query.page_id, query.limit)
    return ItemPage(items=[await _describe(access, task) for task in page.items], next_page_id=page.next_cursor)


@routes.get("/api/tasks/{task}")
async def get_task(task: TaskId, access: TaskReader) -> TaskInfo:
    """Return one task."""
    return await _describe(access, await _open_tasks(access).get(str(task)))


@routes.get("/api/tasks/{task}/events", responses={200: {"content": {"text/event-stream": {}}}})
async def get_task_events(
    task: TaskId,
    access: TaskReader,
    after: Annotated[int, Query(ge=0, le=MAX_SEQ)] = 0,
    accept: Annotated[str | None, Header()] = None,
) -> list[TaskEventInfo]:
    """Return the latest 1,000 events after `after`. With `Accept: text/event-stream`, stream all and new ones."""
    record = await _open_tasks(access).get(str(task))
    if accept is not None and "text/event-stream" in accept:
        access.services.limits.require_stream(access.caller)
        return EventSourceResponse(_iterate_frames(access, record.id, after))  # type: ignore[return-value]  # pyright: ignore[reportReturnType]
    return [TaskEventInfo.of(event) for event in record.events if event.seq > after]


async def _iterate_frames(access: Access, task: str, after: int) -> AsyncIterator[ServerSentEvent]:
    with access.services.limits.stream(access.caller):
        async for event in access.services.runs.stream(task, after):
            data = json.dumps(TaskEventInfo.of(event).model_dump(mode="json"), ensure_ascii=False)
            yield ServerSentEvent(data=data, event=event.event_type.value, id=str(event.seq))


@routes.post("/api/tasks/{task}/cancel")
async def cancel_task(task: TaskId, access: TaskWriter) -> TaskInfo:
    """Cancel a task and its unfinished children, at once and for good. A finished task is returned unchanged."""
    await _open_tasks(access).get(str(task))
    return await _describe(access, await access.services.runs.broker.cancel(str(task)))


@routes.post("/api/tasks/{task}/input")
async def answer_task(task: TaskId, body: TaskAnswer, access: TaskWriter) -> TaskInfo:
    """Answer a task that waits for input. The task continues when nothing waits any more."""
    access.caller.require("write", "approve")
    await _open_tasks(access).get(str(task))
    broker, by = access.services.runs.broker, access.caller.name
    return await _describe(access, await broker.provide_input(str(task), body.answer, run=body.run, by=by))


@routes.post("/api/tasks/{task}/retry", status_code=HTTP_201_CREATED)
async def retry_task(task: TaskId, access: TaskWriter) -> TaskInfo:
    """Continue the conversation of a failed or cancelled task in a new task."""
    await _open_tasks(access).get(str(task))
    broker = access.services.runs.broker
    retry_id = await broker.retry(str(task), **pay_by(access.caller))
    return await _describe(access, await broker.poll(retry_id))


async def _describe(access: Access, task: Task) -> TaskInfo:
    agent = None
    if task.agent_name is None and task.conversation is not None:
        with suppress(NotFound):  # the conversation was deleted meanwhile
            agent = (await access.store.get(task.conversation)).config.get("agent")
    return TaskInfo.of(task, agent)


def _open_tasks(access: Access) -> OwnedTasks:
    return OwnedTasks(access.services.runs.broker, access.store)
