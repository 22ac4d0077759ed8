"""Bodies that a protocol's library reads again: they are checked first, since it takes any JSON that Python takes."""

from __future__ import annotations

from starlette.requests import Request
from starlette.types import Message, Receive

from bough.errors import Malformed, public_message
from bough.server.requests.strict_json import parse_json
from bough.types import JsonObject

_PARSE_ERROR = -32700


async def read_json_body(request: Request) -> bytes | None:
    """Return the body of a request that has one.

    Raises:
        Malformed: It is not JSON that can be kept.
    """
    if request.method not in ("POST", "PUT", "PATCH"):
        return None
    body = await request.body()
    if body:
        parse_json(body)
    return body


def replay(body: bytes, receive: Receive) -> Receive:
    """Return what gives a body that was read once more, then what comes after it."""
    is_given = False

    async def receiving() -> Message:
        nonlocal is_given
        if is_given:
            return await receive()
        is_given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receiving


def describe_unreadable(error: Malformed) -> JsonObject:
    """Return what JSON-RPC answers to a body that cannot be read."""
    return {"jsonrpc": "2.0", "id": None, "error": {"code": _PARSE_ERROR, "message": public_message(error)}}
