"""Programs of other people that speak A2A: their clients against our servers, and our client against their servers.

Each program runs in an environment of its own with one version of the other package, installed from a package index.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.journeys.conftest import BOUGH, Person, Result

from bough.testing import Answer, Hang, OpenAIServer, ServerCall
from bough.testing.openai_server import Received, Reply

pytestmark = pytest.mark.slow

PROGRAMS = Path(__file__).parent
PACKAGES = {
    "a2a-sdk 1": ["a2a-sdk[http-server]>=1.3,<1.4", "uvicorn"],
    "a2a-sdk 0": ["a2a-sdk[http-server]>=0.3,<0.4", "uvicorn"],
    "fasta2a 0": ["fasta2a>=0.6,<0.7", "httpx", "uvicorn"],
    "fasta2a 2": ["fasta2a>=2.1,<2.2", "httpx", "uvicorn"],
}
CONFIG = """\
models:
  scripted: {model: "openai-chat:test", base_url: "%s", api_key: key}
agents:
  clerk:
    description: Writes letters.
    model: scripted
    workspace_access: write
    confirmation_policy: ask
"""
_START_SECONDS = 30

_SDK_1 = {
    "sent": ["TASK_STATE_COMPLETED", "the answer to hello", "the answer to hello"],
    "streamed": ["the answer to stream", "TASK_STATE_COMPLETED"],
    "asked": ["TASK_STATE_INPUT_REQUIRED", "approve or reject: write_file"],
    "answered": [True, "written"],
    "push": ["http://127.0.0.1:9/told", "word"],
    "subscribed": [True, "TASK_STATE_CANCELED"],
    "cancelled": "TASK_STATE_CANCELED",
    "listed": True,
    "errors": ["TaskNotFoundError: Task not found", "TaskNotCancelableError: Task cannot be canceled"],
}
_SDK_0 = {
    "sent": ["completed", "the answer to hello", "the answer to hello"],
    "streamed": ["the answer to stream", "completed"],
    "asked": ["input-required", "approve or reject: write_file"],
    "answered": [True, "written"],
    "push": ["http://127.0.0.1:9/told", "word"],
    "subscribed": [True, "canceled"],
    "cancelled": "canceled",
}
_FASTA2A: dict[str, Any] = {
    "sent": ["completed", "the answer to hello", "the answer to hello"],
    "asked": ["input-required", "approve or reject: write_file"],
    "answered": [True, "written"],
    "running": True,
    "cancelled": "canceled",
    "streamed": None,
    "errors": [{"code": -32001, "message": "Task not found", "data": None}, -32004],
}
_JSONRPC_0 = [
    "JSON-RPC Error code=-32001 data=None message='Task not found'",
    "JSON-RPC Error code=-32002 data=None message='Task cannot be canceled'",
]
CLIENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "a2a-sdk 1": ("a2a_sdk_1.py", {"JSONRPC": _SDK_1, "HTTP+JSON": _SDK_1}),
    "a2a-sdk 0": (
        "a2a_sdk_0.py",
        {"JSONRPC": {**_SDK_0, "errors": _JSONRPC_0}, "HTTP+JSON": {**_SDK_0, "errors": ["404", "400"]}},
    ),
    "fasta2a 0": ("fasta2a_client.py", _FASTA2A),
    "fasta2a 2": ("fasta2a_client.py", {**_FASTA2A, "streamed": [True, "the answer to stream", "completed"]}),
}

_USED = {
    "card": "Shouter",
    "sent": ["completed", "HELLO", "HELLO"],
    "failed": ["failed", "TASK_STATE_FAILED"],
    "tool": ["It shouted.", {"status": "completed", "result": "HELLO"}],
}
_STREAMED = {"streamed": "STREAM"}
_TALKED = {"talked": ["It shouted.", {"status": "completed", "result": "no artifact"}]}
_WHOLE = {
    **_STREAMED,
    "cancelled": ["cancelled", "TASK_STATE_CANCELED"],
    "asked": ["input-required", "how loud?", "completed", "VERY"],
}
SERVERS: list[tuple[str, str, str, dict[str, Any]]] = [
    ("a2a-sdk 1", "serve_a2a_sdk_1.py", "JSONRPC", _WHOLE),
    ("a2a-sdk 1", "serve_a2a_sdk_1.py", "HTTP+JSON", _WHOLE),
    ("a2a-sdk 0", "serve_a2a_sdk_0.py", "JSONRPC", _WHOLE),
    ("a2a-sdk 0", "serve_a2a_sdk_0.py", "HTTP+JSON", _WHOLE),
    ("fasta2a 0", "serve_fasta2a.py", "", _TALKED),
    ("fasta2a 2", "serve_fasta2a.py", "", {**_TALKED, **_STREAMED}),
]


@pytest.fixture(scope="session")
def environment_with(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Returns a function that gives the Python of an environment with one of `PACKAGES`, made at the first call."""
    made: dict[str, Path] = {}

    def give(package: str) -> Path:
        if package not in made:
            folder = tmp_path_factory.mktemp("environment") / "environment"
            python, uv = folder / "bin" / "python", Path(sys.executable).with_name("uv")
            subprocess.run([uv, "venv", "-q", "--python", sys.executable, folder], check=True)
            subprocess.run([uv, "pip", "install", "-q", "--python", python, *PACKAGES[package]], check=True)
            made[package] = python
        return made[package]

    return give


