"""JSON-RPC requests whose id is null, as some clients send them; the library refuses those of version 0.3."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

from starlette.types import Message, Send

_STANDS_IN = 0
_STREAMS = frozenset({"message/stream", "tasks/resubscribe", "SendStreamingMessage", "SubscribeToTask"})


def accept_null_id(body: bytes, send: Send) -> tuple[bytes, Send]:
    """Return a request and its `send` such that a null id is served: a number stands in for it on the way.

    Anything but a JSON-RPC request with a null id is returned unchanged. The responses of a stream keep the number.
    """
    request: Any = json.loads(body) if body else None
    if not isinstance(request, dict) or "jsonrpc" not in request:
        return body, send
    fields = cast("dict[str, Any]", request)
    if "id" not in fields or fields["id"] is not None:
        return body, send
    replaced = json.dumps({**fields, "id": _STANDS_IN}).encode()
    return replaced, send if fields.get("method") in _STREAMS else _restore_null_id(send)


def _restore_null_id(send: Send) -> Send:
    """Return a `send` that holds a response back until it is whole, and gives it the null id."""
    start: Message | None = None
    chunks: list[bytes] = []

    async def restoring(message: Message) -> None:
        nonlocal start
        if message["type"] == "http.response.start":
            start = message
            return
        if message["type"] != "http.response.body" or start is None:
            await send(message)
            return
        chunks.append(message.get("body", b""))
        if message.get("more_body"):
            return
        body = _with_null_id(b"".join(chunks))
        headers = [(name, value) for name, value in start["headers"] if name.lower() != b"content-length"]
        await send({**start, "headers": [*headers, (b"content-length", str(len(body)).encode())]})
        await send({**message, "body": body})

    return restoring


def _with_null_id(body: bytes) -> bytes:
    try:
        response: Any = json.loads(body)
    except ValueError:
        return body
    if not isinstance(response, Mapping) or "jsonrpc" not in response:
        return body
    return json.dumps({**cast("Mapping[str, Any]", response), "id": None}).encode()
