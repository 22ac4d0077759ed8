"""A client program with `a2a-sdk` 1.x: prints what it got as JSON. Arguments: address of the agent, its key."""

import asyncio
import json
import sys
from uuid import uuid4

import httpx
from a2a.client import A2ACardResolver, A2AClientError, ClientConfig, ClientFactory
from a2a.helpers.proto_helpers import get_artifact_text, get_message_text, new_text_message
from a2a.types.a2a_pb2 import (
    CancelTaskRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTasksRequest,
    Role,
    SendMessageConfiguration,
    SendMessageRequest,
    SubscribeToTaskRequest,
    TaskPushNotificationConfig,
    TaskState,
)
from a2a.utils.errors import A2AError


def request(text, *, task=None, **configuration):
    message = new_text_message(text, role=Role.ROLE_USER)
    if task is not None:
        message.task_id, message.context_id = task.id, task.context_id
    return SendMessageRequest(message=message, configuration=SendMessageConfiguration(**configuration))


async def send(client, text, **options):
    (answer,) = [answer async for answer in client.send_message(request(text, **options))]
    return answer.task


def text_of(task):
    return "".join(get_artifact_text(artifact) for artifact in task.artifacts)


def state_of(task):
    return TaskState.Name(task.status.state)


async def code_of(call):
    try:
        await call
    except (A2AError, A2AClientError) as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


async def use(http, card, binding):
    config = {"httpx_client": http, "supported_protocol_bindings": [binding], "use_client_preference": True}
    client = ClientFactory(ClientConfig(streaming=False, **config)).create(card)
    streaming = ClientFactory(ClientConfig(streaming=True, **config)).create(card)
    task = await send(client, "hello")
    read = await client.get_task(GetTaskRequest(id=task.id))
    events = [event async for event in streaming.send_message(request("stream"))]
    chunks = [event.artifact_update for event in events if event.HasField("artifact_update")]
    states = [TaskState.Name(event.status_update.status.state) for event in events if event.HasField("status_update")]
    question = await send(client, "write")
    answered = await send(client, "approve", task=question)
    running = await send(client, "hang", return_immediately=True)
    push = TaskPushNotificationConfig(task_id=running.id, id="mine", url="http://127.0.0.1:9/told", token="word")
    await client.create_task_push_notification_config(push)
    stored = await client.get_task_push_notification_config(
        GetTaskPushNotificationConfigRequest(task_id=running.id, id="mine")
    )
    subscription = streaming.subscribe(SubscribeToTaskRequest(id=running.id))
    first = await anext(subscription)
    cancelled = await client.cancel_task(CancelTaskRequest(id=running.id))
    rest = [event async for event in subscription]
    listed = await client.list_tasks(ListTasksRequest())
    return {
        "sent": [state_of(task), text_of(task), text_of(read)],
        "streamed": [get_artifact_text(chunks[-1].artifact), states[-1]],
        "asked": [state_of(question), get_message_text(question.status.message).splitlines()[0]],
        "answered": [answered.id == question.id, text_of(answered)],
        "push": [stored.url, stored.token],
        "subscribed": [first.task.id == running.id, TaskState.Name(rest[-1].status_update.status.state)],
        "cancelled": state_of(cancelled),
        "listed": {task.id, question.id, running.id} <= {task.id for task in listed.tasks},
        "errors": [
            await code_of(client.get_task(GetTaskRequest(id=str(uuid4())))),
            await code_of(client.cancel_task(CancelTaskRequest(id=task.id))),
        ],
    }


async def main(url, key):
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with httpx.AsyncClient(headers=headers, timeout=60, trust_env=False) as http:
        card = await A2ACardResolver(http, url).get_agent_card()
        facts = {binding: await use(http, card, binding) for binding in ("JSONRPC", "HTTP+JSON")}
    print(json.dumps({"card": card.name, **facts}))


asyncio.run(main(*sys.argv[1:]))
