"""The handler of A2A requests, which uses the broker and the log and has no state between requests.

The library's own handler has a running task in memory and stores the result of its events. This handler implements the
library's `RequestHandler` instead, because the log is the stream of events, and any worker may write it.
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
from bough.events.model import TaskChanged, UserMessage
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
from bough.server.bounds.etag import BOUGH
from bough.server.bounds.quotas import pay_by
from bough.server.conversations.conversation import Start, open_conversation, require_short, start
from bough.server.conversations.forking import ForkSpec, fork
from bough.server.live.broadcast import StreamEnd
from bough.server.live.steps import CallStep, StepReader, TextStep
from bough.tasks import Task, TaskState
from bough.types import Json

_WAIT_SECONDS = 60.0
_DECISIONS: Mapping[str, bool] = {
    "approve": True,
    "approved": True,
    "yes": True,
    "reject": False,
    "rejected": False,
    "no": False,
}
"""Texts that approve or reject waiting calls. Any other text rejects them, and is recorded as the reason."""


_CONTEXT_IN_USE = "the context_id is used by something else"
_LOG = logging.getLogger("bough.server.a2a")


class BrokerHandler(RequestHandler):
    """Handles the requests to one agent.

    Args:
        card: The agent's card.
        push: The push notification configurations.
    """

    def __init__(self, agent: str, card: AgentCard, push: PushConfigs) -> None:
        self._agent = agent
        self._card = card
        self._push = push

    @validate_request_params
    async def on_message_send(self, params: SendMessageRequest, context: ServerCallContext) -> A2ATask:
        """Process a message; return its task when it ends or asks for input, or at once if the client wants that."""
        validate_history_length(params.configuration)
        access = access_in(context)
        with translate_errors():
            tasks = AgentTasks(access, self._agent)
            task = await self._process_message(access, tasks, params)
            while not (params.configuration.return_immediately or is_over(task) or access.services.draining):
                task = await access.services.runs.wait(UUID(task.id), _WAIT_SECONDS)
            return apply_history_length(await tasks.describe(task), params.configuration)

    @validate_request_params
    async def on_message_send_stream(
        self, params: SendMessageRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event]:
        """Process a message, and yield its task, then the updates of the task."""
        validate_history_length(params.configuration)
        access = access_in(context)
        with translate_errors():
            task = await self._process_message(access, AgentTasks(access, self._agent), params)
            async for event in self._iterate_updates(access, task.id):
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
        """Cancel a task, and return the cancelled task."""
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
        """Yield a task in its current state, then its updates."""
        access = access_in(context)
        with translate_errors():
            task = await AgentTasks(access, self._agent).find(params.id)
            if task.is_terminal:
                raise UnsupportedOperationError(message=f"the task is {task.state.value} and has no further updates")
            async for event in self._iterate_updates(access, task.id):
                yield event

    @validate_request_params
    async def on_create_task_push_notification_config(
        self, params: TaskPushNotificationConfig, context: ServerCallContext
    ) -> TaskPushNotificationConfig:
        """Store a client's push notification configuration for a task."""
        access = access_in(context)
        with translate_errors():
            task = await AgentTasks(access, self._agent).find(params.task_id)
            return await self._push.add(access, task.id, params)

    @validate_request_params
    async def on_get_task_push_notification_config(
        self, params: GetTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> TaskPushNotificationConfig:
        """Return one push notification configuration."""
        access = access_in(context)
        with translate_errors():
            access.caller.require("write", "a2a")  # the configuration contains credentials
            task = await AgentTasks(access, self._agent).find(params.task_id)
            configs = [config for config in await self._push.list(access, task.id) if config.id == params.id]
        if not configs:
            raise TaskNotFoundError
        return configs[0]

    @validate_request_params
    async def on_list_task_push_notification_configs(
        self, params: ListTaskPushNotificationConfigsRequest, context: ServerCallContext
    ) -> ListTaskPushNotificationConfigsResponse:
        """Return all push notification configurations of a task."""
        access = access_in(context)
        with translate_errors():
            access.caller.require("write", "a2a")
            task = await AgentTasks(access, self._agent).find(params.task_id)
            return ListTaskPushNotificationConfigsResponse(configs=await self._push.list(access, task.id))

    @validate_request_params
    async def on_delete_task_push_notification_config(
        self, params: DeleteTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> None:
        """Delete a push notification configuration; does nothing if it does not exist."""
        access = access_in(context)
        with translate_errors():
            task = await AgentTasks(access, self._agent).find(params.task_id)
            await self._push.remove(access, task.id, params.id)

    async def on_get_extended_agent_card(
        self, params: GetExtendedAgentCardRequest, context: ServerCallContext
    ) -> AgentCard:
        """Return the card; the caller has been authenticated."""
        return self._card

    # Implementation.

    async def _process_message(self, access: Access, tasks: AgentTasks, params: SendMessageRequest) -> Task:
        """Process a message: answer a waiting task, send it to a running task, or start a new task. Return the task."""
        message = params.message
        if message.task_id:
            return await self._continue_task(access, await tasks.find(message.task_id), message)
        # The id is derived from the id of the message, so a message that is sent twice starts one task.
        id = uuid5(BOUGH, f"{access.caller.tenant}\na2a {self._agent}\n{message.message_id}")
        try:
            return await tasks.find(str(id))
        except NotFound:
            pass
        user_message = _read_message(message)
        require_short(access, user_message)
        has_push_config = params.configuration.HasField("task_push_notification_config")
        if has_push_config:  # before the conversation is created: an invalid configuration must leave nothing behind
            await self._push.check(params.configuration.task_push_notification_config)
        conversation, context = await self._find_conversation(access, id, message.context_id)
        metadata: dict[str, Any] = {
            AGENT: self._agent,
            MESSAGE: message.message_id,
            CONTEXT: context,
            **pay_by(access.caller),
        }
        async with open_conversation(access, conversation) as opened:
            first, *activated = await opened.prepare_message(user_message)
        assert isinstance(first, UserMessage)  # noqa: S101 - as `prepare_message` returns them
        if has_push_config:  # before the task starts, so that no notification is missed
            await self._push.add(access, str(id), params.configuration.task_push_notification_config)
        runs = access.services.runs
        await runs.broker.run(
            conversation,
            first,
            activated=activated,
            by=access.caller.name,
            id=str(id),
            **metadata,
        )
        return await tasks.find(str(id))

    async def _continue_task(self, access: Access, task: Task, message: Message) -> Task:
        """Send a message to a task.

        Raises:
            InvalidParamsError: The message names another context than the task's.
            UnsupportedOperationError: The task has ended.
        """
        if message.context_id and message.context_id != read_context_id(task):
            raise InvalidParamsError(message="the task belongs to another context")
        if task.is_terminal:
            raise UnsupportedOperationError(message=f"the task is {task.state.value} and accepts no messages")
        broker, user_message = access.services.runs.broker, _read_message(message)
        require_short(access, user_message)
        if task.state is TaskState.INPUT_REQUIRED:
            access.caller.require("write", "a2a", "approve")
            return await broker.provide_input(task.id, _read_answer(message, user_message, task), by=access.caller.name)
        await broker.run(
            read_conversation_id(task), user_message, by=access.caller.name, join=True, **pay_by(access.caller)
        )
        return await broker.poll(task.id)

    async def _find_conversation(self, access: Access, id: UUID, context: str) -> tuple[UUID, str]:
        """Return the conversation and the context of a new task.

        The conversation is new if the context is, and a fork if a task of the context is running.

        Raises:
            InvalidParamsError: The context is not a UUID, or is used by another agent or another tenant.
        """
        context_id = _parse_context(context) or id
        try:
            record = await access.store.get(context_id)
        except NotFound:
            try:
                return await self._start_conversation(access, context_id), context or str(context_id)
            except Conflict:  # another tenant's: raise the same error as for the caller's own
                raise InvalidParamsError(message=_CONTEXT_IN_USE) from None
        if record.config.get(AGENT) != self._agent:
            raise InvalidParamsError(message=_CONTEXT_IN_USE)
        if not await access.services.runs.is_live(context_id):
            return context_id, str(context_id)
        spec = ForkSpec(about={AGENT: self._agent}, options={"reason": "asked while a task was running"})
        new_fork = await fork(access, record, spec)
        return new_fork.record.id, str(context_id)

    async def _start_conversation(self, access: Access, id: UUID) -> UUID:
        """Start a conversation with the agent, and return its id."""
        services = access.services
        agent = services.agents.agent_for(access.caller, self._agent)
        folder = services.workspaces.folder_for(access.caller, id, None)
        metadata = {"form": "ours", AGENT: self._agent}
        record = await start(access, Start(id=id, agent=agent, workspace=folder, about=metadata))
        return record.id

    async def _iterate_updates(self, access: Access, id: str) -> AsyncGenerator[Event]:
        """Yield a task in its current state, then its text, steps and states until it ends or asks for input."""
        tasks = AgentTasks(access, self._agent)
        task = await tasks.find(id)
        with access.services.limits.stream(access.caller):
            async with (
                access.services.broadcasts.join(read_conversation_id(task), kind="a2a") as broadcast,
                watch_key(access, broadcast) as is_refused,
            ):
                head = broadcast.head  # read before the task, so that no event is missed
                task = await tasks.find(id)
                yield await tasks.describe(task)
                if is_over(task):
                    return
                is_first, steps = True, StepReader()
                async for update in broadcast.read(head - 1, is_refused):
                    if isinstance(update, StreamEnd):
                        return
                    for step in steps.read(update):
                        if isinstance(step, TextStep):
                            yield text_update(task, step.text, is_first=is_first)
                            is_first = False
                        elif isinstance(step, CallStep) and step.is_running:
                            yield status_update(task, action=step.tool)
                    event = update.event if isinstance(update, StoredEvent) else None
                    if isinstance(event, TaskChanged) and event.task_id == id:
                        task = await tasks.find(id)
                        for artifact in describe_artifacts(task):
                            yield result_update(task, artifact)
                        yield status_update(task)
                        if is_over(task):
                            return


def access_in(context: ServerCallContext) -> Access:
    """Return the access of a request's caller."""
    return cast("Access", context.state["access"])


def _parse_context(context: str) -> UUID | None:
    """Return a context as a UUID; None if it is empty.

    Raises:
        InvalidParamsError: The context is not a UUID.
    """
    if not context:
        return None
    try:
        return UUID(context)
    except ValueError:
        raise InvalidParamsError(message="context_id is not a UUID") from None


def _read_message(message: Message) -> UserMessage:
    """Return the content of a message: its texts and its data.

    Raises:
        InvalidParamsError: The message is empty, or contains a file.
    """
    texts: list[str] = []
    for part in message.parts:
        match part.WhichOneof("content"):
            case "text":
                texts.append(part.text)
            case "data":
                texts.append(str(MessageToDict(part.data)))
            case _:
                raise InvalidParamsError(message="only text and data are supported")
    if not any(text.strip() for text in texts):
        raise InvalidParamsError(message="the message is empty")
    return UserMessage.text("\n".join(texts))


def _read_answer(message: Message, user_message: UserMessage, task: Task) -> Json:
    """Return the answer to a task's question: the data of the message, or else its text.

    If calls wait for approval, a text is converted to an approval or a rejection.
    """
    data = [cast("Any", MessageToDict(part.data)) for part in message.parts if part.WhichOneof("content") == "data"]
    if data:
        return data[0]
    if (task.request or {}).get("kind") == "question":
        return user_message.plain
    decision = _DECISIONS.get(user_message.plain.strip().lower())
    if decision is not None:
        return decision
    calls = [str(call["id"]) for call in (task.request or {}).get("calls", ())]
    return {"reject": calls, "reason": user_message.plain}


@contextmanager
def translate_errors() -> Generator[None]:
    """Convert bough errors to protocol errors. Unexpected errors are logged, and sent without details."""
    try:
        yield
    except A2AError:
        raise
    except NotFound as error:
        raise TaskNotFoundError from error  # some clients accept only the protocol's message for this code
    except InvalidInput as error:
        raise InvalidParamsError(message=explain_error(error)) from error
    except Conflict as error:
        raise UnsupportedOperationError(message=explain_error(error)) from error
    except BoughError as error:
        error_class = InternalError if error.http_status >= 500 else UnsupportedOperationError
        raise error_class(message=explain_error(error)) from error
    except Exception as error:  # noqa: BLE001 - request boundary: the library would send the error's text
        _LOG.error("an A2A request failed", exc_info=error)
        raise InternalError(message="internal: the server failed") from None
