"""What all forms share: unknown fields are refused, times have one width, pages one shape."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Generic, TypeVar, cast

from fastapi import Response
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, model_validator

OUR_EVENTS = "application/vnd.bough.event+json"
"""The media type of events as bough keeps them; without it they are in OpenHands' form."""

T = TypeVar("T")

Title = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=r"\S")]
"""A title: not blank."""

TagName = Annotated[str, StringConstraints(min_length=1, max_length=64)]
TagValue = Annotated[str, StringConstraints(max_length=256)]
Tags = Annotated[dict[TagName, TagValue], Field(max_length=100)]
"""At most 100 tags, names up to 64 and values up to 256 characters long."""

Reason = Annotated[str, StringConstraints(max_length=2000)]


def _require_number(value: object) -> object:
    if isinstance(value, bool | str):
        raise ValueError("not a number")  # noqa: TRY004 - pydantic takes no other for a wrong field
    return value


def _require_flag(value: object) -> object:
    if not isinstance(value, bool):
        raise ValueError("not true or false")  # noqa: TRY004 - as above
    return value


Whole = Annotated[int, BeforeValidator(_require_number)]
"""A whole number in a body; a query has nothing but texts."""

Number = Annotated[float, BeforeValidator(_require_number)]
"""A number in a body."""

Flag = Annotated[bool, BeforeValidator(_require_flag)]
"""`true` or `false` in a body, no word that means it."""

MAX_PLACE = 2**53
"""Beyond the last place of any log, and a whole number in every store and program."""


class Form(BaseModel):
    """A body that is sent to us: unknown fields are refused, and errors never hold what was sent."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class Success(BaseModel):
    """It was done."""

    success: bool = True


class ItemPage(BaseModel, Generic[T]):
    """One page of a list; `next_page_id` is null on the last one."""

    items: list[T]
    next_page_id: str | None = None


def answer_page(items: Sequence[Any], next_page_id: str | None) -> Response:
    """Return a page whose items are JSON already as a response, without validating each of them again."""
    page = ItemPage[Any].model_construct(items=items, next_page_id=next_page_id)
    return Response(page.__pydantic_serializer__.to_json(page), media_type="application/json")


class Text(BaseModel):
    """A text as the answer."""

    response: str


def stamp(moment: datetime) -> str:
    """Return a moment in UTC with fixed width, so that texts of moments sort as moments do: 27 characters."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"


Stamp = Annotated[str, Field(examples=["2026-11-22T02:53:00.123456Z"], min_length=27, max_length=27)]


def _to_utc(moment: datetime) -> datetime:
    try:
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except OverflowError:
        raise ValueError("not a time between the years 1 and 9999 in UTC") from None


Moment = Annotated[datetime, AfterValidator(_to_utc)]
"""A moment that comes in: RFC 3339; one without a zone is UTC."""


class LenientForm(Form):
    """A body in OpenHands' form: unknown fields are let through where they hold nothing, for its next releases."""

    @model_validator(mode="before")
    @classmethod
    def _drop_empty(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        values = cast("dict[str, Any]", data)
        return {name: value for name, value in values.items() if name in cls.model_fields or not is_empty(value)}


def is_empty(value: Any) -> bool:
    """Whether a value says nothing: null, false, 0, an empty text, list or object."""
    return value is None or value is False or value in (0, "") or value == [] or value == {}
