"""One Postgres, several processes: the main paths of the suite, pieces of text, interrupts, killed processes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from tests.server.processes import Cluster, Reader, client_of
from tests.server.test_conversations import (  # noqa: F401 - run again, on the store of this module
    test_a_stream_resumes_by_seq,
    test_create_say_run_read,
    test_lists_by_page_and_filter,
    test_the_same_request_twice_makes_one_conversation,
)
from tests.server.test_openai import (  # noqa: F401 - run again, on the store of this module
    test_a_key_finds_its_own_chats_only,
    test_two_turns_are_one_conversation_and_a_changed_message_is_a_fork,
)
from tests.server.test_quotas import (  # noqa: F401 - run again, on the store of this module
    test_a_key_that_used_its_tokens_waits_and_another_one_of_its_tenant_does_not,
    test_a_run_ends_at_the_step_before_which_the_key_that_asked_for_it_has_used_up_its_day,
)
from tests.server.test_sockets import (  # noqa: F401 - run again, on the store of this module
    test_a_run_is_followed_and_ends_with_a_state,
    test_confirmation_as_the_peers_client_does_it,
    test_keys_are_asked_for_in_the_first_frame,
)

from bough.agents.spec import AgentSpec
from bough.conversation import AsyncConversation, Delta
from bough.events import PostgresEventStore
from bough.server.bodies.base import OUR_EVENTS
from bough.server.live.deltas import MAX_PAYLOAD_BYTES, DeltaRelay
from bough.settings import Settings
from bough.tasks import TaskBroker, TaskState, TaskStorePostgres
from bough.testing import Hang, OpenAIServer
from bough.types import new_id

pytestmark = [pytest.mark.needs("postgres"), pytest.mark.slow, pytest.mark.anyio]

OURS = {"Accept": OUR_EVENTS}
NEVER = 3600.0


@pytest.fixture
def settings(tmp_path: Path, database: str) -> Settings:
    """Settings whose store is a database of its own."""
    env = {"BOUGH_STORE": database, "BOUGH_SECRET_KEY": "k" * 40}
    return Settings.load(home=tmp_path / "home", env=env, cwd=tmp_path)


@pytest.fixture
def cluster(tmp_path: Path, database: str) -> Iterator[Cluster]:
    """Processes on a database of their own."""
    found = Cluster(tmp_path, database)
    yield found
    found.close()


@pytest.fixture
async def closing() -> AsyncIterator[AsyncExitStack]:
    """What is closed after a test."""
    async with AsyncExitStack() as stack:
        yield stack


def test_a_run_of_one_server_is_followed_on_the_other(cluster: Cluster) -> None:
    """Done when 5: events and pieces of text of a run asked for on one server and run by a worker arrive at the other.

    The first runs may go by before their worker has heard that somebody reads; one of them is heard of in the end.
    """
    words = "these words come in pieces, one after the other"
    with OpenAIServer([words] * 1000) as model:
        workers = {"BOUGH_SERVER_RUNS": "workers", "BOUGH_SERVER_MODELS": model.url}
        (_, one), (_, other) = cluster.serve(**workers), cluster.serve(**workers)
        cluster.work()
        cluster.work()
        with client_of(one) as client:
            agent = {"model": "openai:test", "base_url": model.url, "workspace_access": "none"}
            id = client.post("/api/conversations", json={"agent": agent}).json()["id"]
            reader = Reader(other, id, until=_renames)
            reader.caught_up.wait()
            while not reader.got_delta.is_set():
                client.post(f"/api/conversations/{id}/events", json={"content": "speak"})
                client.post(f"/api/conversations/{id}/run", json={"wait": 60})
            client.patch(f"/api/conversations/{id}", json={"title": "last"})
            reader.join()
            assert reader.events == _whole(client, id)
            assert set(reader.deltas) and all(piece in words for piece in reader.deltas), "pieces of one run are joined"


def _renames(event: dict[str, Any]) -> bool:
    return event["kind"] == "StateChanged" and event["changes"].get("title") == "last"


def _whole(client: Any, id: str) -> list[dict[str, Any]]:
    """Return all events of a conversation, in our form."""
    found: list[dict[str, Any]] = []
    page: str | None = None
    while True:
        params = {} if page is None else {"page_id": page}
        answer = client.get(f"/api/conversations/{id}/events/search", params=params, headers=OURS).json()
        found += answer["items"]
        page = answer["next_page_id"]
        if page is None:
            return found


def test_killing_any_of_two_servers_and_two_workers_loses_nothing(cluster: Cluster) -> None:
    """Done when 5: the worker that runs and the server that was asked are killed; the other two end the run."""
    cluster.hold_at(2)
    workers = {"BOUGH_SERVER_RUNS": "workers"}
    (first, one), (_, other) = cluster.serve(**workers), cluster.serve(**workers)
    both = {process.popen.pid: process for process in (cluster.work(), cluster.work())}
    with client_of(one) as client:
        body = {"agent": "counter", "initial_message": "a", "run": True}
        id = client.post("/api/conversations", json=body).json()["id"]
    reader = Reader(other, id)
    cluster.wait_for("begin a 2")
    [runs] = cluster.writers("begin a 2")
    both[runs].kill()
    first.kill()
    cluster.let_go()
    reader.join()
    with client_of(other) as client:
        assert reader.events == _whole(client, id)
        run = client.get(f"/api/conversations/{id}").json()["run"]
    assert (run["state"], run["attempts"]) == ("completed", 2)
    assert [line for line, count in Counter(cluster.lines()).items() if count > 1] == []


async def test_an_interrupt_reaches_a_run_elsewhere_by_event(
    settings: Settings, closing: AsyncExitStack, tmp_path: Path
) -> None:
    """Neither side looks by itself here: what ends the run is the notification, and so is what tells of its end."""
    with OpenAIServer([Hang()] * 10) as model:
        stores = [await PostgresEventStore.open(settings.store, poll_seconds=NEVER) for _ in range(2)]
        for store in stores:
            closing.push_async_callback(store.aclose)
        asks, runs = (TaskBroker(TaskStorePostgres(store), settings=settings) for store in stores)
        await closing.enter_async_context(runs)
        closing.push_async_callback(asks.aclose)
        spec = AgentSpec(model="openai:test", base_url=model.url, skills=())
        conversation = await AsyncConversation.create(spec, store=stores[0], settings=settings, workspace=tmp_path)
        task = await asks.run(conversation.id, "hang")
        assert task is not None
        await asks.wait_until(task, lambda task: task.state is TaskState.RUNNING)
        await asks.interrupt(conversation.id, by="ada")
        ended = await asks.wait(task)
        await conversation.aclose()
        assert (ended.state, ended.events[-1].payload["reason"]) == (TaskState.CANCELLED, "interrupted")
        assert (await stores[1].get(conversation.id)).status == "paused"


async def test_pieces_are_joined_and_sent_where_somebody_reads_them(database: str) -> None:
    """Pieces said at once are one notification; too much is dropped and counted; one's own do not come back."""
    cid, heard, dropped = new_id(), asyncio.Queue[Delta](), list[None]()

    def take(watched: UUID, piece: Delta) -> None:
        assert watched == cid
        heard.put_nowait(piece)

    reads = DeltaRelay(database, take=take, list_watched=lambda: {cid})
    runs = DeltaRelay(database, take=_refuse, list_watched=lambda: {cid}, on_drop=lambda: dropped.append(None))
    for relay in (reads, runs):
        await relay.open()
    try:
        await _say_until(runs, cid, heard, (Delta(text="."),))  # until it has heard that the other one reads
        response = new_id()
        thinking, one = Delta(text="hmm", kind="thinking", response=response), Delta(text="one ", response=response)
        # The third piece is lost on the way: the next one is not joined with the piece before the gap.
        later = (Delta(text="two", response=response, offset=4), Delta(text="four", response=response, offset=12))
        runs.take_update(new_id(), Delta(text="of a conversation that nobody reads"))
        assert await _say_until(runs, cid, heard, (thinking, one, *later), first="thinking") == thinking
        assert await heard.get() == Delta(text="one two", response=response)
        assert await heard.get() == later[1]
        before = len(dropped)
        runs.take_update(cid, Delta(text="x" * MAX_PAYLOAD_BYTES))
        while len(dropped) == before:
            await asyncio.sleep(0)
        short = Delta(text="short")
        assert await _say_until(runs, cid, heard, (short,)) == short
    finally:
        for relay in (reads, runs):
            await relay.aclose()


async def _say_until(
    relay: DeltaRelay,
    cid: UUID,
    heard: asyncio.Queue[Delta],
    said: tuple[Delta, ...],
    first: str = "text",
) -> Delta:
    """Say pieces at once, again while none is heard (a busy connection drops them); return the first of that kind."""
    while True:
        for piece in said:
            relay.take_update(cid, piece)
        with suppress(TimeoutError):
            async with asyncio.timeout(2):
                while True:
                    got = await heard.get()
                    if got.kind == first:
                        return got


def _refuse(cid: UUID, piece: Delta) -> None:
    pytest.fail("a process got its own piece back")
