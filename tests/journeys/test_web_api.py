"""`examples/api/web_api.py` with real clients: they leave and come back, send at once, and their server is killed."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import httpx2
import pytest
from tests.journeys.conftest import ROOT, Person

from bough.testing import OpenAIServer
from bough.testing.openai_server import Answer, Received, Reply, ServerCall

COMMAND = [sys.executable, "-m", "uvicorn", "web_api:app", "--port", "0", "--app-dir", ROOT / "examples" / "api"]


class Model:
    """Answers when the test says so; a message that says "publish" is answered with a call."""

    def __init__(self) -> None:
        self.asked = threading.Semaphore(0)
        self.may_answer = threading.Semaphore(0)

    def answer(self, received: Received) -> Reply:
        self.asked.release()
        assert self.may_answer.acquire(timeout=60)
        last = received.body["messages"][-1]
        if last["role"] == "user" and "publish" in str(last["content"]):
            return Answer(calls=(ServerCall(tool="publish", arguments={"text": "hello"}),))
        return "all done"


@pytest.fixture
def model(person: Person) -> Iterator[Model]:
    model = Model()
    with OpenAIServer([model.answer] * 20) as server:
        person.environment |= {"OPENAI_API_KEY": "x", "BOUGH_BASE_URL": server.url}
        yield model


def names(body: str) -> list[str]:
    return [line.removeprefix("event: ") for line in body.splitlines() if line.startswith("event: ")]


def read_to_message(lines: Iterator[str]) -> int:
    """Read a stream up to its first message, and return the seq of the message."""
    seq = -1
    for line in lines:
        if line.startswith("id: "):
            seq = int(line.removeprefix("id: "))
        if line == "event: UserMessage":
            break
    return seq


def test_a_client_leaves_a_stream_and_joins_it_again(person: Person, model: Model) -> None:
    path = f"/chats/{uuid4()}"
    with person.run_server(COMMAND) as server, server.client() as client:
        assert client.get(f"{path}/events").status_code == 404
        started = client.post(f"{path}/messages", params={"text": "hello"})
        assert (started.status_code, started.json()) == (202, {"after": 0})
        assert model.asked.acquire(timeout=60)
        with client.stream("GET", f"{path}/events") as response:
            seq = read_to_message(response.iter_lines())
            assert seq == 1
        for wrong in (-7, "x"):
            assert client.get(f"{path}/events", params={"after": wrong}).status_code == 422
        model.may_answer.release()
        rest = client.get(f"{path}/events", params={"after": seq}).text
        assert names(rest)[-2:] == ["ModelResponded", "StateChanged"]
        assert "all done" in rest
        assert client.get(f"{path}/events", params={"after": 10_000}).text == ""
        assert "Traceback" not in server.log.read_text()


def test_of_several_messages_at_once_one_starts_the_run_and_none_is_lost(person: Person, model: Model) -> None:
    path = f"/chats/{uuid4()}"
    with person.run_server(COMMAND) as server, server.client() as client, ThreadPoolExecutor(5) as threads:
        client.post(f"{path}/messages", params={"text": "first"})
        model.may_answer.release()
        client.get(f"{path}/events")
        texts = [f"message {number}" for number in range(5)]
        sent = list(threads.map(lambda text: client.post(f"{path}/messages", params={"text": text}), texts))
        assert sorted(response.status_code for response in sent) == [202, 409, 409, 409, 409]
        for _ in range(10):
            model.may_answer.release()
        client.get(f"{path}/events")
        body = client.get(f"{path}/events").text
        assert all(text in body for text in texts)


def test_a_server_that_was_killed_continues_the_run(person: Person, model: Model) -> None:
    path = f"/chats/{uuid4()}"
    with person.run_server(COMMAND) as server, server.client() as client:
        client.post(f"{path}/messages", params={"text": "publish"})
        assert model.asked.acquire(timeout=60)
        with client.stream("GET", f"{path}/events") as response:
            lines = response.iter_lines()
            read_to_message(lines)
            server.process.kill()
            with pytest.raises(httpx2.TransportError):
                list(lines)
    model.may_answer.release(2)  # for the killed server, which does not hear it, and for the next one
    with person.run_server(COMMAND) as server, server.client() as client:
        assert client.get(f"{path}/events").status_code == 200, "the run has ended with its process"
        client.post(f"{path}/messages", params={"text": "publish, please"})
        body = client.get(f"{path}/events").text
        assert "waiting_for_confirmation" in body
        assert "Traceback" not in server.log.read_text()
