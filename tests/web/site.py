"""A real server with the page, whose model does what the last message says: for tests that click and type."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx2
from pydantic_ai.messages import ModelRequest, ToolReturnPart, UserPromptPart
from tests.server.conftest import Running

from bough.agents.spec import AgentSpec
from bough.server.services import Services
from bough.server.settings import ServerSettings
from bough.settings import Settings
from bough.testing import Asked, ScriptedModel, tool_call
from bough.web.page import mount

T = TypeVar("T")


def follow_message(asked: Asked) -> Any:
    """Answer a request: `write FILE` and `run COMMAND` call tools, `fail` fails, `wait` has no end; others are said."""
    last = asked.messages[-1]
    assert isinstance(last, ModelRequest)
    for part in reversed(last.parts):
        if isinstance(part, ToolReturnPart):
            return f"Finished: {part.tool_name}."
        if isinstance(part, UserPromptPart) and isinstance(part.content, str):
            verb, _, rest = part.content.partition(" ")
            match verb:
                case "write":
                    return tool_call("write_file", path=rest, content="one\ntwo\n")
                case "edit":
                    return tool_call("edit_file", path=rest, old="two", new="three")
                case "run":
                    return tool_call("run_command", command=rest)
                case "wait":
                    return asyncio.Event().wait()
                case "fail":
                    raise RuntimeError("the model fails as it was told")
                case _:
                    return f"You said: **{part.content}**"
    return "Nothing was said."


def make_agent(steps: int, answer: Callable[[Asked], Any] = follow_message) -> AgentSpec:
    """Return an agent that does what messages say, for at most so many requests to its model."""
    model = ScriptedModel([answer] * steps)
    return AgentSpec(name="default", model=model, skills=(), workspace_access="run")


agent = make_agent(100)
"""For a server in another process."""


class Site:
    """A running server with the page.

    Attributes:
        url: Its address.
        client: A client of its API.
    """

    def __init__(self, running: Running, settings: Settings, key: str | None = None) -> None:
        self.running = running
        self.settings = settings
        self.url = running.url
        self.client: httpx2.Client = running.client(key)

    def start(self, message: str | None = None, **fields: Any) -> str:
        """Start a conversation, run it to its end if there is a message, and return its id."""
        body = fields if message is None else {"initial_message": message, **fields}
        response = self.client.post("/api/conversations", json=body)
        assert response.status_code == 201, response.text
        id = response.json()["id"]
        if message is not None:
            self.run(id)
        return id

    def run(self, id: str) -> None:
        """Run a conversation until it ends or waits."""
        response = self.client.post(f"/api/conversations/{id}/run", json={"wait": 60})
        assert response.status_code in (200, 202), response.text

    def say(self, id: str, message: str) -> None:
        """Send a message, and run the conversation until it ends or waits."""
        response = self.client.post(f"/api/conversations/{id}/events", json={"content": message})
        assert response.status_code == 200, response.text
        self.run(id)

    def fork(self, id: str, **fields: Any) -> str:
        """Fork a conversation, and return the fork's id."""
        response = self.client.post(f"/api/conversations/{id}/fork", json=fields)
        assert response.status_code == 201, response.text
        return response.json()["id"]

    def start_waiting(self, message: str = "run rm -r build", **fields: Any) -> str:
        """Start a conversation whose call waits for a person."""
        return self.start(message, confirmation_policy={"kind": "AlwaysConfirm"}, **fields)

    def start_running(self, message: str, **fields: Any) -> str:
        """Start a conversation and its run, and return at once."""
        response = self.client.post("/api/conversations", json={"initial_message": message, "run": True, **fields})
        assert response.status_code == 201, response.text
        return response.json()["id"]

    def call(self, do: Callable[[Services], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine in the server's loop, and return its result."""
        services: Services = self.running.app.state.services
        return asyncio.run_coroutine_threadsafe(do(services), self.running.loop).result(60)


@contextmanager
def open_site(
    folder: Path,
    *,
    store: str | None = None,
    env: dict[str, str] | None = None,
    key: str | None = None,
    server: dict[str, Any] | None = None,
    steps: int = 2000,
    answer: Callable[[Asked], Any] = follow_message,
    keep_files: bool = False,
) -> Generator[Site]:
    """Serve with a home in `folder`.

    Args:
        key: The key of the site's client.
        server: Fields of the server's settings.
        steps: The maximum number of requests to the model.
        answer: What the model does with each of them.
        keep_files: Whether the files of workspaces are kept at events.
    """
    options: dict[str, Any] = {} if store is None else {"store": store}
    settings = Settings.load(
        home=folder / "home", env=env or {}, cwd=folder, policy="allow", keep_files=keep_files, **options
    )
    running = Running(settings, ServerSettings(shutdown_seconds=5, **(server or {})), [make_agent(steps, answer)])
    mount(running.app)
    with running:
        site = Site(running, settings, key)
        with site.client:
            yield site
