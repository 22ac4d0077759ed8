"""Common parts of all bodies: they refuse unknown fields, times have one width, and pages have one shape."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Annotated, Any, Generic, TypeVar, cast

from fastapi import Response
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, model_validator

from bough.events.record import moment

OUR_EVENTS = "application/vnd.bough.event+json"
"""The media type of events in bough's form; requests that do not name it get OpenHands' form."""

T = TypeVar("T")

Title = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=r"\S")]
"""A title of 1 to 200 characters, not blank."""

TagName = Annotated[str, StringConstraints(min_length=1, max_length=64)]
TagValue = Annotated[str, StringConstraints(max_length=256)]
Tags = Annotated[dict[TagName, TagValue], Field(max_length=100)]
"""At most 100 tags, names up to 64 and values up to 256 characters long."""

Reason = Annotated[str, StringConstraints(max_length=2000)]


def _require_number(value: object) -> object:
    if isinstance(value, bool | str):
        raise ValueError("not a number")  # noqa: TRY004 - pydantic reports only `ValueError` as an invalid field
    return value


def _require_flag(value: object) -> object:
    if not isinstance(value, bool):
        raise ValueError("not true or false")  # noqa: TRY004 - as above
    return value


Integer = Annotated[int, BeforeValidator(_require_number)]
"""An integer in a body. Numbers in a query are plain `int`, since a query has only texts."""

Number = Annotated[float, BeforeValidator(_require_number)]
"""A number in a body."""

Flag = Annotated[bool, BeforeValidator(_require_flag)]
"""`true` or `false` in a body; words such as `"yes"` are refused."""

MAX_SEQ = 2**53
"""Greater than the seq of any event, and an exact integer in every store and JSON parser."""


class Form(BaseModel):
    """A body of a request. It refuses unknown fields, and its errors never repeat what was sent."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class Success(BaseModel):
    """The request succeeded."""

    success: bool = True


class ItemPage(BaseModel, Generic[T]):
    """One page of a list; `next_page_id` is null on the last page."""

    items: list[T]
    next_page_id: str | None = None


# Made once: pydantic keeps parametrized classes in a weak table, and would make this one again for most requests.
_JsonPage = ItemPage[Any]


def answer_page(items: Sequence[Any], next_page_id: str | None) -> Response:
    """Return the response with a page. The items are JSON objects already, and are not validated again."""
    page = _JsonPage.model_construct(items=items, next_page_id=next_page_id)
    return Response(page.__pydantic_serializer__.to_json(page), media_type="application/json")


class Text(BaseModel):
    """A text of the model."""

    response: str


def stamp(moment: datetime) -> str:
    """Return a time in UTC as a text of 27 characters; such texts sort like their times."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"


def stamp_microseconds(microseconds: int) -> str:
    """Return microseconds since 1970 as `stamp` does; several times as fast, because events of a page share seconds."""
    seconds, rest = divmod(microseconds, 1_000_000)
    return f"{_format_second(seconds)}.{rest:06d}Z"


@lru_cache(maxsize=1024)
def _format_second(seconds: int) -> str:
    return stamp(moment(seconds * 1_000_000))[:19]


Stamp = Annotated[str, Field(examples=["2026-11-22T02:53:00.123456Z"], min_length=27, max_length=27)]


def _to_utc(moment: datetime) -> datetime:
    try:
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except OverflowError:
        raise ValueError("not a time between the years 1 and 9999 in UTC") from None


Moment = Annotated[datetime, AfterValidator(_to_utc)]
"""A time in a request, in RFC 3339. Without a time zone it is in UTC."""


class LenientForm(Form):
    """A body in OpenHands' form. Unknown fields are accepted if they are empty, as later releases may send them."""

    @model_validator(mode="before")
    @classmethod
    def _drop_empty(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        values = cast("dict[str, Any]", data)
        return {name: value for name, value in values.items() if name in cls.model_fields or not is_empty(value)}


def is_empty(value: Any) -> bool:
    """Whether a value is null, false, 0, or an empty text, list or object."""
    return value is None or value is False or value in (0, "") or value == [] or value == {}
