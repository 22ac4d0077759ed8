"""Export a conversation and its lineage to a signed file, and import it into another store.

A bundle is text: a header line with the conversation and its ancestors, a line per event, a line for each image and
file that its events refer to, and a last line with the SHA-256 of the preceding ones and an Ed25519 signature of it.
Owners, leases and generations are not exported; logs never contain secrets. Payloads are copied byte for byte.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from base64 import b64encode
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol
from uuid import UUID

from bough.cancellation import finish
from bough.errors import Conflict, InvalidInput, NotFound, PermissionDenied, StoreError
from bough.events.blob.blob import list_named_bytes, may_name_bytes, read_bytes
from bough.events.bundle.format import FORMAT, VERSION, invalid_bundle
from bough.events.bundle.spool import PAGE, EventSpool
from bough.events.check import salvage
from bough.events.draft import Draft, ImportPiece
from bough.events.record import KINDS_WITH_FILES, ConversationRecord, Range, StoredEvent, microseconds
from bough.types import JsonObject, escape_json_controls

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from bough.events.bundle.check import Contents
    from bough.events.store import StoreAdmin

_MAX_LINE_BYTES = 1 << 30


def signing_key(path: Path) -> Ed25519PrivateKey:
    """Return the signing key in a file. A missing file is created with a new key, readable by its owner only.

    Raises:
        InvalidInput: The file is not a key.
    """
    import os

    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    try:
        with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
            file.write(Ed25519PrivateKey.generate().private_bytes_raw())
    except FileExistsError:
        pass  # another process created it, or it existed: read it
    try:
        return Ed25519PrivateKey.from_private_bytes(path.read_bytes())
    except ValueError as error:
        raise InvalidInput(
            f"{path} is not a signing key", hint="move the file away; a new key is then created"
        ) from error


async def write_bundle(
    store: StoreAdmin, cid: UUID, file: IO[bytes], *, key: Ed25519PrivateKey | None = None, salvaging: bool = False
) -> None:
    """Write a bundle. O(events), in bounded memory: one image or file at a time.

    Images and files whose bytes the store has lost are omitted; their events are imported without them.

    Args:
        store: The store with the conversation.
        cid: The conversation.
        file: Open for writing.
        key: The signing key. By default a new one, which proves that the file is complete but not who wrote it.
        salvaging: Omit unreadable events instead of raising.

    Raises:
        NotFound: The conversation does not exist.
        CorruptLog: An event cannot be read; the file is then not a bundle.
    """
    record = await store.get(cid)
    ranges = await store.lineage(cid)
    events = _salvage_ranges(store, ranges) if salvaging else store.read(cid, kinds=KINDS_WITH_FILES)
    digests = await list_digests(events)
    lines = _Lines(file)
    lines.write(
        {
            "format": FORMAT,
            "version": VERSION if digests else 1,
            "conversation": _as_json(record),
            "ancestors": [_as_json(ancestor) for ancestor in await store.ancestry(cid)],
            "lineage": [[str(owner), lo, hi] for owner, lo, hi in ranges],
        }
    )
    count = 0
    for owner, lo, hi in ranges:
        async for stored in salvage(store, owner, lo, hi) if salvaging else _read_own(store, owner, lo, hi):
            lines.write(_event_as_json(stored))
            count += 1
    for digest in digests:
        if (blob := await describe_blob(store, cid, digest)) is not None:
            lines.write(blob)
    lines.sign(count, key)


async def _salvage_ranges(store: StoreAdmin, ranges: Sequence[tuple[UUID, int, int]]) -> AsyncIterator[StoredEvent]:
    for owner, lo, hi in ranges:
        async for stored in salvage(store, owner, lo, hi):
            yield stored


async def read_bundle(
    store: StoreAdmin, file: IO[bytes], *, trusted: Collection[bytes] | None = None, owner: str | None = None
) -> ConversationRecord:
    """Import a bundle and return its conversation. All or nothing; O(events), in bounded memory.

    Events that the store has are not stored again: importing twice adds nothing, and importing a longer version of a
    conversation that was not continued here appends the new events.

    Args:
        store: The store to import into.
        file: Open for reading.
        trusted: Public keys (32 bytes), one of which must have signed the bundle; None accepts any.
        owner: Owner of the conversation, if it is new here.

    Raises:
        InvalidInput: The file is not a bundle, is damaged or incomplete, or comes from a newer bough.
        PermissionDenied: None of `trusted` signed it.
        Conflict: The conversation exists here with other events.
    """
    bundle = await finish(asyncio.to_thread(parse_bundle, file, trusted=trusted, owner=owner))
    with closing(bundle.events):
        return await store_bundle(store, bundle)


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """The contents of a bundle, completely checked but not stored.

    Attributes:
        record: The conversation; its `config` has the signer.
        ancestors: Its ancestors, each after its own ancestors.
        ranges: The owners of its events, oldest first.
        events: All events, ordered by seq, in a temporary file that is removed with this object.
    """

    record: ConversationRecord
    ancestors: Sequence[ConversationRecord]
    ranges: Sequence[Range[UUID]]
    events: EventSpool


def parse_bundle(file: IO[bytes], *, trusted: Collection[bytes] | None = None, owner: str | None = None) -> Bundle:
    """Return the contents of a bundle. O(events), in bounded memory; blocks. Arguments, errors: see `read_bundle`."""
    events = EventSpool()
    try:
        contents = _read_contents(file, trusted, events)
    except BaseException:
        events.close()
        raise
    # From the verified signature, never from the bundle's own `config`: imported conversations are quarantined by it.
    config = contents.record.config | {"signed_by": contents.signer}
    return Bundle(
        record=replace(contents.record, owner=owner, config=config),
        ancestors=contents.ancestors,
        ranges=contents.ranges,
        events=events,
    )


class ImportTarget(Protocol):
    """The part of a `StoreAdmin` that an import needs. A server passes one that is limited to one owner's rows."""

    async def get(self, cid: UUID) -> ConversationRecord:
        """Return the record of a conversation."""
        ...

    async def peek(self, cid: UUID) -> ConversationRecord:
        """Return the record of a conversation, even of a deleted one."""
        ...

    async def span(self, owner: UUID, lo: int, hi: int) -> list[StoredEvent]:
        """Return a conversation's own events with `lo <= seq < hi`."""
        ...

    async def restore(self, pieces: Sequence[ImportPiece]) -> None:
        """Insert rows in one transaction."""
        ...


