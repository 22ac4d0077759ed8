"""Images and files: the model is shown them, the log names them by digest, and the store has each once."""

from __future__ import annotations

import hashlib
import threading
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.messages import BinaryContent, DocumentUrl, ImageUrl

from bough.conversation import AsyncConversation, Conversation
from bough.conversation.log.view import LOST
from bough.errors import ConnectError, InvalidInput, LimitExceeded, PermissionDenied
from bough.events import open_store
from bough.events.blob.blob import BLOBS
from bough.events.model import FilePart, ImagePart, TextPart, UserMessage
from bough.events.store import EventStore
from bough.guard import AlwaysConfirm, Secrets
from bough.settings import Settings
from bough.testing import tool_call

pytestmark = pytest.mark.anyio

PNG = b"\x89PNG\r\n\x1a\n" + b"a dot"
PDF = b"%PDF-1.4\nrevenue: 12,000\n%%EOF\n"


def shown(model: Any, request: int = -1) -> list[Any]:
    """What the latest prompt of a request holds."""
    return model.asked[request].messages[-1].parts[-1].content


async def count_blobs(store: EventStore) -> int:
    statement = "select count(*) from blob"
    rows = await store.transaction(BLOBS, lambda tables: tables.connection.execute(statement).fetchall())
    return next(iter(rows[0].values())) if isinstance(rows[0], dict) else rows[0][0]


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.needs("postgres"))])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[EventStore]:
    urls = {"memory": "memory:", "sqlite": f"sqlite:///{tmp_path / 'log.db'}"}
    url = urls.get(request.param) or request.getfixturevalue("postgres")
    opened = await open_store(url)
    yield opened
    await opened.aclose()


async def test_bytes_are_kept_once_and_named_by_digest(start: Any, scripted: Any, store: Any, tmp_path: Path) -> None:
    (tmp_path / "report.pdf").write_bytes(PDF)
    spec = scripted("red", "twelve", "same")
    before = await count_blobs(store)
    conversation = await start(spec)
    await conversation.send_message("Which colour?", images=[PNG])
    assert (await conversation.run()).output == "red"
    await conversation.send_message("How much?", files=[tmp_path / "report.pdf"], images=[ImagePart.of(PNG, name="d")])
    assert (await conversation.run()).output == "twelve"
    text, image, document = shown(spec.model)
    assert text == "How much?"
    assert (image.data, image.media_type) == (PNG, "image/png")
    assert (document.data, document.media_type) == (PDF, "application/pdf")
    assert shown(spec.model, 0)[1].data == PNG
    stored = [each async for each in conversation.events if each.kind == "UserMessage"]
    part = stored[1].event.content[2]
    assert (part.name, part.size_bytes, part.sha256) == ("report.pdf", len(PDF), hashlib.sha256(PDF).hexdigest())
    assert all(b"base64" not in each.raw and b"12,000" not in each.raw for each in stored)
    assert await count_blobs(store) == before + 2
    await store.delete(conversation.id, "erase")
    assert await count_blobs(store) == before, "bytes go with the last event that names them"


async def test_they_are_there_after_open_and_in_forks(start: Any, scripted: Any, store: Any, settings: Any) -> None:
    conversation = await start(scripted("one"))
    await conversation.send_message(images=[PNG])
    await conversation.run()
    spec = scripted("two", "three")
    async with await AsyncConversation.open(conversation.id, store=store, agent=spec, settings=settings) as again:
        await again.send_message("and now?")
        assert (await again.run()).output == "two"
        assert [c.data for c in spec.model.asked[0].messages[0].parts[-1].content] == [PNG]
        async with await again.fork() as fork:
            await fork.send_message("there too?")
            assert (await fork.run()).output == "three"
            assert [c.data for c in spec.model.asked[1].messages[0].parts[-1].content] == [PNG]
        assert [c.data for c in (await again.messages())[0].parts[-1].content] == [PNG]


async def test_what_is_sent_during_a_run_is_seen_at_its_next_step(start: Any, scripted: Any) -> None:
    async def look() -> str:
        """Look."""
        await conversation.send_message("this one", images=[PNG])
        return "looked"

    spec = scripted(tool_call("look"), "red", tools=(look,))
    conversation = await start(spec)
    await conversation.send_message("go")
    assert (await conversation.run()).output == "red"
    contents = [part.content for part in spec.model.asked[1].messages[-1].parts]
    assert any(isinstance(each, list) and each[-1].data == PNG for each in contents)


