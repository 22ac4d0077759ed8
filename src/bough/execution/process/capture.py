"""Capturing the output of a program in bounded memory: head and tail are kept, the middle is only counted."""

from __future__ import annotations

import asyncio
import os
import select

_DRAINED_CHUNKS = 16


class HeadTail:
    """The first and the last bytes of a stream; at most `limit_bytes`, plus one line about the omitted middle.

    Args:
        limit_bytes: Number of kept bytes, half for each end; uses at most twice as much memory.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.total_bytes = 0
        self._head = bytearray()
        self._tail = bytearray()
        self._head_limit = limit_bytes - limit_bytes // 2
        self._tail_limit = limit_bytes // 2

    def add(self, data: bytes) -> None:
        """Add the next bytes; amortised O(len(data))."""
        self.total_bytes += len(data)
        room = self._head_limit - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if not data:
            return
        self._tail += data[-self._tail_limit :] if self._tail_limit else b""
        if len(self._tail) > 2 * self._tail_limit:
            del self._tail[: -self._tail_limit]

    @property
    def truncated(self) -> bool:
        """Whether anything is missing."""
        return self.total_bytes > self._head_limit + self._tail_limit

    def value(self) -> bytes:
        """Return the kept bytes, with a line in the middle that counts the omitted ones."""
        if not self.truncated:
            return bytes(self._head + self._tail)
        tail = bytes(self._tail[-self._tail_limit :]) if self._tail_limit else b""
        missing = self.total_bytes - len(self._head) - len(tail)
        return bytes(self._head) + b"\n... %d bytes left out ...\n" % missing + tail


class Pipe:
    """The reading end of a pipe, drained by the event loop into a `HeadTail` until all writers are gone."""

    CHUNK_BYTES = 1 << 18

    def __init__(self, limit_bytes: int) -> None:
        self.kept = HeadTail(limit_bytes)
        self._read_fd, self.write_fd = os.pipe()
        os.set_blocking(self._read_fd, False)
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(self._read_fd, self._read)

    def close_writing_end(self) -> None:
        """Close this process's writing end, once the program has it."""
        if self.write_fd >= 0:
            os.close(self.write_fd)
            self.write_fd = -1

    def drain(self) -> None:
        """Read everything written so far, and at most `_DRAINED_CHUNKS` chunks of what is written meanwhile."""
        for _ in range(_DRAINED_CHUNKS):
            if self._read_fd < 0 or not select.select([self._read_fd], [], [], 0)[0]:
                return
            self._read()

    def close(self) -> None:
        """Stop reading. Idempotent."""
        self.close_writing_end()
        if self._read_fd >= 0:
            self._loop.remove_reader(self._read_fd)
            os.close(self._read_fd)
            self._read_fd = -1
        if not self.ended.done():
            self.ended.set_result(None)

    def _read(self) -> None:
        try:
            data = os.read(self._read_fd, self.CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self.kept.add(data)
        else:
            self.close()
