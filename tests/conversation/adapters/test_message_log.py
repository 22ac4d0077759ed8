"""Conversations of whole messages under names of others: saved, forked, left, deleted, and never mixed with bough's."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest

from bough.conversation import AsyncConversation
from bough.conversation.adapters.message_log import KeptMessage, MessageLog, derive_id
from bough.errors import Conflict, InvalidInput, NotFound
from bough.events.model import StateChanged
from bough.events.store import EventStore
from bough.types import new_id

pytestmark = pytest.mark.anyio


def record(name: str, head: KeptMessage | None = None, **fields: Any) -> dict[str, Any]:
    plain = {"conversation_id": name, "revision": str(new_id()), "scope": None, "forked_from": None}
    return {**plain, "head_id": None if head is None else str(head.id), **fields}


def chain(*texts: str, after: KeptMessage | None = None) -> list[KeptMessage]:
    made: list[KeptMessage] = []
    for text in texts:
        parent = made[-1] if made else after
        parts = [{"content": text, "part_kind": "user-prompt"}]
        message = {"parts": parts, "kind": "request"}
        made.append(KeptMessage(id=new_id(), parent=parent and parent.id, message=message))
    return made


def texts(entries: list[KeptMessage]) -> list[str]:
    return [entry.message["parts"][0]["content"] for entry in entries]


async def saved(log: MessageLog, name: str, *said: str, **fields: Any) -> list[KeptMessage]:
    entries = chain(*said)
    await log.save(record(name, entries[-1], **fields), entries, expected=None)
    return entries


async def test_what_is_saved_is_read_back_and_listed(store: EventStore) -> None:
    log = MessageLog(store)
    entries = await saved(log, "support/42", "one", "two", "three", scope="anna")
    await saved(log, "other", "x")
    there = await log.get("support/42")
    assert there is not None
    assert await log.history(entries[-1].id) == entries
    assert await log.history(entries[-1].id, limit=2) == entries[1:]
    assert await log.entry(entries[1].id) == entries[1]
    assert [each["conversation_id"] for each in await log.list()] == ["other", "support/42"]
    assert await log.list(scope="anna") == [there]
    assert await log.list(limit=0) == []
    row = await store.get(derive_id("support/42"))
    assert (row.title, row.tags, row.config) == ("one", {"scope": "anna"}, {"agent": "pydantic-ai"})


async def test_a_fork_writes_as_many_rows_however_long_the_history_is(store: EventStore) -> None:
    log, rows = MessageLog(store), []
    for name, length in (("short", 3), ("long", 1200)):
        entries = await saved(log, name, *map(str, range(length)))
        before = (await store.census()).events
        await log.save(record(f"fork of {name}", entries[1], forked_from=name), expected=None)
        rows.append((await store.census()).events - before)
        assert texts(await log.history(entries[1].id)) == ["0", "1"]
    assert rows == [2, 2], "where it comes from, and its record"


async def test_a_history_that_was_left_can_be_gone_back_to(store: EventStore) -> None:
    log = MessageLog(store)
    entries = await saved(log, "c", "one", "two")
    first = await log.get("c")
    assert first is not None
    other = chain("instead", after=entries[0])
    second = record("c", other[-1])
    await log.save(second, other, expected=first["revision"])
    assert texts(await log.history(other[-1].id)) == ["one", "instead"]
    await log.save(record("c", entries[-1]), expected=second["revision"])
    assert texts(await log.history(entries[-1].id)) == ["one", "two"]


async def test_of_two_savers_one_wins_and_the_other_leaves_nothing(store: EventStore) -> None:
    log = MessageLog(store)
    await saved(log, "c", "one")
    there = await log.get("c")
    assert there is not None
    count = (await store.census()).events
    for expected in (None, "stale"):
        with pytest.raises(Conflict, match="since it was loaded"):
            await saved(log, "c", "two") if expected is None else await log.save(record("c"), expected=expected)
    lost = chain("lost")
    with pytest.raises(Conflict):
        await log.save(record("c", chain("never stored")[0]), lost, expected=there["revision"])
    with pytest.raises(Conflict):
        await log.save(record("f", chain("never stored")[0], forked_from="c"), expected=None)
    with pytest.raises(Conflict):
        await log.save(record("f", lost[0], forked_from="nowhere"), expected=None)
    assert (await store.census()).events == count
    assert await log.get("c") == there
    with pytest.raises(NotFound):
        await log.history(lost[0].id)


@pytest.mark.parametrize("order", [("a", "b", "c"), ("c", "b", "a"), ("b", "a", "c")])
async def test_what_a_fork_shares_stays_until_the_last_fork_goes(store: EventStore, order: tuple[str, ...]) -> None:
    log = MessageLog(store)
    entries = await saved(log, "a", "one", "two", "three")
    await log.save(record("b", entries[1], forked_from="a"), expected=None)
    await log.save(record("c", entries[0], forked_from="b"), expected=None)
    shared = {"a": entries, "b": entries[:2], "c": entries[:1]}
    for name in order:
        there = await log.get(name)
        assert there is not None
        await log.delete(name, expected=there["revision"])
        del shared[name]
        assert await log.get(name) is None
        for history in shared.values():
            assert await log.history(history[-1].id) == history
        assert sorted(each["conversation_id"] for each in await log.list()) == sorted(shared)
    assert (await store.census()).events == 0
    assert (await store.check()).findings == ()


async def test_a_name_can_be_used_again_while_forks_of_the_deleted_one_live(store: EventStore) -> None:
    log = MessageLog(store)
    entries = await saved(log, "a", "one", "two", scope="anna")
    await log.save(record("b", entries[1], forked_from="a"), expected=None)
    there = await log.get("a")
    assert there is not None
    await log.delete("a", expected=there["revision"])
    row = await store.get(derive_id("a"))
    assert (row.title, row.tags) == (None, {}), "nothing of what it said is left in lists"
    with pytest.raises(Conflict):
        await log.delete("a", expected=there["revision"])
    with pytest.raises(Conflict):
        await log.save(record("a"), expected=there["revision"])
    anew = await saved(log, "a", "anew", scope="bert")
    assert texts(await log.history(anew[-1].id)) == ["anew"]
    assert texts(await log.history(entries[-1].id)) == ["one", "two"]
    assert [each["conversation_id"] for each in await log.list(scope="bert")] == ["a"]
    assert await log.list(scope="anna") == []
    assert (await store.get(derive_id("a"))).title == "anew"


async def test_of_many_at_once_one_saves_or_deletes_and_the_others_are_told(store: EventStore) -> None:
    """Whoever loses leaves nothing; a deletion that wins leaves nothing at all."""
    log = MessageLog(store)
    done = await asyncio.gather(*(saved(log, "c", str(n)) for n in range(8)), return_exceptions=True)
    assert sorted(type(each).__name__ for each in done) == ["Conflict"] * 7 + ["list"]
    (first,) = [each for each in done if isinstance(each, list)]
    there = await log.get("c")
    assert there is not None
    assert await log.history(UUID(there["head_id"])) == first
    entries = [chain(text, after=first[-1])[0] for text in "abcd"]
    saves = [record("c", entry) for entry in entries]
    works = [log.save(saves[n], [entries[n]], expected=there["revision"]) for n in range(4)]
    done = await asyncio.gather(*works, log.delete("c", expected=there["revision"]), return_exceptions=True)
    assert [type(each) for each in done].count(type(None)) == 1
    assert {type(each) for each in done} == {type(None), Conflict}
    if done[-1] is None:
        assert await log.get("c") is None
    else:
        assert (await log.get("c") or {})["revision"] == saves[done.index(None)]["revision"]


async def test_what_others_append_to_the_log_changes_nothing(store: EventStore) -> None:
    """`bough conv tag` does so."""
    log = MessageLog(store)
    entries = await saved(log, "c", "one", scope="anna")
    there = await log.get("c")
    assert there is not None
    tags = {"scope": "anna", "important": "yes"}
    await store.append(derive_id("c"), [StateChanged(changes={"tags": tags})])
    assert await log.get("c") == there
    more = chain("two", after=entries[-1])
    await log.save(record("c", more[-1], scope="anna"), more, expected=there["revision"])
    assert texts(await log.history(more[-1].id)) == ["one", "two"]
    assert (await store.get(derive_id("c"))).tags == tags


async def test_a_conversation_of_boughs_is_none_of_these(start: Any, scripted: Any, store: EventStore) -> None:
    own = await start(scripted("hello"))
    await own.send_message("hi")
    log, name, head = MessageLog(store), str(own.id), own.state.head
    assert await log.get(name) is None
    assert await log.list() == []
    with pytest.raises(Conflict):
        await saved(log, name, "mine now")
    assert (await store.get(own.id)).head == head


async def test_two_names_never_share_a_conversation(store: EventStore) -> None:
    log = MessageLog(store)
    await saved(log, "c", "one")
    twin = str(derive_id("c"))
    assert await log.get(twin) is None
    with pytest.raises(Conflict):
        await saved(log, twin, "two")
    assert derive_id(str(derive_id("c")).upper()) != derive_id("c")


async def test_an_id_that_is_none_is_refused(store: EventStore) -> None:
    with pytest.raises(InvalidInput, match="not the id of an entry"):
        await MessageLog(store).save(record("c", head_id="7"), expected=None)


async def test_bough_says_that_it_does_not_go_on_with_it(store: EventStore, settings: Any, scripted: Any) -> None:
    await saved(MessageLog(store), "c", "one")
    with pytest.raises(InvalidInput, match="PydanticAI") as refused:
        await AsyncConversation.open(derive_id("c"), store=store, agent=scripted("no"), settings=settings)
    assert "import_messages" in refused.value.hint
