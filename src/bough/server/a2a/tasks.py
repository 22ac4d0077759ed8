"""Conversion of bough's tasks to A2A tasks, from a task's row and its conversation's log.

Source: the A2A protocol 1.0, sections 4.1 (objects) and 3.1.4 (list).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC
from typing import Any, Final
from uuid import UUID

from a2a.helpers.proto_helpers import new_data_part, new_text_part
from a2a.types.a2a_pb2 import (
    Artifact,
    ListTasksRequest,
    ListTasksResponse,
    Message,
    Part,
    Role,
    TaskArtifactUpdateEvent,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from a2a.types.a2a_pb2 import Task as A2ATask
from a2a.types.a2a_pb2 import TaskState as A2AState
from google.protobuf.json_format import ParseDict
from google.protobuf.struct_pb2 import Value

from bough.errors import InvalidInput, NotFound
from bough.events.model import ModelResponded, TextPart, UserMessage
from bough.events.record import StoredEvent, microseconds
from bough.server.a2a.listing import AGENT, CONTEXT, Selection, TaskPosition, list_positions
from bough.server.access import Access
from bough.tasks import Task, TaskState
from bough.tasks.state import STOPPED_STATES, TERMINAL_STATES
from bough.types import JsonObject

MESSAGE: Final = "a2a_message"
"""Key of a task's metadata: the id that the client gave the message."""

RESULT: Final = "result"
_TERMINAL_NAMES = frozenset(state.value for state in TERMINAL_STATES)
_PAGE_SIZE = 50
_PAGE_TOKEN = re.compile(r"([0-9]{1,18})\.([0-9]{1,18})", re.ASCII)

_STATES: Mapping[TaskState, A2AState] = {
    TaskState.PENDING: A2AState.TASK_STATE_SUBMITTED,
    TaskState.RUNNING: A2AState.TASK_STATE_WORKING,
    TaskState.INPUT_REQUIRED: A2AState.TASK_STATE_INPUT_REQUIRED,
    TaskState.COMPLETED: A2AState.TASK_STATE_COMPLETED,
    TaskState.FAILED: A2AState.TASK_STATE_FAILED,
    TaskState.CANCELLED: A2AState.TASK_STATE_CANCELED,
}


def is_over(task: Task) -> bool:
    """Whether a task is terminal or waits for input."""
    return task.state in STOPPED_STATES


def read_conversation_id(task: Task) -> UUID:
    """Return the conversation that a task runs."""
    return task.conversation or UUID(task.id)


class AgentTasks:
    """The tasks of one agent that belong to the caller's tenant."""

    def __init__(self, access: Access, agent: str) -> None:
        self._access = access
        self._agent = agent
        self._broker = access.services.runs.broker

    async def find(self, id: str) -> Task:
        """Return a task.

        Raises:
            NotFound: The task does not exist, or belongs to another agent or tenant; the error is the same.
        """
        try:
            task = await self._broker.poll(id)
            await self._access.store.get(read_conversation_id(task))
        except NotFound:
            raise NotFound("there is no such task") from None
        if task.metadata.get(AGENT) != self._agent:
            raise NotFound("there is no such task")
        return task

    async def describe(self, task: Task) -> A2ATask:
        """Return a task with its messages and its result."""
        return A2ATask(
            id=task.id,
            context_id=read_context_id(task),
            status=describe_status(task),
            history=await self._read_history(task),
            artifacts=describe_artifacts(task),
        )

    async def list(self, request: ListTasksRequest) -> ListTasksResponse:
        """Return a page of the agent's tasks, the most recently changed first.

        Raises:
            InvalidInput: The page token is invalid.
        """
        size = request.page_size or _PAGE_SIZE
        if request.status and request.status not in _STATES.values():
            return ListTasksResponse(page_size=size)  # no task of bough has this state
        last_position = _parse_token(request.page_token)
        positions = await list_positions(self._access, self._agent, _read_selection(request))
        remaining = [position for position in positions if last_position is None or position < last_position]
        page = remaining[:size]
        tasks = [task for position in page if (task := await self._read(position)) is not None]
        # Sorted again, because a task may have changed after its position was read.
        tasks.sort(key=lambda task: task.updated_at, reverse=True)
        token = f"{page[-1].changed}.{page[-1].number}" if len(remaining) > size else ""
        a2a_tasks = [await self.describe(task) for task in tasks]
        return ListTasksResponse(tasks=a2a_tasks, next_page_token=token, page_size=size, total_size=len(positions))

    async def _read(self, position: TaskPosition) -> Task | None:
        """Return the task at a position; None if it was deleted meanwhile."""
        try:
            return await self._broker.poll(str(position.id))
        except NotFound:
            return None

    async def _read_history(self, task: Task) -> Sequence[Message]:
        """Return the messages of a task, from the message that started it to the end of the task."""
        task = task if task.events else await self._broker.poll(task.id)
        if not task.events:
            return []
        first = task.events[0].payload.get("message", task.events[0].seq)
        # Later messages of the conversation belong to other tasks.
        stop = next((event.seq for event in task.events if event.payload.get("state") in _TERMINAL_NAMES), None)
        messages: list[Message] = []
        kinds = ("UserMessage", "ModelResponded")
        async for stored in self._access.store.read(read_conversation_id(task), first, stop, kinds=kinds):
            message = _build_message(stored, task)
            if message is not None:
                messages.append(message)
        if messages and MESSAGE in task.metadata:
            messages[0].message_id = task.metadata[MESSAGE]
        return messages


