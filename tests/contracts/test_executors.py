"""The executor contract on every executor there is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from bough.execution import (
    CodeExecutionInput,
    CodeExecutionResult,
    ContainerCodeExecutor,
    Isolation,
    LocalSandboxCodeExecutor,
    UnsafeLocalCodeExecutor,
)
from bough.execution.base import CodeExecutor
from bough.testing.docker_engine import IMAGE
from bough.testing.executor_contract import ExecutorContract


class TestBubblewrap(ExecutorContract):
    @pytest.fixture
    async def executor(self) -> AsyncIterator[CodeExecutor]:
        executor = LocalSandboxCodeExecutor(min_isolation=Isolation.NAMESPACES)
        yield executor
        await executor.aclose()


class Warm(LocalSandboxCodeExecutor):
    """Runs everything in a sandbox that was warm before."""

    async def execute(self, request: CodeExecutionInput) -> CodeExecutionResult:
        warm = replace(request, execution_id=request.execution_id or "warm")
        if await self.healthy():
            assert await self.warm_up(warm)
        return await super().execute(warm)


class TestZygote(ExecutorContract):
    @pytest.fixture
    async def executor(self) -> AsyncIterator[CodeExecutor]:
        executor = Warm(min_isolation=Isolation.NAMESPACES)
        yield executor
        await executor.aclose()


class Stateful(LocalSandboxCodeExecutor):
    """Runs everything in one interpreter that stays."""

    async def execute(self, request: CodeExecutionInput) -> CodeExecutionResult:
        return await super().execute(replace(request, execution_id=request.execution_id or "stays"))


class TestStateful(ExecutorContract):
    @pytest.fixture
    async def executor(self) -> AsyncIterator[CodeExecutor]:
        executor = Stateful(stateful=True)
        yield executor
        await executor.aclose()


@pytest.mark.slow
class TestContainer(ExecutorContract):
    @pytest.fixture
    async def executor(self, container_engine: str) -> AsyncIterator[CodeExecutor]:
        executor = ContainerCodeExecutor(IMAGE, docker_host=container_engine)
        yield executor
        await executor.aclose()


class TestSandlock(ExecutorContract):
    tells_of_memory = False  # its supervisor kills without a word

    @pytest.fixture
    async def executor(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[CodeExecutor]:
        monkeypatch.setenv("PATH", str(tmp_path))
        executor = LocalSandboxCodeExecutor()
        yield executor
        await executor.aclose()


class TestUnsafe(ExecutorContract):
    @pytest.fixture
    async def executor(self) -> AsyncIterator[CodeExecutor]:
        executor = UnsafeLocalCodeExecutor()
        yield executor
        await executor.aclose()
