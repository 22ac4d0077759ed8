"""HTTP to an agent server: the key, errors as ours, and what may be sent again when it got lost.

Source: server.md, 21. Remote client.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import IO, Any, NamedTuple, cast
from uuid import UUID

import httpx2

from bough import errors
from bough.errors import OUTCOMES, BoughError, InvalidInput, Unavailable
from bough.types import JsonObject

KEY_VARIABLE = "BOUGH_API_KEY"
OUR_EVENTS = "application/vnd.bough.event+json"

_TRIES = 5
_FIRST_WAIT_SECONDS = 0.25
_LONGEST_WAIT_SECONDS = 10.0
_AGAIN_LATER = (429, 503)


class ServerFrame(NamedTuple):
    """One server-sent event."""

    kind: str
    data: JsonObject


class ServerTransport:
    """Requests to one agent server.

    Args:
        url: Its address.
        api_key: A key of it; None takes `BOUGH_API_KEY`, and none where that is not set.

    Raises:
        InvalidInput: The address is none of HTTP.
    """

    def __init__(self, url: str, api_key: str | None = None) -> None:
        key = api_key or os.environ.get(KEY_VARIABLE)
        headers = {"Accept": OUR_EVENTS} | ({} if key is None else {"X-Session-API-Key": key})
        if not url.startswith(("http://", "https://")):
            raise InvalidInput(f"{url!r:.200} is not the address of a server", hint="for example http://127.0.0.1:8000")
        self.url = url.rstrip("/")
        self._key = key
        # Redirects are not followed: they could carry the key elsewhere.
        timeout = httpx2.Timeout(10, read=90)
        self._http = httpx2.AsyncClient(base_url=self.url, headers=headers, timeout=timeout, follow_redirects=False)

    async def send(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        content: bytes | None = None,
        query: Mapping[str, Any] | None = None,
        key: UUID | None = None,
    ) -> Any:
        """Return the JSON of an answer.

        Args:
            body: Sent as JSON; `content` is sent as it is.
            key: Makes a POST that is sent twice one; without it a POST is sent once.

        Raises:
            BoughError: The class of the code that the server answered with.
            Unavailable: It cannot be reached, or does not answer.
        """
        headers = {} if key is None else {"Idempotency-Key": str(key)}
        sent: dict[str, Any] = {"json": body} if content is None else {"content": content}
        is_repeatable = method in ("GET", "PATCH", "DELETE") or key is not None
        wait = _FIRST_WAIT_SECONDS
        for tries_left in reversed(range(_TRIES if is_repeatable else 1)):
            try:
                answer = await self._http.request(method, path, params=query, headers=headers, **sent)
            except httpx2.TransportError as error:
                if tries_left == 0:
                    raise self._unreachable(error) from error
            else:
                if tries_left == 0 or answer.status_code not in _AGAIN_LATER:
                    return _read_answer(answer)
                wait = _seconds_of(answer.headers.get("Retry-After"), wait)
            await asyncio.sleep(wait)
            wait = min(wait * 2, _LONGEST_WAIT_SECONDS)
        raise AssertionError("the last try returns or raises")

    async def download(self, path: str, body: Any, file: IO[bytes]) -> None:
        """Write the bytes of an answer to a file as they come.

        Raises:
            BoughError: The server refused it.
            Unavailable: It cannot be reached, or the connection broke; the file is not whole then.
        """
        try:
            async with self._http.stream("POST", path, json=body) as answer:
                await _require_success(answer)
                async for chunk in answer.aiter_bytes():
                    file.write(chunk)
        except httpx2.TransportError as error:
            raise self._unreachable(error) from error

    async def follow(self, path: str, query: Mapping[str, Any]) -> AsyncIterator[ServerFrame]:
        """Iterate the frames of one connection to a stream; it ends when the server or the network ends it.

        Raises:
            BoughError: The server refused it.
            Unavailable: It cannot be reached.
        """
        try:
            async with self._open_stream(path, query) as lines:
                frame = _FrameReader()
                async for line in lines:
                    for complete in frame.take(line):
                        yield complete
        except httpx2.TransportError as error:
            raise self._unreachable(error) from error

    def copy(self) -> ServerTransport:
        """Return one to the same server, with connections of its own."""
        return ServerTransport(self.url, self._key)

    async def aclose(self) -> None:
        """Close its connections."""
        await self._http.aclose()

    @asynccontextmanager
    async def _open_stream(self, path: str, query: Mapping[str, Any]) -> AsyncGenerator[AsyncIterator[str]]:
        async with self._http.stream("GET", path, params=query) as answer:
            await _require_success(answer)
            yield answer.aiter_lines()

    def _unreachable(self, error: Exception) -> Unavailable:
        reason = str(error) or type(error).__name__
        return Unavailable(f"the server {self.url} cannot be reached: {reason}", hint="is `bough serve` running there?")


class _FrameReader:
    """Makes frames of the lines of a stream."""

    def __init__(self) -> None:
        self._kind = ""
        self._data: list[str] = []

    def take(self, line: str) -> Iterator[ServerFrame]:
        """Take one line, and yield the frame that it ends."""
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            self._kind = value
        elif name == "data":
            self._data.append(value)
        elif not line and self._data:
            yield ServerFrame(self._kind, json.loads("\n".join(self._data)))
            self._kind, self._data = "", []


def error_of(code: str, message: str, *, hint: str = "", details: JsonObject | None = None) -> BoughError:
    """Return the error of a code: of its class, where there is one."""
    for kind in vars(errors).values():
        # A code is that of the class that says it; those below it may take other arguments.
        if isinstance(kind, type) and issubclass(kind, BoughError) and vars(kind).get("code") == code:
            return kind(message, hint=hint, details=details)
    return BoughError(message, hint=hint, details=details, code=code if code in OUTCOMES else "internal")


async def _require_success(answer: httpx2.Response) -> None:
    if not answer.is_success:
        await answer.aread()
        _read_answer(answer)


def _read_answer(answer: httpx2.Response) -> Any:
    try:
        content = answer.json() if answer.content else None
    except ValueError:
        content = None
    if answer.is_success:
        return content
    problem = cast("JsonObject", content) if isinstance(content, dict) else {}
    if "code" not in problem:
        raise Unavailable(
            f"the server answered with status {answer.status_code} and no reason",
            hint="is it an agent server of bough?",
        )
    details = problem.get("details")
    raise error_of(
        str(problem["code"]), str(problem.get("detail", "")), hint=str(problem.get("hint", "")), details=details
    )


def _seconds_of(retry_after: str | None, otherwise: float) -> float:
    """Return how long to wait as the server says it, within bounds."""
    if retry_after is None or not retry_after.isdecimal():
        return otherwise
    return min(float(retry_after), _LONGEST_WAIT_SECONDS)
