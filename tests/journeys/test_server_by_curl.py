"""Each group of routes of `bough serve`, used with curl on a server that has just been started."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.journeys.conftest import Person, ServerProcess

from bough.testing import OpenAIServer
from bough.testing.openai_server import Answer, Received, Reply, ServerCall

pytestmark = pytest.mark.needs("curl")


@dataclass(frozen=True)
class Curl:
    """Runs `curl` against a server.

    Attributes:
        folder: Where curl runs, so that `-o` and `--data-binary @FILE` name files in it.
    """

    server: ServerProcess
    folder: Path

    def __call__(self, path: str, *options: str, json_body: Any = None, status: int = 200) -> Any:
        """Request a path and return the answer: parsed if it is JSON, else its text."""
        if json_body is not None:
            options = (*options, "-H", "Content-Type: application/json", "-d", json.dumps(json_body))
        command = ["curl", "-sS", "--max-time", "60", "-w", "\n%{http_code}", *options, self.server.url + path]
        process = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=True)
        body, _, code = process.stdout.rpartition("\n")
        assert code == str(status), f"{path}: {code} {body}"
        return json.loads(body) if body.startswith(("{", "[")) else body

    def poll(self, path: str, key: str, value: str) -> Any:
        """Request a path until a field of the answer has a value, and return that answer."""
        for _ in range(200):
            answer = self(path)
            if answer[key] == value:
                return answer
            time.sleep(0.05)  # the route answers at once, and curl has nothing to wait on
        raise AssertionError(f"{path}: {answer}")


def _answer(request: Received) -> Reply:
    last = request.body["messages"][-1]
    if last["role"] == "user" and "delete" in str(last["content"]):
        return Answer(calls=(ServerCall(tool="run_command", arguments={"command": "rm -rf build"}),))
    if last["role"] == "user" and "write" in str(last["content"]):
        return Answer(calls=(ServerCall(tool="write_file", arguments={"path": "plan.txt", "content": "three steps"}),))
    return "all done"


@pytest.fixture(scope="module")
def curl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Curl]:
    person = Person(tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("folder"))
    with OpenAIServer([_answer] * 100) as model:
        person.environment |= {"OPENAI_API_KEY": "k", "BOUGH_MODEL": "openai:test", "BOUGH_BASE_URL": model.url}
        with person.serve() as server:
            yield Curl(server, person.folder)


@pytest.fixture
def start(curl: Curl) -> Callable[..., str]:
    """Starts a conversation, runs it to its end and returns its path."""

    def start(text: str, status: str = "finished", **fields: Any) -> str:
        created = curl("/api/conversations", json_body={"initial_message": text, **fields}, status=201)
        path = f"/api/conversations/{created['id']}"
        assert curl(f"{path}/run", json_body={"wait": 30})["status"] == status
        return path

    return start


def test_server_routes(curl: Curl) -> None:
    assert curl("/alive")
    assert curl("/health")
    assert curl("/ready")
    assert "version" in curl("/server_info")
    assert [agent["name"] for agent in curl("/api/agents")] == ["default"]
    assert curl("/api/agents/default")["model"] == "openai:test"
    assert curl("/api/health")["works"] is True
    assert "/api/conversations" in curl("/openapi.json")["paths"]


def test_conversations_events_and_forks(curl: Curl, start: Callable[..., str]) -> None:
    path = start("please write the plan", tags={"team": "blue"})
    assert curl(path)["execution_status"] == "finished"
    assert curl(f"{path}/agent_final_response")["response"] == "all done"
    count = curl(f"{path}/events/count")
    events = curl(f"{path}/events/search?limit=100")["items"]
    assert len(events) == int(count)
    assert curl(f"{path}/events/{events[1]['id']}")["id"] == events[1]["id"]
    stream = curl(f"{path}/events/stream?until=caught_up", "-N")
    assert stream.count("event: event") == int(count)
    assert curl(path, "-X", "PATCH", json_body={"title": "the plan"})["success"] is True
    assert curl("/api/conversations/search")["items"]
    fork = curl(f"{path}/fork", json_body={"at": 2, "title": "another plan"}, status=201)
    assert fork["forked_from_conversation_id"] == path.rpartition("/")[2]
    fork_path = f"/api/conversations/{fork['id']}"
    message = {"role": "user", "content": [{"type": "text", "text": "go on"}], "run": False}
    assert curl(f"{fork_path}/events", json_body=message)["success"] is True
    assert curl(f"{fork_path}/run", json_body={"wait": 30})["status"] == "finished"
    assert curl(f"{path}/compare/{fork['id']}")
    assert len(curl(f"{path}/tree")["items"]) == 2
    assert len(curl(f"{fork_path}/lineage")["items"]) == 2
    curl(fork_path, "-X", "DELETE")
    curl(fork_path, status=404)


def test_workspace(curl: Curl, start: Callable[..., str]) -> None:
    path = start("please write the plan")
    assert [Path(item["path"]).name for item in curl(f"{path}/file/list?path=.")["items"]] == ["plan.txt"]
    assert curl(f"{path}/file/download?path=plan.txt") == "three steps"
    (curl.folder / "data.csv").write_text("a,b\n1,2\n")
    curl(f"{path}/file/upload?path=data.csv", "-F", "file=@data.csv")
    output = curl(f"{path}/bash/execute_bash_command", json_body={"command": "wc -l < data.csv"})
    assert (output["exit_code"], output["stdout"].strip()) == (0, "2")


def test_approvals(curl: Curl, start: Callable[..., str]) -> None:
    path = start("delete the build", status="waiting_for_confirmation", confirmation_policy={"kind": "AlwaysConfirm"})
    (waiting,) = curl("/api/approvals")["items"]
    assert "rm -rf build" in json.dumps(waiting)
    decision = f"{path}/approvals/{waiting['tool_call_id']}"
    curl(decision, json_body={"decision": "reject", "reason": "keep it"})
    assert curl("/api/approvals")["items"] == []
    curl.poll(path, "execution_status", "finished")
    assert curl(f"{path}/agent_final_response")["response"] == "all done"


def test_transfer(curl: Curl, start: Callable[..., str]) -> None:
    path = start("hello")
    assert curl(f"{path}/export", json_body={"format": "md"}).startswith("# hello")
    curl(f"{path}/export", "-X", "POST", "-o", "talk.bough")
    curl(path, "-X", "DELETE")
    imported = curl("/api/conversations/import", "-X", "POST", "--data-binary", "@talk.bough", status=201)
    assert imported
    curl(f"{path}/adopt", "-X", "POST")
    assert curl(f"{path}/agent_final_response")["response"] == "all done"


def test_tasks_skills_usage_and_evals(curl: Curl) -> None:
    task = curl("/api/tasks", json_body={"input": "hello", "agent": "default"}, status=201)
    assert curl.poll(f"/api/tasks/{task['id']}", "state", "completed")["result"] == "all done"
    assert task["id"] in [item["id"] for item in curl("/api/tasks")["items"]]
    assert "write-a-skill" in [skill["name"] for skill in curl("/api/skills")]
    assert "Write a skill" in curl("/api/skills/write-a-skill")["content"]
    assert curl("/api/skills/match", json_body={"text": "hello"}) == []
    assert curl("/api/usage")[0]["requests"] >= 1
    assert curl("/api/evals")["items"] == []


def test_keys_and_webhooks(person: Person) -> None:
    admin = person.bough("keys", "create", "admin", "--role", "admin").stdout.strip()
    with person.serve() as server:
        curl = Curl(server, person.folder)
        header = ("-H", f"X-Session-API-Key: {admin}")
        curl("/api/conversations/search", status=401)
        created = curl("/api/keys", *header, json_body={"name": "ci", "role": "read"}, status=201)
        reader = ("-H", f"Authorization: Bearer {created['key']}")
        assert curl("/api/conversations/search", *reader)["items"] == []
        curl("/api/conversations", *reader, json_body={}, status=403)
        assert {key["name"] for key in curl("/api/keys", *header)} == {"admin", "ci"}
        curl(f"/api/keys/{created['id']}", *header, "-X", "DELETE")
        curl("/api/conversations/search", *reader, status=401)
        curl("/api/webhooks", *header, json_body={"url": "http://127.0.0.1:9/x"}, status=403)
        assert curl("/api/webhooks", *header) == []
