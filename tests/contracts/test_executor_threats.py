"""Attacks on every executor that claims to keep code away from the machine."""

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
from bough.testing.executor_threats import ExecutorThreats


class TestBubblewrap(ExecutorThreats):
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


class TestZygote(ExecutorThreats):
    @pytest.fixture
    async def executor(self) -> AsyncIterator[CodeExecutor]:
        executor = Warm(min_isolation=Isolation.NAMESPACES)
        yield executor
        await executor.aclose()


class Stateful(LocalSandboxCodeExecutor):
    """Runs everything in one interpreter that stays."""

    async def execute(self, request: CodeExecutionInput) -> CodeExecutionResult:
        return await super().execute(replace(request, execution_id=request.execution_id or "stays"))


class TestStateful(ExecutorThreats):
    @pytest.fixture
    async def executor(self) -> AsyncIterator[CodeExecutor]:
        executor = Stateful(stateful=True)
        yield executor
        await executor.aclose()


@pytest.mark.slow
class TestContainer(ExecutorThreats):
    @pytest.fixture
    async def executor(self, container_engine: str) -> AsyncIterator[CodeExecutor]:
        executor = ContainerCodeExecutor(IMAGE, docker_host=container_engine)
        yield executor
        await executor.aclose()


class TestSandlock(ExecutorThreats):
    @pytest.fixture
    async def executor(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[CodeExecutor]:
        monkeypatch.setenv("PATH", str(tmp_path))
        executor = LocalSandboxCodeExecutor()
        yield executor
        await executor.aclose()


class TestWithoutAWall(ExecutorThreats):
    """The attacks work where nothing stops them; a suite that cannot fail would prove nothing."""

    let_through = frozenset(
        {
            "test_read_secrets_on_the_host",
            "test_read_another_process",
            "test_write_outside",
            "test_leave_a_setuid_file_behind",
            "test_reach_a_listener_over_tcp",
            "test_reach_a_listener_over_udp",
            "test_reach_an_abstract_unix_socket",
            "test_make_sockets_of_other_kinds",
        }
    )

    @pytest.fixture
    async def executor(self) -> AsyncIterator[CodeExecutor]:
        executor = UnsafeLocalCodeExecutor()
        yield executor
        await executor.aclose()


for _name in dir(ExecutorThreats):
    if _name.startswith("test_") and _name not in TestWithoutAWall.let_through:
        setattr(TestWithoutAWall, _name, None)
