"""Idempotent creation: the `Idempotency-Key` of a request determines the id of the created object."""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any, TypeAlias
from uuid import UUID, uuid5

from fastapi import Header, Request, Response

from bough.errors import Malformed
from bough.server.auth.caller import Caller

BOUGH = UUID("5b0ff6b2-6d0c-5d4e-9a54-0b0e6a1f3c77")
"""The UUID namespace of ids derived from keys; never changes."""

IdempotencyKey: TypeAlias = Annotated[
    str | None, Header(alias="Idempotency-Key", description="1 to 255 printable characters.")
]


def id_from_key(caller: Caller, request: Request, key: str | None) -> UUID | None:
    """Return the id derived from a key, for this tenant and route; None without a key.

    Raises:
        Malformed: The key is empty, too long or not printable.
    """
    if key is None:
        return None
    if not 1 <= len(key) <= 255 or not key.isprintable():
        raise Malformed("Idempotency-Key is not valid", hint="1 to 255 printable characters")
    return uuid5(BOUGH, f"{caller.tenant}\n{request.method} {request.url.path}\n{key}")


def mark_replayed(response: Response) -> None:
    """Mark an answer as the answer to a repeated request."""
    response.status_code = 200
    response.headers["Idempotency-Replayed"] = "true"


def compute_digest(body: Any) -> str:
    """Return the digest of a body, the same for equal bodies. The caller removes secrets before."""
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":"), default=str).encode()).hexdigest()
