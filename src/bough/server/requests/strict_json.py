"""Strict JSON: UTF-8, at most 64 levels, unique names, finite numbers, and texts that every store accepts."""

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
        Malformed: The text is not JSON in UTF-8, is too deep, has a name twice, or has a value that cannot be stored.
    """
    try:
        decoded = text.decode("utf-8") if isinstance(text, bytes) else text
        value: Any = json.loads(decoded, parse_constant=_refuse_constant, object_pairs_hook=_read_object)
    except UnicodeDecodeError:
        raise Malformed("it is not UTF-8", hint=_HINT) from None
    except RecursionError:
        raise _make_too_deep() from None
    except ValueError:  # includes numbers of thousands of digits, which Python refuses to parse
        raise Malformed("it is not valid JSON", hint=_HINT) from None
    _require_storable(value)
    return value


def is_text(text: str) -> bool:
    """Whether a text can be stored: no lone surrogates, no zero bytes (which Postgres refuses)."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return "\0" not in text


def _refuse_constant(name: str) -> Any:
    raise Malformed(f"{name} is not JSON", hint="leave it out, or send null")


def _read_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object without duplicate names, which a proxy could interpret differently."""
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise Malformed("it has an object with a duplicate name", hint="use each name once")
    return fields


def _make_too_deep() -> Malformed:
    return Malformed(f"it is deeper than {MAX_DEPTH} levels", hint="send fewer levels")


def _require_storable(value: Any) -> None:
    """Check the depth, the numbers and the texts of a JSON value, without recursion.

    Raises:
        Malformed: The value cannot be stored.
    """
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise _make_too_deep()
        next_level: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                fields = cast("dict[str, Any]", item)
                next_level += [*fields, *fields.values()]
            elif isinstance(item, list):
                next_level += cast("list[Any]", item)
            elif isinstance(item, float) and not math.isfinite(item):
                raise Malformed("it has a number that is not finite", hint="send a smaller one, or null")
            elif isinstance(item, str) and not is_text(item):
                raise Malformed("it has text that cannot be stored", hint="remove lone surrogates and zero characters")
        level = next_level


_PARSE_ERROR = -32700


async def read_json_body(request: Request) -> bytes | None:
    """Return the body of a request, after checking that it is strict JSON; None for a method without a body.

    For protocols whose library reads the body again, and accepts any JSON that Python accepts.

    Raises:
        Malformed: The body is not strict JSON.
    """
    if request.method not in ("POST", "PUT", "PATCH"):
        return None
    body = await request.body()
    if body:
        parse_json(body)
    return body


def replay(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that first delivers a body that was already read, and then calls the given one."""
    is_delivered = False

    async def receiving() -> Message:
        nonlocal is_delivered
        if is_delivered:
            return await receive()  # without the disconnect, the library would stream for ever
        is_delivered = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receiving


def describe_unreadable(error: Malformed) -> JsonObject:
    """Return the JSON-RPC response to a body that cannot be parsed."""
    return {"jsonrpc": "2.0", "id": None, "error": {"code": _PARSE_ERROR, "message": public_message(error)}}
