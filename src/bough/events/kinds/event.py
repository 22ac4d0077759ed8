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


class InputPart(Part):
    """What people send besides text: its bytes are kept beside the log, where an event names them by their digest."""

    _content: bytes | None = PrivateAttr(default=None)
    _is_at_url: bool = PrivateAttr(default=False)

    @property
    def content(self) -> bytes | None:
        """Its bytes, on their way into the store that the event is appended to; None for a part that a store gave."""
        return self._content

    @property
    def is_at_url(self) -> bool:
        """Whether it is still to be fetched from its URL, before it is sent."""
        return self._is_at_url and self._content is None

    def __eq__(self, other: object) -> bool:
        """Whether it says the same: bytes are named by their digest, so those that it brings along say nothing more."""
        return type(other) is type(self) and self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        """Hash what it says."""
        return hash((type(self), *self.__dict__.values()))

    def carry_bytes(self, data: bytes) -> Self:
        """Take bytes along into whatever store this part is appended to."""
        self._content = data
        return self

    def carry_bytes_of(self, other: InputPart) -> None:
        """Take along what another form of this part takes along, or has still to fetch."""
        self._content, self._is_at_url = other._content, other._is_at_url


class ImagePart(InputPart):
    """An image: its bytes in the store, in the log itself, or at an address.

    Attributes:
        data: The bytes, base64, as older logs have them; empty where `sha256` or `url` says where they are.
        media_type: For example `image/png`.
        sha256: Digest of the bytes that the store keeps beside the log, hexadecimal.
        size_bytes: Of these bytes.
        name: What the sender called it.
        url: Where it came from; without `sha256` it was never fetched, and the model is given the URL.
    """

    type: Literal["image"] = "image"
    data: str = ""
    media_type: str
    sha256: str | None = None
    size_bytes: int | None = None
    name: str | None = None
    url: str | None = None

    @classmethod
    def of(cls, source: str | Path | bytes, *, name: str | None = None) -> Self:
        """Return an image: from a path, bytes, a `data:` URL, or an https URL, which is fetched when it is sent.

        Raises:
            InvalidInput: It cannot be read, or is not a png, jpeg, gif or webp.
            LimitExceeded: It has more than 20 MiB.
        """
        from bough.events.content import read_input

        given = read_input(source, name)
        part = cls(media_type="image/*", url=given.url, name=given.name)
        if given.data is None:
            part._is_at_url = True
            return part
        return part.with_bytes(given.data)

    def with_bytes(self, data: bytes, *, name: str | None = None) -> Self:
        """Return it with its bytes and their digest.

        Raises:
            InvalidInput: They are not a png, jpeg, gif or webp.
        """
        from bough.events.content import IMAGES, digest_of_bytes, image_type

        called = self.name or name
        if (kind := image_type(data)) is None:
            what = called or "the input"
            raise InvalidInput(f"{what} is not an image that models can see", hint=f"send {', '.join(IMAGES)}")
        named = {"media_type": kind, "sha256": digest_of_bytes(data), "size_bytes": len(data), "name": called}
        return self.model_copy(update=named).carry_bytes(data)


class FilePart(InputPart):
    """A file: named by its path in the workspace, or with its bytes in the store, or at an address.

    Attributes:
        path: Relative to the workspace, with forward slashes; empty where the bytes are not there.
        sha256: Digest of the bytes when the message was sent, hexadecimal.
        size_bytes: Of the bytes that the store keeps beside the log; None where it keeps none.
        name: What the sender called it.
        url: Where it came from; without `sha256` it was never fetched, and the model is given the URL.
    """

    type: Literal["file"] = "file"
    path: str = ""
    media_type: str = "application/octet-stream"
    sha256: str | None = None
    size_bytes: int | None = None
    name: str | None = None
    url: str | None = None

    @classmethod
    def of(cls, source: str | Path | bytes, *, name: str | None = None) -> Self:
        """Return a document, a text or a sound: from a path, bytes, a `data:` URL, or an https URL.

        A URL is fetched when it is sent. A file that tools are to work with is named instead:
        `FilePart(path="data/sales.csv")`.

        Raises:
            InvalidInput: It cannot be read, or is not a pdf, text, wav or mp3.
            LimitExceeded: It has more than 20 MiB.
        """
        from bough.events.content import read_input

        given = read_input(source, name)
        part = cls(url=given.url, name=given.name)
        if given.data is None:
            part._is_at_url = True
            return part
        return part.with_bytes(given.data)

    def with_bytes(self, data: bytes, *, name: str | None = None) -> Self:
        """Return it with its bytes and their digest.

        Raises:
            InvalidInput: They are not a pdf, text, wav or mp3.
        """
        from bough.events.content import digest_of_bytes, file_type

        called = self.name or name
        if (kind := file_type(data, called)) is None:
            raise InvalidInput(
                f"{called or 'the input'} is not a pdf, text, wav or mp3", hint="put it into the workspace and name it"
            )
        named = {"media_type": kind, "sha256": digest_of_bytes(data), "size_bytes": len(data), "name": called}
        return self.model_copy(update=named).carry_bytes(data)


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
