"""HTTP requests to an agent server: sends the API key, repeats failed requests, and raises errors of bough."""

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
_RETRY_STATUSES = (429, 503)


class ServerFrame(NamedTuple):
    """One server-sent event."""

    kind: str
    data: JsonObject


class ServerTransport:
    """Requests to one agent server.

    Args:
        url: The address of the server.
        api_key: None uses the environment variable `BOUGH_API_KEY`, or no key if that is not set.

    Raises:
        InvalidInput: `url` does not start with `http://` or `https://`.
    """

    def __init__(self, url: str, api_key: str | None = None) -> None:
        key = api_key or os.environ.get(KEY_VARIABLE)
        headers = {"Accept": OUR_EVENTS} | ({} if key is None else {"X-Session-API-Key": key})
        if not url.startswith(("http://", "https://")):
            raise InvalidInput(
                f"{url!r:.200} is not the address of a server", hint="give one like http://127.0.0.1:8000"
            )
        self.url = url.rstrip("/")
        self._key = key
        # Redirects are not followed: they could send the key to another server.
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
        """Send a request, and return the JSON of the response; None if it is empty.

        A request that fails temporarily is repeated, except a POST without `key`.

        Args:
            body: Sent as JSON.
            content: Sent unchanged instead of `body`.
            key: Idempotency key: the server executes a repeated POST with the same key once.

        Raises:
            BoughError: The server responded with an error. The code of the error selects the class.
            Unavailable: The server cannot be reached, or does not respond.
        """
        headers = {} if key is None else {"Idempotency-Key": str(key)}
        payload: dict[str, Any] = {"json": body} if content is None else {"content": content}
        is_repeatable = method in ("GET", "PATCH", "DELETE") or key is not None
        wait = _FIRST_WAIT_SECONDS
        for tries_left in reversed(range(_TRIES if is_repeatable else 1)):
            try:
                response = await self._http.request(method, path, params=query, headers=headers, **payload)
            except httpx2.TransportError as error:
                if tries_left == 0:
                    raise self._make_unreachable_error(error) from error
            else:
                if tries_left == 0 or response.status_code not in _RETRY_STATUSES:
                    return _read_response(response)
                wait = _parse_retry_after(response.headers.get("Retry-After"), wait)
            await asyncio.sleep(wait)
            wait = min(wait * 2, _LONGEST_WAIT_SECONDS)
        raise AssertionError("the last try returns or raises")

    async def read(self, path: str) -> bytes:
        """Send a GET, and return the bytes of the response.

        Raises:
            BoughError: The server responded with an error.
            Unavailable: The server cannot be reached, or the connection broke.
        """
        try:
            async with self._http.stream("GET", path) as response:
                await _require_success(response)
                return await response.aread()
        except httpx2.TransportError as error:
            raise self._make_unreachable_error(error) from error

    def read_blocking(self, path: str, query: Mapping[str, Any]) -> bytes:
        """Send a GET as `read` does, for a caller without an event loop. Blocks, and uses a separate connection."""
        try:
            with httpx2.Client(base_url=self.url, headers=self._http.headers, timeout=self._http.timeout) as client:
                response = client.get(path, params=query)
        except httpx2.TransportError as error:
            raise self._make_unreachable_error(error) from error
        if not response.is_success:
            _read_response(response)  # raises the error that the response describes
        return response.content

    async def download(self, path: str, body: Any, file: IO[bytes]) -> None:
        """Send a POST, and write the response to a file as it arrives.

        Raises:
            BoughError: The server responded with an error.
            Unavailable: The server cannot be reached, or the connection broke. The file is then incomplete.
        """
        try:
            async with self._http.stream("POST", path, json=body) as response:
                await _require_success(response)
                async for chunk in response.aiter_bytes():
                    file.write(chunk)
        except httpx2.TransportError as error:
            raise self._make_unreachable_error(error) from error

    async def follow(self, path: str, query: Mapping[str, Any]) -> AsyncIterator[ServerFrame]:
        """Iterate over the server-sent events of one connection, until the server closes it.

        Raises:
            BoughError: The server responded with an error.
            Unavailable: The server cannot be reached, or the connection broke.
        """
        try:
            async with self._open_stream(path, query) as lines:
                reader = _FrameReader()
                async for line in lines:
                    for frame in reader.take(line):
                        yield frame
        except httpx2.TransportError as error:
            raise self._make_unreachable_error(error) from error

    def copy(self) -> ServerTransport:
        """Return a transport to the same server with separate connections."""
        return ServerTransport(self.url, self._key)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    @asynccontextmanager
    async def _open_stream(self, path: str, query: Mapping[str, Any]) -> AsyncGenerator[AsyncIterator[str]]:
        async with self._http.stream("GET", path, params=query) as response:
            await _require_success(response)
            yield response.aiter_lines()

    def _make_unreachable_error(self, error: Exception) -> Unavailable:
        reason = str(error) or type(error).__name__
        return Unavailable(f"the server {self.url} cannot be reached: {reason}", hint="is `bough serve` running there?")


class _FrameReader:
    """Parses the lines of an event stream into frames."""

    def __init__(self) -> None:
        self._kind = ""
        self._data: list[str] = []

    def take(self, line: str) -> Iterator[ServerFrame]:
        """Parse one line, and yield the frame that the line completes, if any."""
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            self._kind = value
        elif name == "data":
            self._data.append(value)
        elif not line and self._data:
            yield ServerFrame(self._kind, json.loads("\n".join(self._data)))
            self._kind, self._data = "", []


def make_error(code: str, message: str, *, hint: str = "", details: JsonObject | None = None) -> BoughError:
    """Return the error for a code that the server sent: of the class that has this code, or else a `BoughError`."""
    for kind in vars(errors).values():
        # Only classes that define the code themselves: subclasses inherit it and may take other arguments.
        if isinstance(kind, type) and issubclass(kind, BoughError) and vars(kind).get("code") == code:
            return kind(message, hint=hint, details=details)
    return BoughError(message, hint=hint, details=details, code=code if code in OUTCOMES else "internal")


async def _require_success(response: httpx2.Response) -> None:
    if not response.is_success:
        await response.aread()
        _read_response(response)


def _read_response(response: httpx2.Response) -> Any:
    """Return the JSON of a response; None if it is empty or not JSON.

    Raises:
        BoughError: The response is an error of bough.
        Unavailable: The response is another error, for example of a proxy.
    """
    try:
        content = response.json() if response.content else None
    except ValueError:
        content = None
    if response.is_success:
        return content
    problem = cast("JsonObject", content) if isinstance(content, dict) else {}
    if "code" not in problem:
        raise Unavailable(
            f"the server responded with status {response.status_code} without an error code",
            hint="check that the address is that of a bough server",
        )
    details = problem.get("details")
    raise make_error(
        str(problem["code"]), str(problem.get("detail", "")), hint=str(problem.get("hint", "")), details=details
    )


def _parse_retry_after(retry_after: str | None, default: float) -> float:
    """Return the seconds of a `Retry-After` header, up to the longest wait; `default` if it has no number."""
    if retry_after is None or not retry_after.isdecimal():
        return default
    return min(float(retry_after), _LONGEST_WAIT_SECONDS)
