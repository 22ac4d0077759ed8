"""Firefox ESR without a window, driven by WebDriver BiDi over its WebSocket."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

_LISTENING = "WebDriver BiDi listening on "
_WAIT_SECONDS = 60
_PREFERENCES = {
    "app.update.disabledForTesting": True,
    "datareporting.policy.dataSubmissionEnabled": False,
    "network.captive-portal-service.enabled": False,
    "network.connectivity-service.enabled": False,
    "services.settings.server": "data:,",
    "toolkit.telemetry.server": "data:,",
}
"""What keeps a new profile from asking its vendor's servers."""


class Firefox:
    """One tab.

    Attributes:
        events: What the browser told, oldest first: its requests, complaints and dialogs.
    """

    def __init__(self, socket: ClientConnection) -> None:
        self.events: list[dict[str, Any]] = []
        self._socket = socket
        self._ids = count()
        self.call("session.new", capabilities={})
        events = ["network.beforeRequestSent", "log.entryAdded", "browsingContext.userPromptOpened"]
        self.call("session.subscribe", events=events)
        self._tab: str = self.call("browsingContext.getTree")["contexts"][0]["context"]

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command, and return its result."""
        id = next(self._ids)
        self._socket.send(json.dumps({"id": id, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.recv(_WAIT_SECONDS))
            if message.get("id") == id:
                assert message["type"] == "success", message
                return message["result"]
            self.events.append(message)

    def run_before_pages(self, function: str) -> None:
        """Have every page call a JavaScript function before its own scripts."""
        self.call("script.addPreloadScript", functionDeclaration=function)

    def open(self, address: str) -> None:
        """Open an address, and wait until it has loaded."""
        self.call("browsingContext.navigate", context=self._tab, url=address, wait="complete")

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression."""
        target = {"context": self._tab}
        text = f"JSON.stringify({expression})"
        answer = self.call("script.evaluate", expression=text, target=target, awaitPromise=False)
        return json.loads(answer["result"]["value"])


@contextmanager
def open_firefox(folder: Path) -> Generator[Firefox]:
    """Run Firefox with a new profile in a folder, which is also its home."""
    lines = [f"user_pref({json.dumps(name)}, {json.dumps(value)});" for name, value in _PREFERENCES.items()]
    (folder / "user.js").write_text("\n".join(lines))
    command = ["firefox-esr", "--headless", "--no-remote", "--profile", str(folder), "--remote-debugging-port=0"]
    env = {**os.environ, "HOME": str(folder), "MOZ_CRASHREPORTER_DISABLE": "1"}
    with subprocess.Popen(
        command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        try:
            address = next(line for line in process.stderr if _LISTENING in line).split(_LISTENING)[1].strip()
            with connect(f"{address}/session", max_size=None, proxy=None) as socket:
                yield Firefox(socket)
        finally:
            process.kill()
