"""Strict JSON that can be stored: UTF-8, not too deep, unique names, finite numbers, texts that every store accepts."""

from __future__ import annotations

import json
import math
from typing import Any, cast

from starlette.requests import Request
from starlette.types import Message, Receive

from bough.errors import Malformed, public_message
from bough.types import JsonObject

MAX_DEPTH = 64
_HINT = "send one JSON value in UTF-8"


def parse_json(text: bytes | str) -> Any:
    """Return the value of a JSON text.

    Raises:
        Malformed: It is not JSON in UTF-8, is too deep, or has a number or a text that cannot be stored.
    """
    try:
        read = text.decode("utf-8") if isinstance(text, bytes) else text
        value: Any = json.loads(read, parse_constant=_refuse, object_pairs_hook=_read_object)
    except UnicodeDecodeError:
        raise Malformed("it is not UTF-8", hint=_HINT) from None
    except RecursionError:
        raise _too_deep() from None
    except ValueError:  # also for a number of thousands of digits, which Python refuses to parse
        raise Malformed("it is not valid JSON", hint=_HINT) from None
    _check(value)
    return value


def is_text(text: str) -> bool:
    """Whether a text can be stored: no lone surrogates, no zero bytes (which Postgres refuses)."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return "\0" not in text


def _refuse(name: str) -> Any:
    raise Malformed(f"{name} is not JSON", hint="leave it out, or send null")


def _read_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object without duplicate names, which a proxy could interpret differently."""
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise Malformed("it has an object that says a name twice", hint="say each name once")
    return fields


def _too_deep() -> Malformed:
    return Malformed(f"it is deeper than {MAX_DEPTH} levels", hint="send fewer levels")


def _check(value: Any) -> None:
    """Check a JSON value without recursion."""
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise _too_deep()
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                fields = cast("dict[str, Any]", item)
                below += [*fields, *fields.values()]
            elif isinstance(item, list):
                below += cast("list[Any]", item)
            elif isinstance(item, float) and not math.isfinite(item):
                raise Malformed("it has a number that is not finite", hint="send a smaller one, or null")
            elif isinstance(item, str) and not is_text(item):
                raise Malformed("it has text that cannot be kept", hint="no lone surrogates, no zero characters")
        level = below


_PARSE_ERROR = -32700


async def read_json_body(request: Request) -> bytes | None:
    """Return the body of a request, checked; None for a method without body.

    For protocols whose library reads the body again, and accepts any JSON that Python accepts.

    Raises:
        Malformed: It is not strict JSON.
    """
    if request.method not in ("POST", "PUT", "PATCH"):
        return None
    body = await request.body()
    if body:
        parse_json(body)
    return body


def replay(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that delivers a body that was already read, and then the following messages."""
    is_delivered = False

    async def receiving() -> Message:
        nonlocal is_delivered
        if is_delivered:
            return await receive()  # a disconnect must still reach the library, else it streams for ever
        is_delivered = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receiving


def describe_unreadable(error: Malformed) -> JsonObject:
    """Return the JSON-RPC answer to a body that cannot be parsed."""
    return {"jsonrpc": "2.0", "id": None, "error": {"code": _PARSE_ERROR, "message": public_message(error)}}
