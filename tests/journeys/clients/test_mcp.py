"""Programs of users of `mcp` 1.x and 2.x: clients of `bough mcp` and `/mcp`, and servers whose tools an agent uses."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.journeys.conftest import BOUGH, Person

from bough.testing import Answer, OpenAIServer, ServerCall
from bough.testing.openai_server import Failure, Hang, Received, Reply, Step

pytestmark = pytest.mark.slow
VERSIONS = ("1.30.0", "2.3.0")
FOLDER = Path(__file__).parent
_POLL_SECONDS = 0.05
_START_SECONDS = 60
TOOLS = [
    "apply_files", "cancel_task", "compare_conversations", "decide", "delegate", "diff_files", "fork_conversation",
    "get_task", "list_conversations", "list_files", "list_turns", "read_file", "restore_files", "run_conversation",
    "send_message", "start_conversation",
]  # fmt: skip
FACTS: dict[str, Any] = {
    "tools": TOOLS,
    "started": ["finished", "one"],
    "continued": "two",
    "forked": ["other", True, True],
    "listed": 1,
    "delegated": ["completed", "delegated", True, "completed"],
    "waits": ["waiting_for_confirmation", "write_file", "a.txt"],
    "decided": ["waiting_for_confirmation", "b.txt", "finished", "as you say"],
    "resources": [True, True],
    "transcript": [True, True],
    "events": True,
    "updated": True,
    "unknown_resource": "not_found",
    "mistakes": [
        [True, "not_found"],
        [True, "invalid_input"],
        [True, "invalid_input"],
        [True, "invalid_input"],
    ],
    "failed": [True, True, "after all"],
    "progress": [[1, "write_file"], [2, "the model answered"]],
    "cancelled": "paused",
    "resumed": ["finished", "resumed"],
}


class Environment(NamedTuple):
    """An environment with one version of `mcp`: its Python, and the file of a program for that version."""

    python: Path
    major: str

    def server(self) -> Path:
        """Return the program that serves tools."""
        return FOLDER / f"mcp_server_{self.major}.py"


@pytest.fixture(scope="session", params=VERSIONS)
def mcp(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment without bough; it takes a package index."""
    folder = tmp_path_factory.mktemp("mcp") / "environment"
    python, uv = folder / "bin" / "python", Path(sys.executable).parent / "uv"
    create: list[str | Path] = [sys.executable, "-m", "venv", folder]
    install: list[str | Path] = [python, "-m", "pip", "install", "-q"]
    if uv.exists():
        create = [uv, "venv", "-q", "--python", sys.executable, folder]
        install = [uv, "pip", "install", "-q", "--python", python]
    subprocess.run(create, check=True)
    subprocess.run([*install, f"mcp=={request.param}"], check=True)
    return Environment(python, request.param.partition(".")[0])


def _write(path: str) -> Answer:
    return Answer(calls=(ServerCall(tool="write_file", arguments={"path": path, "content": "x"}, id=path),))


def _model_steps(asked: Path) -> list[Step]:
    def hang(_: Received) -> Reply:
        asked.touch()
        return Hang()

    failure = Failure(status=400, message="no such model", headers={"x-should-retry": "false"})
    decided = [_write("a.txt"), _write("b.txt"), "as you say"]
    return ["one", "two", "other", "delegated", *decided, "more", failure, "after all", hang, "resumed"]


def _prepare(person: Person, openai_server: Callable[..., OpenAIServer]) -> Path:
    """Configure a model and a policy, and return the file that exists once the model hangs."""
    asked = person.home / "asked"
    model = openai_server(*_model_steps(asked))
    person.environment |= {"OPENAI_API_KEY": "k", "BOUGH_MODEL": "openai:test", "BOUGH_BASE_URL": model.url}
    person.environment["BOUGH_POLICY"] = "ask"
    config = person.home / ".bough" / "config.yaml"
    config.parent.mkdir()
    config.write_text("agents: {worker: {description: Works.}}\n")
    return asked


def _drive(person: Person, mcp: Environment, *args: str | Path) -> dict[str, Any]:
    result = person.try_command([mcp.python, FOLDER / "mcp_client.py", *args], timeout=60)
    assert result.code == 0, result.stderr[-6000:]
    return json.loads(result.stdout)


def test_a_client_uses_bough_over_stdio(
    person: Person, mcp: Environment, openai_server: Callable[..., OpenAIServer]
) -> None:
    asked = _prepare(person, openai_server)
    assert _drive(person, mcp, asked, "stdio", BOUGH, "mcp") == FACTS
    assert (person.folder / "a.txt").read_text() == "x"
    assert not (person.folder / "b.txt").exists(), "the call that was rejected ran"


def test_a_client_uses_a_server_over_http_with_a_key(
    person: Person, mcp: Environment, openai_server: Callable[..., OpenAIServer]
) -> None:
    asked = _prepare(person, openai_server)
    key = person.bough("keys", "create", "k", "--role", "write", "--json").json()["key"]
    with person.serve() as server:
        facts = _drive(person, mcp, asked, "http", f"{server.url}/mcp", key)
    assert facts == FACTS | {"wrong_key": True}


@contextmanager
def _serve_tools(mcp: Environment, log: Path) -> Generator[str]:
    """Run the server of tools on a free port until the block ends; yields its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with log.open("w") as output:
        process = subprocess.Popen([mcp.python, mcp.server(), str(port)], stdout=output, stderr=output)
    try:
        end = time.monotonic() + _START_SECONDS
        while not _is_open(port):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(_POLL_SECONDS)  # a port tells nobody that it is open
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.terminate()
        process.wait(30)


def _is_open(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


_AGENT = """
import sys
from bough import AgentSpec, Conversation, MCPClientConfig

python, program, url = sys.argv[1:]
servers = [
    MCPClientConfig(name="local", command=python, args=(program,), tool_prefix="local"),
    MCPClientConfig(name="web", url=url, bearer_token="web-token-1", tool_prefix="web"),
]
with Conversation(AgentSpec(mcp_servers=servers)) as conversation:
    conversation.send_message("Measure the planks.")
    print(conversation.run().output)
"""


def test_an_agent_uses_a_server_over_stdio_and_http(
    person: Person, mcp: Environment, openai_server: Callable[..., OpenAIServer]
) -> None:
    def call(tool: str, **arguments: Any) -> ServerCall:
        return ServerCall(tool=tool, arguments=arguments, id=tool)

    calls = [
        call(f"{server}_{tool}", **arguments)
        for server in ("local", "web")
        for tool, arguments in (
            ("measure", {"plank": "oak"}),
            ("count", {"planks": ["ash", "pine"]}),
            ("saw", {"plank": "oak"}),
        )
    ]
    model = openai_server(Answer(calls=(*calls, call("web_authorization"))), "measured")
    person.environment |= {"OPENAI_API_KEY": "k", "BOUGH_MODEL": "openai:test", "BOUGH_BASE_URL": model.url}
    with _serve_tools(mcp, person.home / "tools.log") as url:
        result = person.python(_AGENT, str(mcp.python), str(mcp.server()), url)
    assert result.stdout == "measured\n"
    results = {
        message["tool_call_id"]: message["content"]
        for message in model.received[-1].body["messages"]
        if message["role"] == "tool"
    }
    for server in ("local", "web"):
        assert results[f"{server}_measure"] == "oak is 3 long"
        assert json.loads(results[f"{server}_count"]) == {"ash": 3, "pine": 4}
        assert "the saw is too blunt for oak" in results[f"{server}_saw"]
    assert results["web_authorization"] == "Bearer web-token-1"
