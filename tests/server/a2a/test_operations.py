"""Agents served by A2A, driven by the client of a2a-sdk: every operation, over both bindings and both versions."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import httpx
import pytest
from a2a.client import ClientConfig, ClientFactory
from a2a.client.card_resolver import A2ACardResolver
from a2a.helpers.proto_helpers import get_artifact_text, get_message_text, new_text_message
from a2a.types.a2a_pb2 import (
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTasksRequest,
    Role,
    SendMessageConfiguration,
    SendMessageRequest,
    SubscribeToTaskRequest,
    TaskPushNotificationConfig,
    TaskState,
)
from a2a.utils.errors import A2AError, InternalError, InvalidParamsError, TaskNotCancelableError, TaskNotFoundError
from tests.server.test_webhooks import NETWORKS, listening

from bough.server.a2a.handler import translate_errors
from bough.testing import Answer, ServerCall
from bough.testing.openai_server import Hang, Received, Reply

pytestmark = pytest.mark.anyio

FORMS = [("JSONRPC", "1.0"), ("HTTP+JSON", "1.0"), ("JSONRPC", "0.3"), ("HTTP+JSON", "0.3")]
each_form = pytest.mark.parametrize(
    "form",
    [pytest.param(form, id="-".join(form), marks=() if form == FORMS[0] else pytest.mark.slow) for form in FORMS],
)


@asynccontextmanager
async def connect(
    server: Any, form: tuple[str, str], *, key: str | None = None, streaming: bool = False
) -> AsyncGenerator[Any]:
    """A client that uses one binding and version; polling waits for the end of a task."""
    headers = {} if key is None else {"X-Session-API-Key": key}
    async with httpx.AsyncClient(headers=headers, timeout=60, trust_env=False) as http:
        card = await A2ACardResolver(http, f"{server.url}/a2a/default").get_agent_card()
        wanted = [each for each in card.supported_interfaces if (each.protocol_binding, each.protocol_version) == form]
        assert len(wanted) == 1
        del card.supported_interfaces[:]
        card.supported_interfaces.extend(wanted)
        config = ClientConfig(streaming=streaming, httpx_client=http, supported_protocol_bindings=[form[0]])
        client = ClientFactory(config).create(card)
        yield client


def request(text: str, *, task: str = "", context: str = "", id: str = "", **configuration: Any) -> SendMessageRequest:
    message = new_text_message(text, role=Role.ROLE_USER)
    message.task_id, message.context_id = task, context
    message.message_id = id or str(uuid4())
    return SendMessageRequest(message=message, configuration=SendMessageConfiguration(**configuration))


async def send(client: Any, *args: Any, **named: Any) -> Any:
    """Send a message and return the last task that is heard of."""
    found = [each.task async for each in client.send_message(request(*args, **named)) if each.HasField("task")]
    return found[-1]


@each_form
async def test_tasks_are_sent_read_continued_listed_and_cancelled(serving: Any, form: tuple[str, str]) -> None:
    reached = threading.Event()

    def hang(received: Received) -> Reply:
        reached.set()
        return Hang()

    with serving("first answer", "second answer", hang) as server:
        async with connect(server, form) as client:
            task = await send(client, "hello", id="message-1")
            assert task.status.state == TaskState.TASK_STATE_COMPLETED
            assert [get_artifact_text(each) for each in task.artifacts] == ["first answer"]
            assert [(get_message_text(each), each.role) for each in task.history] == [
                ("hello", Role.ROLE_USER), ("first answer", Role.ROLE_AGENT),
            ]  # fmt: skip
            again = await send(client, "hello", id="message-1")
            assert again.id == task.id, "the same message is the same task"
            more = await send(client, "more", context=task.context_id)
            assert (more.context_id, get_artifact_text(more.artifacts[0])) == (task.context_id, "second answer")
            assert more.id != task.id
            assert [get_message_text(each) for each in more.history] == ["more", "second answer"]
            read = await client.get_task(GetTaskRequest(id=task.id, history_length=1))
            assert [get_message_text(each) for each in read.history] == ["first answer"]
            with pytest.raises(A2AError):
                await send(client, "too late", task=task.id)
            with pytest.raises(A2AError):
                await client.cancel_task(CancelTaskRequest(id=task.id))
            running = await send(client, "go", return_immediately=True)
            await asyncio.to_thread(reached.wait, 60)
            cancelled = await client.cancel_task(CancelTaskRequest(id=running.id))
            assert cancelled.status.state == TaskState.TASK_STATE_CANCELED
            with pytest.raises(A2AError):
                await client.get_task(GetTaskRequest(id=str(uuid4())))
            if form[1] == "1.0":  # 0.3 has no list
                page = await client.list_tasks(ListTasksRequest(page_size=2, include_artifacts=True))
                rest = await client.list_tasks(ListTasksRequest(page_token=page.next_page_token))
                assert {each.id for each in (*page.tasks, *rest.tasks)} == {task.id, more.id, running.id}
                of_context = await client.list_tasks(ListTasksRequest(context_id=task.context_id))
                assert {each.id for each in of_context.tasks} == {task.id, more.id}
                ended = await client.list_tasks(ListTasksRequest(status=TaskState.TASK_STATE_CANCELED))
                assert [each.id for each in ended.tasks] == [running.id]


@each_form
async def test_a_task_is_streamed_and_subscribed_to(serving: Any, form: tuple[str, str]) -> None:
    reached, going = threading.Event(), threading.Event()

    def wait(received: Received) -> Reply:
        reached.set()
        going.wait(60)
        return "some words to stream"

    listing = Answer(calls=(ServerCall(tool="list_files", arguments={}),))
    with serving(listing, wait, tools="read") as server:
        async with connect(server, form, streaming=True) as client, connect(server, form, streaming=True) as other:
            heard: list[Any] = []

            async def follow() -> None:
                heard.extend([each async for each in client.send_message(request("go"))])

            following = asyncio.create_task(follow())
            await asyncio.to_thread(reached.wait, 60)
            async with connect(server, ("JSONRPC", "1.0")) as reader:
                (task,) = (await reader.list_tasks(ListTasksRequest())).tasks
            subscribed = other.subscribe(SubscribeToTaskRequest(id=task.id))
            first = await anext(subscribed)
            assert first.task.status.state == TaskState.TASK_STATE_WORKING
            going.set()
            rest = [each async for each in subscribed]
            await following
            for events in (heard, rest):
                updates = [each.artifact_update for each in events if each.HasField("artifact_update")]
                assert get_artifact_text(updates[-1].artifact) == "some words to stream"
                assert updates[-1].last_chunk
                states = [each.status_update.status.state for each in events if each.HasField("status_update")]
                assert states[-1] == TaskState.TASK_STATE_COMPLETED
            with pytest.raises(A2AError):
                await anext(other.subscribe(SubscribeToTaskRequest(id=task.id)))


@each_form
async def test_what_waits_is_input_required_and_is_answered(serving: Any, form: tuple[str, str]) -> None:
    write = Answer(calls=(ServerCall(tool="write_file", arguments={"path": "a.txt", "content": "x"}, id="c1"),))
    again = Answer(calls=(ServerCall(tool="write_file", arguments={"path": "b.txt", "content": "x"}, id="c2"),))
    with serving(write, "written", again, "not written", tools="write", policy="ask") as server:
        async with connect(server, form) as client:
            task = await send(client, "write it")
            assert task.status.state == TaskState.TASK_STATE_INPUT_REQUIRED
            assert "write_file" in get_message_text(task.status.message)
            done = await send(client, "approve", task=task.id, context=task.context_id)
            assert (done.id, done.status.state) == (task.id, TaskState.TASK_STATE_COMPLETED)
            assert get_artifact_text(done.artifacts[0]) == "written"
            asked = await send(client, "write another")
            refused = await send(client, "not that file", task=asked.id)
            assert refused.status.state == TaskState.TASK_STATE_COMPLETED
            assert get_artifact_text(refused.artifacts[0]) == "not written"
            with pytest.raises(A2AError):
                await send(client, "x", task=asked.id, context=str(uuid4()))


@each_form
async def test_clients_are_told_by_push_notifications(serving: Any, form: tuple[str, str]) -> None:
    reached, going = threading.Event(), threading.Event()

    def wait(received: Received) -> Reply:
        reached.set()
        going.wait(60)
        return "done"

    with listening() as listener, serving(wait, webhook_networks=NETWORKS) as server:
        async with connect(server, form) as client:
            task = await send(client, "go", return_immediately=True)
            await asyncio.to_thread(reached.wait, 60)
            wanted = TaskPushNotificationConfig(task_id=task.id, id="mine", url=listener.url, token="a-token")
            made = await client.create_task_push_notification_config(wanted)
            assert (made.id, made.task_id, made.url) == ("mine", task.id, listener.url)
            read = await client.get_task_push_notification_config(
                GetTaskPushNotificationConfigRequest(task_id=task.id, id="mine")
            )
            assert read.token == "a-token"
            assert await list_configs(client, form, task.id) == ["mine"]
            with pytest.raises(A2AError):
                inside = TaskPushNotificationConfig(task_id=task.id, url="https://10.0.0.1/")
                await client.create_task_push_notification_config(inside)
            going.set()
            headers, body = await asyncio.to_thread(listener.read)
            assert headers["x-a2a-notification-token"] == "a-token"
            assert body["task"]["id"] == task.id
            if form == ("HTTP+JSON", "0.3"):
                return  # its client has no way to take one back
            await client.delete_task_push_notification_config(
                DeleteTaskPushNotificationConfigRequest(task_id=task.id, id="mine")
            )
            assert await list_configs(client, form, task.id) == []


async def test_a_client_is_told_of_what_a_worker_did(serving: Any, settings: Any) -> None:
    """The server only answers; a worker runs the task, and the client hears of its end."""
    from bough.server.worker import work_for_servers
    from bough.tasks import TaskBroker
    from bough.tasks.serve import serve
    from bough.tasks.stores.backends import open_task_store

    with listening() as listener, serving("by the worker", webhook_networks=NETWORKS, runs="workers") as server:
        async with connect(server, FORMS[0]) as client:
            wanted = TaskPushNotificationConfig(id="mine", url=listener.url, token="a-token")
            task = await send(client, "go", return_immediately=True, task_push_notification_config=wanted)
            tasks = open_task_store(settings.store)
            broker = TaskBroker(tasks, settings=settings)
            work_for_servers(broker, await tasks.open(), settings)
            await serve(broker, queues=["default"], agents=[server.agent], once=True)
            await tasks.aclose()
            while True:
                headers, body = await asyncio.to_thread(listener.read)
                assert (headers["x-a2a-notification-token"], body["task"]["id"]) == ("a-token", task.id)
                if body["task"]["status"]["state"] == "TASK_STATE_COMPLETED":
                    break
            assert body["task"]["artifacts"][0]["parts"] == [{"text": "by the worker"}]
            with pytest.raises(A2AError):
                inside = TaskPushNotificationConfig(task_id=task.id, url=listener.url, token="kl\u00fcger")
                await client.create_task_push_notification_config(inside)
            refused = await client.list_tasks(ListTasksRequest(status=TaskState.TASK_STATE_REJECTED))
            assert not refused.tasks, "no task of ours has that state"


async def list_configs(client: Any, form: tuple[str, str], task: str) -> list[str]:
    """Return the ids of a task's configurations; over REST of 0.3 the client can only ask for one."""
    if form == ("HTTP+JSON", "0.3"):
        try:
            asked = GetTaskPushNotificationConfigRequest(task_id=task, id="mine")
            return [(await client.get_task_push_notification_config(asked)).id]
        except A2AError:
            return []
    listed = await client.list_task_push_notification_configs(ListTaskPushNotificationConfigsRequest(task_id=task))
    return [each.id for each in listed.configs]


