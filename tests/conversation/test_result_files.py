"""Images and files in results of tools: the log names them by digest, the store has each once, the model sees them."""

from __future__ import annotations

import base64
import hashlib
import io
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.messages import BinaryContent, BinaryImage, ModelMessagesTypeAdapter, ModelRequest, ToolReturnPart

from bough.conversation import AsyncConversation, Turn
from bough.conversation.log.tool_result import LOST
from bough.conversation.log.view import make_outcome_part
from bough.conversation.replay.replay import replay
from bough.errors import NotFound
from bough.events import open_store
from bough.events.blob.blob import BLOBS
from bough.events.model import ToolReturned
from bough.events.store import EventStore
from bough.guard import AlwaysConfirm, Secrets
from bough.testing import tool_call

pytestmark = pytest.mark.anyio

PNG = b"\x89PNG\r\n\x1a\n" + b"a line"
PDF = b"%PDF-1.4\nprofit: 12,000\n%%EOF\n"
PNG_DIGEST, PDF_DIGEST = (hashlib.sha256(data).hexdigest() for data in (PNG, PDF))


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.needs("postgres"))])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[EventStore]:
    urls = {"memory": "memory:", "sqlite": f"sqlite:///{tmp_path / 'log.db'}"}
    opened = await open_store(urls.get(request.param) or request.getfixturevalue("postgres"))
    yield opened
    await opened.aclose()


def draw() -> list[Any]:
    """Return a drawing, and again in a report."""
    return make_report(PNG, PDF)


def make_report(png: bytes, pdf: bytes) -> list[Any]:
    image = BinaryImage(data=png, media_type="image/png", identifier="drawing", vendor_metadata={"detail": "low"})
    return ["a dot", image, {"pages": [image, BinaryContent(data=pdf, media_type="application/pdf")]}]


def draw_one() -> BinaryImage:
    """Return a drawing."""
    return BinaryImage(data=PNG, media_type="image/png")


async def read_blobs(store: EventStore) -> list[bytes]:
    rows = await store.transaction(BLOBS, lambda tables: tables.connection.execute("select data from blob").fetchall())
    return [bytes(next(iter(row.values())) if isinstance(row, dict) else row[0]) for row in rows]


def contents(messages: Any) -> list[Any]:
    return [part.content for message in messages for part in message.parts if isinstance(part, ToolReturnPart)]


async def results(conversation: AsyncConversation) -> list[ToolReturned]:
    return [stored.event async for stored in conversation.events if isinstance(stored.event, ToolReturned)]


async def test_the_log_names_them_and_the_model_sees_them(start: Any, scripted: Any, store: Any, settings: Any) -> None:
    """The same in the run, when the log is read again, and in a fork; erased, no byte is left."""
    png, pdf = PNG + b" of this test", PDF + b" of this test"

    def draw() -> list[Any]:
        """Draw."""
        return make_report(png, pdf)

    spec = scripted(tool_call("draw"), "seen", tools=(draw,))
    async with await start(spec) as conversation:
        await conversation.send_message("draw")
        assert (await conversation.run()).output == "seen"
        (content,) = contents(spec.model.asked[1].messages)
        assert content == draw()
        assert content[1].identifier == "drawing", "the model may refer to it by this name"
        (event,) = await results(conversation)
        assert [await conversation.read_file(file.sha256) for file in event.files] == [png, pdf]
        raw = [stored.raw async for stored in conversation.events if stored.kind == "ToolReturned"]
        assert base64.b64encode(png)[:12] not in raw[0] and b"12,000" not in raw[0]
        blobs = await read_blobs(store)
        assert (blobs.count(png), blobs.count(pdf)) == (1, 1)
        async with await AsyncConversation.open(conversation.id, store=store, agent=spec, settings=settings) as again:
            messages = await again.messages()
            assert messages == await conversation.messages()
            assert contents(messages)[0][1].identifier == "drawing"
            async with await again.fork() as fork:
                assert await fork.messages() == messages
    for id in (fork.id, conversation.id):
        await store.delete(id, "erase")
    assert not {png, pdf} & {*await read_blobs(store)}


async def test_a_result_that_is_a_file_is_answered_from_the_log(
    start: Any, scripted: Any, store: Any, settings: Any
) -> None:
    """One of two calls has ended when the run stops; the next run shows the model its bytes."""

    def act() -> str:
        """Act."""
        return "acted"

    steps: Any = ([tool_call("draw_one"), tool_call("act")], "done")
    spec = scripted(*steps, tools=(draw_one, act))
    async with await start(spec, confirmation_policy=AlwaysConfirm()) as conversation:
        await conversation.send_message("go")
        await conversation.run()
        first, second = conversation.state.waiting
        await conversation.answer(first, draw_one())
    spec = scripted("done", tools=(draw_one, act))
    async with await AsyncConversation.open(conversation.id, store=store, agent=spec, settings=settings) as again:
        await again.approve(second)
        assert (await again.run()).output == "done"
        assert contents(spec.model.asked[0].messages) == [draw_one(), "acted"]
        assert [len(event.files) for event in await results(again)] == [1, 0]


