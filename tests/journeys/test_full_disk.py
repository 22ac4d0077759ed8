"""A server whose disk is full: uploads and messages are refused as such, and no path of the operator's is told."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path

import httpx2
import pytest
from tests.journeys.conftest import BOUGH, Person


def _wait_for_url(log: Path, process: subprocess.Popen[str]) -> str:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if match := re.search(r"listening on (http://\S+)\n", log.read_text()):
            return match[1]
        assert process.poll() is None, log.read_text()
        time.sleep(0.05)  # a file tells nobody that it has grown
    raise AssertionError(log.read_text())


@pytest.mark.slow
@pytest.mark.needs("bubblewrap")  # it makes the small disk
def test_a_full_disk_is_told_as_such(person: Person) -> None:
    small = ["bwrap", "--die-with-parent", "--dev-bind", "/", "/", "--size", str(3 << 20), "--tmpfs", "/mnt"]
    log = person.folder / "server.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [*small, "--chdir", str(person.folder), str(BOUGH), "serve", "--port", "0"],
            env={**person.env, "BOUGH_HOME": "/mnt/home"},
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
        )
    try:
        with httpx2.Client(base_url=_wait_for_url(log, process), timeout=60, trust_env=False) as client:
            id = client.post("/api/conversations", json={}).json()["id"]
            folder = client.get(f"/api/conversations/{id}").json()["workspace"]["working_dir"]
            assert folder.startswith("/mnt/"), folder
            files = {"file": ("big", b"x" * (4 << 20))}
            refused = client.post("/api/file/upload", params={"path": f"{folder}/big"}, files=files)
            assert refused.status_code == 503, refused.text
            assert "disk is full" in refused.json()["detail"]
            message = {"content": "cake " * 40_000}
            for _ in range(30):
                said = client.post(f"/api/conversations/{id}/events", json=message)
                if said.status_code != 200:
                    break
            assert said.status_code == 503, said.text
            assert said.json()["detail"].startswith("the disk is full")
            assert "/mnt" not in said.text
    finally:
        process.terminate()
        process.wait(30)
