"""HTTP to a remote agent: no redirects, which could carry the token elsewhere, and bounded answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import cast

import httpx

from bough.connect.a2a_config import A2AClientConfig
from bough.errors import ConnectError


def make_http(config: A2AClientConfig, *, max_bytes: int) -> httpx.AsyncClient:
    """Return a client that sends the agent's token and reads at most `max_bytes` of an answer."""
    headers = {} if config.bearer_token is None else {"Authorization": f"Bearer {config.bearer_token}"}
    return httpx.AsyncClient(
        transport=_BoundedTransport(max_bytes), headers=headers, timeout=config.timeout, follow_redirects=False
    )


class _BoundedTransport(httpx.AsyncHTTPTransport):
    def __init__(self, max_bytes: int) -> None:
        super().__init__()
        self._max_bytes = max_bytes

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await super().handle_async_request(request)
        response.stream = _BoundedStream(cast("httpx.AsyncByteStream", response.stream), self._max_bytes)
        return response


class _BoundedStream(httpx.AsyncByteStream):
    def __init__(self, stream: httpx.AsyncByteStream, max_bytes: int) -> None:
        self._stream = stream
        self._max_bytes = max_bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        count = 0
        async for chunk in self._stream:
            if (count := count + len(chunk)) > self._max_bytes:
                raise ConnectError(
                    f"a remote agent answered with more than {self._max_bytes} bytes", hint="ask for less"
                )
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()
