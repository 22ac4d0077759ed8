"""A TCP proxy for tests that stops, slows down, drops its connections, and comes back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Literal, TypeAlias
from urllib.parse import urlsplit, urlunsplit

Manner: TypeAlias = Literal["pass", "silent", "slow"]
"""`silent`: everything is read and acknowledged, and nothing handed on until it passes again. `slow`: 1 KB a second."""

_CHUNK_BYTES = 1 << 16
_SLOW_BYTES = 64


class FlakyProxy:
    """Stands between clients and one server, on a port of this machine, in a thread of its own.

    Attributes:
        port: Where it listens.
    """

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._loop = asyncio.new_event_loop()
        self._manner: Manner = "pass"
        self._passes = asyncio.Event()
        self._passes.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._started = threading.Event()
        self.port = 0
        self._thread = threading.Thread(target=self._run, name="flaky-proxy", daemon=True)
        self._thread.start()
        self._started.wait()

    def behave(self, manner: Manner) -> None:
        """Handle all bytes in another manner from now on; what was held back continues where it passes again."""
        self._call(self._set_manner, manner)

    def drop(self) -> None:
        """Reset every connection; bytes that were held back are lost."""
        self._call(self._drop)

    def close_half(self) -> None:
        """Tell every client that nothing more will come, and keep reading what it says."""
        self._call(self._close_half)

    def close(self) -> None:
        """Drop all and end."""
        self._call(self._drop)
        self._call(self._loop.stop)
        self._thread.join()

    def _call(self, function: object, *args: object) -> None:
        done = threading.Event()

        def call() -> None:
            function(*args)  # type: ignore[operator]
            done.set()

        self._loop.call_soon_threadsafe(call)
        done.wait()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        self._started.set()
        self._loop.run_forever()
        server.close()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.close()

    def _set_manner(self, manner: Manner) -> None:
        self._manner = manner
        if manner == "silent":
            self._passes.clear()
        else:
            self._passes.set()

    def _drop(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    def _close_half(self) -> None:
        for writer in self._writers:
            with suppress(OSError, RuntimeError):
                if writer.can_write_eof() and writer.get_extra_info("sockname")[1] == self.port:
                    writer.write_eof()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            server_reader, server_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        pair = {writer, server_writer}
        self._writers |= pair
        try:
            await asyncio.wait(
                [
                    asyncio.create_task(self._pump(reader, server_writer)),
                    asyncio.create_task(self._pump(server_reader, writer)),
                ],
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            self._writers -= pair
            for each in pair:
                each.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, RuntimeError):
            while data := await reader.read(_SLOW_BYTES if self._manner == "slow" else _CHUNK_BYTES):
                await self._passes.wait()
                if self._manner == "slow":
                    await asyncio.sleep(_SLOW_BYTES / 1024)
                writer.write(data)
                await writer.drain()


@contextmanager
def flaky_proxy(url: str) -> Generator[tuple[FlakyProxy, str]]:
    """Give a proxy to the server of a URL, and the URL of that server through it."""
    parts = urlsplit(url)
    proxy = FlakyProxy(parts.hostname or "127.0.0.1", parts.port or 5432)
    user = f"{parts.username}@" if parts.username else ""
    try:
        yield proxy, urlunsplit(parts._replace(netloc=f"{user}127.0.0.1:{proxy.port}"))
    finally:
        proxy.close()
