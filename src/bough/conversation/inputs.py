"""Images and files of a message on their way into a conversation: those that are at a URL are fetched."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bough.connect.fetch import fetch
from bough.errors import LimitExceeded
from bough.events.content import MAX_INPUT_BYTES
from bough.events.model import ContentPart, FilePart, ImagePart, UserMessage

MAX_INPUTS_BYTES = 64 << 20
"""Of all images and files of a message."""


async def fetch_inputs(message: str | UserMessage, networks: Sequence[str] = ()) -> str | UserMessage:
    """Return a message whose images and files have their bytes; as it is where nothing of it is at a URL.

    Args:
        networks: Private networks that a URL may lead to, over plain HTTP too.

    Raises:
        InvalidInput: Nothing is at a URL, or no image or file that models can read.
        PermissionDenied: A URL leads to this machine or a private network, or is not encrypted.
        LimitExceeded: One has more than 20 MiB, or all of them more than 64 MiB.
        ConnectError: A server does not answer.
    """
    if not isinstance(message, UserMessage) or not any(map(_is_at_url, message.content)):
        return message
    parts = list(message.content)
    for place, part in enumerate(parts):
        if isinstance(part, ImagePart | FilePart) and part.is_at_url and part.url is not None:
            fetched = await fetch(part.url, max_bytes=MAX_INPUT_BYTES, networks=networks)
            parts[place] = part.with_bytes(fetched.data, name=fetched.name)
            check_size(parts)  # before the next one is in memory
    return message.model_copy(update={"content": tuple(parts)})


def check_size(parts: Iterable[ContentPart]) -> None:
    """Check how many bytes the parts of a message bring along.

    Raises:
        LimitExceeded: More than a message may have.
    """
    size = sum(len(part.content or b"") for part in parts if isinstance(part, ImagePart | FilePart))
    if size > MAX_INPUTS_BYTES:
        raise LimitExceeded(
            f"the images and files of the message have {size} bytes, more than {MAX_INPUTS_BYTES}",
            hint="send them in several messages, or put them into the workspace and name them: FilePart(path=…)",
        )


def _is_at_url(part: ContentPart) -> bool:
    return isinstance(part, ImagePart | FilePart) and part.is_at_url
