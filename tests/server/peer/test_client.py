"""The client of `openhands-sdk` 1.58 drives the server, unchanged, from an environment of its own.

`RECORD_PEER=1` writes what passed to `traffic.json`, which the quick test sends again.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.server.peer.relay import Relay, relayed
from tests.server.peer.steps import model_steps
from tests.server.peer.traffic import Traffic

from bough.settings import Settings

FOLDER = Path(__file__).parent
CANARIES = ("sk-of-the-client", "a-secret-of-the-client", "another-secret-of-the-client")


def drive(driver: list[str], relay: Relay, key: str, model_url: str, folder: Path, home: Path) -> dict[str, Any]:
    """Return what the driver saw; its connections are cut when it says so."""
    command = [*driver, f"http://127.0.0.1:{relay.port}", key, model_url, str(folder)]
    env = {"HOME": str(home), "PATH": os.environ["PATH"], "OPENHANDS_SUPPRESS_BANNER": "1"}
    # Its prices are in its package; without this it asks the network for newer ones.
    env["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    errors: list[str] = []
    with subprocess.Popen(command, text=True, env=env, **pipes) as driving:
        reading = threading.Thread(target=lambda: errors.append(driving.stderr.read()))
        reading.start()
        last = ""
        for line in driving.stdout:
            last = line.strip()
            if last == "cut":
                assert relay.cut() > 0
                driving.stdin.write("\n")
                driving.stdin.flush()
        reading.join(60)
    assert driving.returncode == 0, "".join(errors)[-6000:]
    return json.loads(last)


@pytest.mark.slow
@pytest.mark.needs("bubblewrap", "python3.12")
def test_the_peers_client_drives_the_server(
    serving: Any, new_key: Any, settings: Settings, driver: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    key = new_key(tenant="red", role="admin")
    folder = settings.home / "workspaces" / "red" / "project"
    folder.mkdir(parents=True)
    with serving(*model_steps(), tools="run", record=Traffic) as server, relayed(server.port) as relay:
        facts = drive(driver, relay, key.text, server.model_url, folder, tmp_path)
        recorded = server.traffic.as_json()
        with server.client(key.text) as client:
            left = client.get("/api/conversations/count").json()
    assert left == 3, "the forks, and not what was deleted"
    assert facts == {
        "alive": True,
        "sdk": "1.58.2",
        "command": [3, "out\n", "err\n"],
        "timed_out": -1,
        "files": [True, 4, True, "sent", False],
        "git": [0, "", [["UPDATED", "sent.txt"]], "sent", "changed\n"],
        "first": ["finished", "hello to you"],
        "confirmed": ["waiting_for_confirmation", "finished", "made it"],
        "rejected": ["finished", "as you say", 1],
        "fork": ["from the fork", True, 1],
        "source": [True, True],
        "attached": [True, "openai/test", True],
        "asked": "an answer aside",
        "prompt_tokens": facts["prompt_tokens"],
        "secrets": ["OTHER", "TOKEN"],
        "reconnected": ["finished", "still here"],
        "kinds": [
            "ActionEvent", "ConversationStateUpdateEvent", "MessageEvent", "ObservationEvent", "UserRejectObservation",
        ],
        "in_order": True,
    }  # fmt: skip
    assert facts["prompt_tokens"] > 0
    assert (folder / "made.txt").read_text() == "made\n"
    assert not (folder / "no.txt").exists(), "what was rejected did not run"
    kept = b"".join(file.read_bytes() for file in settings.home.rglob("*") if file.is_file()).decode("latin-1")
    assert not [canary for canary in CANARIES if canary in kept or canary in caplog.text]
    if os.environ.get("RECORD_PEER"):
        (FOLDER / "traffic.json").write_text(recorded)
