"""The contract of a code executor as tests: subclass `ExecutorContract` and define the fixture `executor`.

```python
class TestMine(ExecutorContract):
    @pytest.fixture
    async def executor(self):
        mine = MyExecutor()
        yield mine
        await mine.aclose()
```
The kernel tells whether a process is really gone: the process holds a lock on a file in a workspace, and the test on
the host tries to take that lock. Nothing here sleeps to wait for anything.
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
    """The promises of the `CodeExecutor` protocol; every executor keeps all of them.

    Attributes:
        tells_of_memory: Whether it distinguishes running out of memory from other kills; false must be documented.
    """