def _reply(received: Received) -> Reply:
    """Answer as the last message asks."""
    message = received.body["messages"][-1]
    if message["role"] == "tool":
        return "written"
    match message["content"]:
        case "write":
            return Answer(calls=(ServerCall(tool="write_file", arguments={"path": "a.txt", "content": "x"}),))
        case "hang":
            return Hang()
        case text:
            return f"the answer to {text}"


@pytest.mark.parametrize("command", ["serve", "a2a serve"])
def test_clients_get_their_results(
    person: Person,
    openai_server: Callable[..., OpenAIServer],
    environment_with: Callable[[str], Path],
    command: str,
) -> None:
    model = openai_server(*[_reply] * 200)
    home = person.home / ".bough"
    home.mkdir()
    (home / "config.yaml").write_text(CONFIG % model.url)
    (home / "bough.yaml").write_text("server: {webhook_networks: [127.0.0.0/8]}\n")
    with ExitStack() as stack:
        if command == "serve":
            key = person.bough("keys", "create", "me").stdout.strip()
            url = f"{stack.enter_context(person.serve()).url}/a2a/clerk"
        else:
            key, port = "", _free_port()
            server = [BOUGH, "a2a", "serve", "--agent", "clerk", "--port", str(port)]
            url = stack.enter_context(_listening(server, person, port))
        for package, (program, expected) in CLIENTS.items():
            facts = _facts(person.try_command([environment_with(package), PROGRAMS / program, url, key]))
            # fasta2a 0.6 reads no card, and 2.1 none that demands a key.
            reads_card = package.startswith("a2a-sdk") or (package == "fasta2a 2" and not key)
            assert facts.pop("card") == ("clerk" if reads_card else None), package
            assert facts == expected, package


def test_the_default_agent_is_served(person: Person) -> None:
    port = _free_port()
    with _listening([BOUGH, "a2a", "serve", "--agent", "default", "--port", str(port)], person, port) as url:
        card = httpx2.get(f"{url}/.well-known/agent-card.json", timeout=60, trust_env=False).json()
    assert card["supportedInterfaces"][0]["url"] == url


@pytest.mark.parametrize(("package", "program", "binding", "expected"), SERVERS)
def test_a_server_is_used_at_its_address_whatever_its_card_names(
    person: Person,
    environment_with: Callable[[str], Path],
    package: str,
    program: str,
    binding: str,
    expected: dict[str, Any],
) -> None:
    port = _free_port()
    with _listening([environment_with(package), PROGRAMS / program, str(port), binding], person, port) as url:
        result = person.try_command([sys.executable, PROGRAMS / "use_peer.py", url, *expected])
    assert _facts(result) == {**_USED, **expected}


def _facts(result: Result) -> dict[str, Any]:
    assert result.code == 0, result
    return json.loads(result.stdout)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return listening.getsockname()[1]


@contextmanager
def _listening(command: list[Any], person: Person, port: int) -> Iterator[str]:
    """Run a server until the block ends, which begins when it answers."""
    log = person.folder.parent / f"{person.folder.name}-peer.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [str(part) for part in command],
            cwd=person.folder,
            env=person.env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        end = time.monotonic() + _START_SECONDS
        while True:
            with suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
                break
            assert process.poll() is None, f"the server ended: {log.read_text()}"
            assert time.monotonic() < end, f"the server does not listen: {log.read_text()}"
            time.sleep(0.05)  # a port tells nobody that it is open
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)
