"""A relay of TCP connections to a port of this machine, which can cut all of them at once."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Relay:
    """Forwards connections until it is closed."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, name="relay")]
        self._threads[0].start()

    def cut(self) -> int:
        """End every connection, and return how many there were."""
        cut, self._open = self._open, []
        for each in cut:
            _end(each)
        return len(cut)

    def close(self) -> None:
        """Accept no more, end every connection, and wait for all of that."""
        _end(self._listening)
        self._threads[0].join(60)
        self._listening.close()
        self.cut()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()

    def _accept(self) -> None:
        while True:
            try:
                ours, _ = self._listening.accept()
            except OSError:
                return
            self._open.append(ours)
            thread = threading.Thread(target=self._forward_both, args=(ours,))
            self._threads.append(thread)
            thread.start()

    def _forward_both(self, ours: socket.socket) -> None:
        with ours, socket.create_connection(("127.0.0.1", self._target)) as theirs:
            back = threading.Thread(target=_forward, args=(theirs, ours))
            back.start()
            _forward(ours, theirs)
            back.join()


def _forward(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    _end(source)
    _end(target)


def _end(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


@contextmanager
def relayed(port: int) -> Iterator[Relay]:
    """Give a relay to the port while the block runs."""
    relay = Relay(port)
    try:
        yield relay
    finally:
        relay.close()