async def store_bundle(store: ImportTarget, bundle: Bundle) -> ConversationRecord:
    """Store the missing parts of a bundle in one transaction, and return the conversation.

    Raises:
        Conflict: The conversation exists here with other events.
    """
    plan = _Plan(store, bundle)
    await store.restore(await plan.list_pieces(bundle.ranges))
    return await store.get(bundle.record.id)


class _Plan:
    """Plans the import of a bundle into a store that may have parts of it."""

    def __init__(self, store: ImportTarget, bundle: Bundle) -> None:
        self._store = store
        self._record = bundle.record
        self._ancestors = {ancestor.id: ancestor for ancestor in bundle.ancestors}
        self._events = bundle.events

    async def list_pieces(self, ranges: Sequence[Range[UUID]]) -> list[ImportPiece]:
        """Return the pieces to insert, in the order of inserting."""
        owned = {owner: (lo, hi) for owner, lo, hi in ranges if owner != self._record.id}
        pieces, leaf = list[ImportPiece](), self._record
        for id, ancestor in self._ancestors.items():
            lo, hi = owned.get(id, (ancestor.base, ancestor.base))
            piece, stored_hi = await self._plan_ancestor(ancestor, lo, min(hi, max(lo, leaf.base)))
            pieces += [piece] if piece else []
            if stored_hi < min(hi, leaf.base):
                leaf = replace(leaf, base=stored_hi, parent=id if stored_hi > lo else ancestor.parent)
        return [*pieces, *await self._plan_leaf(leaf)]

    async def _plan_ancestor(self, ancestor: ConversationRecord, lo: int, hi: int) -> tuple[ImportPiece | None, int]:
        """Return the piece to insert of an ancestor, if any, and the seq up to which the store will have its events."""
        try:
            local = await self._store.peek(ancestor.id)
        except NotFound:
            # Imported as a tombstone: only its descendants need it, and it must not appear in lists.
            tombstone = replace(ancestor, deleted=True, base=lo, head=hi, parent=ancestor.parent if lo < hi else None)
            return ImportPiece(tombstone, lo, self._rows(lo, hi)), hi
        matching = await self._find_difference(local, lo, min(hi, local.head))
        if matching < min(hi, local.head) or local.head >= hi or not local.deleted:
            return None, min(matching, hi)
        return ImportPiece(replace(ancestor, deleted=True), local.head, self._rows(local.head, hi)), hi

    async def _plan_leaf(self, leaf: ConversationRecord) -> list[ImportPiece]:
        """Return the piece to insert of the conversation itself; none if the store has all of it."""
        end = len(self._events)
        leaf = replace(leaf, parent=leaf.parent if leaf.base else None)
        try:
            local = await self._store.peek(leaf.id)
        except NotFound:
            return [ImportPiece(leaf, leaf.base, self._rows(leaf.base, end))]
        common_hi = min(end, local.head)
        if (
            not await self._shares_prefix(local)
            or await self._find_difference(local, local.base, common_hi) < common_hi
        ):
            raise Conflict(
                f"conversation {leaf.id} exists here with other events",
                hint="fork it here, or import into another store",
                details={"conversation": str(leaf.id)},
            )
        if end <= local.head and not local.deleted:
            return []
        return [ImportPiece(replace(leaf, base=local.base), local.head, self._rows(local.head, end))]

    async def _shares_prefix(self, local: ConversationRecord) -> bool:
        """Whether the bundle has the last event that the local conversation shares with its parent."""
        if local.base == 0 or local.parent is None:
            return True
        if local.base > len(self._events):
            return False
        (stored,) = await self._store.span(local.parent, local.base - 1, local.base)
        return stored[1] == self._events[local.base - 1][1]

    async def _find_difference(self, local: ConversationRecord, lo: int, hi: int) -> int:
        """Return the first seq from `lo` at which store and bundle differ; `hi` if they do not."""
        if local.base != lo:
            return lo
        for start in range(lo, hi, PAGE):
            stop = min(start + PAGE, hi)
            here = await self._store.span(local.id, start, stop)
            for stored, other in zip(here, self._events[start:stop], strict=True):
                if stored[1] != other[1]:
                    return stored.seq
        return max(lo, hi)

    def _rows(self, lo: int, hi: int) -> Draft:
        return Draft(self._events.rows(lo, hi), {}, self._events.blobs(lo, hi))


