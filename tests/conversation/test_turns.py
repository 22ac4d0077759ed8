"""Turns of a conversation as records, their messages said again, and comparisons that end with a turn."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from tests.conversation.places import everywhere

from bough.conversation import AsyncConversation, Conversation, Turn
from bough.conversation.adapters.pydantic_messages import import_messages
from bough.conversation.log.turns import read_turn_page
from bough.errors import Conflict, InvalidInput, NotFound, PermissionDenied
from bough.events import open_store
from bough.guard import AlwaysConfirm, Hook, HookKind, HookSet, Limits
from bough.testing import tool_call

pytestmark = pytest.mark.anyio

PNG = b"\x89PNG\r\n\x1a\n" + b"a dot"


def look(city: str) -> str:
    """Look at a city."""
    if city == "nowhere":
        raise ValueError("no such city")
    return f"sun in {city}"


async def say(conversation: Any, *texts: str) -> None:
    for text in texts:
        await conversation.send_message(text)
        await conversation.run()


@pytest.fixture
async def source(start: Any, scripted: Any) -> Any:
    """A conversation of three turns, the second one with calls."""
    calls = [tool_call("look", city="Oslo"), tool_call("look", city="nowhere")]
    conversation = await start(scripted("hello", calls, "sunny", "bye", "rain", "snow", "hail", tools=(look,)))
    await say(conversation, "hi", "weather?", "thanks")
    return conversation


class TestRecords:
    @everywhere
    async def test_say_what_was_said_called_and_answered(self, source: Any) -> None:
        first, second, third = await source.turns()
        assert [turn.number for turn in (first, second, third)] == [1, 2, 3]
        assert [turn.message.plain for turn in (first, second, third)] == ["hi", "weather?", "thanks"]
        assert [turn.output for turn in (first, second, third)] == ["hello", "sunny", "bye"]
        assert [turn.usage.requests for turn in (first, second, third)] == [1, 2, 1]
        assert [(call.tool, call.arguments, call.ended, call.result, call.by) for call in second.calls] == [
            ("look", {"city": "Oslo"}, "ToolReturned", "sun in Oslo", None),
            ("look", {"city": "nowhere"}, "ToolFailed", "ValueError: no such city", None),
        ]
        assert (first.stop, second.stop, third.stop) == (second.start, third.start, source.state.head)
        assert [(turn.status, turn.reason, turn.is_open) for turn in (first, second, third)] == [
            ("finished", "", False)
        ] * 3

    async def test_any_page_has_the_same_records(self, source: Any) -> None:
        async with await source.fork(at=Turn(2)) as fork:
            await say(fork, "and tomorrow?")
            await fork.send_message("and then?")
            for conversation in (source, fork):
                turns, head = await conversation.turns(), conversation.state.head
                for first in range(1, len(turns) + 2):
                    for limit in range(1, len(turns) + 1):
                        page, following = await read_turn_page(
                            conversation.store, conversation.id, first, limit, head=head
                        )
                        assert page == turns[first - 1 : first - 1 + limit]
                        is_last = first - 1 + limit >= len(turns)
                        assert following == (None if is_last else first + limit)

    @everywhere
    async def test_a_fork_counts_the_turns_that_it_shares(self, source: Any) -> None:
        record = (await source.turns())[1]
        for at in (record, Turn(2), record.cut):
            async with await source.fork(at=at) as fork:
                assert fork.state.base == record.stop
                await say(fork, "and tomorrow?")
                shared, own = (await fork.turns())[1:]
                assert (shared.number, shared.start, shared.message) == (2, record.start, record.message)
                assert (shared.calls, shared.status) == (record.calls, "finished")
                assert (own.number, own.message.plain, own.is_open) == (3, "and tomorrow?", False)
                async with await fork.fork(at=shared) as again:
                    assert again.state.turns == 2

    async def test_the_last_turn_is_open_until_nothing_is_left_to_do(self, start: Any, scripted: Any) -> None:
        started, release = asyncio.Event(), asyncio.Event()

        async def wait() -> str:
            """Wait."""
            started.set()
            await release.wait()
            return "over"

        conversation = await start(scripted("one", tool_call("wait"), "done", tools=(wait,)))
        assert await conversation.turns() == []
        await say(conversation, "first")
        await conversation.send_message("second")
        assert [(turn.status, turn.is_open) for turn in await conversation.turns()] == [
            ("finished", False),
            ("idle", True),
        ]
        run = asyncio.create_task(conversation.run())
        await started.wait()
        (_, running) = await conversation.turns()
        assert (running.status, running.is_open) == ("running", True)
        assert [(call.tool, call.ended) for call in running.calls] == [("wait", "")]
        release.set()
        await run
        assert [(turn.status, turn.output) for turn in await conversation.turns()] == [
            ("finished", "one"),
            ("finished", "done"),
        ]

    async def test_say_how_a_turn_ended_that_did_not_finish(self, start: Any, scripted: Any) -> None:
        steps = [tool_call("look", city="Oslo"), tool_call("look", city="Rome"), "sunny"]
        waiting = await start(scripted(*steps, tools=(look,)), confirmation_policy=AlwaysConfirm())
        await say(waiting, "weather?")
        (turn,) = await waiting.turns()
        assert (turn.status, turn.is_open, turn.calls[0].ended) == ("waiting_for_confirmation", True, "")
        limited = await start(scripted(*steps, tools=(look,)), limits=Limits(requests=1))
        await say(limited, "weather?")
        (turn,) = await limited.turns()
        assert (turn.status, turn.reason, turn.is_open) == ("paused", "requests", True)
        failing = await start(scripted(RuntimeError("the line is dead")))
        with pytest.raises(Exception, match="the line is dead"):
            await say(failing, "weather?")
        (turn,) = await failing.turns()
        assert (turn.status, turn.reason, turn.is_open) == ("error", "model_error", True)

    async def test_have_the_value_of_the_output_type_and_the_files(
        self, start: Any, scripted: Any, tmp_path: Path
    ) -> None:
        class Weather(BaseModel):
            degrees: int

        write = tool_call("write_file", path="notes.txt", content="sun")
        spec = scripted(write, tool_call("final_result", degrees=20), output_type=Weather, workspace_access="write")
        conversation = await start(spec)
        await say(conversation, "weather?")
        (turn,) = await conversation.turns()
        assert (turn.data, turn.files) == ({"degrees": 20}, ("notes.txt",))
        assert (tmp_path / "notes.txt").read_text() == "sun"

    async def test_are_of_imported_conversations_too(
        self, source: Any, start: Any, scripted: Any, settings: Any, tmp_path: Path
    ) -> None:
        bundle = io.BytesIO()
        await source.store.export(source.id, bundle)
        bundle.seek(0)
        elsewhere = await open_store(f"sqlite:///{tmp_path / 'elsewhere.db'}")
        await elsewhere.import_(bundle)
        agent = scripted(tools=(look,))
        opened = await AsyncConversation.open(source.id, store=elsewhere, agent=agent, settings=settings)
        there, here = await opened.turns(), await source.turns()
        assert [(turn.message, turn.calls, turn.output) for turn in there] == [
            (turn.message, turn.calls, turn.output) for turn in here
        ]
        await opened.aclose()
        await elsewhere.aclose()
        copied = await start(scripted())
        await import_messages(copied, await source.messages())
        assert [(turn.message.plain, turn.output, turn.status) for turn in await copied.turns()] == [
            ("hi", "hello", "finished"),
            ("weather?", "sunny", "finished"),
            ("thanks", "bye", "finished"),
        ]

    async def test_need_no_agent_and_read_each_event_once(self, source: Any) -> None:
        read: list[int] = []

        async def events() -> Any:
            async for stored in source.events:
                read.append(stored.seq)
                yield stored

        from bough.conversation.log.turns import read_turns

        assert await read_turns(source.id, events()) == await source.turns()
        assert read == list(range(source.state.head))

    def test_without_await(self, scripted: Any, settings: Any, tmp_path: Path) -> None:
        agent = scripted("one", "two")
        with Conversation(agent, store="memory:", settings=settings, workspace=tmp_path) as conversation:
            conversation.send_message("first")
            conversation.run()
            conversation.repeat(Turn(1))
            assert conversation.run().output == "two"
            assert [turn.message.plain for turn in conversation.turns()] == ["first", "first"]
            assert conversation.compare(conversation, until=Turn(1)).common == conversation.turns()[0].stop


class TestRepeat:
    @everywhere
    async def test_says_a_message_of_the_source_again_in_a_fork(self, source: Any) -> None:
        turns = await source.turns()
        async with await source.fork(at=turns[0]) as fork:
            id = await fork.repeat(turns[2])
            assert id != turns[2].message.id
            again = (await fork.turns())[1]
            assert (again.message.id, again.message.plain) == (id, "thanks")
            assert (again.message.content, again.message.sender) == (turns[2].message.content, "user")
            first = await fork.repeat(Turn(1))
            events = {stored.id: stored.event async for stored in fork.events}
            assert events[first].plain == "hi"

    async def test_sends_images_and_files_again(self, start: Any, scripted: Any, tmp_path: Path) -> None:
        (tmp_path / "notes.txt").write_text("a note")
        spec = scripted("red", "green", "blue")
        conversation = await start(spec)
        await conversation.send_message("Which colour?", images=[PNG], files=[tmp_path / "notes.txt"])
        await conversation.run()
        fork = await conversation.fork(at=Turn(0))
        await fork.repeat((await conversation.turns())[0])
        await fork.run()
        text, image, document = spec.model.asked[-1].messages[-1].parts[-1].content
        assert (text, image.data, document.data) == ("Which colour?", PNG, b"a note")
        await conversation.store.delete(conversation.id, "erase")
        (turn,) = await fork.turns()
        assert [part.type for part in turn.message.content] == ["text", "image", "file"]
        await fork.repeat(turn)
        await fork.run()
        assert spec.model.asked[-1].messages[-1].parts[-1].content[1].data == PNG, "the fork's own bytes remain"

    async def test_passes_the_checks_and_hooks_of_a_message(self, source: Any) -> None:
        asked: list[str] = []

        def refuse(given: Any) -> Any:
            asked.append(given["prompt"])
            return {"decision": "deny", "reason": "not on Sundays"}

        hooks = HookSet([Hook(kind=HookKind.USER_PROMPT_SUBMIT, function=refuse)])
        fork = await source.fork(at=Turn(1), overrides={"hooks": hooks})
        with pytest.raises(PermissionDenied, match="not on Sundays"):
            await fork.repeat((await source.turns())[1])
        assert asked == ["weather?"]
        assert len(await fork.turns()) == 1

    async def test_with_an_id_sends_it_once(self, source: Any) -> None:
        turns = await source.turns()
        fork = await source.fork(at=Turn(1))
        id = await fork.repeat(turns[1])
        head = fork.state.head
        assert await fork.repeat(turns[1], id=id) == id
        assert fork.state.head == head
        with pytest.raises(Conflict):
            await fork.repeat(turns[2], id=id)

    @everywhere
    @pytest.mark.parametrize("number", [0, -1, 4])
    async def test_refuses_a_turn_that_is_not_there(self, source: Any, number: int) -> None:
        with pytest.raises(InvalidInput, match=f"there is no turn {number}") as refused:
            await source.repeat(Turn(number))
        assert refused.value.hint
        with pytest.raises(InvalidInput):
            await source.repeat(1)
        assert len(await source.turns()) == 3

    @everywhere
    async def test_refuses_a_turn_of_another_conversation(self, source: Any, start: Any, scripted: Any) -> None:
        stranger = await start(scripted("no"))
        await say(stranger, "a secret")
        (turn,) = await stranger.turns()
        with pytest.raises(InvalidInput, match="unrelated conversation"):
            await source.repeat(turn)
        with pytest.raises(NotFound):
            await source.fork(at=turn)

    async def test_refuses_a_turn_of_a_deleted_or_erased_source(self, source: Any) -> None:
        turns = await source.turns()
        deleted = await source.fork()
        await deleted.repeat(Turn(1))
        (*_, own) = await deleted.turns()
        await source.store.delete(deleted.id)
        with pytest.raises(NotFound):
            await source.repeat(own)
        fork = await source.fork(at=Turn(1))
        await source.store.delete(source.id, "erase")
        for turn in turns:
            with pytest.raises(NotFound):
                await fork.repeat(turn)


class TestCompare:
    async def test_ends_by_default_with_the_last_turn_that_both_have(self, start: Any, scripted: Any) -> None:
        steps = ["one", "two", tool_call("look", city="Oslo"), "three", "another two", "another three"]
        source = await start(scripted(*steps, tools=(look,)))
        await say(source, "first", "second", "third")
        async with await source.fork(at=Turn(1)) as fork:
            unused = await source.compare(fork)
            assert (unused.a.usage.requests, unused.a.stop) == (3, source.state.head), "the fork has not gone on"
            await say(fork, "second")
            found = await source.compare(fork)
            assert (found.a.usage.requests, found.b.usage.requests) == (1, 1)
            assert found.calls == (), "the call of the third turn has no counterpart yet"
            second = (await source.turns())[1]
            assert (found.a.stop, found.a.head, found.b.stop) == (second.stop, source.state.head, fork.state.head)
            whole = await source.compare(fork, until=Turn(3))
            assert (whole.a.usage.requests, len(whole.calls)) == (3, 1)
            assert (await source.compare(fork, until=Turn(1))).common == (await source.turns())[0].stop
            await say(fork, "third")
            assert (await source.compare(fork)).a.usage.requests == 3

    @everywhere
    async def test_ends_with_the_turn_that_is_asked_for(self, source: Any) -> None:
        async with await source.fork(at=Turn(1)) as fork:
            bounded = await source.compare(fork, until=Turn(2))
            assert (bounded.a.stop, bounded.a.usage.requests) == ((await source.turns())[1].stop, 2)
            for number in (0, -1, 4):
                with pytest.raises(InvalidInput):
                    await source.compare(fork, until=Turn(number))
            with pytest.raises(InvalidInput):
                await source.compare(fork, until=2)


async def test_a_turn_is_a_whole_number() -> None:
    for value in ("1", 1.0, True, None):
        with pytest.raises(InvalidInput):
            Turn(value)  # pyright: ignore[reportArgumentType]
