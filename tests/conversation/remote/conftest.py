"""The same conversations at two places: run in this process, and run by a server of its own."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.server.conftest import Running

from bough.agents.spec import AgentSpec
from bough.conversation import AsyncConversation
from bough.server.settings import ServerSettings
from bough.settings import Settings
from bough.testing import OpenAIServer
from bough.testing.openai_server import Failure, Received

_MAX_REQUESTS = 1000


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where the conversations of a test are.

    Attributes:
        where: What `open` and `list` are given to find them.
        new: What `create` is given besides.
        server: The server that runs them; None where this process does.
    """

    where: dict[str, Any]
    new: dict[str, Any]
    model: OpenAIServer
    server: Running | None = None

    async def start(self, **given: Any) -> AsyncConversation[Any]:
        """Start a conversation there."""
        create: Any = AsyncConversation.create
        return await create(**self.where, **self.new, **given)

    async def open(self, id: Any) -> AsyncConversation[Any]:
        """Open one that is there."""
        open_conversation: Any = AsyncConversation.open
        return await open_conversation(id, **self.where)


Places = Callable[..., AbstractContextManager[Place]]


class ServedModel:
    """A server for all tests of a file, and the answers of its model, which each test gives anew."""

    def __init__(self, home: Path, *, keep_files: bool = False) -> None:
        self._steps: deque[Any] = deque()
        self.model = OpenAIServer([self._answer] * _MAX_REQUESTS)
        settings = Settings.load(home=home, env={}, cwd=home, keep_files=keep_files)
        served = ServerSettings(models=(self.model.url,), shutdown_seconds=5)
        self.server = Running(settings, served, [_agent_of(self.model)])

    @contextmanager
    def place(self, *steps: Any) -> Generator[Place]:
        """Give the server, whose model answers with these steps."""
        self._steps.clear()
        self._steps.extend(steps)
        yield Place(where={"server": self.server.url}, new={}, model=self.model, server=self.server)

    def _answer(self, received: Received) -> Any:
        step = self._steps.popleft() if self._steps else Failure(status=400, message="no more steps")
        return step(received) if callable(step) else step


@pytest.fixture(scope="module")
def served_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedModel]:
    served = ServedModel(tmp_path_factory.mktemp("served"))
    with served.model, served.server:
        yield served


@pytest.fixture
def served(served_model: ServedModel) -> Places:
    """Return what gives a server whose model answers with the given steps."""
    return served_model.place


@pytest.fixture(params=["local", "remote"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Places:
    """Return what gives a place whose model answers with the given steps; each test runs at both."""
    if request.param == "remote":
        return request.getfixturevalue("served")

    @contextmanager
    def local(*steps: Any) -> Generator[Place]:
        settings = Settings.load(home=tmp_path / "home", env={}, cwd=tmp_path)
        with OpenAIServer(steps) as model:
            new = {"agent": _agent_of(model), "workspace": tmp_path}
            yield Place(where={"store": f"sqlite:///{tmp_path}/log.db", "settings": settings}, new=new, model=model)

    return local


def _agent_of(model: OpenAIServer) -> AgentSpec:
    return AgentSpec(name="default", model="openai:test", base_url=model.url, workspace_access="write", skills=())