class _Lines:
    """Writes lines of JSON, and the last line with their digest and its signature."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._digest = hashlib.sha256()

    def write(self, value: Any) -> None:
        line = escape_json_controls(json.dumps(value, ensure_ascii=False, separators=(",", ":"))).encode() + b"\n"
        self._digest.update(line)
        self._file.write(line)

    def sign(self, events: int, key: Ed25519PrivateKey | None) -> None:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        key = key or Ed25519PrivateKey.generate()
        digest = self._digest.digest()
        self.write(
            {
                "events": events,
                "sha256": digest.hex(),
                "public_key": key.public_key().public_bytes_raw().hex(),
                "signature": key.sign(digest).hex(),
            }
        )


async def _read_own(store: StoreAdmin, owner: UUID, lo: int, hi: int) -> AsyncIterator[StoredEvent]:
    for start in range(lo, hi, PAGE):
        for stored in await store.span(owner, start, min(start + PAGE, hi)):
            yield stored


def _read_contents(file: IO[bytes], trusted: Collection[bytes] | None, events: EventSpool) -> Contents:
    """Read and check a bundle: return its header, and add its events to `events`."""
    from bough.events.bundle.check import check_events, read_blob, read_event, read_header  # not needed for exports

    digest, contents = hashlib.sha256(), None
    count, in_order = 0, True
    for number, (line, value) in enumerate(_parse_lines(file), 1):
        if contents is None:
            contents = read_header(value)
        elif isinstance(value, dict) and "sha256" in value:
            contents.signer = _verify(value, digest.digest(), count, trusted)
            check_events(contents, count, in_order=in_order, distinct=len(events))
            return contents
        elif isinstance(value, dict) and "blob" in value:
            events.add_blob(*read_blob(value, number, events))
        else:
            event = read_event(value, number)
            in_order = in_order and event.seq == count
            count += 1
            if in_order:
                events.add(event)
        digest.update(line)  # not of the last line: the signature covers the lines before it
    raise invalid_bundle("it has no signature line: it is incomplete")


def _parse_lines(file: IO[bytes]) -> Iterator[tuple[bytes, Any]]:
    number = 0
    while line := file.readline(_MAX_LINE_BYTES):
        number += 1
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise invalid_bundle(f"line {number} is not JSON") from error
        yield line, value


def _verify(trailer: Any, digest: bytes, events: int, trusted: Collection[bytes] | None) -> str:
    """Verify the signature and return the signer's public key in hexadecimal."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        signer = bytes.fromhex(trailer["public_key"])
        Ed25519PublicKey.from_public_bytes(signer).verify(bytes.fromhex(trailer["signature"]), digest)
    except (KeyError, TypeError, ValueError) as error:
        raise invalid_bundle("its last line is not a signature") from error
    except InvalidSignature as error:
        raise invalid_bundle("its signature does not match: it was changed or damaged") from error
    if trailer["sha256"] != digest.hex() or trailer.get("events") != events:
        raise invalid_bundle("its digest does not match: it was changed or damaged")
    if trusted is not None and signer not in trusted:
        raise PermissionDenied(
            f"the bundle is signed by {signer.hex()}, a key that this import does not trust",
            hint="add the key to the trusted ones if you know its owner",
            details={"public_key": signer.hex()},
        )
    return signer.hex()


