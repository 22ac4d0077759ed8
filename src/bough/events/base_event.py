"""The base class of events, the parts of messages, and usage."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self, TypeAlias
from uuid import UUID

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, PrivateAttr

from bough.errors import InvalidInput
from bough.types import new_id, utc_now


class Part(BaseModel):
    """A piece of message content."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class TextPart(Part):
    """Plain text."""

    type: Literal["text"] = "text"
    text: str


class InputPart(Part):
    """An image or file. The store keeps its bytes in a side table, and the event refers to them by digest."""

    _content: bytes | None = PrivateAttr(default=None)
    _is_at_url: bool = PrivateAttr(default=False)

    @property
    def content(self) -> bytes | None:
        """The bytes of a part that is to be appended; None for a part that a store returned."""
        return self._content

    @property
    def is_at_url(self) -> bool:
        """Whether the bytes must still be fetched from the URL before sending."""
        return self._is_at_url and self._content is None

    def __eq__(self, other: object) -> bool:
        """Whether the fields are equal. The attached bytes are not compared, since the digest identifies them."""
        return type(other) is type(self) and self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        """Hash the fields."""
        return hash((type(self), *self.__dict__.values()))

    def carry_bytes(self, data: bytes) -> Self:
        """Attach the bytes that the store keeps when this part is appended."""
        self._content = data
        return self

    def take_bytes_from(self, other: InputPart) -> None:
        """Attach the bytes, or the pending fetch, of another form of this part."""
        self._content, self._is_at_url = other._content, other._is_at_url


class ImagePart(InputPart):
    """An image, with its bytes in the store, in the log itself, or at a URL.

    Attributes:
        data: The bytes in base64, as in older logs; empty if `sha256` or `url` locates them.
        media_type: For example `image/png`.
        sha256: Digest of the bytes that the store keeps, hexadecimal.
        size_bytes: Size of these bytes.
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
        """Create an image from a path, bytes, a `data:` URL, or an https URL, which is fetched when it is sent.

        Raises:
            InvalidInput: The image cannot be read, or is not a png, jpeg, gif or webp.
            LimitExceeded: It has more than 20 MiB.
        """
        from bough.events.content import read_input

        source_input = read_input(source, name)
        part = cls(media_type="image/*", url=source_input.url, name=source_input.name)
        if source_input.data is None:
            part._is_at_url = True
            return part
        return part.with_bytes(source_input.data)

    def with_bytes(self, data: bytes, *, name: str | None = None) -> Self:
        """Return a copy with bytes and their digest.

        Raises:
            InvalidInput: The bytes are not a png, jpeg, gif or webp.
        """
        from bough.events.content import IMAGES, image_type, sha256_hex

        file_name = self.name or name
        if (kind := image_type(data)) is None:
            label = file_name or "the input"
            raise InvalidInput(f"{label} is not an image that models can see", hint=f"send {', '.join(IMAGES)}")
        fields = {"media_type": kind, "sha256": sha256_hex(data), "size_bytes": len(data), "name": file_name}
        return self.model_copy(update=fields).carry_bytes(data)


class FilePart(InputPart):
    """A file: a path in the workspace, or bytes in the store or at a URL.

    Attributes:
        path: Relative to the workspace, with forward slashes; empty if the file is not in the workspace.
        sha256: Digest of the bytes when the message was sent, hexadecimal.
        size_bytes: Size of the bytes that the store keeps; None if it keeps none.
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
        """Create a document, text or sound from a path, bytes, a `data:` URL, or an https URL.

        A URL is fetched when the message is sent. To let tools work with a file, refer to it by path instead:
        `FilePart(path="data/sales.csv")`.

        Raises:
            InvalidInput: The file cannot be read, or is not a pdf, text, wav or mp3.
            LimitExceeded: It has more than 20 MiB.
        """
        from bough.events.content import read_input

        source_input = read_input(source, name)
        part = cls(url=source_input.url, name=source_input.name)
        if source_input.data is None:
            part._is_at_url = True
            return part
        return part.with_bytes(source_input.data)

    def with_bytes(self, data: bytes, *, name: str | None = None) -> Self:
        """Return a copy with bytes and their digest.

        Raises:
            InvalidInput: The bytes are not a pdf, text, wav or mp3.
        """
        from bough.events.content import file_type, sha256_hex

        file_name = self.name or name
        if (kind := file_type(data, file_name)) is None:
            raise InvalidInput(
                f"{file_name or 'the input'} is not a pdf, text, wav or mp3",
                hint="put it into the workspace and name it",
            )
        fields = {"media_type": kind, "sha256": sha256_hex(data), "size_bytes": len(data), "name": file_name}
        return self.model_copy(update=fields).carry_bytes(data)


class ResultFile(InputPart):
    """An image or file in the result of a tool.

    Attributes:
        media_type: For example `image/png`.
        sha256: Digest of the bytes that the store keeps, hexadecimal.
        size_bytes: Size of these bytes.
    """

    media_type: str
    sha256: str
    size_bytes: int

    @classmethod
    def of(cls, data: bytes, media_type: str) -> Self:
        """Create the file of some bytes."""
        from bough.events.content import sha256_hex

        return cls(media_type=media_type, sha256=sha256_hex(data), size_bytes=len(data)).carry_bytes(data)


ContentPart: TypeAlias = Annotated[TextPart | ImagePart | FilePart, Field(discriminator="type")]
"""One part of a message."""


Attachment: TypeAlias = ImagePart | FilePart | ResultFile
"""An image or file whose bytes the store keeps beside the event that refers to it."""


class Usage(BaseModel):
    """The usage of a model response.

    Attributes:
        requests: Number of requests to the model.
        input_tokens: All input, including what the provider's prompt cache served.
        cache_read_tokens: Input that was read from that cache. `cache_write_tokens` were written to it.
        cost_usd: None if the price of the model is unknown.
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
        """Share of the input that was read from the provider's prompt cache; 0 without input."""
        return self.cache_read_tokens / self.input_tokens if self.input_tokens else 0.0


class BaseEvent(BaseModel):
    """The fields of every event.

    Attributes:
        id: A uuid7, unique for ever.
        ts: Time of the event, UTC.
        schema_version: Version of the kind; the codec upgrades older ones.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")

    VERSION: ClassVar[int] = 1

    id: UUID = Field(default_factory=new_id)
    ts: AwareDatetime = Field(default_factory=utc_now)
    schema_version: int = 1

    @property
    def attachments(self) -> tuple[Attachment, ...]:
        """The images and files whose bytes the store keeps beside this event."""
        return ()

    def carry_bytes(self, other: BaseEvent) -> Self:
        """Attach the bytes of another form of this event with the same attachments."""
        for own, source in zip(self.attachments, other.attachments, strict=True):
            own.take_bytes_from(source)
        return self
