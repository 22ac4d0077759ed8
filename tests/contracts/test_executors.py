"""The executor contract on every executor there is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bough.execution import Isolation, LocalSandboxCodeExecutor, UnsafeLocalCodeExecutor
from bough.execution.base import CodeExecutor
from bough.testing.executor_contract import ExecutorContract


class TestBubblewrap(ExecutorContract):
    @pytest.fixture
    async def executor(self) -> AsyncIterator[CodeExecutor]:
        executor = LocalSandboxCodeExecutor(min_isolation=Isolation.NAMESPACES)
        yield executor
        await executor.aclose()


class TestSandlock(ExecutorContract):
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