def _event_as_json(stored: StoredEvent) -> dict[str, Any]:
    seq, id, kind, ts, raw = stored
    return {"seq": seq, "id": id.hex(), "kind": kind, "ts": ts, "data": raw.decode()}


_IDS = ("id", "root", "parent", "forked_from")
_TIMES = ("created", "updated")
_FIELDS = ("base", "head", "forked_at", "status", "title", "tags", "config", "lineage")


def _as_json(record: ConversationRecord) -> dict[str, Any]:
    ids = {key: getattr(record, key) and str(getattr(record, key)) for key in _IDS}
    times = {key: microseconds(getattr(record, key)) for key in _TIMES}
    return ids | times | {key: getattr(record, key) for key in _FIELDS}


async def list_digests(events: AsyncIterator[StoredEvent]) -> list[str]:
    """Return the digests that `events` refer to, without duplicates."""
    digests: dict[str, None] = {}
    async for stored in events:
        if may_name_bytes(stored):
            try:
                digests |= dict.fromkeys(reference.sha256 for reference in list_named_bytes(stored.event))
            except StoreError:
                continue  # writing the events reports the damage
    return [*digests]


async def describe_blob(store: StoreAdmin, cid: UUID, digest: str) -> JsonObject | None:
    """Return the line of a bundle with the bytes of a digest; None if the conversation has lost them."""
    data = (await read_bytes(store, cid, [digest])).get(digest)
    return None if data is None else {"blob": digest, "data": b64encode(data).decode()}
