"""Erasing conversations with a receipt, and searching messages."""

from __future__ import annotations

import pytest

from bough.errors import InvalidInput, NotFound
from bough.events.erasure.receipt import Tenant
from bough.events.record import ConversationFilter, MessageQuery
from bough.events.store import StoreAdmin
from bough.testing.store.reading import is_store_empty, make_messages, message_text, read_log
from bough.types import new_id


class ErasingContract:
    """Erasing conversations: what is removed, what remains, and the receipt."""

    pytestmark = pytest.mark.anyio

    async def test_an_erasure_has_one_receipt(self, store: StoreAdmin) -> None:
        """The receipt counts what was removed. A second erasure returns the same receipt."""
        root = await store.create(events=make_messages("one", "two"))
        receipt = await store.erase(root.id)
        assert (receipt.id, receipt.events, receipt.forks, receipt.conversations) == (root.id, 2, (), ())
        assert await store.erase(root.id) == receipt
        assert await is_store_empty(store)
        with pytest.raises(NotFound):
            await store.erase(new_id())

    async def test_living_forks_keep_stubs(self, store: StoreAdmin) -> None:
        """The receipt names the forks and counts the stubs. The forks keep the events after their cut."""
        root = await store.create(events=make_messages("one", "two", "three"))
        fork = await store.fork(root.id, at=2, events=make_messages("own"))
        receipt = await store.erase(root.id)
        assert (receipt.events, receipt.shared_events, receipt.forks) == (3, 2, (fork.id,))
        log = await read_log(store, fork.id)
        assert [b"one" in stored.raw or b"two" in stored.raw for stored in log] == [False] * 3
        assert message_text(log[2]) == "own"
        assert (await store.check()).findings == ()

    async def test_a_whole_tree_is_erased_at_once(self, store: StoreAdmin) -> None:
        """The root's receipt is the leaf's too. No row remains, not even of a fork that was deleted before."""
        root = await store.create(events=make_messages("one", "two"))
        middle = await store.fork(root.id, at=1, events=make_messages("m"))
        leaf = await store.fork(middle.id, events=make_messages("leaf"))
        other = await store.create(events=make_messages("kept"))
        await store.delete(middle.id)
        receipt = await store.erase(root.id, others=[leaf.id, root.id, new_id()])
        assert (receipt.events, receipt.shared_events, receipt.forks) == (3, 0, ())
        assert receipt.conversations == (leaf.id,)
        records = (await store.list(ConversationFilter(include_deleted=True))).items
        assert [record.id for record in records] == [other.id]
        assert [await store.erase(id) for id in (root.id, leaf.id)] == [receipt, receipt]

    async def test_another_owners_conversation_stops_an_erasure(self, store: StoreAdmin) -> None:
        """A tenant's erasure that names a conversation of somebody else erases nothing."""
        own = await store.create(events=make_messages("own"), owner="red")
        other = await store.create(events=make_messages("other"), owner="blue")
        with pytest.raises(NotFound):
            await store.erase(own.id, others=[other.id], tenant=Tenant("red"))
        for record, text in ((own, "own"), (other, "other")):
            assert message_text((await read_log(store, record.id))[0]) == text


class SearchingContract:
    """Searching the messages of all conversations."""

    pytestmark = pytest.mark.anyio

    async def test_all_words_are_required(self, store: StoreAdmin) -> None:
        """The newest message comes first, and pages have every hit once."""
        first = await store.create(events=make_messages("red apple", "green pear"))
        second = await store.create(events=make_messages("red pear", "an Apple, red"))
        page = await store.search(MessageQuery(text="apple red", limit=1))
        (hit,) = page.items
        assert (hit.conversation, hit.seq, hit.who) == (second.id, 1, "user")
        next_page = await store.search(MessageQuery(text="apple red", limit=1, cursor=page.next_cursor))
        assert [(hit.conversation, hit.seq) for hit in next_page.items] == [(first.id, 0)]
        assert next_page.next_cursor is None
        with pytest.raises(InvalidInput):
            await store.search(MessageQuery(text=" "))

    async def test_owner_tags_and_project_narrow_a_search(self, store: StoreAdmin) -> None:
        """A conversation outside the filter has no hits."""
        red = await store.create(events=make_messages("word"), owner="red")
        await store.create(events=make_messages("word"), owner="blue")
        page = await store.search(MessageQuery(text="word", owner="red"))
        assert [hit.conversation for hit in page.items] == [red.id]
        assert (await store.search(MessageQuery(text="word", unowned=True))).items == []
        for query in (MessageQuery(text="word", tags={"team": "x"}), MessageQuery(text="word", project="p")):
            assert (await store.search(query)).items == []

    async def test_erased_messages_are_not_found(self, store: StoreAdmin) -> None:
        """An erased message has no hit, whether or not it was indexed. Messages that only a fork has stay."""
        root = await store.create(events=make_messages("word a"))
        fork = await store.fork(root.id, events=make_messages("word b"))
        assert len((await store.search(MessageQuery(text="word"))).items) == 2
        late = await store.create(events=make_messages("word c"))
        for id in (root.id, late.id):
            await store.erase(id)
        page = await store.search(MessageQuery(text="word"))
        assert [hit.conversation for hit in page.items] == [fork.id]
