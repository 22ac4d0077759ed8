"""Adapts JSON-RPC requests of some clients that the library does not accept, and the responses to them.

Source: the clients of fasta2a 0.6 (a null id) and 2.1 (methods of version 0.3 with messages and results of 1.0).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, cast

from starlette.types import Message, Send

from bough.types import JsonObject

_ID_FOR_NULL = 0
_SEND_METHODS = frozenset({"message/send", "message/stream"})
_STREAM_METHODS = frozenset({"message/stream", "tasks/resubscribe", "SendStreamingMessage", "SubscribeToTask"})
_FIELD_BY_KIND = {
    "task": "task",
    "message": "message",
    "status-update": "statusUpdate",
    "artifact-update": "artifactUpdate",
}
"""The field of a result of 1.0 for each `kind` of a result of 0.3."""

_Change = Callable[[JsonObject], JsonObject]


def adapt_request(body: bytes, send: Send) -> tuple[bytes, Send]:
    """Return a request that the library accepts, and a `send` that adapts the response for the client.

    A null id is replaced in the request and restored in the response. The response to a 0.3 message without `kind`
    contains both forms: the fields of 0.3, and the same object in `task`, `message`, `statusUpdate` or
    `artifactUpdate` as in 1.0. Other requests are returned unchanged.
    """
    request: Any = json.loads(body) if body else None
    if not isinstance(request, dict) or "jsonrpc" not in request:
        return body, send
    fields = cast("JsonObject", request)
    changes: list[_Change] = []
    if "id" in fields and fields["id"] is None:
        body = json.dumps({**fields, "id": _ID_FOR_NULL}).encode()
        changes.append(_restore_null_id)
    if fields.get("method") in _SEND_METHODS and _lacks_kind(fields.get("params")):
        changes.append(_add_form_of_1_0)
    if not changes:
        return body, send

    def change(response: JsonObject) -> JsonObject:
        for step in changes:
            response = step(response)
        return response

    if fields.get("method") in _STREAM_METHODS:
        return body, _change_events(send, change)
    return body, _change_response(send, change)


def _lacks_kind(params: object) -> bool:
    message = cast("JsonObject", params).get("message") if isinstance(params, dict) else None
    return isinstance(message, dict) and "kind" not in message


def _restore_null_id(response: JsonObject) -> JsonObject:
    return {**response, "id": None}


def _add_form_of_1_0(response: JsonObject) -> JsonObject:
    result = response.get("result")
    if not isinstance(result, Mapping):
        return response
    fields = cast("JsonObject", result)
    name = _FIELD_BY_KIND.get(str(fields.get("kind")))
    return response if name is None else {**response, "result": {**fields, name: fields}}


def _change_response(send: Send, change: _Change) -> Send:
    """Return a `send` that buffers a response until it is complete, and changes its JSON."""
    start: Message | None = None
    chunks: list[bytes] = []

    async def send_changed(message: Message) -> None:
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
        body = _change_json(b"".join(chunks), change)
        headers = [(name, value) for name, value in start["headers"] if name.lower() != b"content-length"]
        await send({**start, "headers": [*headers, (b"content-length", str(len(body)).encode())]})
        await send({**message, "body": body})

    return send_changed


def _change_events(send: Send, change: _Change) -> Send:
    """Return a `send` that changes the JSON of each event of a stream, or of a response that is not a stream."""
    is_stream = True
    pending = b""
    send_response = _change_response(send, change)

    async def send_changed(message: Message) -> None:
        nonlocal is_stream, pending
        if message["type"] == "http.response.start":
            types = [value for name, value in message["headers"] if name.lower() == b"content-type"]
            is_stream = any(value.startswith(b"text/event-stream") for value in types)
        if not is_stream:
            await send_response(message)
            return
        if message["type"] != "http.response.body":
            await send(message)
            return
        # Only complete lines are changed: a chunk may end in the middle of a line.
        *lines, pending = (pending + message.get("body", b"")).split(b"\n")
        if not message.get("more_body"):
            lines, pending = [*lines, pending], b""
        changed = b"\n".join(_change_line(line, change) for line in lines)
        if lines and message.get("more_body"):
            changed += b"\n"
        await send({**message, "body": changed})

    return send_changed


def _change_line(line: bytes, change: _Change) -> bytes:
    if not line.startswith(b"data:"):
        return line
    line_end = b"\r" if line.endswith(b"\r") else b""
    return b"data: " + _change_json(line.removeprefix(b"data:").strip(), change) + line_end


def _change_json(body: bytes, change: _Change) -> bytes:
    """Return a changed JSON-RPC response; other data are unchanged."""
    try:
        response: Any = json.loads(body)
    except ValueError:
        return body
    if not isinstance(response, Mapping) or "jsonrpc" not in response:
        return body
    return json.dumps(change(dict(cast("Mapping[str, Any]", response)))).encode()
