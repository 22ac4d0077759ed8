"""The HTTP client for a remote agent. It limits responses, and follows no redirects, which could leak the token.

Timestamps without a time zone, which fasta2a sends and the protocol's library rejects, are read as UTC.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from typing import Any, cast

import httpx

from bough.connect.config import A2AClientConfig
from bough.errors import ConnectError

_WITHOUT_ZONE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?", re.ASCII)
_FIELD_WITHOUT_ZONE = re.compile(rb'"timestamp"\s*:\s*"' + _WITHOUT_ZONE.pattern.encode() + b'"')


def make_http(config: A2AClientConfig, *, max_bytes: int) -> httpx.AsyncClient:
    """Return a client that sends the agent's token and reads at most `max_bytes` of a response."""
    # The transport rewrites the bytes before httpx decompresses them, so they must not be compressed.
    headers = {"Accept-Encoding": "identity"}
    if config.bearer_token is not None:
        headers["Authorization"] = f"Bearer {config.bearer_token}"
    return httpx.AsyncClient(
        transport=_LimitedTransport(max_bytes), headers=headers, timeout=config.timeout, follow_redirects=False
    )


class _LimitedTransport(httpx.AsyncHTTPTransport):
    def __init__(self, max_bytes: int) -> None:
        super().__init__()
        self._max_bytes = max_bytes

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await super().handle_async_request(request)
        # Inside `_ZonedStream`, which loads a whole JSON response into memory.
        stream: httpx.AsyncByteStream = _LimitedStream(cast("httpx.AsyncByteStream", response.stream), self._max_bytes)
        if "content-encoding" not in response.headers:
            is_stream = response.headers.get("content-type", "").startswith("text/event-stream")
            stream = _ZonedStream(stream, is_stream=is_stream)
        response.stream = stream
        return response


class _LimitedStream(httpx.AsyncByteStream):
    def __init__(self, stream: httpx.AsyncByteStream, max_bytes: int) -> None:
        self._stream = stream
        self._max_bytes = max_bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        count = 0
        async for chunk in self._stream:
            count += len(chunk)
            if count > self._max_bytes:
                raise ConnectError(
                    f"a remote agent answered with more than {self._max_bytes} bytes", hint="ask for less"
                )
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


class _ZonedStream(httpx.AsyncByteStream):
    """A response whose timestamps have a time zone. JSON is converted as a whole, a stream of events line by line."""

    def __init__(self, stream: httpx.AsyncByteStream, *, is_stream: bool) -> None:
        self._stream = stream
        self._is_stream = is_stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        pending: list[bytes] = []
        async for chunk in self._stream:
            head, newline, tail = chunk.rpartition(b"\n") if self._is_stream else (b"", b"", chunk)
            if newline:
                lines = b"".join([*pending, head, newline]).splitlines(keepends=True)
                pending.clear()
                yield b"".join(map(_zone_line, lines))
            pending.append(tail)
        last = b"".join(pending)
        yield _zone_line(last) if self._is_stream else add_time_zones(last)

    async def aclose(self) -> None:
        await self._stream.aclose()


def _zone_line(line: bytes) -> bytes:
    name, _, value = line.partition(b":")
    if name != b"data" or not _FIELD_WITHOUT_ZONE.search(value):
        return line
    return b"data: " + add_time_zones(value.strip()) + line[len(line.rstrip(b"\r\n")) :]


def add_time_zones(answer: bytes) -> bytes:
    """Return a JSON response in which the timestamp of each task's status has a time zone; other content unchanged."""
    if not _FIELD_WITHOUT_ZONE.search(answer):
        return answer
    try:
        body: Any = json.loads(answer)
    except (ValueError, RecursionError):
        return answer
    for container in (body, _get(body, "result")):
        tasks = _get(container, "tasks")
        listed_tasks: list[Any] = cast("list[Any]", tasks) if isinstance(tasks, list) else []
        for holder in (container, _get(container, "task"), _get(container, "statusUpdate"), *listed_tasks):
            status = _get(holder, "status")
            timestamp = _get(status, "timestamp")
            if isinstance(timestamp, str) and _WITHOUT_ZONE.fullmatch(timestamp):
                status["timestamp"] = f"{timestamp}Z"
    return json.dumps(body).encode()


def _get(holder: Any, name: str) -> Any:
    return cast("dict[str, Any]", holder).get(name) if isinstance(holder, dict) else None
