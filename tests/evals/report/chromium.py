"""A real browser for tests: Debian's chromium without a window, spoken to in the DevTools protocol."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

WAIT_SECONDS = 60.0
AXE = Path(__file__).parents[2] / "web" / "vendor" / "axe.min.js"
_AXE = """
axe.run(document, {resultTypes: ["violations"]}).then(found => JSON.stringify(found.violations.map(
  each => `${each.id}: ${each.help}: ${each.nodes.map(node => node.html).join(" ")}`.slice(0, 400))))
"""


class BrowserPage:
    """One page of a browser.

    Attributes:
        requests: The addresses that were asked for since it was opened.
        complaints: What the browser wrote to its log: refused scripts and styles, errors.
    """

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._number = 0
        self._session: str | None = None
        self._seen: list[str] = []
        self.requests: list[str] = []
        self.complaints: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Log", "Runtime"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> Any:
        """Call a method of the protocol, and return its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        self._connection.send(json.dumps(message))
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]

    def open(self, page: Path | str, *, dark: bool = False) -> None:
        """Open a file of this machine or an address, and wait until it is loaded."""
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=scheme)
        self.requests.clear()
        self._seen.clear()
        self.call("Page.navigate", url=page if isinstance(page, str) else page.as_uri())
        while "Page.loadEventFired" not in self._seen:
            self._receive()

    def evaluate(self, script: str) -> Any:
        """Return the value of an expression, a promise's too."""
        found = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def find_violations(self) -> list[str]:
        """Return what axe-core finds wrong with the page for people who use it without sight or mouse."""
        self.evaluate(AXE.read_text("utf-8") + "\ntrue")
        return json.loads(self.evaluate(_AXE))

    def _receive(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(self._connection.recv(timeout=WAIT_SECONDS))
        match message.get("method"):
            case "Network.requestWillBeSent":
                self.requests.append(message["params"]["request"]["url"])
            case "Log.entryAdded":
                self.complaints.append(message["params"]["entry"]["text"])
            case str(method):
                self._seen.append(method)
            case _:
                pass
        return message


@contextmanager
def browser_page(folder: Path) -> Generator[BrowserPage]:
    """Start a browser that keeps everything in `folder`, and yield a page of it."""
    command = ["chromium", "--headless=new", "--remote-debugging-port=0", f"--user-data-dir={folder}"]
    command += ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "about:blank"]
    env = os.environ | {"HOME": str(folder)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=env) as process:
        try:
            assert process.stderr is not None
            line = next((line for line in process.stderr if "DevTools listening on" in line), "")
            assert line, "the browser did not come up"
            with connect(line.split()[-1], max_size=None) as connection:
                yield BrowserPage(connection)
        finally:
            process.kill()
