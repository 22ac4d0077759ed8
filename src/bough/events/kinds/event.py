"""What every event is made of: its own fields, the parts of messages, and usage."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, ClassVar, Literal, TypeAlias
from uuid import UUID

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

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
