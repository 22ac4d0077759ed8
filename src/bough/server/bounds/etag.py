"""The `ETag` of a conversation is its head; `If-Match` makes a change conditional on it."""

from __future__ import annotations

import re
from typing import Annotated, TypeAlias

from fastapi import Header
from starlette.responses import Response

from bough.errors import Malformed, Stale
from bough.events.record import ConversationRecord

_TAG = re.compile(r'(?:W/)?"(\d{1,15})"')

IfMatch: TypeAlias = Annotated[str | None, Header(alias="If-Match", description='`"<head>"`, as ETag gave it.')]
IfNoneMatch: TypeAlias = Annotated[str | None, Header(alias="If-None-Match")]


def parse_head(if_match: str | None) -> int | None:
    """Return the head in `If-Match`; None if any head is accepted.

    Raises:
        Malformed: It is not the tag of a conversation.
    """
    if if_match is None or if_match.strip() == "*":
        return None
    match = _TAG.fullmatch(if_match.strip())
    if match is None:
        raise Malformed("If-Match is not an ETag of a conversation", hint='it looks like "41"')
    return int(match[1])


def require_match(record: ConversationRecord, if_match: str | None) -> None:
    """Check that a conversation has the expected head.

    Raises:
        Stale: It has grown since then.
    """
    expected = parse_head(if_match)
    if expected is not None and expected != record.head:
        raise stale(record.head)


def stale(head: int) -> Stale:
    """Return the error for a conversation that has grown."""
    return Stale("the conversation has changed since", hint="read it again", details={"head": head})


def format_tag(head: int) -> str:
    """Return the ETag of a conversation with this head."""
    return f'"{head}"'


def set_tag(response: Response, head: int) -> None:
    """Set the ETag of an answer."""
    response.headers["ETag"] = format_tag(head)


def is_known(if_none_match: str | None, head: int) -> bool:
    """Whether the caller already has the current version."""
    return if_none_match is not None and format_tag(head) in [tag.strip() for tag in if_none_match.split(",")]
