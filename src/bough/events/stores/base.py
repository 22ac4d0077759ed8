"""The methods of `EventStore` that are the same for every store, and the parsing of conversation names."""

from __future__ import annotations

import string
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Collection, Sequence
from typing import IO, TYPE_CHECKING, cast
from uuid import UUID

from bough.errors import InvalidInput, NotFound
from bough.events.record import ConversationRecord, Range, StoredEvent, find_last_shared
from bough.events.stores.hub import Hub, follow, follow_commits

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from bough.events.integrity import Integrity
    from bough.events.store import StoreAdmin


class BaseEventStore(ABC):
    """Implements subscriptions, bundles and checks on top of the other methods. See `EventStore`."""

    def __init__(self) -> None:
        self._hub = Hub()
        self._closed = False

    @abstractmethod
    async def lineage(self, cid: UUID) -> list[Range[UUID]]:
        """Return the ranges of the log. See `EventStore.lineage`."""

    def subscribe(self, cid: UUID, after: int = -1) -> AsyncIterator[StoredEvent]:
        """Iterate over events, then over new ones. See `EventStore.subscribe`."""
        return follow(self._admin, self._hub, cid, after)

    def commits(self, *, appends: bool = True) -> AsyncIterator[None]:
        """Yield after commits. See `EventStore.commits`."""
        return follow_commits(self._hub, appends=appends)

    async def common_ancestor(self, a: UUID, b: UUID) -> tuple[UUID, int] | None:
        """Return the last shared event. See `EventStore.common_ancestor`."""
        return find_last_shared(await self.lineage(a), await self.lineage(b))

    async def export(
        self, cid: UUID, file: IO[bytes], *, key: Ed25519PrivateKey | None = None, salvage: bool = False
    ) -> None:
        """Write a bundle. See `EventStore.export`."""
        from bough.events.bundle.bundle import write_bundle

        await write_bundle(self._admin, cid, file, key=key, salvaging=salvage)

    async def import_(
        self, file: IO[bytes], *, trusted: Collection[bytes] | None = None, owner: str | None = None
    ) -> ConversationRecord:
        """Import a bundle. See `EventStore.import_`."""
        from bough.events.bundle.bundle import read_bundle

        return await read_bundle(self._admin, file, trusted=trusted, owner=owner)

    async def check(self) -> Integrity:
        """Check every row. See `EventStore.check`."""
        from bough.events.check import check

        return await check(self._admin)

    @property
    def _admin(self) -> StoreAdmin:
        """This store as the whole protocol, which its subclasses implement."""
        return cast("StoreAdmin", self)


LATEST = "-"
"""The name of the most recently updated conversation."""

_MIN_DIGITS = 4
_MAX_DIGITS = 32


def parse_digits(name: str) -> str:
    """Return the 4 to 32 hexadecimal digits of a conversation's id or abbreviated id, in lower case.

    Raises:
        InvalidInput: The name has other characters, or too few or too many digits.
    """
    digits = name.strip().lower().replace("-", "")
    if not _MIN_DIGITS <= len(digits) <= _MAX_DIGITS or set(digits) - set(string.hexdigits):
        raise InvalidInput(
            f"not a conversation id: {name!r}",
            hint="give an id, its first or last digits (at least 4), or - for the latest conversation",
        )
    return digits


def require_one_match(name: str, matches: Sequence[UUID]) -> UUID:
    """Return the only conversation that a name matches.

    Raises:
        NotFound: No conversation matches.
        InvalidInput: Several conversations match.
    """
    if not matches:
        is_latest = name.strip() == LATEST
        raise NotFound(
            "there are no conversations yet" if is_latest else f"no conversation matches {name!r}",
            hint="list the conversations: Conversation.list(), or `bough conv list`",
        )
    if len(matches) > 1:
        raise InvalidInput(
            f"{name!r} matches several conversations",
            hint="give more digits: " + ", ".join(match.hex[-8:] for match in matches),
            details={"matches": [str(match) for match in matches]},
        )
    return matches[0]
