"""Conversations by id: deleted, erased without a remaining byte, exported and imported."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from bough import AsyncConversation, Conversation, ErasureReceipt, OrchestratorAgent
from bough.agents.spec import AgentSpec
from bough.conversation.collection import erase_conversation, find_affected
from bough.errors import BoughError, Conflict, InvalidInput, NotFound, PermissionDenied
from bough.events import PostgresEventStore, open_store
from bough.events.lease import hold_lease
from bough.events.model import TaskLinked
from bough.events.record import ConversationFilter, ConversationRecord, MessageQuery
from bough.server.auth.owned import OwnedStore
from bough.settings import Settings
from bough.testing import ScriptedModel, tool_call
from bough.testing.postgres import drop_schema
from bough.testing.store.reading import NOON, make_messages, message_text, read_log
from bough.types import new_id

pytestmark = pytest.mark.anyio
PNG = bytes.fromhex("89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c489")
Spec = Callable[..., AgentSpec]


def files_with(folder: Path, words: list[str]) -> dict[str, int]:
    """Return how many of some words each file below a folder has."""
    counts = {
        str(file.relative_to(folder)): sum(word.encode() in data for word in words)
        for file in folder.rglob("*")
        if file.is_file() and (data := file.read_bytes())
    }
    return {name: count for name, count in counts.items() if count}


async def write_tree(store: Any, words: list[str], chance: random.Random) -> tuple[UUID, UUID]:
    """Write a conversation of these words, between writes of another one, and a fork of it; return both ids."""
    record = await store.create(events=make_messages("first"))
    other = await store.create(events=make_messages("other"))
    for start in range(0, len(words), 25):
        await store.append(record.id, make_messages(*words[start : start + 25]))
        await store.append(other.id, make_messages(*["x" * chance.randrange(2000) for _ in range(5)]))
    fork = await store.fork(record.id, at=chance.randrange(1, len(words)), events=make_messages("own"))
    return record.id, fork.id


@pytest.mark.parametrize("seed", range(4))
async def test_no_file_of_a_home_has_a_word_of_an_erased_conversation(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    words = [f"{chance.getrandbits(160):040x}" for _ in range(600)]
    async with aclosing(await open_store(f"sqlite:///{tmp_path / 'log.db'}")) as store:
        id, fork = await write_tree(store, words, chance)
        if seed % 2:
            await store.delete(id)
        receipt = await AsyncConversation.erase(id.hex[-8:], store=store)
        assert files_with(tmp_path, words) == {}, "while the store is open"
        assert (receipt.forks, receipt.is_compacted) == ((fork,), True)
        assert receipt.shared_events <= receipt.events
        log = await read_log(store, fork)
        assert (len(log), message_text(log[-1])) == (receipt.shared_events + 1, "own")
        assert await AsyncConversation.erase(id, store=store) == receipt
        assert (await store.check()).findings == ()
    assert files_with(tmp_path, words) == {}


@pytest.mark.parametrize("seed", range(2))
async def test_no_file_has_what_an_agent_did_in_erased_conversations(tmp_path: Path, seed: int) -> None:
    """Runs with tool results, images, tags, search and forks, in a home that keeps other conversations."""
    chance, secret = random.Random(seed), f"horse{seed}battery"
    settings = Settings.load(tmp_path / "home", env={})
    erased: list[UUID] = []
    for number in range(6):
        word = "harmless" if number % 2 else secret
        texts = [f"{word} {chance.getrandbits(8 * chance.randint(20, 4000)):x}" for _ in range(chance.randint(1, 8))]
        steps = [step for text in texts for step in (tool_call("_echo", text=text), f"answer {text}")]
        spec = AgentSpec(model=ScriptedModel(steps), tools=(_echo,), skills=())
        conversation = await AsyncConversation.create(spec, workspace=tmp_path, settings=settings, title="a title")
        for text in texts:
            await conversation.send_message(text)
            await conversation.run()
        await conversation.set_tags({"customer": word})
        if word == secret:
            await conversation.send_message("see", images=[PNG + secret.encode() * 9000])
            erased.append(conversation.id)
        fork = await conversation.fork(at=chance.randint(2, conversation.state.head), inherit_tags=False)
        await fork.aclose()
        await conversation.aclose()
    assert (await AsyncConversation.search(secret, settings=settings)).items
    assert files_with(settings.home, [secret])
    for id in chance.sample(erased, len(erased)):
        receipt = await AsyncConversation.erase(id, settings=settings)
        assert (receipt.is_compacted, len(receipt.forks)) == (True, 1)
        assert await AsyncConversation.erase(id, settings=settings) == receipt
    assert files_with(settings.home, [secret]) == {}
    assert len((await AsyncConversation.list(settings=settings)).items) == 9, "the others, and every fork"


def _echo(text: str) -> str:
    """Return the text."""
    return text


async def _grow(store: Any, chance: random.Random, secret: str) -> list[UUID]:
    """Write a tree of conversations, forks of forks and conversations of sub-agents, every text with a word."""
    root = await store.create(events=make_messages(f"{secret} {chance.random()}"))
    ids = [root.id]
    for _ in range(12):
        source, text = chance.choice(ids), f"{secret} {chance.getrandbits(400):x}"
        match chance.choice(("fork", "task", "append")):
            case "fork":
                head = (await store.get(source)).head
                ids.append((await store.fork(source, at=chance.randint(0, head), events=make_messages(text))).id)
            case "task":
                record = await store.create(events=make_messages(text))
                await store.append(source, [TaskLinked(task_id=str(new_id()), conversation=record.id, agent=secret)])
                ids.append(record.id)
            case _:
                await store.append(source, make_messages(text))
    return ids


@pytest.mark.parametrize("seed", range(12))
async def test_a_tree_is_erased_with_all_its_forks_and_sub_agents(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    async with aclosing(await open_store(f"sqlite:///{tmp_path / 'log.db'}")) as store:
        kept = await _grow(store, chance, "harmless")
        ids = await _grow(store, chance, "horsebattery")
        await store.search(MessageQuery(text="horsebattery"))
        logs = {id: await read_log(store, id) for id in kept}
        running = chance.choice(ids)
        async with hold_lease(store, running):
            with pytest.raises(Conflict):
                await AsyncConversation.erase(ids[0], forks=True, store=store)
        assert len((await store.list(limit=100)).items) == len(kept) + len(ids), "nothing half done"
        for id in chance.sample(ids[1:], chance.randint(0, 2)):
            # Deleted before: forks of it are erased all the same. What its tasks wrote is not known any more.
            if not [event async for event in store.read(id, kinds={"TaskLinked"})]:
                await store.delete(id)
        living = {record.id for record in (await store.list(limit=100)).items} - set(kept)
        receipt = await AsyncConversation.erase(ids[0], forks=True, store=store)
        assert {receipt.id, *receipt.conversations} == living
        assert (receipt.forks, receipt.shared_events) == ((), 0)
        assert files_with(tmp_path, ["horsebattery"]) == {}, "while the store is open"
        page = await store.list(ConversationFilter(include_deleted=True), limit=100)
        assert {record.id for record in page.items} == set(kept), "tombstones that nothing needs are gone"
        assert {id: await read_log(store, id) for id in kept} == logs
        for id in living:
            assert await AsyncConversation.erase(id, store=store) == receipt
        assert (await store.check()).findings == ()


async def test_sub_agents_are_erased_without_forks(settings: Settings) -> None:
    async with aclosing(await open_store(settings.store)) as store:
        root, child, grandchild = [await store.create(events=make_messages("a")) for _ in range(3)]
        for parent, sub_agent in ((root, child), (child, grandchild), (grandchild, root)):
            await store.append(parent.id, [TaskLinked(task_id="t", conversation=sub_agent.id)])
        fork = await store.fork(root.id, events=make_messages("own"))
        later = await store.create(events=make_messages("a task of the fork"))
        await store.append(fork.id, [TaskLinked(task_id="t", conversation=later.id)])
        receipt = await AsyncConversation.erase(root.id, store=store, settings=settings)
        assert set(receipt.conversations) == {child.id, grandchild.id}
        assert receipt.forks == (fork.id,)
        assert {record.id for record in (await store.list()).items} == {fork.id, later.id}
        assert set((await AsyncConversation.erase(fork.id, store=store, settings=settings)).conversations) == {later.id}


async def test_sub_agents_of_a_conversation_that_was_deleted_before_are_erased(settings: Settings) -> None:
    """As long as a fork shares the event that names them."""
    async with aclosing(await open_store(settings.store)) as store:
        root, child, other = [await store.create(events=make_messages("a")) for _ in range(3)]
        await store.append(root.id, [TaskLinked(task_id="t", conversation=child.id)])
        fork = await store.fork(root.id)
        await store.append(fork.id, [TaskLinked(task_id="t", conversation=other.id)])
        await store.delete(root.id)
        receipt = await AsyncConversation.erase(root.id, store=store, settings=settings)
        assert (receipt.conversations, receipt.forks) == ((child.id,), (fork.id,))
        assert {record.id for record in (await store.list()).items} == {fork.id, other.id}


async def test_an_imported_log_names_no_conversation_to_erase(settings: Settings, tmp_path: Path) -> None:
    async with aclosing(await open_store(f"sqlite:///{tmp_path / 'there.db'}")) as there:
        victim_id = new_id()
        linked = TaskLinked(task_id="t", conversation=victim_id)
        record = await there.create(events=[*make_messages("sent"), linked])
        file = tmp_path / "sent.bough"
        await AsyncConversation.export(record.id, file, store=there, settings=settings)
    victim = ConversationRecord(id=victim_id, root=victim_id, created=NOON, updated=NOON)
    async with aclosing(await open_store(settings.store)) as store:
        await store.create(victim, events=make_messages("mine"))
        await AsyncConversation.import_(file, store=store, settings=settings)
        receipt = await AsyncConversation.erase(record.id, forks=True, store=store, settings=settings)
        assert receipt.conversations == ()
        assert message_text((await read_log(store, victim_id))[0]) == "mine"


async def test_a_fork_made_meanwhile_stops_an_erasure(settings: Settings) -> None:
    async with aclosing(await open_store(settings.store)) as store:
        record = await store.create(events=make_messages("a"))
        affected = await find_affected(store, str(record.id), "erase", forks=True)
        await store.fork(record.id)
        with pytest.raises(Conflict, match="meanwhile"):
            await erase_conversation(store, settings, affected, whole_store=store)
        assert message_text((await read_log(store, record.id))[0]) == "a"


async def test_what_a_real_sub_agent_did_is_erased(tmp_path: Path, settings: Settings) -> None:
    helper = AgentSpec(name="helper", description="Helps.", model=ScriptedModel(["horsebattery"]), skills=())
    calls = [tool_call("delegate", agent_name="helper", prompt="say it"), "done"]
    top = AgentSpec(name="top", model=ScriptedModel(calls), skills=(), sub_agents=[helper])
    async with OrchestratorAgent(top, workspace=tmp_path, settings=settings, store=settings.store) as orchestrator:
        await orchestrator.run("go")
        id = orchestrator.conversation.id
    assert files_with(settings.home, ["horsebattery"])
    receipt = await AsyncConversation.erase(id, settings=settings)
    assert (len(receipt.conversations), receipt.tasks) == (1, 1)
    assert files_with(settings.home, ["horsebattery"]) == {}


@pytest.mark.needs("postgres")
async def test_no_table_of_postgres_has_a_word_of_an_erased_conversation(postgres: str) -> None:
    from psycopg import Connection

    chance, schema = random.Random(5), f"test_{new_id().hex}"
    words = [f"{chance.getrandbits(160):040x}" for _ in range(600)]
    try:
        async with aclosing(await PostgresEventStore.open(postgres, schema=schema)) as store:
            id, fork = await write_tree(store, words, chance)
            receipt = await store.erase(id)
            assert (receipt.forks, receipt.is_compacted) == ((fork,), True), receipt
            assert any("WAL" in name for name in receipt.not_covered)
            with Connection.connect(postgres, autocommit=True) as db:
                db.execute("checkpoint")
                row = db.execute("show data_directory").fetchone()
            left = files_with(Path(row[0] if row else ""), words)
            assert {name for name in left if not name.startswith("pg_wal")} == set()
            assert await store.erase(id) == receipt
    finally:
        drop_schema(postgres, schema)


async def test_a_view_of_one_owner_erases_nothing_that_runs(settings: Settings) -> None:
    async with aclosing(await open_store(settings.store)) as store:
        record = await store.create(owner="red")
        view = OwnedStore(store, "red")
        async with hold_lease(store, record.id):
            with pytest.raises(Conflict):
                await AsyncConversation.erase(record.id, store=view, settings=settings)
        with pytest.raises(NotFound):
            await AsyncConversation.erase(record.id, store=OwnedStore(store, "blue"), settings=settings)
        receipt = await AsyncConversation.erase(record.id, store=view, settings=settings)
        assert (receipt.owner, receipt.is_compacted) == ("red", False)
        assert (await store.erase(record.id)).is_compacted
        again = await AsyncConversation.erase(record.id, store=view, settings=settings)
        assert again.is_compacted, "what the operator has compacted stays so"


async def test_a_copy_from_before_an_upgrade_is_named(settings: Settings) -> None:
    async with aclosing(await open_store(settings.store)) as store:
        record = await store.create()
        (settings.home / "bough.db.schema-1").write_text("old")
        receipt = await store.erase(record.id)
    assert any("bough.db.schema-1" in place for place in receipt.not_covered)


async def test_an_open_reader_does_not_hold_up_an_erasure(settings: Settings) -> None:
    """It is told in the receipt, and erasing again empties the log."""
    async with aclosing(await open_store(settings.store)) as store:
        record = await store.create(events=make_messages("secret"))
        reader = sqlite3.connect(settings.home / "bough.db")
        reader.execute("begin")
        reader.execute("select count(*) from event").fetchone()
        receipt = await store.erase(record.id)
        assert not receipt.is_compacted
        assert "a reader" in receipt.not_covered[0]
        reader.close()
        assert (await store.erase(record.id)).is_compacted


def test_an_erased_conversation_leaves_a_receipt(settings: Settings, tmp_path: Path, scripted: Spec) -> None:
    with Conversation(scripted("It is 17."), settings=settings, title="prime 7919", workspace=tmp_path) as conversation:
        conversation.send_message("the number 104729")
        conversation.run()
        id, head = conversation.id, conversation.state.head
    receipt = Conversation.erase(id, settings=settings)
    assert (receipt.id, receipt.events, receipt.forks) == (id, head, ())
    assert receipt.bytes > 0
    assert f"removed: {head} events" in str(receipt)
    assert ErasureReceipt.load(receipt.dump()) == receipt
    assert files_with(settings.home, ["104729", "7919", "It is 17."]) == {}
    assert Conversation.list(settings=settings).items == []


async def test_what_cannot_be_deleted_is_not_deleted(settings: Settings) -> None:
    async with aclosing(await open_store(settings.store)) as store:
        record = await store.create(events=make_messages("a"))
        async with hold_lease(store, record.id):
            for remove in (AsyncConversation.delete, AsyncConversation.erase):
                with pytest.raises(Conflict):
                    await remove(record.id, store=store, settings=settings)
        assert len(await read_log(store, record.id)) == 1
        await AsyncConversation.delete(record.id, store=store, settings=settings)
        for unknown in (new_id(), "abcdef12"):
            for remove in (AsyncConversation.delete, AsyncConversation.erase):
                with pytest.raises(NotFound):
                    await remove(unknown, store=store, settings=settings)


async def test_a_bundle_goes_to_another_store(settings: Settings, tmp_path: Path) -> None:
    file, there = tmp_path / "one.bough", f"sqlite:///{tmp_path / 'there.db'}"
    async with aclosing(await open_store(settings.store)) as store:
        id = (await store.create(events=make_messages("hello"))).id
    exported = await AsyncConversation.export(id.hex[:10], file, settings=settings)
    assert (exported.id, exported.head) == (id, 1)
    with pytest.raises(Conflict, match="already exists"):
        await AsyncConversation.export(id, file, settings=settings)
    await AsyncConversation.export(id, file, settings=settings, exist_ok=True)
    for _ in range(2):
        assert (await AsyncConversation.import_(file, store=there, settings=settings)).id == id
    stranger = Settings.load(home=tmp_path / "stranger", env={}, cwd=tmp_path)
    with pytest.raises(PermissionDenied) as refused:
        await AsyncConversation.import_(file, settings=stranger)
    signer = refused.value.details["public_key"]
    assert (await AsyncConversation.import_(file, settings=stranger, signed_by=[signer])).head == 1
    damaged = tmp_path / "damaged.bough"
    damaged.write_bytes(file.read_bytes().replace(b"hello", b"jello"))
    for path in (damaged, tmp_path / "missing", tmp_path):
        with pytest.raises(BoughError) as wrong:
            await AsyncConversation.import_(path, settings=settings, accept_unknown=True)
        assert not isinstance(wrong.value, PermissionDenied)
    with pytest.raises(NotFound):
        await AsyncConversation.export(new_id(), tmp_path / "none", settings=settings)
    assert not (tmp_path / "none").exists()
    with pytest.raises(InvalidInput):
        await AsyncConversation.import_(file, settings=settings, signed_by=[signer], accept_unknown=True)
