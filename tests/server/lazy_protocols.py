"""Prints how many modules of the libraries `mcp` and `a2a` a server has loaded, after each kind of request."""

from __future__ import annotations

import json
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.server.conftest import Running
from tests.server.mcp.test_wire import HEADERS, INITIALIZE

from bough.agents.spec import AgentSpec
from bough.server.settings import ServerSettings
from bough.settings import Settings

CLIENTS = 4
"""How many clients send the first request of a protocol at the same time."""


def count_modules() -> dict[str, int]:
    """Return the number of loaded modules of each library."""
    roots = [name.partition(".")[0] for name in list(sys.modules)]
    return {library: roots.count(library) for library in ("mcp", "a2a")}


def main() -> None:
    """Serve on a free port and send requests to it."""
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings.load(home=Path(folder), env={}, cwd=Path(folder))
        agent = AgentSpec(name="default", model="offline", skills=())
        with Running(settings, ServerSettings(shutdown_seconds=5), [agent]) as server, server.client() as client:

            def ask_mcp(_: int) -> int:
                body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": INITIALIZE}
                return client.post("/mcp", json=body, headers=HEADERS).status_code

            def ask_a2a(_: int) -> int:
                return client.get("/.well-known/agent-card.json").status_code

            with ThreadPoolExecutor(CLIENTS) as pool:
                report = {"rest": [client.post("/api/conversations", json={}).status_code, count_modules()]}
                report["a2a"] = [list(pool.map(ask_a2a, range(CLIENTS))), count_modules()]
                report["mcp"] = [list(pool.map(ask_mcp, range(CLIENTS))), count_modules()]
    print(json.dumps(report))


if __name__ == "__main__":
    main()
