"""What a conversation does, wherever it is: each test runs with a store of this process, and with a server."""

from __future__ import annotations

import asyncio
import threading
from typing import Any
from uuid import uuid4

import pytest

from bough.conversation import Delta
from bough.errors import Conflict, InvalidInput, ModelError, NotFound
from bough.events.record import ConversationFilter, StoredEvent
from bough.guard import AlwaysConfirm, Limits
from bough.testing import Answer, ServerCall
from bough.testing.openai_server import Failure, Hang, Received, Reply

pytestmark = pytest.mark.anyio

LISTING = Answer(calls=(ServerCall(tool="list_files", arguments={}, id="c1"),))
OF_TASKS = frozenset({"TaskChanged", "TaskNoted", "MessageStored"})
"""Kinds that say who runs a conversation, and not what happens in it."""


async def kinds_of(conversation: Any) -> list[str]:
    return [stored.kind async for stored in conversation.events if stored.kind not in OF_TASKS]


async def test_a_whole_life(place: Any) -> None:
    with place("one", "two", "other") as at:
        async with await at.start(title="first", tags={"team": "red"}) as source:
            assert (source.status, source.title, source.tags) == ("idle", "first", {"team": "red"})
            await source.send_message("a question")
            result = await source.run()
            assert (result.output, result.status, result.steps) == ("one", "finished", 1)
            assert result.usage.requests == 1
            assert (result.start, result.stop) == (source.state.head - (result.stop - result.start), source.state.head)
            async with await source.fork(title="branch", reason="to see", tags={"team": "blue"}) as branch:
                assert branch.state.base == source.state.head
                await branch.send_message("more")
                assert (await branch.run()).output == "two"
                compared = await source.compare(branch)
                assert compared.common == source.state.head
                assert next(stored.seq for stored in compared.b.events) == source.state.head
                line = await branch.lineage()
                assert [record.id for record in line] == [source.id, branch.id]
                assert line[1].lineage["reason"] == "to see"
            async with await source.fork(at=result.start) as early:
                assert early.state.base == result.start
                assert (await early.run()).output == "other", "what was asked before the cut is answered anew"
            page = await type(source).list(**at.where, filter=ConversationFilter(tags={"team": "red"}), limit=1)
            assert len(page.items) == 1
            rest = await type(source).list(
                **at.where, filter=ConversationFilter(tags={"team": "red"}), cursor=page.next_cursor
            )
            assert {record.id for record in (*page.items, *rest.items)} == {source.id, early.id}
        async with await at.open(source.id) as again:
            assert again.state.output == "one"
            assert len(await again.messages()) == 2


async def test_what_happens_is_recorded_alike(place: Any) -> None:
    with place(LISTING, "there is nothing") as at:
        async with await at.start() as conversation:
            await conversation.send_message("look")
            result = await conversation.run()
            assert (result.output, result.steps) == ("there is nothing", 2)
            assert await kinds_of(conversation) == [
                "ConversationStarted", "UserMessage", "StateChanged", "StateChanged", "ModelResponded", "ToolCalled",
                "ToolReturned", "ModelResponded", "StateChanged",
            ]  # fmt: skip
            assert [stored.seq async for stored in conversation.events] == list(range(conversation.state.head))


async def test_without_work_a_run_does_nothing(place: Any) -> None:
    with place() as at:
        async with await at.start() as conversation:
            result = await conversation.run()
            assert (result.steps, result.output) == (0, "")


async def test_a_stream_gives_every_event_once_and_the_text(place: Any) -> None:
    with place(LISTING, "some words to stream", "more") as at:
        async with await at.start() as conversation:
            await conversation.send_message("go")
            head = conversation.state.head
            updates = [update async for update in conversation.run_stream()]
            places = [update.seq for update in updates if isinstance(update, StoredEvent)]
            assert places == list(range(head, conversation.state.head))
            assert (
                "".join(update.text for update in updates if isinstance(update, Delta) and update.kind == "text")
                == "some words to stream"
            )
            heard: list[Any] = []
            await conversation.send_message("again")
            result = await conversation.run(on_event=heard.append)
            assert [update.seq for update in heard if isinstance(update, StoredEvent)] == list(
                range(result.start, result.stop)
            )


async def test_a_model_that_fails_is_an_error_and_can_be_asked_again(place: Any) -> None:
    with place(Failure(status=400, message="no such thing"), "better") as at:
        async with await at.start() as conversation:
            await conversation.send_message("go")
            with pytest.raises(ModelError) as failed:
                await conversation.run()
            assert failed.value.code == "model_error"
            assert conversation.status == "error"
            assert (await conversation.run()).output == "better"


