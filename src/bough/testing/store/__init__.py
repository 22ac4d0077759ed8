"""The contract of an event store, as tests. Subclass it with a `store` fixture, and pytest runs all tests.

```python
class TestMyStore(EventStoreContract):
    @pytest.fixture
    async def store(self):
        async with my_store() as store:
            yield store
```
Each test has an empty store. The tests need anyio's pytest plugin and an `anyio_backend` fixture of "asyncio".
"""

from __future__ import annotations

import pytest

_PARTS = (
    "appending",
    "bundles",
    "conversations",
    "deletion",
    "erasing",
    "forks",
    "leases",
    "lists",
    "reading",
    "scans",
    "tails",
)
pytest.register_assert_rewrite(*(f"{__name__}.{part}" for part in _PARTS))  # makes failed assertions show their values

from bough.events.store import StoreAdmin  # noqa: E402
from bough.testing.store.appending import AppendingContract  # noqa: E402
from bough.testing.store.bundles import BundlesContract  # noqa: E402
from bough.testing.store.conversations import ConversationsContract  # noqa: E402
from bough.testing.store.deletion import DeletionContract  # noqa: E402
from bough.testing.store.erasing import ErasingContract, SearchingContract  # noqa: E402
from bough.testing.store.forks import ForksContract  # noqa: E402
from bough.testing.store.leases import LeasesContract  # noqa: E402
from bough.testing.store.lists import ListsContract  # noqa: E402
from bough.testing.store.scans import ScansContract  # noqa: E402
from bough.testing.store.tails import TailsContract  # noqa: E402

__all__ = ["EventStoreContract"]


class EventStoreContract(
    ConversationsContract,
    AppendingContract,
    ForksContract,
    TailsContract,
    ListsContract,
    LeasesContract,
    DeletionContract,
    ErasingContract,
    SearchingContract,
    BundlesContract,
    ScansContract,
):
    """Tests of all rules of `EventStore`."""

    @pytest.fixture
    async def store(self) -> StoreAdmin:
        """An empty store; subclasses override it."""
        raise NotImplementedError("a contract test needs a `store` fixture")
