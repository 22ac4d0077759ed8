"""What every event is made of: its own fields, the parts of messages, and usage."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self, TypeAlias
from uuid import UUID

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, PrivateAttr

from bough.errors import InvalidInput
from bough.types import new_id


def _now() -> datetime:
    return datetime.now(UTC)


class Part(BaseModel):
    """A piece of message content."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class TextPart(Part):
    """Plain text."""

    type: Literal["text"] = "text"
    text: str


class ImagePart(Part):
    """An image: its bytes in the store, in the log itself, or at an address.

    Attributes:
        data: The bytes, base64, as older logs have them; empty where `sha256` or `url` says where they are.
        media_type: For example `image/png`.
        sha256: Digest of the bytes that the store keeps beside the log, hexadecimal.
        size_bytes: Of these bytes.
        name: What the sender called it.
        url: Where it is, where it was never fetched.
    """

    type: Literal["image"] = "image"
    data: str = ""
    media_type: str
    sha256: str | None = None
    size_bytes: int | None = None
    name: str | None = None
    url: str | None = None
    _content: bytes | None = PrivateAttr(default=None)

    @classmethod
    def of(cls, source: str | Path | bytes, *, name: str | None = None) -> Self:
        """Return an image: from a path, bytes or a URL, which is handed to the model as it is.

        Raises:
            InvalidInput: It cannot be read, or is not a png, jpeg, gif or webp.
            LimitExceeded: It has more than 20 MiB.
        """
        from bough.events.content import IMAGES, image_type, read_input

        given = read_input(source, name)
        if given.data is None:
            return cls(media_type="image/*", url=given.url, name=given.name)
        if (kind := image_type(given.data)) is None:
            known = ", ".join(IMAGES)
            raise InvalidInput(f"{given.name or 'the input'} is not an image that models can see", hint=f"send {known}")
        part = cls(media_type=kind, name=given.name)
        part._content = given.data
        return part

    @property
    def content(self) -> bytes | None:
        """Its bytes on their way into a store; None once they are there."""
        return self._content

    def without_content(self, sha256: str, size_bytes: int) -> Self:
        """Return it as an event names it, without its bytes."""
        part = self.model_copy(update={"sha256": sha256, "size_bytes": size_bytes})
        part._content = None
        return part


class FilePart(Part):
    """A file: named by its path in the workspace, or with its bytes in the store, or at an address.

    Attributes:
        path: Relative to the workspace, with forward slashes; empty where the bytes are not there.
        sha256: Digest of the bytes when the message was sent, hexadecimal.
        size_bytes: Of the bytes that the store keeps beside the log; None where it keeps none.
        name: What the sender called it.
        url: Where it is, where it was never fetched.
    """

    type: Literal["file"] = "file"
    path: str = ""
    media_type: str = "application/octet-stream"
    sha256: str | None = None
    size_bytes: int | None = None
    name: str | None = None
    url: str | None = None
    _content: bytes | None = PrivateAttr(default=None)

    @classmethod
    def of(cls, source: str | Path | bytes, *, name: str | None = None) -> Self:
        """Return a document, a text or a sound: from a path, bytes or a URL, which is handed to the model as it is.

        A file that tools are to work with is named instead: `FilePart(path="data/sales.csv")`.

        Raises:
            InvalidInput: It cannot be read, or is not a pdf, text, wav or mp3.
            LimitExceeded: It has more than 20 MiB.
        """
        from bough.events.content import file_type, read_input

        given = read_input(source, name)
        if given.data is None:
            return cls(url=given.url, name=given.name)
        if (kind := file_type(given.data, given.name)) is None:
            raise InvalidInput(
                f"{given.name or 'the input'} is not a pdf, text, wav or mp3",
                hint="put it into the workspace and name it",
            )
        part = cls(media_type=kind, name=given.name)
        part._content = given.data
        return part

    @property
    def content(self) -> bytes | None:
        """Its bytes on their way into a store; None once they are there."""
        return self._content

    def without_content(self, sha256: str, size_bytes: int) -> Self:
        """Return it as an event names it, without its bytes."""
        part = self.model_copy(update={"sha256": sha256, "size_bytes": size_bytes})
        part._content = None
        return part


ContentPart: TypeAlias = Annotated[TextPart | ImagePart | FilePart, Field(discriminator="type")]
"""One part of a message."""


class Usage(BaseModel):
    """What a model response consumed.

    Attributes:
        requests: Requests made to the model.
        input_tokens: All of the input, what the provider's prompt cache served included.
        cache_read_tokens: The part of it that was read from that cache; `cache_write_tokens`: that was put into it.
        cost_usd: None where the price of the model is not known.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    requests: int = 1
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cost_usd: float | None = None

    @property
    def cached_share(self) -> float:
        """Which part of the input was read from the provider's prompt cache; 0 without input."""
        return self.cache_read_tokens / self.input_tokens if self.input_tokens else 0.0


class BaseEvent(BaseModel):
    """The fields every event has.

    Attributes:
        id: uuid7, unique for ever.
        ts: When it happened, UTC.
        schema_version: Of this kind; the codec lifts older ones.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")

    VERSION: ClassVar[int] = 1

    id: UUID = Field(default_factory=new_id)
    ts: AwareDatetime = Field(default_factory=_now)
    schema_version: int = 1
