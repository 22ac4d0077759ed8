"""Bundles and integrity."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest

from bough.errors import Conflict, InvalidInput, PermissionDenied
from bough.events.model import (
    BaseEvent,
    StateChanged,
)
from bough.events.open import open_store
from bough.events.record import ConversationRecord
from bough.events.store import StoreAdmin
from bough.testing.store.reading import export_bundle, is_store_empty, make_messages, portable, read_log, read_texts
from bough.types import new_id


class BundlesContract:
    """Bundles and integrity."""

    pytestmark = pytest.mark.anyio

    @pytest.fixture
    async def other(self) -> AsyncIterator[StoreAdmin]:
        """A second store to import into."""
        store = await open_store("memory:")
        yield store
        await store.aclose()

    async def test_a_bundle_carries_a_conversation_to_another_store(self, store: StoreAdmin, other: StoreAdmin) -> None:
        """After export, import, appends and re-import, the logs are equal. A repeated import adds nothing."""
        fork = await self._make_tree(store)
        bundle = await export_bundle(store, fork.id)
        imported = await other.import_(io.BytesIO(bundle))
        assert await read_log(other, fork.id) == await read_log(store, fork.id)
        assert portable(imported) == portable(await store.get(fork.id))
        assert await other.lineage(fork.id) == await store.lineage(fork.id)
        events = (await other.census()).events
        assert await other.import_(io.BytesIO(bundle)) == imported
        assert (await other.census()).events == events
        await other.append(fork.id, [*make_messages("continued"), StateChanged(changes={"title": "on"})])
        reimported = await store.import_(io.BytesIO(await export_bundle(other, fork.id)))
        assert (reimported.title, reimported.head) == ("on", imported.head + 2)
        assert await read_log(store, fork.id) == await read_log(other, fork.id)
        assert (await store.check()).findings == (await other.check()).findings == ()
        assert (await store.fork(fork.id, at=1)).parent == (await other.fork(fork.id, at=1)).parent

    async def test_a_bundle_of_another_store_is_imported(self, store: StoreAdmin, other: StoreAdmin) -> None:
        """A bundle of the memory store is imported with equal log, lineage and record; forks share events."""
        fork = await self._make_tree(other)
        sibling = await other.fork(fork.id, at=5, events=make_messages("sibling"))
        for record in (fork, sibling):
            await store.import_(io.BytesIO(await export_bundle(other, record.id)))
            assert await read_log(store, record.id) == await read_log(other, record.id)
            assert await store.lineage(record.id) == await other.lineage(record.id)
            assert portable(await store.get(record.id)) == portable(await other.get(record.id))
        assert (await store.census()).events == len(
            {s.id for r in (fork, sibling) for s in await read_log(other, r.id)}
        )
        assert (await store.check()).findings == ()
        for record in (fork, sibling):
            await store.delete(record.id)
        assert await is_store_empty(store)

    async def test_an_imported_source_replaces_its_tombstone(self, store: StoreAdmin, other: StoreAdmin) -> None:
        """A fork is imported before its source, which is then a tombstone. Importing the source replaces it."""
        fork = await self._make_tree(other)
        root = (await other.ancestry(fork.id))[0]
        for cid in (fork.id, root.id):
            await store.import_(io.BytesIO(await export_bundle(other, cid)))
        assert await read_log(store, root.id) == await read_log(other, root.id)
        assert (await store.get(root.id)).deleted is False
        assert (await store.census()).events == 6 + 1 + 2
        assert (await store.check()).findings == ()

    async def test_a_source_with_fewer_events_is_not_changed(self, store: StoreAdmin, other: StoreAdmin) -> None:
        """A fork at an event that the local source lacks owns the missing events; the source is unchanged."""
        root = await other.create(events=make_messages(*range(3)))
        await store.import_(io.BytesIO(await export_bundle(other, root.id)))
        await other.append(root.id, make_messages(3, 4))
        fork = await other.fork(root.id, events=make_messages("f"))
        await store.append(root.id, make_messages("other way"))
        await store.import_(io.BytesIO(await export_bundle(other, fork.id)))
        assert await read_log(store, fork.id) == await read_log(other, fork.id)
        assert await read_texts(store, root.id) == ["0", "1", "2", "other way"]
        assert await store.lineage(fork.id) == [(root.id, 0, 3), (fork.id, 3, 6)]
        imported_fork = await store.get(fork.id)
        assert (imported_fork.forked_at, imported_fork.fork_event) == (5, (await other.get(fork.id)).fork_event)
        assert (await store.check()).findings == ()
        with pytest.raises(Conflict):
            await store.import_(io.BytesIO(await export_bundle(other, root.id)))

    async def test_a_bundle_that_was_changed_is_refused(self, store: StoreAdmin) -> None:
        """A changed byte, a missing line or end, or other text raises InvalidInput, and nothing is stored."""
        record = await store.create(events=make_messages("hello", "world"))
        bundle = await export_bundle(store, record.id)
        await store.delete(record.id)
        lines = bundle.splitlines(keepends=True)
        for changed_bundle in (
            bundle.replace(b"hello", b"hullo"), lines[0] + b"".join(lines[2:]), b"".join(lines[:-1]), b"", b"{}\n",
            b"\xff\xfe", b"[1]\n[2]\n", bundle.replace(b'"version":1', b'"version":2'),
        ):  # fmt: skip
            with pytest.raises(InvalidInput):
                await store.import_(io.BytesIO(changed_bundle))
        assert await is_store_empty(store)
        with pytest.raises(PermissionDenied):
            await store.import_(io.BytesIO(bundle), trusted=[bytes(32)])
        assert (await store.import_(io.BytesIO(bundle))).head == 2

    async def test_a_bundle_contains_no_owner(self, store: StoreAdmin, other: StoreAdmin) -> None:
        """A bundle does not contain the owner, so an imported conversation has none."""
        created = datetime.now(UTC)
        cid = new_id()
        await store.create(ConversationRecord(id=cid, root=cid, owner="tenant-seven", created=created, updated=created))
        bundle = await export_bundle(store, cid)
        assert b"tenant-seven" not in bundle
        assert (await other.import_(io.BytesIO(bundle))).owner is None

    async def test_an_undamaged_store_has_no_findings(self, store: StoreAdmin) -> None:
        """The check counts conversations and events, and has no findings."""
        await self._make_tree(store)
        report = await store.check()
        assert (report.findings, report.conversations, report.events) == ((), 3, 10)
        assert report.require() is report

    async def _make_tree(self, store: StoreAdmin) -> ConversationRecord:
        root = await store.create(events=make_messages(*range(6)))
        middle = await store.fork(root.id, at=4, events=make_messages("m4", "m5"), title="middle")
        events: list[BaseEvent] = [*make_messages("l5"), StateChanged(changes={"title": "leaf", "tags": {"a": "ü"}})]
        leaf = await store.fork(middle.id, at=5, events=events, config={"agent": "x"}, lineage={"reason": "y"})  # pyright: ignore[reportArgumentType]
        return leaf
