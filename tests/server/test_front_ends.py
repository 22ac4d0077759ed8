"""Front ends of others against a server: `@ag-ui/client` runs an agent and answers an interrupt."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.clients.npm import NodeClients

from bough.testing import Answer, ServerCall

pytestmark = pytest.mark.slow
STARTED = ["RUN_STARTED", "STATE_SNAPSHOT"]
CALL = ["TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END"]
ENDED = ["STATE_SNAPSHOT", "RUN_FINISHED"]


@pytest.fixture(scope="session")
def node_clients(tmp_path_factory: pytest.TempPathFactory) -> NodeClients:
    """The clients of `tests/clients/package.json`."""
    return NodeClients(tmp_path_factory.mktemp("node"))


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