async def test_keys_cards_and_tenants_hold(serving: Any, new_key: Any) -> None:
    red = await asyncio.to_thread(new_key, tenant="red", role="admin")
    blue = await asyncio.to_thread(new_key, tenant="blue", role="admin")
    narrow = await asyncio.to_thread(new_key, tenant="red", role="write", scopes=["conversations"])
    with serving("one", "two") as server:
        async with connect(server, FORMS[0], key=red.text) as client:
            task = await send(client, "hello")
        async with connect(server, FORMS[0], key=blue.text) as stranger:
            for asking in (
                stranger.get_task(GetTaskRequest(id=task.id)),
                stranger.cancel_task(CancelTaskRequest(id=task.id)),
                send(stranger, "x", task=task.id),
            ):
                with pytest.raises(TaskNotFoundError):
                    await asking
            assert not (await stranger.list_tasks(ListTasksRequest())).tasks
            taken = await send(stranger, "mine", context=str(uuid4()))
            assert taken.status.state == TaskState.TASK_STATE_COMPLETED
            for wrong in ("nonsense", "../x"):
                with pytest.raises(InvalidParamsError):
                    await send(stranger, "x", context=wrong)
            with pytest.raises((TaskNotCancelableError, A2AError)):
                await stranger.cancel_task(CancelTaskRequest(id=taken.id))
        paths = ("/a2a/default/.well-known/agent-card.json", "/.well-known/agent-card.json")
        for key, status in ((None, 401), ("wrong", 401), (narrow.text, 403), (red.text, 200)):
            with server.client(key) as http:
                assert [http.get(path).status_code for path in paths] == [status, status]
        with server.client(red.text) as http:
            card = http.get(paths[1]).json()
            assert card["name"] == "default"
            assert card["capabilities"]["pushNotifications"]
            assert http.get("/a2a/nobody/.well-known/agent-card.json").status_code == 404
    with serving(public_card=True) as server, server.client() as http:
        assert http.get(paths[0]).status_code == 200
        assert http.post("/a2a/default", json={}).status_code == 401


