"""A sandbox that the tests of a module share."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from bough.execution import LocalSandboxCodeExecutor
from bough.execution.base import Isolation


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def namespaces(anyio_backend: str) -> AsyncIterator[LocalSandboxCodeExecutor]:
    """An executor on its best rung, or none."""
    executor = LocalSandboxCodeExecutor(min_isolation=Isolation.NAMESPACES)
    yield executor
    await executor.aclose()
