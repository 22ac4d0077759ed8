"""The contract of a dispatcher, as tests. Subclass it with a `tasks` fixture, and pytest runs all tests.

```python
class TestMyDispatcher(DispatcherContract):
    @pytest.fixture
    async def tasks(self):
        store = MyTaskStore()
        yield store
        await store.aclose()

    def dispatcher(self, tasks):
        return MyDispatcher(tasks)
```
Each test has an empty store. The tests need anyio's pytest plugin and an `anyio_backend` fixture of "asyncio".
"""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite(f"{__name__}.contract")  # makes failed assertions show their values

from bough.testing.dispatcher.contract import DispatcherContract, GatedAgent  # noqa: E402

__all__ = ["DispatcherContract", "GatedAgent"]