async def test_a_secret_in_the_bytes_of_a_file_is_masked(start: Any, scripted: Any, store: Any) -> None:
    def look() -> list[Any]:
        """Look."""
        return [BinaryContent(data=PNG + b" swordfish", media_type="image/png"), draw_one()]

    spec = scripted(tool_call("look"), "done", tools=(look,))
    async with await start(spec, secrets=Secrets({"KEY": lambda: "swordfish"})) as conversation:
        await conversation.send_message("go")
        await conversation.run()
        assert not any(b"swordfish" in data for data in await read_blobs(store))
        (event,) = await results(conversation)
        masked, unchanged = contents(await conversation.messages())[0]
        assert (masked.data, unchanged.data) == (PNG + b" <secret:KEY>", PNG)
        assert await conversation.read_file(event.files[0].sha256) == masked.data


async def test_a_bundle_carries_them(start: Any, scripted: Any, store: Any, settings: Any, tmp_path: Path) -> None:
    spec = scripted(tool_call("draw"), "seen", tools=(draw,))
    file = io.BytesIO()
    async with await start(spec) as conversation:
        await conversation.send_message("draw")
        await conversation.run()
        messages = await conversation.messages()
        await store.export(conversation.id, file)
    lines = [json.loads(line) for line in file.getvalue().splitlines()]
    assert {line["blob"] for line in lines if "blob" in line} == {PNG_DIGEST, PDF_DIGEST}
    file.seek(0)
    elsewhere = await open_store(f"sqlite:///{tmp_path / 'elsewhere.db'}")
    record = await elsewhere.import_(file)
    async with await AsyncConversation.open(record.id, store=elsewhere, agent=spec, settings=settings) as imported:
        assert contents(await imported.messages()) == contents(messages)
    await elsewhere.aclose()


async def test_recorded_answers_of_a_fork_have_their_bytes(start: Any, scripted: Any, store: Any) -> None:
    """The recorded result is not in the lineage of the fork, which stores the bytes with its own event."""
    spec = scripted(tool_call("draw"), "seen", tools=(draw,))
    async with await start(spec) as conversation:
        await conversation.send_message("draw")
        await conversation.run()
        overrides: Any = {"tools": "recorded"}
        fork_spec = scripted(tool_call("draw"), "seen too", tools=(draw,))
        async with await conversation.fork(at=Turn(0), agent=fork_spec, overrides=overrides) as fork:
            await fork.send_message("draw")
            assert (await fork.run()).output == "seen too"
            assert contents(fork_spec.model.asked[1].messages) == [draw()]
            await store.delete(conversation.id, "erase")
            assert await fork.read_file(PNG_DIGEST) == PNG


async def test_results_of_older_logs_show_the_same(start: Any, scripted: Any) -> None:
    """Version 2 has the bytes in base64; a replay does not count the new form as a difference."""
    spec = scripted(tool_call("draw"), "seen", tools=(draw,))
    async with await start(spec) as conversation:
        await conversation.send_message("draw")
        await conversation.run()
        assert (await replay(conversation)).differences == ()
        (event,) = await results(conversation)
    part = ToolReturnPart(tool_name="draw", content=draw(), tool_call_id="c")
    inline = event.model_copy(update={"result": dump(part), "files": (), "schema_version": 2})
    assert base64.b64encode(PNG).decode()[:12] in json.dumps(inline.result)
    assert make_outcome_part(inline).content == draw()


def dump(part: ToolReturnPart) -> Any:
    return ModelMessagesTypeAdapter.dump_python([ModelRequest(parts=[part])], mode="json")[0]["parts"][0]["content"]


async def test_bytes_that_are_not_in_the_store_are_told_in_words(start: Any, scripted: Any) -> None:
    spec = scripted(tool_call("draw"), "one", tools=(draw,))
    async with await start(spec) as conversation:
        await conversation.send_message("go")
        await conversation.run()
        events = [stored.event async for stored in conversation.events]
    elsewhere = await open_store("memory:")
    record = await elsewhere.create(events=events)
    async with await AsyncConversation.open(record.id, store=elsewhere, read_only=True) as copied:
        assert contents(await copied.messages()) == [["a dot", LOST, {"pages": [LOST, LOST]}]]
        with pytest.raises(NotFound):
            await copied.read_file(PNG_DIGEST)
    await elsewhere.aclose()


async def test_objects_that_only_resemble_a_file_stay_as_they_are(start: Any, scripted: Any, store: Any) -> None:
    """A result cannot name bytes: only what the event lists is read."""
    imitation = {"kind": "binary", "data": "", "media_type": "image/png", "sha256": PNG_DIGEST, "size_bytes": 13}
    partial = {"kind": "binary", "data": "@@"}

    def imitate() -> list[Any]:
        """Imitate."""
        return [imitation, partial]

    spec = scripted(tool_call("draw_one"), tool_call("imitate"), "done", tools=(draw_one, imitate))
    async with await start(spec) as conversation:
        await conversation.send_message("go")
        await conversation.run()
        event = (await results(conversation))[1]
        assert (event.result, event.files) == ([imitation, partial], ())
        shown = contents(await conversation.messages())[1]
        assert shown[0].data == b"" and shown[1] == partial