async def test_a_part_that_only_names_a_url_is_handed_on(start: Any, scripted: Any) -> None:
    spec = scripted("one")
    conversation = await start(spec)
    image, document = "https://example.com/dot.png", "https://example.com/report.pdf"
    parts = (ImagePart(media_type="image/png", url=image), FilePart(media_type="application/pdf", url=document))
    await conversation.send_message(UserMessage(content=parts))
    await conversation.run()
    assert shown(spec.model) == [ImageUrl(image), DocumentUrl(document)]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[str]:
    """The address of a web server on this machine, which has an image and a document."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "dot.png").write_bytes(PNG)
    (tmp_path / "site" / "report.pdf").write_bytes(PDF)
    (tmp_path / "site" / "program").write_bytes(b"\x7fELF\x00\x01")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path / "site"))) as http:
        thread = threading.Thread(target=http.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{http.server_address[1]}"
        http.shutdown()
        thread.join()


class Quiet(SimpleHTTPRequestHandler):
    """Serves files, and writes no log."""

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def near(settings: Settings) -> Settings:
    """Settings of a person who lets URLs lead to this machine."""
    return replace(settings, fetch_networks=("127.0.0.0/8",))


async def test_what_is_at_a_url_is_fetched_once_and_named_by_digest(
    scripted: Any, store: EventStore, near: Settings, tmp_path: Path, site: str
) -> None:
    spec = scripted("one", "two")
    image, document = f"{site}/dot.png", f"{site}/report.pdf?key=1"
    made: Any = {"workspace": tmp_path, "store": store, "settings": near}
    async with await AsyncConversation.create(spec, **made) as conversation:
        await conversation.send_message("look", images=[image], files=[FilePart.of(document)])
        (tmp_path / "site" / "dot.png").unlink()
        await conversation.run()
        await conversation.send_message("again")
        await conversation.run()
        messages: list[Any] = [each.event async for each in conversation.events if each.kind == "UserMessage"]
    for request in spec.model.asked:
        _, first, second = request.messages[0].parts[-1].content
        assert (first.data, first.media_type) == (PNG, "image/png")
        assert (second.data, second.media_type) == (PDF, "application/pdf")
    _, part, other = messages[0].content
    assert (part.url, part.name, part.sha256) == (image, "dot.png", hashlib.sha256(PNG).hexdigest())
    assert (other.url, other.name, other.size_bytes) == (document, "report.pdf", len(PDF))


@pytest.mark.parametrize(
    ("urls", "error", "says"),
    [
        (["{site}/dot.png", "{site}/nothing.png"], InvalidInput, "fetched: the server answers 404"),
        (["{site}/report.pdf"], InvalidInput, "report.pdf is not an image that models can see"),
        (["{site}/program"], InvalidInput, "program is not an image"),
        (["http://10.0.0.1/dot.png"], PermissionDenied, "this machine or a private network"),
        (["http://127.0.0.1:9/dot.png"], ConnectError, "cannot be fetched"),
        (["file:///etc/passwd"], InvalidInput, "a URL of file: cannot be fetched"),
        (["data:image/png;base64,@@"], InvalidInput, "not base64"),
        (["data:image/png;base64,"], InvalidInput, "is empty"),
        (["data:text/plain,hello"], InvalidInput, "not an image that models can see"),
        ("dot.png", InvalidInput, "images: a list"),
    ],
)  # fmt: skip
async def test_a_url_that_cannot_be_used_is_refused_and_nothing_is_sent(
    scripted: Any, store: EventStore, near: Settings, tmp_path: Path, site: str, urls: Any, error: Any, says: str
) -> None:
    async with await AsyncConversation.create(
        scripted("one"), workspace=tmp_path, store=store, settings=near
    ) as conversation:
        head = conversation.state.head
        images = urls if isinstance(urls, str) else [url.format(site=site) for url in urls]
        with pytest.raises(error, match=says) as refused:
            await conversation.send_message("look", images=images)
        assert refused.value.hint
        assert (await store.get(conversation.id)).head == head
        await conversation.send_message("never mind")
        assert (await conversation.run()).output == "one"


async def test_a_url_of_this_machine_is_never_asked_unless_a_person_lists_it(start: Any, scripted: Any) -> None:
    conversation = await start(scripted("one"))
    with pytest.raises(PermissionDenied, match="private network") as refused:
        await conversation.send_message("look", images=["http://127.0.0.1:9/dot.png"])
    assert "fetch_networks" in refused.value.hint


async def test_a_data_url_is_bytes(start: Any, scripted: Any) -> None:
    spec = scripted("one")
    conversation = await start(spec)
    text = "data:text/csv,a%2Cb%0A"
    await conversation.send_message(images=[f"data:image/png;base64,{b64encode(PNG).decode()}"], files=[text])
    await conversation.run()
    first, second = shown(spec.model)
    assert (first.data, second.data) == (PNG, b"a,b\n")
    stored = [each async for each in conversation.events if each.kind == "UserMessage"]
    assert b"base64" not in stored[0].raw


async def test_bytes_go_along_whoever_appends_the_message(start: Any, scripted: Any) -> None:
    """As an event of a program's own, and in a message that is written anew because it holds a secret."""
    spec = scripted("one", "two")
    conversation = await start(spec, secrets=Secrets({"KEY": lambda: "swordfish"}))
    await conversation.append(UserMessage(content=(ImagePart.of(PNG),)))
    await conversation.run()
    assert shown(spec.model)[0].data == PNG
    await conversation.send_message("the key is swordfish, \ud800", files=[PDF])
    await conversation.run()
    text, document = shown(spec.model)
    assert "swordfish" not in text
    assert document.data == PDF


