"""Reading what a program writes, with bounded memory: the head and the tail are kept, the middle is counted."""

from __future__ import annotations

import asyncio
import os
import select

_DRAINED_CHUNKS = 16


class HeadTail:
    """The first and the last bytes of a stream; at most `limit_bytes` of them, plus one line that says what is missing.

    Args:
        limit_bytes: How much is kept, half for each end; memory stays within twice of it.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.total_bytes = 0
        self._head = bytearray()
        self._tail = bytearray()
        self._head_limit = limit_bytes - limit_bytes // 2
        self._tail_limit = limit_bytes // 2

    def add(self, data: bytes) -> None:
        """Take in the next bytes; amortised O(len(data))."""
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
        """Return what is kept, with a line in the middle that counts what is not."""
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
        """Close this process's own writing end, once the program has it."""
        if self.write_fd >= 0:
            os.close(self.write_fd)
            self.write_fd = -1

    def drain(self) -> None:
        """Take in what was written already, but no more than `_DRAINED_CHUNKS` chunks of what is written meanwhile."""
        for _ in range(_DRAINED_CHUNKS):
            if self._read_fd < 0 or not select.select([self._read_fd], [], [], 0)[0]:
                return
            self._read()

    def close(self) -> None:
        """Stop reading; twice is fine."""
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
