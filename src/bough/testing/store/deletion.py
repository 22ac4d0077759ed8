"""Deleting conversations, and keeping the events that forks need."""

from __future__ import annotations

import pytest

from bough.errors import InvalidInput, NotFound
from bough.events.codec import ERASED
from bough.events.model import (
    ModelResponded,
    ToolCalled,
    ToolReturned,
)
from bough.events.record import ConversationFilter
from bough.events.store import StoreAdmin
from bough.testing.store.reading import is_store_empty, make_messages, message_text, read_log


class DeletionContract:
    """Deleting conversations, and keeping the events that forks need."""

    pytestmark = pytest.mark.anyio

    async def test_a_deleted_conversation_is_gone(self, store: StoreAdmin) -> None:
        """A deleted conversation cannot be read, and its id can be reused if no fork depends on it."""
        record = await store.create(events=make_messages("a"))
        await store.delete(record.id)
        for call in (store.get(record.id), store.append(record.id, make_messages("b")), store.fork(record.id)):
            with pytest.raises(NotFound):
                await call
        assert (await store.list()).items == []
        assert (await store.create(record)).id == record.id
        assert await read_log(store, record.id) == []

    async def test_forks_keep_the_events_that_they_reach(self, store: StoreAdmin) -> None:
        """Deleting the source keeps every fork complete, and removes exactly the events that no fork reaches."""
        root = await store.create(events=make_messages(*range(10)))
        forks = [await store.fork(root.id, at=cut, events=make_messages("own")) for cut in (3, 6)]
        logs = [await read_log(store, fork.id) for fork in forks]
        await store.delete(root.id)
        assert [await read_log(store, fork.id) for fork in forks] == logs
        assert (await store.census()).events == 6 + 2
        assert (await store.get(forks[0].id)).forked_from == root.id
        assert (await store.get(forks[0].id)).fork_event == logs[0][2].id
        await store.delete(forks[1].id)
        assert (await store.census()).events == 3 + 1
        assert await read_log(store, forks[0].id) == logs[0]
        await store.delete(forks[0].id)
        assert await is_store_empty(store)

    async def test_deleting_everything_leaves_nothing(self, store: StoreAdmin) -> None:
        """After all conversations were deleted, in any order, no row remains."""
        for order in ((0, 1, 2, 3), (3, 2, 1, 0), (1, 3, 0, 2), (2, 0, 3, 1)):
            root = await store.create(events=make_messages(*range(4)))
            a = await store.fork(root.id, at=3, events=make_messages("a"))
            b = await store.fork(a.id)
            c = await store.fork(b.id, at=0, events=make_messages("c"))
            tree = (root, a, b, c)
            for i in order:
                await store.delete(tree[i].id)
                assert (await store.check()).findings == ()
            assert await is_store_empty(store)

    async def test_cascade_deletes_the_forks(self, store: StoreAdmin) -> None:
        """Forks of forks are deleted too; conversations outside the tree remain."""
        root, other = await store.create(events=make_messages(*range(4))), await store.create(events=make_messages("x"))
        fork = await store.fork(root.id, at=2, events=make_messages("f"))
        fork_of_fork = await store.fork(fork.id, at=1)
        await store.delete(fork.id, "cascade")
        for deleted in (fork, fork_of_fork):
            with pytest.raises(NotFound):
                await store.get(deleted.id)
        assert len(await read_log(store, root.id)) == 4
        await store.delete(root.id, "cascade")
        assert [record.id for record in (await store.list(ConversationFilter(include_deleted=True))).items] == [
            other.id
        ]

    async def test_erase_scrubs_shared_payloads(self, store: StoreAdmin) -> None:
        """Forks keep typed stubs: ids, kinds, seqs and tool calls remain, content is removed."""
        secret = "correct horse battery staple"
        response = {"kind": "response", "parts": [
            {"part_kind": "text", "content": secret},
            {"part_kind": "tool-call", "tool_name": "t", "args": {"a": secret}, "tool_call_id": "1"},
        ]}  # fmt: skip
        root = await store.create(events=[
            *make_messages(secret), ModelResponded(response=response),
            ToolCalled(tool_call_id="1", tool="t", arguments={"a": secret}),
            ToolReturned(tool_call_id="1", tool="t", result=secret),
        ])  # fmt: skip
        fork = await store.fork(root.id, events=make_messages("kept"))
        original = await read_log(store, fork.id)
        await store.delete(root.id, "erase")
        erased = await read_log(store, fork.id)
        assert [(s.seq, s.id, s.kind, s.ts) for s in erased] == [(s.seq, s.id, s.kind, s.ts) for s in original]
        assert not any(secret.encode() in stored.raw for stored in erased)
        assert message_text(erased[0]) == ERASED
        called, returned = erased[2].event, erased[3].event
        assert isinstance(called, ToolCalled) and isinstance(returned, ToolReturned)
        assert (called.tool_call_id, called.arguments, returned.tool_call_id) == ("1", {}, "1")
        assert message_text(erased[4]) == "kept"
        assert (await store.check()).findings == ()

    async def test_an_unknown_delete_mode_is_rejected(self, store: StoreAdmin) -> None:
        """A misspelt mode deletes nothing."""
        record = await store.create()
        with pytest.raises(InvalidInput):
            await store.delete(record.id, "shred")  # pyright: ignore[reportArgumentType]
        assert await store.get(record.id) == record
