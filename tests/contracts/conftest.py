"""Every executor there is, for the public suites; one container engine serves them all."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from bough.errors import Unavailable
from bough.execution import (
    CodeExecutionInput,
    CodeExecutionResult,
    ContainerCodeExecutor,
    Isolation,
    LocalSandboxCodeExecutor,
    UnsafeLocalCodeExecutor,
)
from bough.execution.base import CodeExecutor
from bough.execution.sandbox.landlock import make_serving_command
from bough.execution.sandbox.preloaded import PreloadedSupervisor
from bough.testing.docker_engine import IMAGE, engine, make_image


class WarmExecutor(LocalSandboxCodeExecutor):
    """Runs everything in a sandbox that was warm before."""

    async def execute(self, request: CodeExecutionInput) -> CodeExecutionResult:
        warm = replace(request, execution_id=request.execution_id or "warm")
        if await self.healthy() and not await self.warm_up(warm):
            raise Unavailable("no warm sandbox came up", hint="it is refused where names change meanwhile")
        return await super().execute(warm)


class StatefulExecutor(LocalSandboxCodeExecutor):
    """Runs everything in one interpreter that stays."""

    async def execute(self, request: CodeExecutionInput) -> CodeExecutionResult:
        return await super().execute(replace(request, execution_id=request.execution_id or "stays"))


@asynccontextmanager
async def closing(executor: CodeExecutor) -> AsyncGenerator[CodeExecutor]:
    """Close an executor at the end."""
    yield executor
    await executor.aclose()


@pytest.fixture
async def bubblewrap() -> AsyncIterator[CodeExecutor]:
    """The strongest sandbox without an engine."""
    async with closing(LocalSandboxCodeExecutor(min_isolation=Isolation.NAMESPACES)) as executor:
        yield executor


@pytest.fixture
async def zygote() -> AsyncIterator[CodeExecutor]:
    """The same, warm."""
    async with closing(WarmExecutor(min_isolation=Isolation.NAMESPACES)) as executor:
        yield executor


@pytest.fixture
async def stateful() -> AsyncIterator[CodeExecutor]:
    """The same, with an interpreter that stays."""
    async with closing(StatefulExecutor(stateful=True)) as executor:
        yield executor


@pytest.fixture(scope="session")
def supervisor() -> Iterator[PreloadedSupervisor]:
    """What forks the supervisors of all runs behind Landlock. It lives through all that they are tried with."""
    supervisor = PreloadedSupervisor(make_serving_command)
    supervisor.start()
    yield supervisor
    supervisor.close()


@pytest.fixture
async def sandlock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, supervisor: PreloadedSupervisor
) -> AsyncIterator[CodeExecutor]:
    """What is taken where there is no bubblewrap in PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    executor = LocalSandboxCodeExecutor()
    own, executor.supervisor = executor.supervisor, supervisor
    yield executor
    executor.supervisor = own
    await executor.aclose()


@pytest.fixture
async def container(container_engine: str) -> AsyncIterator[CodeExecutor]:
    """Containers of a real engine."""
    async with closing(ContainerCodeExecutor(IMAGE, docker_host=container_engine)) as executor:
        yield executor


@pytest.fixture
async def unsafe() -> AsyncIterator[CodeExecutor]:
    """No sandbox at all."""
    async with closing(UnsafeLocalCodeExecutor()) as executor:
        yield executor


@pytest.fixture(scope="session")
def container_engine() -> Iterator[str]:
    """Where a real container engine listens that has the image of `bough.testing.docker_engine`."""
    with (
        tempfile.TemporaryDirectory(prefix="engine-", ignore_cleanup_errors=True) as folder,
        engine(Path(folder)) as host,
    ):
        make_image(host)
        yield host
