"""A real server on a free port of this machine; its model is an OpenAI-format server that answers from a list."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import pytest
from tests.clients.npm import NodeClients
from tests.server.peer.traffic import Recorder

from bough.agents.spec import AgentSpec
from bough.events import open_store
from bough.server.app import create_app
from bough.server.auth.keys import KeyTable, NewKey
from bough.server.serve import listen, serve
from bough.server.settings import ServerSettings
from bough.settings import Settings
from bough.testing import OpenAIServer


class Running:
    """A server in a thread of its own."""

    def __init__(self, settings: Settings, server: ServerSettings, agents: list[AgentSpec]) -> None:
        self.app = create_app(settings, server=server, agents=agents)
        self._settings = server
        self._socket = listen("127.0.0.1", 0)
        self.port: int = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._ready = threading.Event()
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="server")
        self.failure: BaseException | None = None
        self.model_url = ""
        self.agent = agents[0]
        self.traffic: Any = None

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self._task = self.loop.create_task(serve(self.app, self._settings, self._socket, ready=self._on_ready))
            self.loop.run_until_complete(self._task)
        except BaseException as error:  # told to the test
            self.failure = error
        finally:
            self._ready.set()
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.close()

    def _on_ready(self) -> None:
        self._ready.set()

    def __enter__(self) -> Running:
        self._thread.start()
        assert self._ready.wait(60)
        if self.failure is not None:
            raise self.failure
        return self

    def __exit__(self, *_: object) -> None:
        self.app.state.stop()
        self._thread.join(60)
        assert not self._thread.is_alive()
        if self.failure is not None:
            raise self.failure

    def call(self, do: Callable[[], object]) -> None:
        """Do something in the loop of the server."""
        self.loop.call_soon_threadsafe(do)

    def client(self, key: str | None = None, **options: Any) -> httpx2.Client:
        headers = {} if key is None else {"X-Session-API-Key": key}
        return httpx2.Client(base_url=self.url, headers=headers, timeout=60, trust_env=False, **options)


@pytest.fixture
def database(postgres: str) -> Iterator[str]:
    """The URL of a Postgres database of one's own."""
    import psycopg

    name = f"test_{uuid4().hex}"
    with psycopg.connect(postgres, autocommit=True) as db:
        db.execute(f"create database {name}")  # type: ignore[arg-type]
    yield f"{postgres.rsplit('/', 1)[0]}/{name}"
    with psycopg.connect(postgres, autocommit=True) as db:
        db.execute(f"drop database {name} with (force)")  # type: ignore[arg-type]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings.load(home=tmp_path / "home", env={}, cwd=tmp_path)


Serve = Callable[..., Any]


@pytest.fixture
def serving(settings: Settings) -> Serve:
    """Return what serves: steps of the model, then options of the server's settings."""

    @contextmanager
    def serving(
        *steps: Any,
        tools: str = "none",
        record: Any = None,
        policy: str = "allow",
        store: str | None = None,
        api_key: str | None = None,
        **options: Any,
    ) -> Iterator[Running]:
        with OpenAIServer(steps) as model:
            agent = AgentSpec(
                name="default",
                model="openai:test",
                base_url=model.url,
                api_key=api_key,
                workspace_access=tools,
                skills=(),
            )
            options = {"shutdown_seconds": 5, **options}
            given = replace(settings, policy=policy, **({} if store is None else {"store": store}))
            running = Running(given, ServerSettings(models=(model.url,), **options), [agent])
            running.model_url = model.url
            if record is not None:
                running.traffic = record({model.url: "model", str(settings.home): "home"})
                running.app.add_middleware(Recorder, traffic=running.traffic)
            with running:
                yield running

    return serving


@pytest.fixture(scope="session")
def node_clients(tmp_path_factory: pytest.TempPathFactory) -> NodeClients:
    """The clients of `tests/clients/package.json`."""
    return NodeClients(tmp_path_factory.mktemp("node"))


@pytest.fixture(scope="module")
def one_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[httpx2.Client, str]]:
    """A client of a server, and a conversation there: for requests that change nothing."""
    home = tmp_path_factory.mktemp("home")
    settings = Settings.load(home=home, env={}, cwd=home)
    agent = AgentSpec(name="default", model="offline", skills=())
    with Running(settings, ServerSettings(shutdown_seconds=5), [agent]) as running, running.client() as client:
        yield client, client.post("/api/conversations", json={}).json()["id"]


@pytest.fixture
def new_key(settings: Settings) -> Callable[..., NewKey]:
    """Return what makes a key in the store that the server will open."""

    async def make(name: str, options: dict[str, Any]) -> NewKey:
        store = await open_store(settings.store)
        try:
            return await KeyTable(store).create(name, **options)
        finally:
            await store.aclose()

    def new_key(name: str = "k", **options: Any) -> NewKey:
        settings.home.mkdir(parents=True, exist_ok=True)
        return asyncio.run(make(name, options))

    return new_key
