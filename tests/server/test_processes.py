"""Servers as processes: killed with -9, told to end; runs continue elsewhere, and readers have every event once."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.server.processes import Cluster, Reader, client_of

from bough.server.bodies.base import OUR_EVENTS

pytestmark = pytest.mark.slow

OURS = {"Accept": OUR_EVENTS}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    found = Cluster(tmp_path)
    yield found
    found.close()


def begin(client: httpx2.Client, message: str = "a") -> str:
    """Start a conversation of the counting agent, and run it."""
    body = {"agent": "counter", "initial_message": message, "run": True}
    answer = client.post("/api/conversations", json=body)
    assert answer.status_code == 201, answer.text
    return answer.json()["id"]


def whole(client: httpx2.Client, id: str, headers: Any = None) -> list[dict[str, Any]]:
    """Return all events of a conversation as `events/search` gives them."""
    return client.get(f"/api/conversations/{id}/events/search", headers=headers).json()["items"]


def require_counted_once(cluster: Cluster) -> None:
    """Check that no response was asked for twice and no tool ran twice."""
    assert [line for line, count in Counter(cluster.lines()).items() if count > 1] == []


def test_a_killed_server_loses_nothing(cluster: Cluster) -> None:
    """Done when 4: killed in a run with two readers; started again, the run ends and both have every event once."""
    cluster.hold_at(2)
    server, url = cluster.serve()
    with client_of(url) as client:
        id = begin(client)
        readers = [Reader(url, id, form=form) for form in ("ours", "openhands")]
        cluster.wait_for("begin a 2")
        server.kill()
        cluster.let_go()
        _, again = cluster.serve(port=int(url.rsplit(":", 1)[1]))
        assert again == url
        for reader in readers:
            reader.servers_back.set()
            reader.join()
        ours, theirs = readers
        assert [event["seq"] for event in ours.events] == list(range(len(ours.events)))
        assert ours.events == whole(client, id, OURS)
        assert [event["id"] for event in theirs.events] == [event["id"] for event in whole(client, id)]
        info = client.get(f"/api/conversations/{id}").json()
        assert (info["execution_status"], info["run"]["state"], info["run"]["attempts"]) == ("finished", "completed", 2)
    require_counted_once(cluster)
    assert "end a 2" not in cluster.lines(), "what the killed process did not finish is closed as interrupted"


def test_a_server_that_ends_hands_its_runs_over(cluster: Cluster) -> None:
    """SIGTERM: exit 0; the task is pending again, a worker continues, and a reader is let go with its place."""
    cluster.hold_at(1)
    server, url = cluster.serve(BOUGH_SERVER_SHUTDOWN_SECONDS="0.2")
    with client_of(url) as client:
        id = begin(client)
        reader = Reader(url, id)
        cluster.wait_for("begin a 1")
        server.popen.send_signal(signal.SIGTERM)
        assert server.popen.wait() == 0, server.log.read_text()
    cluster.let_go()
    configured = "agents: {guide: {model: offline, sub_agents: [reader]}, reader: {model: offline}}"
    (cluster.folder / "home" / "config.yaml").write_text(configured)
    worker = cluster.work()
    (cluster.folder / "home" / "bough.yaml").write_text("server: {limits: {runs: nonsense}}")
    worker.popen.send_signal(signal.SIGHUP)
    worker.wait_for("limits of tenants were not reloaded")
    (cluster.folder / "home" / "bough.yaml").unlink()
    _, again = cluster.serve(port=int(url.rsplit(":", 1)[1]), BOUGH_SERVER_RUNS="workers")
    reader.servers_back.set()
    reader.join()
    with client_of(again) as client:
        assert reader.events == whole(client, id, OURS)
        run = client.get(f"/api/conversations/{id}").json()["run"]
        made = client.post("/api/conversations", json={"agent": "guide", "initial_message": "hello"}).json()["id"]
        ran = client.post(f"/api/conversations/{made}/run", json={"wait": 60}).json()
        assert ran["status"] == "finished", "a worker with the same home has the agents of its configuration"
    states = [event["state"] for event in reader.events if event["kind"] == "TaskChanged"]
    assert states == ["pending", "running", "pending", "running", "completed"]
    assert (run["state"], run["attempts"]) == ("completed", 1), "a task that was handed back was not tried in vain"
    assert cluster.writers("end a 3") == {worker.popen.pid}