def test_a_fault_of_the_server_says_nothing_of_itself() -> None:
    with pytest.raises(InternalError) as raised, translate_errors():
        raise ZeroDivisionError("a path of the server")
    assert str(raised.value) == "internal: the server failed"


async def test_a_reader_sees_no_credentials_and_what_is_refused_leaves_nothing(serving: Any, new_key: Any) -> None:
    writer = await asyncio.to_thread(new_key, tenant="red")
    reader = await asyncio.to_thread(new_key, tenant="red", role="read")
    other = await asyncio.to_thread(new_key, tenant="blue")
    options = {"webhook_networks": NETWORKS, "message_bytes": 2000}
    with serving("one", "two", **options) as server, server.client(writer.text) as rest:
        conversation = rest.post("/api/conversations", json={}).json()["id"]
        async with connect(server, FORMS[0], key=other.text) as client:
            foreign = await send(client, "theirs")
        async with connect(server, FORMS[0], key=writer.text) as client:
            task = await send(client, "hello")
            config = {"task_id": task.id, "url": "http://127.0.0.1:9/x", "token": "a secret"}
            for number in range(20):
                wanted = TaskPushNotificationConfig(id=str(number), **config)
                await client.create_task_push_notification_config(wanted)
            await client.create_task_push_notification_config(TaskPushNotificationConfig(id="0", **config))
            with pytest.raises(A2AError, match="at most 20"):
                await client.create_task_push_notification_config(TaskPushNotificationConfig(**config))
            refusals = set()
            for context in (conversation, foreign.context_id):
                with pytest.raises(InvalidParamsError) as refused:
                    await send(client, "hello", context=context)
                refusals.add(str(refused.value))
            assert len(refusals) == 1, "another tenant's context looks like something else of one's own"
            before = rest.get("/api/conversations/count").json()
            private = TaskPushNotificationConfig(url="http://10.0.0.1/x")
            with pytest.raises(A2AError):
                await send(client, "hello", task_push_notification_config=private)
            with pytest.raises(A2AError, match="longer"):
                await send(client, "x" * 3000)
            assert rest.get("/api/conversations/count").json() == before
        async with connect(server, ("HTTP+JSON", "1.0"), key=reader.text) as client:
            assert (await client.get_task(GetTaskRequest(id=task.id))).id == task.id
            with pytest.raises(A2AError, match="role write"):
                await client.list_task_push_notification_configs(
                    ListTaskPushNotificationConfigsRequest(task_id=task.id)
                )
            with pytest.raises(A2AError, match="role write"):
                await client.get_task_push_notification_config(
                    GetTaskPushNotificationConfigRequest(task_id=task.id, id="0")
                )
