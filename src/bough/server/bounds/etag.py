"""`ETag` and `If-Match` of a conversation, and the `Idempotency-Key` of a request. The tag is the head of the log."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Annotated, Any, TypeAlias
from uuid import UUID, uuid5

from fastapi import Header, Request, Response

from bough.errors import Malformed, Stale
from bough.events.record import ConversationRecord
from bough.server.auth.caller import Caller

_TAG = re.compile(r'(?:W/)?"(\d{1,15})"')

IfMatch: TypeAlias = Annotated[str | None, Header(alias="If-Match", description='`"<head>"`, as ETag gave it.')]
IfNoneMatch: TypeAlias = Annotated[str | None, Header(alias="If-None-Match")]


def parse_head(if_match: str | None) -> int | None:
    """Return the head in `If-Match`; None if any head is accepted.

    Raises:
        Malformed: The header is not the tag of a conversation.
    """
    if if_match is None or if_match.strip() == "*":
        return None
    match = _TAG.fullmatch(if_match.strip())
    if match is None:
        raise Malformed("If-Match is not an ETag of a conversation", hint='an ETag looks like "41"')
    return int(match[1])


def require_match(record: ConversationRecord, if_match: str | None) -> None:
    """Check that a conversation has the expected head.

    Raises:
        Stale: The conversation has another head.
    """
    expected = parse_head(if_match)
    if expected is not None and expected != record.head:
        raise stale(record.head)


def stale(head: int) -> Stale:
    """Return the error for a conversation that has another head than the caller expects."""
    return Stale("the conversation has changed since", hint="read it again", details={"head": head})


def format_tag(head: int) -> str:
    """Return the ETag of a conversation with this head."""
    return f'"{head}"'


def set_tag(response: Response, head: int) -> None:
    """Set the ETag of a response."""
    response.headers["ETag"] = format_tag(head)


def is_known(if_none_match: str | None, head: int) -> bool:
    """Whether `If-None-Match` contains the tag of this head: the caller has the current version."""
    return if_none_match is not None and format_tag(head) in [tag.strip() for tag in if_none_match.split(",")]


BOUGH = UUID("5b0ff6b2-6d0c-5d4e-9a54-0b0e6a1f3c77")
"""The UUID namespace of ids derived from keys; never changes."""

IdempotencyKey: TypeAlias = Annotated[
    str | None, Header(alias="Idempotency-Key", description="1 to 255 printable characters.")
]


def id_from_key(caller: Caller, request: Request, key: str | None) -> UUID | None:
    """Return the id derived from an `Idempotency-Key`, the tenant and the route; None without a key.

    Raises:
        Malformed: The key is empty, too long or not printable.
    """
    if key is None:
        return None
    if not 1 <= len(key) <= 255 or not key.isprintable():
        raise Malformed("Idempotency-Key is not valid", hint="use 1 to 255 printable characters")
    return uuid5(BOUGH, f"{caller.tenant}\n{request.method} {request.url.path}\n{key}")


def mark_replayed(response: Response) -> None:
    """Mark a response as the response to a repeated request."""
    response.status_code = 200
    response.headers["Idempotency-Replayed"] = "true"


def compute_digest(body: Any) -> str:
    """Return the SHA-256 of a body as canonical JSON. The caller must have removed secrets from it."""
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":"), default=str).encode()).hexdigest()
