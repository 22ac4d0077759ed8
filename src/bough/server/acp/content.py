"""Conversion between the content of ACP and the messages of a conversation."""

from __future__ import annotations

import base64
import binascii
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import unquote, urlsplit

from acp import schema

from bough.conversation import AsyncConversation
from bough.errors import InvalidInput
from bough.events.model import ContentPart, FilePart, ImagePart, TextPart, UserMessage

Block: TypeAlias = (
    schema.TextContentBlock
    | schema.ImageContentBlock
    | schema.AudioContentBlock
    | schema.ResourceContentBlock
    | schema.EmbeddedResourceContentBlock
)


def read_prompt(blocks: Sequence[Block], workspace: Path) -> UserMessage:
    """Return a prompt as a message. Adjacent texts are joined, so that `/skill` and its arguments are one text.

    A link to a local file becomes its path, which tools can open; any other link stays a link. Nothing is fetched.

    Raises:
        InvalidInput: An image or a file is not base64, or has a type that models cannot be given.
        LimitExceeded: An image or a file has more than 20 MiB.
    """
    parts: list[ContentPart] = []
    for block in blocks:
        part = _read_block(block, workspace)
        if isinstance(part, TextPart) and parts and isinstance(last := parts[-1], TextPart):
            parts[-1] = TextPart(text=last.text + part.text)
        else:
            parts.append(part)
    if not parts:
        raise InvalidInput("the prompt is empty", hint="send a text, an image or a file")
    return UserMessage(content=tuple(parts))


def _read_block(block: Block, workspace: Path) -> ContentPart:
    match block:
        case schema.TextContentBlock():
            return TextPart(text=block.text)
        case schema.ImageContentBlock():
            return ImagePart.of(_decode(block.data, "image"), name=_name_of(block.uri))
        case schema.AudioContentBlock():
            return FilePart.of(_decode(block.data, "audio"))
        case schema.ResourceContentBlock():
            return TextPart(text=f" {_name_link(block.uri, block.name, workspace)} ")
        case schema.EmbeddedResourceContentBlock(resource=resource):
            name = _name_of(resource.uri) or "resource.txt"
            if isinstance(resource, schema.TextResourceContents):
                return FilePart.of(resource.text.encode("utf-8", "replace"), name=name)
            data = _decode(resource.blob, "resource")
            is_image = (resource.mime_type or "").startswith("image/")
            return ImagePart.of(data, name=name) if is_image else FilePart.of(data, name=name)


def _decode(data: str, field: str) -> bytes:
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidInput(f"the {field} is not base64: {error}", hint="encode its bytes with base64") from error


def _name_of(uri: str | None) -> str | None:
    return Path(unquote(urlsplit(uri).path)).name or None if uri else None


def _name_link(uri: str, name: str, workspace: Path) -> str:
    """Return a link as text for the model: a path, relative to the workspace if it is in there, or the link itself."""
    address = urlsplit(uri)
    if address.scheme == "file":
        path = Path(unquote(address.path))
        return f"`{path.relative_to(workspace)}`" if path.is_relative_to(workspace) else f"`{path}`"
    return f"[{name}]({uri})"


async def show_message(conversation: AsyncConversation, message: UserMessage) -> AsyncGenerator[Any]:
    """Yield the content blocks of a recorded message. Images are read from the store; files are named."""
    for part in message.content:
        if isinstance(part, TextPart):
            yield schema.TextContentBlock(type="text", text=part.text)
        elif isinstance(part, ImagePart) and part.sha256 is not None:
            data = base64.b64encode(await conversation.read_file(part.sha256)).decode()
            yield schema.ImageContentBlock(type="image", data=data, mime_type=part.media_type)
        else:
            name = part.name or getattr(part, "path", "") or part.url or "a file"
            yield schema.TextContentBlock(type="text", text=f"[{name}]")
