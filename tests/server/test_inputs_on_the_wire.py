"""Images and files of a message as clients see them: bytes where the event has them, names where it does not."""

from __future__ import annotations

import asyncio
import base64
import io
from typing import Any
from uuid import UUID

import pytest

from bough.agents.spec import AgentSpec
from bough.conversation.remote.bodies import make_content_body
from bough.conversation.remote.remote import RemoteConversation
from bough.errors import InvalidInput, NotFound, NotSupported
from bough.events import open_store
from bough.events.codec import encode
from bough.events.model import ConversationStarted, FilePart, ImagePart, TextPart, UserMessage
from bough.events.record import StoredEvent
from bough.server.bodies.openhands_events import OpenHandsEvents

PNG = b"\x89PNG\r\n\x1a\n" + b"a dot"
DATA_URL = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"


def test_a_client_of_openhands_is_shown_what_there_is() -> None:
    message = UserMessage(
        content=(
            TextPart(text="look"),
            ImagePart(data=base64.b64encode(PNG).decode(), media_type="image/png"),
            ImagePart.of(PNG, name="dot.png"),
            ImagePart(media_type="image/png", url="https://example.com/dot.png"),
            FilePart.of(b"a,b", name="table.csv"),
            FilePart(path="data/sales.csv"),
        )
    )
    stored = StoredEvent(seq=0, id=message.id, kind=message.kind, ts=message.ts, raw=encode(message))
    (part,) = OpenHandsEvents().encode(stored, {})
    assert part["llm_message"]["content"] == [
        {"type": "text", "text": "look"},
        {"type": "image", "image_urls": [DATA_URL]},
        {"type": "text", "text": "[image: dot.png]"},
        {"type": "image", "image_urls": ["https://example.com/dot.png"]},
        {"type": "text", "text": "[file: table.csv]"},
        {"type": "text", "text": "[file: data/sales.csv]"},
    ]


def test_an_image_is_sent_to_a_server_with_its_bytes() -> None:
    sent = {"type": "image", "image_urls": [DATA_URL]}
    old = ImagePart(data=base64.b64encode(PNG).decode(), media_type="image/png")
    assert make_content_body([ImagePart.of(PNG), ImagePart.of(DATA_URL), old]) == [sent, sent, sent]
    for part in (ImagePart.of("https://example.com/dot.png"), FilePart.of(b"a,b")):
        with pytest.raises(NotSupported):
            make_content_body([part])


def test_images_and_files_are_read_by_digest(serving: Any, new_key: Any) -> None:
    """Only by the tenant of the conversation. Browsers display images and nothing else."""
    page = b"<script>alert(1)</script>"
    parts = (ImagePart.of(PNG), FilePart.of(page, name="page.html"))
    digests = [str(part.sha256) for part in parts]
    bundle = asyncio.run(export(UserMessage(content=parts)))
    red, blue = new_key(tenant="red"), new_key(tenant="blue")
    with serving() as server, server.client(red.text) as client, server.client(blue.text) as other:
        id = asyncio.run(read_files(bundle, digests, [PNG, page], server=server.url, api_key=red.text))
        image, file = (client.get(f"/api/conversations/{id}/attachments/{digest}") for digest in digests)
        assert (image.headers["content-type"], "content-disposition" in image.headers) == ("image/png", False)
        assert file.headers["content-type"] == "application/octet-stream"
        assert file.headers["content-disposition"].startswith("attachment")
        assert {answer.headers["x-content-type-options"] for answer in (image, file)} == {"nosniff"}
        assert other.get(f"/api/conversations/{id}/attachments/{digests[0]}").status_code == 404


async def export(message: UserMessage) -> io.BytesIO:
    store, bundle = await open_store("memory:"), io.BytesIO()
    started = ConversationStarted(agent=AgentSpec(name="imported", model="offline").snapshot())
    record = await store.create(events=[started, message])
    await store.export(record.id, bundle)
    await store.aclose()
    bundle.seek(0)
    return bundle


async def read_files(bundle: io.BytesIO, digests: list[str], expected: list[bytes], **place: Any) -> UUID:
    """Import a bundle into a server, check the files that its client reads, and return the conversation."""
    async with await RemoteConversation.import_(bundle, accept_unknown=True, **place) as imported:
        assert [await imported.read_file(digest) for digest in digests] == expected
        with pytest.raises(NotFound):
            await imported.read_file("ab" * 32)
        with pytest.raises((InvalidInput, NotFound)):
            await imported.read_file("../export")
        return imported.id