async def test_two_runs_at_once_are_refused_and_an_interrupted_one_goes_on(place: Any) -> None:
    reached = threading.Event()

    def hang(received: Received) -> Reply:
        reached.set()
        return Hang()

    with place(hang, "resumed") as at:
        async with await at.start() as conversation, await at.open(conversation.id) as other:
            await conversation.send_message("go")
            run = asyncio.create_task(conversation.run())
            await asyncio.to_thread(reached.wait, 60)
            with pytest.raises(Conflict):
                await conversation.run()
            with pytest.raises(Conflict):
                await other.run()
            await conversation.interrupt()
            assert (await run).status == "paused"
            assert (await conversation.run()).output == "resumed"


async def test_a_started_run_is_followed_by_several_and_goes_on_without_its_object(place: Any) -> None:
    asked, told = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def answer_when_told(_: Received) -> Reply:
        loop.call_soon_threadsafe(asked.set)
        assert told.wait(60)
        return Answer(text="one two")

    with place(answer_when_told) as at:
        first = await at.start()
        await first.send_message("a question")
        await first.start(close=True)
        await asked.wait()
        async with await at.open(first.id) as second, await at.open(first.id) as third:
            with pytest.raises(Conflict):
                await second.start()
            readers = [asyncio.create_task(_collect(second.follow())), asyncio.create_task(_collect(third.follow(1)))]
            told.set()
            everything, later = await asyncio.gather(*readers)
            seqs = [update.seq for update in everything if isinstance(update, StoredEvent)]
            assert seqs == list(range(len(seqs)))
            assert [update.seq for update in later if isinstance(update, StoredEvent)] == seqs[2:]
            assert everything[-1].as_json()["changes"]["status"] == "finished"
            head = [stored.seq async for stored in second.events][-1]  # a server's task ends after its run
            assert await _collect(second.follow(head)) == []
            with pytest.raises(InvalidInput):
                second.follow(-2)


async def test_a_started_run_has_a_result_when_it_was_followed_to_its_end(place: Any) -> None:
    with place("one", Failure(status=400, message="no such thing"), Hang()) as at:
        async with await at.start() as conversation:
            await conversation.send_message("go")
            await conversation.start()
            await _collect(conversation.follow())
            assert (conversation.result.output, conversation.result.status) == ("one", "finished")
            await conversation.send_message("again")
            await conversation.start()
            await _collect(conversation.follow(conversation.state.head - 1))
            assert (conversation.result.status, conversation.result.reason) == ("error", "model_error")
            await conversation.start()
            await conversation.interrupt()  # perhaps before the run has begun
            await _collect(conversation.follow(conversation.state.head - 1))
            assert conversation.status in ("error", "paused")


async def _collect(updates: Any) -> list[Any]:
    async with asyncio.timeout(60):
        return [update async for update in updates]


async def test_cancelling_the_caller_stops_the_run(place: Any) -> None:
    reached = threading.Event()

    def hang(received: Received) -> Reply:
        reached.set()
        return Hang()

    with place(hang, "resumed") as at:
        async with await at.start() as conversation:
            await conversation.send_message("go")
            run = asyncio.create_task(conversation.run())
            await asyncio.to_thread(reached.wait, 60)
            run.cancel()
            with pytest.raises(asyncio.CancelledError):
                await run
            assert conversation.status == "paused"
            assert (await conversation.run()).output == "resumed"


async def test_what_is_wrong_is_said_alike(place: Any) -> None:
    with place("one") as at:
        with pytest.raises(NotFound):
            await at.open(uuid4())
        async with await at.start() as conversation:
            with pytest.raises(InvalidInput, match="empty"):
                await conversation.send_message(" ")
            with pytest.raises(InvalidInput):
                await conversation.fork(at=1000)
            with pytest.raises(NotFound):
                await conversation.fork(at=uuid4())
            with pytest.raises(Conflict):
                await conversation.approve()
            with pytest.raises(Conflict):
                await at.start(id=conversation.id, title="another")
            async with await at.start(id=conversation.id, exist_ok=True) as again:
                assert again.id == conversation.id


async def test_it_is_changed_and_asked(place: Any) -> None:
    with place("aside", "answer") as at:
        async with await at.start() as conversation:
            await conversation.send_message("hello")
            assert await conversation.ask("what is this?") == "aside"
            await conversation.set_title("Another")
            await conversation.set_tags({"a": "b"})
            await conversation.set_confirmation_policy(AlwaysConfirm())
            await conversation.set_limits(Limits(steps=7))
            assert (conversation.title, conversation.tags) == ("Another", {"a": "b"})
            assert conversation.state.policies["policy"] == {"kind": "AlwaysConfirm"}
            assert conversation.state.policies["limits"]["steps"] == 7
            assert not await conversation.condense()
            async with await conversation.fork(overrides={"system_prompt": "Be short."}) as fork:
                assert "Be short." in fork.state.instructions
                assert (await fork.run()).output == "answer"
            await conversation.graft(fork, summary="it went well")
            assert "it went well" in str(await conversation.messages())
