"""Forks, lineage and ancestry."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest

from bough.errors import Conflict, InvalidInput, NotFound
from bough.events.model import (
    StateChanged,
)
from bough.events.store import StoreAdmin
from bough.testing.store.reading import make_messages, read_log
from bough.types import new_id


class ForksContract:
    """Forks, lineage and ancestry."""

    pytestmark = pytest.mark.anyio

    async def test_a_fork_is_an_exact_prefix(self, store: StoreAdmin) -> None:
        """At every cut, the fork has the events of its source before the cut, and new events follow them."""
        record = await store.create(events=make_messages(*range(5)))
        log = await read_log(store, record.id)
        for cut in range(6):
            fork = await store.fork(record.id, at=cut)
            assert await read_log(store, fork.id) == log[:cut]
            assert (fork.base, fork.head, fork.forked_from, fork.forked_at) == (cut, cut, record.id, cut)
            assert (fork.root, fork.parent) == (record.id, record.id if cut else None)
            assert fork.fork_event == (log[cut - 1].id if cut else None)
            assert await store.append(fork.id, make_messages("own")) == cut + 1
            assert (await read_log(store, fork.id))[:-1] == log[:cut]
        assert await read_log(store, record.id) == log
        assert (await store.get(record.id)).updated == record.updated

    async def test_a_fork_attaches_to_the_owner_of_its_last_event(self, store: StoreAdmin) -> None:
        """Forks of unmodified forks do not lengthen the lineage."""
        root = await store.create(events=make_messages(*range(4)))
        child = await store.fork(root.id)
        grandchild = await store.fork(child.id)
        assert (grandchild.parent, grandchild.forked_from) == (root.id, child.id)
        await store.append(child.id, make_messages("c4"))
        assert (await store.fork(child.id)).parent == child.id
        assert (await store.fork(child.id, at=4)).parent == root.id
        assert (await store.fork(child.id, at=0)).parent is None

    async def test_fork_by_event_id(self, store: StoreAdmin) -> None:
        """A fork at an event id shares the log up to and including this event. A sibling's event is not found."""
        events = make_messages(*range(4))
        root = await store.create(events=events)
        assert (await store.fork(root.id, at=events[1].id)).head == 2
        fork, own = await store.fork(root.id, at=1), make_messages("own")
        await store.append(fork.id, own)
        assert (await store.fork(fork.id, at=own[0].id)).head == 2
        for at in (events[2].id, new_id()):
            with pytest.raises(NotFound):
                await store.fork(fork.id, at=at)

    async def test_bad_cuts_write_nothing(self, store: StoreAdmin) -> None:
        """A cut below 0 or above the head raises InvalidInput, and nothing is written."""
        root = await store.create(events=make_messages(*range(3)))
        for at in (-1, 4, 10**9):
            with pytest.raises(InvalidInput):
                await store.fork(root.id, at=at, id=UUID(int=7), events=make_messages("x"))
        with pytest.raises(NotFound):
            await store.get(UUID(int=7))
        assert len((await store.list()).items) == 1

    async def test_invalid_cuts_and_ids_write_nothing(self, store: StoreAdmin) -> None:
        """Cuts and ids of other types raise InvalidInput; strings with a UUID are accepted."""
        events = make_messages(*range(3))
        root = await store.create(events=events)
        cuts: list[Any] = [True, 0.5, "7", "x", b"", [], 1 << 70, "é" * 40]
        for at in cuts:
            with pytest.raises(InvalidInput):
                await store.fork(root.id, at=at, events=make_messages("x"))
        ids: list[Any] = ["x", 5, True, b"7" * 16, ""]
        for id in ids:
            with pytest.raises(InvalidInput):
                await store.fork(root.id, id=id)
        assert len((await store.list()).items) == 1
        arguments: dict[str, Any] = {"id": str(UUID(int=7)), "at": str(events[1].id)}
        assert (await store.fork(root.id, **arguments)).id == UUID(int=7)
        with pytest.raises(Conflict):
            await store.fork(root.id, id=root.id)

    async def test_a_fork_inherits_no_record_fields(self, store: StoreAdmin) -> None:
        """A fork takes title, tags, config and owner from the call only; the events of the call follow the cut."""
        root = await store.create(
            events=[*make_messages("a"), StateChanged(changes={"title": "T", "tags": {"a": "b"}})]
        )
        bare = await store.fork(root.id)
        assert (bare.title, bare.tags, bare.config, bare.owner, bare.status) == (None, {}, {}, None, "idle")
        own = [StateChanged(changes={"status": "paused"}), *make_messages("first")]
        fork = await store.fork(
            root.id, at=1, title="F", tags={"x": "y"}, config={"agent": "b"}, owner="me", lineage={"r": 1}, events=own
        )
        assert (fork.title, fork.tags, fork.config, fork.owner) == ("F", {"x": "y"}, {"agent": "b"}, "me")
        assert (fork.lineage, fork.status, fork.head) == ({"r": 1}, "paused", 3)
        assert [stored.event for stored in (await read_log(store, fork.id))[1:]] == own

    async def test_the_same_fork_twice_is_one_fork(self, store: StoreAdmin) -> None:
        """A repeated id with equal arguments returns the same fork, even concurrently; other arguments conflict."""
        root = await store.create(events=make_messages(*range(3)))
        other = await store.create(events=make_messages("x"))
        id = new_id()
        forks = await asyncio.gather(*(store.fork(root.id, at=2, id=id, lineage={"r": "x"}) for _ in range(10)))
        assert {fork.id for fork in forks} == {id}
        assert len(await store.children(root.id)) == 1
        await store.append(id, make_messages("own"))
        assert (await store.fork(root.id, at=2, id=id, lineage={"r": "x"})).head == 3
        for call in (
            store.fork(root.id, at=1, id=id, lineage={"r": "x"}),
            store.fork(root.id, at=2, id=id, lineage={"r": "y"}),
            store.fork(other.id, id=id, lineage={"r": "x"}),
            store.fork(root.id, id=other.id),
            store.create(await store.get(id)),
        ):
            with pytest.raises(Conflict):
                await call

    async def test_a_fork_with_a_stored_event_writes_nothing(self, store: StoreAdmin) -> None:
        """A fork whose first events include a stored event raises Conflict, and nothing is written."""
        events = make_messages("a")
        root = await store.create(events=events)
        with pytest.raises(Conflict):
            await store.fork(root.id, events=[*make_messages("new"), *events])
        assert await store.children(root.id) == []

    async def test_lineage_and_common_ancestor(self, store: StoreAdmin) -> None:
        """The lineage has disjoint ranges, oldest first. Two logs share events up to their common ancestor."""
        root = await store.create(events=make_messages(*range(6)))
        a = await store.fork(root.id, at=4, events=make_messages("a4", "a5"))
        b = await store.fork(a.id, at=5, events=make_messages("b5"))
        c = await store.fork(root.id, at=2)
        assert await store.lineage(b.id) == [(root.id, 0, 4), (a.id, 4, 5), (b.id, 5, 6)]
        assert await store.lineage(c.id) == [(root.id, 0, 2)]
        assert await store.common_ancestor(a.id, b.id) == (a.id, 5)
        assert await store.common_ancestor(b.id, root.id) == (root.id, 4)
        assert await store.common_ancestor(b.id, c.id) == await store.common_ancestor(c.id, b.id) == (root.id, 2)
        assert await store.common_ancestor(root.id, root.id) == (root.id, 6)
        assert await store.common_ancestor(root.id, (await store.create(events=make_messages("x"))).id) is None
        assert await store.common_ancestor(root.id, (await store.fork(root.id, at=0)).id) is None

    async def test_children_and_ancestry(self, store: StoreAdmin) -> None:
        """Children are the direct forks of a conversation, oldest first; its ancestry is all conversations above it."""
        root = await store.create(events=make_messages("a"))
        first, second = await store.fork(root.id), await store.fork(root.id)
        third = await store.fork(first.id, at=0)
        assert [child.id for child in await store.children(root.id)] == [first.id, second.id]
        assert [child.id for child in await store.children(first.id)] == [third.id]
        assert [ancestor.id for ancestor in await store.ancestry(third.id)] == [root.id, first.id]
        assert await store.ancestry(root.id) == []
