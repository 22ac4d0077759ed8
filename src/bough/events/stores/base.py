"""The parts of the protocol that are the same for every store."""

from __future__ import annotations

import string
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Collection, Sequence
from typing import IO, TYPE_CHECKING, cast
from uuid import UUID

from bough.errors import InvalidInput, NotFound
from bough.events.record import ConversationRecord, Range, StoredEvent, find_shared
from bough.events.stores.hub import Hub, follow, follow_commits

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from bough.events.integrity import Integrity
    from bough.events.store import StoreAdmin


class BaseEventStore(ABC):
    """Subscriptions, bundles and checks. See `EventStore`."""

    def __init__(self) -> None:
        self._hub = Hub()
        self._closed = False

    @abstractmethod
    async def lineage(self, cid: UUID) -> list[Range[UUID]]:
        """Return the ranges of the log. See `EventStore.lineage`."""

    def subscribe(self, cid: UUID, after: int = -1) -> AsyncIterator[StoredEvent]:
        """Iterate over events, then over new ones. See `EventStore.subscribe`."""
        return follow(self._whole, self._hub, cid, after)

    def commits(self, *, appends: bool = True) -> AsyncIterator[None]:
        """Yield after commits. See `EventStore.commits`."""
        return follow_commits(self._hub, appends=appends)

    async def common_ancestor(self, a: UUID, b: UUID) -> tuple[UUID, int] | None:
        """Return the last shared event. See `EventStore.common_ancestor`."""
        return find_shared(await self.lineage(a), await self.lineage(b))

    async def export(
        self, cid: UUID, file: IO[bytes], *, key: Ed25519PrivateKey | None = None, salvage: bool = False
    ) -> None:
        """Write a bundle. See `EventStore.export`."""
        from bough.events.bundle.bundle import write_bundle

        await write_bundle(self._whole, cid, file, key=key, salvaging=salvage)

    async def import_(
        self, file: IO[bytes], *, trusted: Collection[bytes] | None = None, owner: str | None = None
    ) -> ConversationRecord:
        """Import a bundle. See `EventStore.import_`."""
        from bough.events.bundle.bundle import read_bundle

        return await read_bundle(self._whole, file, trusted=trusted, owner=owner)

    async def check(self) -> Integrity:
        """Check every row. See `EventStore.check`."""
        from bough.events.check import check

        return await check(self._whole)

    @property
    def _whole(self) -> StoreAdmin:
        return cast("StoreAdmin", self)


LATEST = "-"
_SHORTEST = 4
_WHOLE = 32


def parse_digits(name: str) -> str:
    """Return the 4 to 32 hexadecimal digits of a name, in lower case.

    Raises:
        InvalidInput: The name is invalid.
    """
    digits = name.strip().lower().replace("-", "")
    if not _SHORTEST <= len(digits) <= _WHOLE or set(digits) - set(string.hexdigits):
        raise InvalidInput(
            f"not a conversation id: {name!r}",
            hint="give an id, its first or last digits (at least 4), or - for the latest conversation",
        )
    return digits


def only(name: str, matches: Sequence[UUID]) -> UUID:
    """Return the only match.

    Raises:
        NotFound: There is no match.
        InvalidInput: There are several matches.
    """
    if not matches:
        latest = name.strip() == LATEST
        raise NotFound(
            "there are no conversations yet" if latest else f"no conversation matches {name!r}",
            hint="`bough conv list` shows what there is",
        )
    if len(matches) > 1:
        raise InvalidInput(
            f"{name!r} matches several conversations",
            hint="give more digits: " + ", ".join(match.hex[-8:] for match in matches),
            details={"matches": [str(match) for match in matches]},
        )
    return matches[0]
