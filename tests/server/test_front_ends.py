"""Clients of others against a server: `@ag-ui/client` runs an agent and answers an interrupt; `llm` talks to `/v1`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.clients.npm import NodeClients
from tests.server.test_openai import sent

from bough.testing import Answer, ServerCall

pytestmark = pytest.mark.slow
STARTED = ["RUN_STARTED", "STATE_SNAPSHOT"]
CALL = ["TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END"]
ENDED = ["STATE_SNAPSHOT", "RUN_FINISHED"]


@pytest.fixture(scope="session")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program `llm`, in an environment of its own. Making it takes a package index."""
    folder = tmp_path_factory.mktemp("llm") / "environment"
    bin, uv = folder / "bin", Path(sys.executable).parent / "uv"
    create: list[str | Path] = [sys.executable, "-m", "venv", folder]
    install: list[str | Path] = [bin / "python", "-m", "pip", "install", "-q"]
    if uv.exists():
        create = [uv, "venv", "-q", "--python", sys.executable, folder]
        install = [uv, "pip", "install", "-q", "--python", bin / "python"]
    subprocess.run(create, check=True)
    subprocess.run([*install, "llm==0.36"], check=True)
    return bin / "llm"


def test_ag_uis_client_sees_a_call_answers_its_interrupt_and_changes_a_message(
    serving: Any, new_key: Any, node_clients: NodeClients
) -> None:
    call = ServerCall(tool="write_file", arguments={"path": "a.txt", "content": "x"})
    steps = [Answer(calls=(call,)), "done", "later", "instead"]
    key = new_key("a", tenant="red")
    with serving(*steps, tools="write", policy="ask") as server:
        result = node_clients.run("agui.mjs", f"{server.url}/agui/default", key.text)
    assert result.returncode == 0, result.stderr[-3000:]
    facts = json.loads(result.stdout)
    assert facts.pop("asked") == [*STARTED, *CALL, *ENDED]
    resumed = facts.pop("resumed")
    assert (resumed[:3], resumed[-2:]) == ([*STARTED, "TOOL_CALL_RESULT"], ENDED)
    assert facts == {
        "roles": ["user", "assistant", "tool", "assistant", "user", "assistant"],
        "answer": "instead",
        "refusal": True,
        "open": 0,
        "interrupt": "write_file",
        "thread": True,
        "isFork": True,
    }


def test_llm_continues_its_conversation(serving: Any, new_key: Any, llm: Path, tmp_path: Path) -> None:
    key = new_key("a", tenant="red")
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "LLM_USER_PATH": str(tmp_path)}
    with serving("one", "two", "alone") as server:
        model = {"model_id": "bough", "model_name": "default", "api_base": f"{server.url}/v1", "api_key_name": "bough"}
        (tmp_path / "extra-openai-models.yaml").write_text(json.dumps([model]))

        def run(*words: str) -> str:
            command = [llm, *words]
            return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()

        run("keys", "set", "bough", "--value", key.text)
        assert "bough" in run("models")
        assert run("-m", "bough", "first") == "one"
        assert run("-m", "bough", "-c", "second") == "two"
        assert run("-m", "bough", "--no-stream", "third") == "alone"
        with server.client(key.text) as rest:
            items = rest.get("/api/conversations/search", params={"sort_order": "CREATED_AT"}).json()["items"]
            assert [sent(rest, item["id"]) for item in items] == [["first", "second"], ["third"]]