def _read_selection(request: ListTasksRequest) -> Selection:
    after = None
    if request.HasField("status_timestamp_after"):
        after = microseconds(request.status_timestamp_after.ToDatetime(UTC))
    state = next((state.number for state, a2a_state in _STATES.items() if a2a_state == request.status), None)
    return Selection(state=state, after=after, context=request.context_id)


def _parse_token(token: str) -> TaskPosition | None:
    """Return the position at which the previous page ended; None for the first page.

    Raises:
        InvalidInput: The text is not a `next_page_token`.
    """
    if not token:
        return None
    match = _PAGE_TOKEN.fullmatch(token)
    if match is None:
        raise InvalidInput("page_token is not valid", hint="use next_page_token of the previous page")
    return TaskPosition(int(match[1]), int(match[2]), UUID(int=0))


def read_context_id(task: Task) -> str:
    """Return the context of a task."""
    return str(task.metadata.get(CONTEXT) or read_conversation_id(task))


def describe_status(task: Task) -> TaskStatus:
    """Return the status of a task with its question or its error, if it has one."""
    status = TaskStatus(state=_STATES[task.state])
    status.timestamp.FromDatetime(task.updated_at)
    parts: list[Part] = []
    if task.state is TaskState.INPUT_REQUIRED:
        parts = _describe_question(task.request or {})
    elif task.state is TaskState.FAILED and task.error:
        parts = [new_text_part(f"{task.code}: {task.error}" if task.code else task.error)]
    if parts:
        status.message.CopyFrom(_new_message(f"{task.id}-{task.version}", parts, task))
    return status


def describe_artifacts(task: Task) -> list[Artifact]:
    """Return the result of a completed task: its text, and its data if the agent returns data."""
    if task.state is not TaskState.COMPLETED:
        return []
    parts = [new_text_part(task.result or "")]
    if task.data is not None:
        parts.append(Part(data=ParseDict(task.data, Value())))
    return [Artifact(artifact_id=RESULT, name=RESULT, parts=parts)]


def status_update(task: Task, *, action: str = "") -> TaskStatusUpdateEvent:
    """Return an update with the status of a task, and with the name of its current action if there is one."""
    status = describe_status(task)
    if action:
        status.message.CopyFrom(_new_message(f"{task.id}-{action}", [new_text_part(action)], task))
    return TaskStatusUpdateEvent(task_id=task.id, context_id=read_context_id(task), status=status)


def text_update(task: Task, text: str, *, is_first: bool) -> TaskArtifactUpdateEvent:
    """Return an update with a piece of the result."""
    artifact = Artifact(artifact_id=RESULT, name=RESULT, parts=[new_text_part(text)])
    fields: dict[str, Any] = {"task_id": task.id, "context_id": read_context_id(task), "artifact": artifact}
    return TaskArtifactUpdateEvent(append=not is_first, last_chunk=False, **fields)


def result_update(task: Task, artifact: Artifact) -> TaskArtifactUpdateEvent:
    """Return an update with the complete result. It replaces the pieces, because a slow reader may have missed some."""
    fields: dict[str, Any] = {"task_id": task.id, "context_id": read_context_id(task), "artifact": artifact}
    return TaskArtifactUpdateEvent(append=False, last_chunk=True, **fields)


def _build_message(stored: StoredEvent, task: Task) -> Message | None:
    """Return the message in an event; None if the event contains no text."""
    match stored.event:
        case UserMessage() as event:
            texts = [new_text_part(part.text) for part in event.content if isinstance(part, TextPart)]
            return _new_message(str(stored.id), texts, task, role=Role.ROLE_USER)
        case ModelResponded() as event:
            parts = event.response.get("parts", ())
            texts = [new_text_part(str(part.get("content"))) for part in parts if part.get("part_kind") == "text"]
            return _new_message(str(stored.id), texts, task) if texts else None
        case _:
            return None


def _new_message(id: str, parts: Sequence[Part], task: Task, *, role: Role = Role.ROLE_AGENT) -> Message:
    return Message(message_id=id, role=role, parts=parts, task_id=task.id, context_id=read_context_id(task))


def _describe_question(request: JsonObject) -> list[Part]:
    """Return the question of a task, as text and as data."""
    if request.get("kind") == "question":
        text = str(request.get("question") or request.get("text") or "a question")
    else:
        calls = ", ".join(str(call.get("tool")) for call in request.get("calls", ()))
        text = f"approve or reject: {calls}"
    return [new_text_part(text), new_data_part(request)]
