"""What A2A clients ask, answered by the broker and the log: nothing is kept between requests, on any server.

The library's own handler keeps a task in memory while it runs and writes what it makes of its events; ours implements
its `RequestHandler`, since here the log is the stream and a worker anywhere writes it. Source: decision 33.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import contextmanager
from typing import Any, cast
from uuid import UUID, uuid5

from a2a.server.context import ServerCallContext
from a2a.server.events.event_queue import Event
from a2a.server.request_handlers.request_handler import (
    RequestHandler,
    validate_request_params,  # pyright: ignore[reportUnknownVariableType] - it keeps the type of what it wraps to itself
)
from a2a.types.a2a_pb2 import (
    AgentCard,
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetExtendedAgentCardRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTaskPushNotificationConfigsResponse,
    ListTasksRequest,
    ListTasksResponse,
    Message,
    SendMessageRequest,
    SubscribeToTaskRequest,
    TaskPushNotificationConfig,
)
from a2a.types.a2a_pb2 import Task as A2ATask
from a2a.utils.errors import (
    A2AError,
    InternalError,
    InvalidParamsError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from a2a.utils.task import apply_history_length, validate_history_length, validate_page_size
from google.protobuf.json_format import MessageToDict

from bough.errors import BoughError, Conflict, InvalidInput, NotFound, explain_error
from bough.events.model import TaskChanged, ToolCalled, UserMessage
from bough.events.record import StoredEvent
from bough.server.a2a.listing import AGENT, CONTEXT
from bough.server.a2a.push import PushConfigs
from bough.server.a2a.tasks import (
    MESSAGE,
    AgentTasks,
    describe_artifacts,
    is_over,
    read_context_id,
    read_conversation_id,
    result_update,
    status_update,
    text_update,
)
from bough.server.access import Access, watch_key
from bough.server.bounds.idempotency import BOUGH
from bough.server.bounds.quotas import pay_by
from bough.server.conversations.conversation import Start, open_conversation, require_short, start
from bough.server.conversations.forking import fork
from bough.server.live.broadcast import Fragment, StreamEnd
from bough.tasks import Task, TaskState
from bough.types import Json

_WAIT_SECONDS = 60.0
_ANSWERS: Mapping[str, bool] = {
    "approve": True,
    "approved": True,
    "yes": True,
    "reject": False,
    "rejected": False,
    "no": False,
}
"""What a text says to calls that wait; any other text rejects them, and is the reason."""


_TAKEN = "the context belongs to something else"
_LOG = logging.getLogger("bough.server.a2a")


class BrokerHandler(RequestHandler):
    """Serves one agent.

    Args:
        card: What is said of it.
        push: Where clients want to be told.
    """

    def __init__(self, agent: str, card: AgentCard, push: PushConfigs) -> None:
        self._agent = agent
        self._card = card
        self._push = push

    @validate_request_params
    async def on_message_send(self, params: SendMessageRequest, context: ServerCallContext) -> A2ATask:
        """Return the task when it has ended or asks, or at once where that is wanted."""
        validate_history_length(params.configuration)
        access = access_in(context)
        with translate_errors():
            tasks = AgentTasks(access, self._agent)
            task = await self._take(access, tasks, params)
            while not (params.configuration.return_immediately or is_over(task) or access.services.draining):
                task = await access.services.runs.wait(UUID(task.id), _WAIT_SECONDS)
            return apply_history_length(await tasks.describe(task), params.configuration)

    @validate_request_params
    async def on_message_send_stream(
        self, params: SendMessageRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event]:
        """Iterate the task, then what happens to it."""
        validate_history_length(params.configuration)
        access = access_in(context)
        with translate_errors():
            task = await self._take(access, AgentTasks(access, self._agent), params)
            async for event in self._follow(access, task.id):
                yield apply_history_length(event, params.configuration) if isinstance(event, A2ATask) else event

    @validate_request_params
    async def on_get_task(self, params: GetTaskRequest, context: ServerCallContext) -> A2ATask:
        """Return a task."""
        validate_history_length(params)
        with translate_errors():
            tasks = AgentTasks(access_in(context), self._agent)
            return apply_history_length(await tasks.describe(await tasks.find(params.id)), params)

    @validate_request_params
    async def on_list_tasks(self, params: ListTasksRequest, context: ServerCallContext) -> ListTasksResponse:
        """Return a page of tasks."""
        validate_history_length(params)
        if params.HasField("page_size"):
            validate_page_size(params.page_size)
        with translate_errors():
            page = await AgentTasks(access_in(context), self._agent).list(params)
        for task in page.tasks:
            if not params.include_artifacts:
                task.ClearField("artifacts")
            task.CopyFrom(apply_history_length(task, params))
        return page

    @validate_request_params
    async def on_cancel_task(self, params: CancelTaskRequest, context: ServerCallContext) -> A2ATask:
        """Cancel a task; it is cancelled when this returns."""
        access = access_in(context)
        with translate_errors():
            tasks = AgentTasks(access, self._agent)
            task = await tasks.find(params.id)
            if task.is_terminal:
                raise TaskNotCancelableError
            task = await access.services.runs.broker.cancel(task.id)
            if task.state is not TaskState.CANCELLED:
                raise TaskNotCancelableError
            return await tasks.describe(task)

    @validate_request_params
    async def on_subscribe_to_task(
        self, params: SubscribeToTaskRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event]:
        """Iterate a task as it stands, then what happens to it."""
        access = access_in(context)
        with translate_errors():
            task = await AgentTasks(access, self._agent).find(params.id)
            if task.is_terminal:
                raise UnsupportedOperationError(message=f"the task is {task.state.value}: nothing more will happen")
            async for event in self._follow(access, task.id):
                yield event

    @validate_request_params
    async def on_create_task_push_notification_config(
        self, params: TaskPushNotificationConfig, context: ServerCallContext
    ) -> TaskPushNotificationConfig:
        """Keep where a client wants to be told of a task."""
        access = access_in(context)
        with translate_errors():
            task = await AgentTasks(access, self._agent).find(params.task_id)
            return await self._push.add(access, task.id, params)

    @validate_request_params
    async def on_get_task_push_notification_config(
        self, params: GetTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> TaskPushNotificationConfig:
        """Return one of them."""
        access = access_in(context)
        with translate_errors():
            access.caller.require("write", "a2a")  # it holds the credentials that the client wants to be shown
            task = await AgentTasks(access, self._agent).find(params.task_id)
            configs = [config for config in await self._push.list(access, task.id) if config.id == params.id]
        if not configs:
            raise TaskNotFoundError
        return configs[0]

    @validate_request_params
    async def on_list_task_push_notification_configs(
        self, params: ListTaskPushNotificationConfigsRequest, context: ServerCallContext
    ) -> ListTaskPushNotificationConfigsResponse:
        """Return all of a task."""
        access = access_in(context)
        with translate_errors():
            access.caller.require("write", "a2a")
            task = await AgentTasks(access, self._agent).find(params.task_id)
            return ListTaskPushNotificationConfigsResponse(configs=await self._push.list(access, task.id))

    @validate_request_params
    async def on_delete_task_push_notification_config(
        self, params: DeleteTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> None:
        """Forget one; one that is not there is fine."""
        access = access_in(context)
        with translate_errors():
            task = await AgentTasks(access, self._agent).find(params.task_id)
            await self._push.remove(access, task.id, params.id)

    async def on_get_extended_agent_card(
        self, params: GetExtendedAgentCardRequest, context: ServerCallContext
    ) -> AgentCard:
        """Return the card; whoever gets here has shown a key."""
        return self._card

    # How it does it.

    async def _take(self, access: Access, tasks: AgentTasks, params: SendMessageRequest) -> Task:
        """Have a message done: as the answer that a task waits for, to the task that continues, or as a new task."""
        message = params.message
        if message.task_id:
            return await self._continue(access, await tasks.find(message.task_id), message)
        # Sent twice, it is one task: its id is made of the message's.
        id = uuid5(BOUGH, f"{access.caller.tenant}\na2a {self._agent}\n{message.message_id}")
        try:
            return await tasks.find(str(id))
        except NotFound:
            pass
        user_message = _read_message(message)
        require_short(access, user_message)
        push = params.configuration.HasField("task_push_notification_config")
        if push:  # before a conversation is made for what is refused
            await self._push.check(params.configuration.task_push_notification_config)
        conversation, context = await self._place(access, id, message.context_id)
        about: dict[str, Any] = {
            AGENT: self._agent,
            MESSAGE: message.message_id,
            CONTEXT: context,
            **pay_by(access.caller),
        }
        async with open_conversation(access, conversation) as open_one:
            first, *activated = await open_one.prepare_message(user_message)
        assert isinstance(first, UserMessage)  # noqa: S101 - as `prepare_message` returns them
        if push:  # before the task: nothing of it is missed
            await self._push.add(access, str(id), params.configuration.task_push_notification_config)
        runs = access.services.runs
        await runs.broker.run(
            conversation,
            first,
            activated=activated,
            by=access.caller.name,
            id=str(id),
            **about,
        )
        return await tasks.find(str(id))

    async def _continue(self, access: Access, task: Task, message: Message) -> Task:
        """Say something to a task.

        Raises:
            InvalidParamsError: The message names another context than the task's.
            UnsupportedOperationError: The task has ended.
        """
        if message.context_id and message.context_id != read_context_id(task):
            raise InvalidParamsError(message="the task belongs to another context")
        if task.is_terminal:
            raise UnsupportedOperationError(message=f"the task is {task.state.value}: it takes no message")
        broker, user_message = access.services.runs.broker, _read_message(message)
        require_short(access, user_message)
        if task.state is TaskState.INPUT_REQUIRED:
            access.caller.require("write", "a2a", "approve")
            return await broker.provide_input(task.id, _answer_in(message, user_message, task), by=access.caller.name)
        await broker.run(
            read_conversation_id(task), user_message, by=access.caller.name, join=True, **pay_by(access.caller)
        )
        return await broker.poll(task.id)

    async def _place(self, access: Access, id: UUID, context: str) -> tuple[UUID, str]:
        """Return the conversation that a new task runs in, and its context.

        Raises:
            InvalidParamsError: The context is not a UUID, or another agent's.
        """
        context_id = _parse_context(context) or id
        try:
            record = await access.store.get(context_id)
        except NotFound:
            try:
                return await self._begin(access, context_id), context or str(context_id)
            except Conflict:  # another tenant's: said as of what is the caller's own
                raise InvalidParamsError(message=_TAKEN) from None
        if record.config.get(AGENT) != self._agent:
            raise InvalidParamsError(message=_TAKEN)
        if not await access.services.runs.is_live(context_id):
            return context_id, str(context_id)
        new_fork = await fork(access, record, about={AGENT: self._agent}, reason="asked while a task was running")
        return new_fork.record.id, str(context_id)

    async def _begin(self, access: Access, id: UUID) -> UUID:
        services = access.services
        agent = services.agents.agent_for(access.caller, self._agent)
        folder = services.workspaces.folder_for(access.caller, id, None)
        about = {"form": "ours", AGENT: self._agent}
        return (await start(access, Start(id=id, agent=agent, workspace=folder, about=about))).id

    async def _follow(self, access: Access, id: str) -> AsyncGenerator[Event]:
        """Iterate a task as it stands, its text as it comes, its steps, and its end."""
        tasks = AgentTasks(access, self._agent)
        task = await tasks.find(id)
        with access.services.limits.stream(access.caller):
            async with (
                access.services.broadcasts.join(read_conversation_id(task), kind="a2a") as broadcast,
                watch_key(access, broadcast) as is_refused,
            ):
                head = broadcast.head  # the subscription began before the task is read: nothing falls between
                task = await tasks.find(id)
                yield await tasks.describe(task)
                if is_over(task):
                    return
                is_first = True
                async for update in broadcast.read(head - 1, is_refused):
                    if isinstance(update, StreamEnd):
                        return
                    if isinstance(update, Fragment) and update.kind == "text":
                        yield text_update(task, update.text, is_first=is_first)
                        is_first = False
                    event = update.event if isinstance(update, StoredEvent) else None
                    if isinstance(event, ToolCalled):
                        yield status_update(task, doing=event.tool)
                    if isinstance(event, TaskChanged) and event.task_id == id:
                        task = await tasks.find(id)
                        for artifact in describe_artifacts(task):
                            yield result_update(task, artifact)
                        yield status_update(task)
                        if is_over(task):
                            return


def access_in(context: ServerCallContext) -> Access:
    """Return what the caller of a request may work with."""
    return cast("Access", context.state["access"])


def _parse_context(context: str) -> UUID | None:
    """Return a context as a UUID, None for none.

    Raises:
        InvalidParamsError: It is none of ours, and cannot become one.
    """
    if not context:
        return None
    try:
        return UUID(context)
    except ValueError:
        raise InvalidParamsError(message="context_id is not a UUID") from None


def _read_message(message: Message) -> UserMessage:
    """Return what a message says: its texts, and its data as JSON.

    Raises:
        InvalidParamsError: It says nothing, or has a file.
    """
    texts: list[str] = []
    for part in message.parts:
        match part.WhichOneof("content"):
            case "text":
                texts.append(part.text)
            case "data":
                texts.append(str(MessageToDict(part.data)))
            case _:
                raise InvalidParamsError(message="only text and data are taken")
    if not any(text.strip() for text in texts):
        raise InvalidParamsError(message="the message says nothing")
    return UserMessage.text("\n".join(texts))


def _answer_in(message: Message, user_message: UserMessage, task: Task) -> Json:
    """Return the answer to what a task asks: data as it is; text as the value, or as approval or rejection."""
    data = [cast("Any", MessageToDict(part.data)) for part in message.parts if part.WhichOneof("content") == "data"]
    if data:
        return data[0]
    if (task.request or {}).get("kind") == "question":
        return user_message.plain
    answer = _ANSWERS.get(user_message.plain.strip().lower())
    calls = [str(call["id"]) for call in (task.request or {}).get("calls", ())]
    return {"reject": calls, "reason": user_message.plain} if answer is None else answer


@contextmanager
def translate_errors() -> Generator[None]:
    """Raise errors of bough as those of the protocol; what is not foreseen says no more than that."""
    try:
        yield
    except A2AError:
        raise
    except NotFound as error:
        raise TaskNotFoundError from error  # some clients take only the message that the protocol gives this code
    except InvalidInput as error:
        raise InvalidParamsError(message=explain_error(error)) from error
    except Conflict as error:
        raise UnsupportedOperationError(message=explain_error(error)) from error
    except BoughError as error:
        raise (InternalError if error.http_status >= 500 else UnsupportedOperationError)(
            message=explain_error(error)
        ) from error
    except Exception as error:  # noqa: BLE001 - the boundary of a request: the library would send its text
        _LOG.error("a request by A2A failed", exc_info=error)
        raise InternalError(message="internal: the server failed") from None
