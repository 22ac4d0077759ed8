"""Images and files of a message as clients see them: bytes where the event has them, names where it does not."""

from __future__ import annotations

import base64

import pytest

from bough.conversation.remote.bodies import content_body
from bough.errors import NotSupported
from bough.events.codec import encode
from bough.events.model import FilePart, ImagePart, TextPart, UserMessage
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
    assert content_body([ImagePart.of(PNG), ImagePart.of(DATA_URL), old]) == [sent, sent, sent]
    for part in (ImagePart.of("https://example.com/dot.png"), FilePart.of(b"a,b")):
        with pytest.raises(NotSupported):
            content_body([part])
