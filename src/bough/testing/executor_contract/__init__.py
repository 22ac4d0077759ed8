"""The contract of a code executor, as tests. Subclass `ExecutorContract` with an `executor` fixture.

```python
class TestMine(ExecutorContract):
    @pytest.fixture
    async def executor(self):
        executor = MyExecutor()
        yield executor
        await executor.aclose()
```
To check that a process has ended, the process locks a file in the workspace, and the test on the host tries to take the
lock. Tests do not sleep to wait for processes.
"""

from __future__ import annotations

import pytest

_PARTS = ("base", "results", "requests", "ending", "volume", "files")
pytest.register_assert_rewrite(*(f"{__name__}.{part}" for part in _PARTS))  # makes failed assertions show their values

from bough.testing.executor_contract.base import DAEMONS, HOLD_LOCK, lock_is_free  # noqa: E402
from bough.testing.executor_contract.ending import EndingContract  # noqa: E402
from bough.testing.executor_contract.files import FilesContract  # noqa: E402
from bough.testing.executor_contract.requests import RequestsContract  # noqa: E402
from bough.testing.executor_contract.results import ResultsContract  # noqa: E402
from bough.testing.executor_contract.volume import VolumeContract  # noqa: E402

__all__ = ["DAEMONS", "HOLD_LOCK", "ExecutorContract", "lock_is_free"]


class ExecutorContract(ResultsContract, RequestsContract, EndingContract, VolumeContract, FilesContract):
    """Tests of all rules of the `CodeExecutor` protocol.

    Attributes:
        tells_of_memory: Whether the executor distinguishes exceeded memory from other kills; False must be documented.
    """
