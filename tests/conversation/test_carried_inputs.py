"""A conversation with images goes on elsewhere: a bundle carries their bytes, and nobody's word for them is taken."""

from __future__ import annotations

import base64
import hashlib
import io
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from bough.conversation import AsyncConversation, Turn
from bough.conversation.log.view import LOST
from bough.errors import InvalidInput, NotFound
from bough.events import open_store
from bough.events.blob.blob import BLOBS, read_file
from bough.events.bundle.bundle import _Lines
from bough.events.model import FilePart, ImagePart, TextPart, UserMessage
from bough.events.store import EventStore

pytestmark = pytest.mark.anyio

PNG = b"\x89PNG\r\n\x1a\n" + b"a dot"
PDF = b"%PDF-1.4\nrevenue: 12,000\n%%EOF\n"


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.needs("postgres"))])
async def elsewhere(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[EventStore]:
    """A store that knows nothing of the conversation yet."""
    if request.param == "postgres":
        url = request.getfixturevalue("postgres")
    else:
        url = f"sqlite:///{tmp_path / 'elsewhere.db'}"
    opened = await open_store(url)
    yield opened
    await opened.aclose()


@pytest.fixture
async def home(tmp_path: Path) -> AsyncIterator[EventStore]:
    """The store that the conversation comes from."""
    opened = await open_store(f"sqlite:///{tmp_path / 'home.db'}")
    yield opened
    await opened.aclose()


async def count(store: EventStore, table: str) -> int:
    rows = await store.transaction(
        BLOBS, lambda tables: tables.connection.execute(f"select count(*) from {table}").fetchall()
    )
    return next(iter(rows[0].values())) if isinstance(rows[0], dict) else rows[0][0]


async def export(store: EventStore, conversation: Any) -> list[dict[str, Any]]:
    file = io.BytesIO()
    await store.export(conversation.id, file)
    return [json.loads(line) for line in file.getvalue().splitlines()]


def sign(lines: list[dict[str, Any]]) -> io.BytesIO:
    """Return a bundle of lines, signed anew: what is wrong with them is not that they were changed."""
    file = io.BytesIO()
    writer = _Lines(file)
    for line in lines:
        writer.write(line)
    writer.sign(sum("seq" in line for line in lines), None)
    file.seek(0)
    return file


async def test_it_goes_on_elsewhere_with_its_images(
    home: EventStore, elsewhere: EventStore, scripted: Any, settings: Any, tmp_path: Path
) -> None:
    """Shared and own images of a fork; twice adds nothing; erased, they are gone."""
    spec = scripted("red", "twelve")
    made: Any = {"workspace": tmp_path, "store": home, "settings": settings}
    async with await AsyncConversation.create(spec, **made) as source:
        await source.send_message("which colour?", images=[PNG])
        await source.run()
        async with await source.fork() as fork:
            await fork.send_message("how much?", files=[PDF], images=[PNG])
            await fork.run()
            lines = await export(home, fork)
    assert lines[0]["version"] == 2
    assert [base64.b64decode(line["data"]) for line in lines if "blob" in line] == [PNG, PDF]
    before, used = await count(elsewhere, "blob"), await count(elsewhere, "blob_use")
    record = await elsewhere.import_(sign(lines[:-1]))
    assert await count(elsewhere, "blob") == before + 2
    uses = await count(elsewhere, "blob_use")
    assert await elsewhere.import_(sign(lines[:-1])) == record
    assert await count(elsewhere, "blob_use") == uses
    spec = scripted("still red")
    async with await AsyncConversation.open(record.id, store=elsewhere, agent=spec, settings=settings) as there:
        await there.send_message("and now?")
        assert (await there.run()).output == "still red"
        contents = [part.content for message in spec.model.asked[0].messages for part in message.parts]
        shown = [each.data for content in contents if isinstance(content, list) for each in content[1:]]
        assert shown == [PNG, PNG, PDF]
    await elsewhere.delete(record.id, "erase")
    assert await count(elsewhere, "blob_use") == used, "bytes go with the last event that names them"
    assert await count(elsewhere, "blob") == before


async def test_without_images_a_bundle_is_what_older_programs_read(home: EventStore) -> None:
    record = await home.create(events=[UserMessage.text("x")])
    assert (await export(home, record))[0]["version"] == 1


async def test_bytes_that_the_store_has_lost_are_left_out(
    home: EventStore, elsewhere: EventStore, scripted: Any, settings: Any
) -> None:
    missing = ImagePart(media_type="image/png", sha256="ab" * 32, size_bytes=3)
    odd = FilePart(sha256="z" * 64, size_bytes=3)
    spec = scripted("one")
    record = await home.create()
    await home.append(record.id, [UserMessage(content=(TextPart(text="look"), missing, odd))])
    lines = await export(home, record)
    assert not any("blob" in line for line in lines)
    await elsewhere.import_(sign(lines[:-1]))
    async with await AsyncConversation.open(record.id, store=elsewhere, agent=spec, settings=settings) as there:
        await there.run()
        assert spec.model.asked[0].messages[-1].parts[-1].content[:2] == ["look", LOST]


async def test_a_log_that_names_the_digest_of_others_bytes_does_not_get_them(
    home: EventStore, elsewhere: EventStore, scripted: Any, settings: Any
) -> None:
    """Without the bytes in its bundle, the model, an export, a repeat and `read_file` find none."""
    stolen = ImagePart(media_type="image/png", sha256=hashlib.sha256(PNG).hexdigest(), size_bytes=len(PNG))
    record = await home.create(events=[UserMessage(content=(TextPart(text="look"), stolen))])
    owned = await elsewhere.create(events=[UserMessage(content=(ImagePart.of(PNG),))])
    await elsewhere.import_(sign((await export(home, record))[:-1]))
    spec = scripted("one")
    async with await AsyncConversation.open(record.id, store=elsewhere, agent=spec, settings=settings) as there:
        await there.run()
        assert spec.model.asked[0].messages[-1].parts[-1].content[:2] == ["look", LOST]
        for taking in (there.read_file(str(stolen.sha256)), there.repeat(Turn(1))):
            with pytest.raises(NotFound):
                await taking
        assert not any("blob" in line for line in await export(elsewhere, record))
        with pytest.raises(InvalidInput):
            await there.read_file("../../etc/passwd")
        await there.send_message("now it is mine", images=[PNG])
        assert await there.read_file(str(stolen.sha256)) == PNG
    assert await read_file(elsewhere, owned.id, str(stolen.sha256)) == PNG
    for id in (owned.id, record.id):
        await elsewhere.delete(id)  # other tests count the blobs of the same database


async def test_a_fork_reads_the_files_that_it_shares(home: EventStore) -> None:
    source = await home.create(events=[UserMessage(content=(ImagePart.of(PNG),))])
    await home.append(source.id, [UserMessage(content=(FilePart.of(PDF),))])
    fork, early = await home.fork(source.id), await home.fork(source.id, at=1)
    png, pdf = (hashlib.sha256(data).hexdigest() for data in (PNG, PDF))
    await home.delete(source.id)
    assert (await read_file(home, fork.id, png), await read_file(home, fork.id, pdf)) == (PNG, PDF)
    assert await read_file(home, early.id, png) == PNG
    with pytest.raises(NotFound):
        await read_file(home, early.id, pdf)
    await home.delete(fork.id)
    await home.erase(source.id)
    with pytest.raises(NotFound):
        await read_file(home, early.id, png)


def blob_of(lines: list[dict[str, Any]]) -> dict[str, Any]:
    return next(line for line in lines if "blob" in line)


def encode(data: bytes) -> str:
    return base64.b64encode(data).decode()


FORGED: dict[str, tuple[Callable[[list[dict[str, Any]]], object], str]] = {
    "other bytes": (lambda lines: blob_of(lines).update(data=encode(PDF)), "do not match their digest"),
    "no base64": (lambda lines: blob_of(lines).update(data="@@"), "not base64"),
    "no bytes at all": (lambda lines: blob_of(lines).pop("data"), "data: Field required"),
    "no digest": (lambda lines: blob_of(lines).update(blob="x"), "blob: "),
    "too much": (lambda lines: blob_of(lines).update(data="A" * (29 << 20)), "data: "),
    "bytes that nothing names": (
        lambda lines: lines.append({"blob": hashlib.sha256(b"more").hexdigest(), "data": encode(b"more")}),
        "no earlier event refers",
    ),
    "bytes before their event": (lambda lines: lines.insert(1, blob_of(lines)), "no earlier event refers"),
    "the same bytes twice": (lambda lines: lines.append(blob_of(lines)), "are repeated"),
    "another size": (
        lambda lines: [
            line.update(data=line["data"].replace(f'"size_bytes":{len(PNG)}', '"size_bytes":7'))
            for line in lines
            if line.get("kind") == "UserMessage"
        ],
        "the size of the bytes differs",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("change", "says"), FORGED.values(), ids=FORGED.keys())
async def test_bytes_that_do_not_fit_are_refused_before_a_row_is_written(
    home: EventStore, elsewhere: EventStore, change: Callable[[list[dict[str, Any]]], object], says: str
) -> None:
    record = await home.create(events=[UserMessage(content=(ImagePart.of(PNG),))])
    lines = (await export(home, record))[:-1]
    change(lines)
    before = await elsewhere.scan(), await count(elsewhere, "blob_use")
    with pytest.raises(InvalidInput) as refused:
        await elsewhere.import_(sign(lines))
    assert says in refused.value.message
    assert refused.value.hint
    assert (await elsewhere.scan(), await count(elsewhere, "blob_use")) == before
