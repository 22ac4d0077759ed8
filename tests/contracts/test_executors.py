"""The executor contract on every executor there is."""

from __future__ import annotations

import pytest

from bough.execution.base import CodeExecutor
from bough.testing.executor_contract import ExecutorContract


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


class TestSandlock(ExecutorContract):
    tells_of_memory = False  # its supervisor kills without a word

    @pytest.fixture
    def executor(self, sandlock: CodeExecutor) -> CodeExecutor:
        return sandlock


class TestUnsafe(ExecutorContract):
    @pytest.fixture
    def executor(self, unsafe: CodeExecutor) -> CodeExecutor:
        return unsafe