async def test_an_image_answers_calls_that_wait(start: Any, scripted: Any) -> None:
    def act() -> str:
        """Act."""
        return "acted"

    spec = scripted(tool_call("act"), "I see", tools=(act,))
    conversation = await start(spec, confirmation_policy=AlwaysConfirm())
    await conversation.send_message("go")
    await conversation.run()
    await conversation.send_message("not this: look", images=[PNG])
    assert (await conversation.run()).output == "I see"
    contents = [part.content for part in spec.model.asked[1].messages[-1].parts]
    assert any(isinstance(each, list) and isinstance(each[-1], BinaryContent) for each in contents)


async def test_bytes_that_are_not_in_the_store_are_told_in_words(start: Any, scripted: Any) -> None:
    spec = scripted("one")
    conversation = await start(spec)
    missing = ImagePart(media_type="image/png", sha256="ab" * 32, size_bytes=3)
    await conversation.append(UserMessage(content=(TextPart(text="look"), missing)))
    await conversation.run()
    assert shown(spec.model) == ["look", LOST]


@pytest.mark.parametrize(
    ("images", "files", "error", "said"),
    [
        (["nowhere.png"], [], InvalidInput, "nowhere.png cannot be read"),
        ([b""], [], InvalidInput, "is empty"),
        ([PDF], [], InvalidInput, "not an image that models can see"),
        ([3], [], InvalidInput, "a int is not an image or file"),
        ([], ["."], InvalidInput, "cannot be read"),
        ([], [b"\x00\x01\x02"], InvalidInput, "not a pdf, text, wav or mp3"),
        ([], ["large.pdf"], LimitExceeded, "104857600 bytes"),
        ([b"\x89PNG\r\n\x1a\n" + bytes(20 << 20)], [], LimitExceeded, "more than 20971520"),
    ],
)
def test_what_is_no_input_is_refused_and_nothing_is_sent(
    scripted: Any, settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, images: Any, files: Any,
    error: Any, said: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    with (tmp_path / "large.pdf").open("wb") as large:
        large.truncate(100 << 20)
    with Conversation(scripted("one"), workspace=tmp_path, store="memory:", settings=settings) as conversation:
        with pytest.raises(error, match=said) as caught:
            conversation.send_message("look", images=images, files=files)
        assert caught.value.hint
        assert not conversation.state.has_message


async def test_a_message_is_bounded_as_a_whole(start: Any, scripted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bough.conversation.message.MAX_INPUTS_BYTES", 2 * len(PDF))
    conversation = await start(scripted("one"))
    await conversation.send_message(files=[PDF, PDF])
    with pytest.raises(LimitExceeded, match="the images and files of the message have"):
        await conversation.send_message(files=[PDF, PDF, PDF])


def test_a_text_is_a_file_by_its_name_or_its_bytes(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b\n")
    assert FilePart.of(tmp_path / "t.csv").media_type == "text/csv"
    assert FilePart.of("größe".encode()).media_type == "text/plain"
    assert FilePart.of(b"RIFF0000WAVE").media_type == "audio/wav"
    assert FilePart(path="t.csv").content is None
