"""JSON-RPC messages over the standard streams of this process: one line for each message."""

from __future__ import annotations

import asyncio
import json
import os
import queue
import threading
from typing import Any, cast

from bough.types import JsonObject

MAX_FRAME_BYTES = 96 << 20
"""Maximum size of a message. A prompt may have 64 MiB of images and files, which base64 makes a third larger."""

_READ_BYTES = 1 << 16
_QUEUED_FRAMES = 64
_PARSE_ERROR = -32700
_INVALID_REQUEST = -32600


class StdioFrames:
    """The transport of a connection, for the loop that creates it. Only frames are written to stdout.

    The streams of the process are replaced: what a program or a library prints goes to stderr, and a child reads
    nothing. A line that is not a JSON object is answered with an error, and the connection continues.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._input, self._output = os.dup(0), os.dup(1)
        with open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), 0)
        os.dup2(2, 1)
        self._incoming: asyncio.Queue[JsonObject | None] = asyncio.Queue(_QUEUED_FRAMES)
        self._outgoing: queue.SimpleQueue[tuple[bytes, asyncio.Future[None]]] = queue.SimpleQueue()
        self._is_closed = False
        self.written = asyncio.Event()
        # Daemon threads, so that a client that neither reads nor writes does not keep the process alive.
        for work in (self._read, self._write):
            threading.Thread(target=work, daemon=True).start()

    async def send(self, message: JsonObject) -> None:
        """Write a message, and return when it is written. Messages after the client has gone are dropped."""
        if self._is_closed:
            return
        frame = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        done: asyncio.Future[None] = self._loop.create_future()
        self._outgoing.put((frame, done))
        # Shielded: the writing thread sets the result, and must not meet a cancelled future.
        await asyncio.shield(done)
        self.written.set()

    async def receive(self) -> JsonObject | None:
        """Return the next message; None when the client has closed its end."""
        return None if self._is_closed else await self._incoming.get()

    async def close(self) -> None:
        """Send and receive nothing more."""
        self._is_closed = True

    def _write(self) -> None:
        while True:
            frame, done = self._outgoing.get()
            try:
                _write_all(self._output, frame)
            except OSError:
                self._call(self._disconnect)
            self._call(done.set_result, None)

    def _disconnect(self) -> None:
        self._is_closed = True
        while self._incoming.full():
            self._incoming.get_nowait()
        self._incoming.put_nowait(None)

    def _read(self) -> None:
        line, is_too_long = bytearray(), False
        while chunk := self._read_chunk():
            *ends, start = chunk.split(b"\n")
            for end in ends:
                if is_too_long or len(line) + len(end) > MAX_FRAME_BYTES:
                    self._refuse(_INVALID_REQUEST, f"a message may have {MAX_FRAME_BYTES >> 20} MiB")
                else:
                    self._take(bytes(line + end))
                line, is_too_long = bytearray(), False
            is_too_long = is_too_long or len(line) + len(start) > MAX_FRAME_BYTES
            if is_too_long:
                line = bytearray()
            else:
                line += start  # in place: a long message has thousands of chunks
        self._put(None)

    def _read_chunk(self) -> bytes:
        try:
            return os.read(self._input, _READ_BYTES)
        except OSError:
            return b""

    def _take(self, line: bytes) -> None:
        if not line.strip():
            return
        try:
            message: Any = json.loads(line)
        except (ValueError, RecursionError) as error:
            return self._refuse(_PARSE_ERROR, f"a line is not JSON: {error}")
        if not isinstance(message, dict):
            return self._refuse(_INVALID_REQUEST, "a line must be one JSON-RPC message, an object")
        self._put(cast("JsonObject", message))

    def _refuse(self, code: int, message: str) -> None:
        error = {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": message}}
        self._outgoing.put((json.dumps(error, separators=(",", ":")).encode() + b"\n", self._loop.create_future()))

    def _put(self, message: JsonObject | None) -> None:
        """Pass a message to the event loop; wait while many messages are not handled yet."""
        putting = self._incoming.put(message)
        try:
            asyncio.run_coroutine_threadsafe(putting, self._loop).result()
        except RuntimeError:  # the loop has ended
            putting.close()

    def _call(self, function: Any, *arguments: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:  # as in `_put`
            return


def _write_all(fd: int, data: bytes) -> None:
    remaining = memoryview(data)
    while remaining:
        remaining = remaining[os.write(fd, remaining) :]
