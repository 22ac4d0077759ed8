"""The executor contract on every executor there is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bough.execution import ExecutionLimits, TaskContainerExecutor
from bough.execution.base import CodeExecutor
from bough.testing.docker_engine import IMAGE
from bough.testing.executor_contract import ExecutorContract

from tests.contracts.conftest import closing


class TestBubblewrap(ExecutorContract):
    @pytest.fixture
    def executor(self, bubblewrap: CodeExecutor) -> CodeExecutor:
        return bubblewrap


class TestZygote(ExecutorContract):
    @pytest.fixture
    def executor(self, zygote: CodeExecutor) -> CodeExecutor:
        return zygote


class TestStateful(ExecutorContract):
    @pytest.fixture
    def executor(self, stateful: CodeExecutor) -> CodeExecutor:
        return stateful


@pytest.mark.slow
class TestContainer(ExecutorContract):
    @pytest.fixture
    def executor(self, container: CodeExecutor) -> CodeExecutor:
        return container


@pytest.mark.slow
class TestTaskContainer(ExecutorContract):
    @pytest.fixture
    async def executor(self, container_engine: str, workspace: Path) -> AsyncIterator[CodeExecutor]:
        limits = ExecutionLimits(memory_bytes=250 << 20)  # of all runs together; the contract's own is 220 MiB for one
        executor = TaskContainerExecutor(IMAGE, workspace=workspace, docker_host=container_engine, limits=limits)
        async with closing(executor) as opened:
            yield opened


class TestSandlock(ExecutorContract):
    tells_of_memory = False  # its supervisor kills without a word

    @pytest.fixture
    def executor(self, sandlock: CodeExecutor) -> CodeExecutor:
        return sandlock


class TestUnsafe(ExecutorContract):
    @pytest.fixture
    def executor(self, unsafe: CodeExecutor) -> CodeExecutor:
        return unsafe
