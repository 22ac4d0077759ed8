"""Servers load the libraries of MCP and A2A at the first request of these protocols."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def test_a_rest_request_loads_neither_mcp_nor_a2a() -> None:
    command = [sys.executable, "-m", "tests.server.lazy_protocols"]
    process = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=120)
    assert process.returncode == 0, process.stderr
    report = json.loads(process.stdout)
    status, loaded = report["rest"]
    assert (status, loaded) == (201, {"mcp": 0, "a2a": 0})
    statuses, loaded = report["a2a"]
    assert statuses == [200] * 4, "all clients wait for the import that the first one started"
    assert loaded["a2a"] > 0 == loaded["mcp"]
    statuses, loaded = report["mcp"]
    assert statuses == [200] * 4
    assert loaded["mcp"] > 0
