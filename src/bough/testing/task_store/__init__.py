"""The contract of a task store, as tests. Subclass it with a `tasks` fixture, and pytest runs all tests.

```python
class TestMyTaskStore(TaskStoreContract):
    @pytest.fixture
    async def tasks(self):
        store = MyTaskStore()
        yield store
        await store.aclose()
```
Each test has an empty store. The tests need anyio's pytest plugin and an `anyio_backend` fixture of "asyncio".
"""

from __future__ import annotations

import pytest

_PARTS = ("claims", "records", "transitions")
pytest.register_assert_rewrite(*(f"{__name__}.{part}" for part in _PARTS))  # makes failed assertions show their values

from bough.tasks.store import TaskStore  # noqa: E402
from bough.testing.task_store.claims import ClaimsContract  # noqa: E402
from bough.testing.task_store.records import RecordsContract  # noqa: E402
from bough.testing.task_store.transitions import TransitionsContract  # noqa: E402

__all__ = ["TaskStoreContract"]


class TaskStoreContract(RecordsContract, TransitionsContract, ClaimsContract):
    """Tests of all rules of `TaskStore`."""

    @pytest.fixture
    async def tasks(self) -> TaskStore:
        """An empty store; subclasses override it."""
        raise NotImplementedError("a contract test needs a `tasks` fixture")
