"""Capture the output of a program in limited memory: head and tail are stored, the middle is only counted."""

from __future__ import annotations

import asyncio
import os
import select

_MAX_DRAINED_CHUNKS = 16


class HeadTail:
    """The first and the last bytes of a stream.

    Args:
        limit_bytes: Number of bytes to store, half for each end; it uses at most twice as much memory.
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
        free_head_bytes = self._head_limit - len(self._head)
        if free_head_bytes > 0:
            self._head += data[:free_head_bytes]
            data = data[free_head_bytes:]
        if not data:
            return
        self._tail += data[-self._tail_limit :] if self._tail_limit else b""
        if len(self._tail) > 2 * self._tail_limit:
            del self._tail[: -self._tail_limit]

    @property
    def truncated(self) -> bool:
        """Whether the middle of the stream was omitted."""
        return self.total_bytes > self._head_limit + self._tail_limit

    def value(self) -> bytes:
        """Return the stored bytes; between head and tail, a line reports the number of omitted bytes."""
        if not self.truncated:
            return bytes(self._head + self._tail)
        tail = bytes(self._tail[-self._tail_limit :]) if self._tail_limit else b""
        omitted_bytes = self.total_bytes - len(self._head) - len(tail)
        return bytes(self._head) + b"\n... %d bytes left out ...\n" % omitted_bytes + tail


class Pipe:
    """A pipe that the event loop reads into a `HeadTail` until all writers have closed it.

    Attributes:
        captured: The captured output.
        write_fd: The writing end, for the program; -1 after `close_writing_end`.
        ended: Done when everything is read, or the pipe was closed.
    """

    CHUNK_BYTES = 1 << 18

    def __init__(self, limit_bytes: int) -> None:
        self.captured = HeadTail(limit_bytes)
        self._read_fd, self.write_fd = os.pipe()
        os.set_blocking(self._read_fd, False)
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(self._read_fd, self._read)

    def close_writing_end(self) -> None:
        """Close the writing end in this process, after the program has inherited it."""
        if self.write_fd >= 0:
            os.close(self.write_fd)
            self.write_fd = -1

    def drain(self) -> None:
        """Read everything that is in the pipe, but at most `_MAX_DRAINED_CHUNKS` chunks if a program keeps writing."""
        for _ in range(_MAX_DRAINED_CHUNKS):
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
            self.captured.add(data)
        else:
            self.close()
