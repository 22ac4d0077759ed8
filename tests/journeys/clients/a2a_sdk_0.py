"""A client program with `a2a-sdk` 0.3: prints what it got as JSON. Arguments: address of the agent, its key."""

import asyncio
import json
import sys
from uuid import uuid4

import httpx
from a2a.client import (
    A2ACardResolver,
    A2AClientError,
    A2AClientHTTPError,
    ClientConfig,
    ClientFactory,
    create_text_message_object,
)
from a2a.types import (
    GetTaskPushNotificationConfigParams,
    MessageSendConfiguration,
    PushNotificationConfig,
    TaskArtifactUpdateEvent,
    TaskIdParams,
    TaskPushNotificationConfig,
    TaskQueryParams,
    TaskStatusUpdateEvent,
)
from a2a.utils import get_artifact_text, get_message_text


def message_to(text, task=None):
    message = create_text_message_object(content=text)
    if task is not None:
        message.task_id, message.context_id = task.id, task.context_id
    return message


async def send(client, text, task=None, **configuration):
    options = {"configuration": MessageSendConfiguration(**configuration)} if configuration else {}
    ((answer, _),) = [answer async for answer in client.send_message(message_to(text, task), **options)]
    return answer


def text_of(task):
    return "".join(get_artifact_text(artifact) for artifact in task.artifacts or ())


async def code_of(call):
    try:
        await call
    except A2AClientHTTPError as error:
        return str(error.status_code)
    except A2AClientError as error:
        return str(error)
    return "no error"


async def use(http, card, binding):
    config = {"httpx_client": http, "supported_transports": [binding], "use_client_preference": True}
    client = ClientFactory(ClientConfig(streaming=False, **config)).create(card)
    streaming = ClientFactory(ClientConfig(streaming=True, **config)).create(card)
    task = await send(client, "hello")
    read = await client.get_task(TaskQueryParams(id=task.id))
    updates = [update async for _, update in streaming.send_message(message_to("stream"))]
    chunks = [update for update in updates if isinstance(update, TaskArtifactUpdateEvent)]
    states = [update.status.state for update in updates if isinstance(update, TaskStatusUpdateEvent)]
    question = await send(client, "write")
    answered = await send(client, "approve", question)
    running = await send(client, "hang", blocking=False)
    address = PushNotificationConfig(id="mine", url="http://127.0.0.1:9/told", token="word")
    await client.set_task_callback(TaskPushNotificationConfig(task_id=running.id, push_notification_config=address))
    stored = await client.get_task_callback(
        GetTaskPushNotificationConfigParams(id=running.id, push_notification_config_id="mine")
    )
    subscription = streaming.resubscribe(TaskIdParams(id=running.id))
    first, _ = await anext(subscription)
    cancelled = await client.cancel_task(TaskIdParams(id=running.id))
    rest = [update async for _, update in subscription]
    return {
        "sent": [task.status.state, text_of(task), text_of(read)],
        "streamed": [get_artifact_text(chunks[-1].artifact), states[-1]],
        "asked": [question.status.state, get_message_text(question.status.message).splitlines()[0]],
        "answered": [answered.id == question.id, text_of(answered)],
        "push": [stored.push_notification_config.url, stored.push_notification_config.token],
        "subscribed": [first.id == running.id, rest[-1].status.state],
        "cancelled": cancelled.status.state,
        "errors": [
            await code_of(client.get_task(TaskQueryParams(id=str(uuid4())))),
            await code_of(client.cancel_task(TaskIdParams(id=task.id))),
        ],
    }


async def main(url, key):
    headers = {"X-Session-API-Key": key} if key else {}
    async with httpx.AsyncClient(headers=headers, timeout=60, trust_env=False) as http:
        card = await A2ACardResolver(http, url).get_agent_card()
        facts = {binding: await use(http, card, binding) for binding in ("JSONRPC", "HTTP+JSON")}
    print(json.dumps({"card": card.name, **facts}))


asyncio.run(main(*sys.argv[1:]))
