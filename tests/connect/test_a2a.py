"""The client of remote agents, against an agent of the a2a-sdk over each protocol version and binding."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator, Iterator

import pytest
from tests.connect.a2a_server import serve_agent

from bough.connect.a2a import A2AClientExtended, TaskStatus
from bough.connect.a2a_http import add_time_zones
from bough.connect.config import A2AClientConfig
from bough.errors import ConnectError, InvalidInput, NotFound

pytestmark = pytest.mark.anyio


@pytest.fixture(
    params=[("JSONRPC", "1.0"), ("JSONRPC", "0.3"), ("HTTP+JSON", "1.0"), ("HTTP+JSON", "0.3")], ids="-".join
)
def agent_url(request: pytest.FixtureRequest) -> Iterator[str]:
    with serve_agent(request.param) as url:
        yield url


@pytest.fixture
async def client(agent_url: str) -> AsyncIterator[A2AClientExtended]:
    client = A2AClientExtended(A2AClientConfig(url=agent_url, poll_interval=0.01, max_retries=0))
    yield client
    await client.aclose()


async def test_a_prompt_is_answered_and_streamed(client: A2AClientExtended) -> None:
    assert (await client.get_agent_card())["name"] == "Shouter"
    status, task = await client.send_and_observe("hello")
    assert status is TaskStatus.COMPLETED
    assert task is not None
    assert task["artifacts"][0]["parts"][0]["text"] == "HELLO"
    assert (await client.poll(task["id"]))["id"] == task["id"]
    kinds = [next(iter(event)) async for event in client.stream("hello")]
    assert kinds == ["task", "statusUpdate", "artifactUpdate", "statusUpdate"]


async def test_a_question_is_answered_in_its_task(client: A2AClientExtended) -> None:
    status, task = await client.send_and_observe("ask")
    assert status is TaskStatus.INPUT_REQUIRED
    assert task is not None
    assert task["status"]["message"]["parts"][0]["text"] == "how loud?"
    status, same = await client.send_and_observe("very", task["id"])
    assert status is TaskStatus.COMPLETED
    assert same is not None
    assert same["id"] == task["id"]


async def test_a_task_is_cancelled_or_given_up(client: A2AClientExtended) -> None:
    status, task = await client.send_and_observe("hang", is_cancelled=lambda: True)
    assert status is TaskStatus.CANCELLED
    assert task is not None
    assert task["status"]["state"] == "TASK_STATE_CANCELED"
    assert await client.cancel_task(task["id"]) is None


async def test_an_unknown_task_is_not_found(client: A2AClientExtended) -> None:
    with pytest.raises(NotFound):
        await client.poll("nonsense")


@pytest.mark.parametrize("elsewhere", ["http://localhost:8000", "http://127.0.0.1:9/a2a"])
@pytest.mark.parametrize("version", ["1.0", "0.3"])
async def test_a_card_that_names_another_address_is_used_at_the_configured_one(version: str, elsewhere: str) -> None:
    """Servers behind a proxy or on a port of their own name such an address; the token goes to no other host."""
    with serve_agent(("JSONRPC", version), elsewhere=elsewhere) as url:
        client = A2AClientExtended(A2AClientConfig(url=url, bearer_token="secret", max_retries=0, poll_interval=0.01))
        status, task = await client.send_and_observe("hello")
        await client.aclose()
    assert status is TaskStatus.COMPLETED
    assert task is not None
    assert task["artifacts"][0]["parts"][0]["text"] == "HELLO"


async def test_a_peer_that_is_not_there_is_a_connect_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    client = A2AClientExtended(A2AClientConfig(url=f"http://127.0.0.1:{port}", max_retries=1, retry_delay=0))
    with pytest.raises(ConnectError, match="agent http"):
        await client.get_agent_card()
    await client.aclose()


def test_an_address_is_one() -> None:
    with pytest.raises(InvalidInput):
        A2AClientConfig(url="agents.example")


def test_a_timestamp_without_a_time_zone_is_read_as_utc() -> None:
    status = {"state": "TASK_STATE_WORKING", "timestamp": "2026-11-24T01:02:03.456789"}
    data = {"status": {"timestamp": "2026-11-24T01:02:03"}}
    zoned = {**status, "timestamp": "2026-11-24T01:02:03.456789Z"}
    for name in ("task", "statusUpdate"):
        answer = json.dumps({"result": {name: {"status": status, "metadata": data}}})
        assert json.loads(add_time_zones(answer.encode())) == {"result": {name: {"status": zoned, "metadata": data}}}
    listed = json.loads(add_time_zones(json.dumps({"tasks": [{"status": status}, "no task"]}).encode()))
    assert listed == {"tasks": [{"status": zoned}, "no task"]}
    for unchanged in (b'{"status": {"timestamp": "2026-11-24T01:02:03Z"}}', b'{"timestamp":"2026-11-24T01:02:03"'):
        assert add_time_zones(unchanged) == unchanged
