"""Leases that are kept: renewed in a thread of the store, whatever the event loop is doing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from time import monotonic

from bough.errors import BoughError, Conflict, NotFound
from bough.events.record import Lease

Renew = Callable[[Lease, float], object]
"""Extend a lease by so many seconds. Blocks."""

_RETRY_SECONDS = 1.0


class Keeping:
    """A lease that is being kept, until `stop`.

    It is lost when a renewal is refused, or when none was answered for as long as the lease lasts. Then `lost` is
    called once, in the event loop that asked.
    """

    def __init__(self, lease: Lease, ttl_seconds: float, lost: Callable[[], object]) -> None:
        self.lease = lease
        self.ttl_seconds = ttl_seconds
        self.next_seconds = monotonic() + ttl_seconds / 3
        self._ends_seconds = monotonic() + ttl_seconds
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._is_over = False
        self._timer = self._loop.call_later(ttl_seconds, self._look)

    @property
    def is_over(self) -> bool:
        """Whether it was stopped or lost."""
        return self._is_over

    def stop(self) -> None:
        """Renew no more; `lost` is not called any more. In the holder's loop; more than once is nothing."""
        self._is_over = True
        self._timer.cancel()

    def extend(self, asked_seconds: float) -> None:
        """A renewal that was sent at this time was answered. Called by the thread."""
        self._ends_seconds = asked_seconds + self.ttl_seconds
        self.next_seconds = asked_seconds + self.ttl_seconds / 3

    def lose(self) -> None:
        """A renewal was refused. Called by the thread."""
        try:
            self._loop.call_soon_threadsafe(self._lose)
        except RuntimeError:
            if not self._loop.is_closed():
                raise  # in a closed loop nobody runs anything any more

    def _look(self) -> None:
        """Say that the lease is lost if its time is over, even where the thread itself waits for an answer."""
        left = self._ends_seconds - monotonic()
        if left <= 0:
            self._lose()
        elif not self._is_over:
            self._timer = self._loop.call_later(left, self._look)

    def _lose(self) -> None:
        if not self._is_over:
            self.stop()
            self._lost()


class Keeper:
    """The thread that renews every kept lease of a store three times in its span. It starts with the first one.

    Args:
        renew: How the store extends a lease; called in the thread, one at a time.
        close: Called in the thread at its end.
    """

    def __init__(self, renew: Renew, close: Callable[[], object] = lambda: None) -> None:
        self._renew = renew
        self._close = close
        self._condition = threading.Condition()
        self._keepings: list[Keeping] = []
        self._thread: threading.Thread | None = None
        self._stopped = False

    def keep(self, lease: Lease, ttl_seconds: float, lost: Callable[[], object]) -> Keeping:
        """Keep a lease from now on."""
        keeping = Keeping(lease, ttl_seconds, lost)
        with self._condition:
            self._keepings.append(keeping)
            if self._thread is None and not self._stopped:
                self._thread = threading.Thread(target=self._run, name="bough-leases", daemon=True)
                self._thread.start()
            self._condition.notify()
        return keeping

    def stop(self) -> None:
        """End the thread. Callable from any thread, more than once."""
        with self._condition:
            self._stopped = True
            self._condition.notify()

    def join(self) -> None:
        """Wait for the thread's end. Blocks."""
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            while (keeping := self._wait()) is not None:
                self._renew_one(keeping)
        finally:
            self._close()

    def _wait(self) -> Keeping | None:
        """Return the next lease to renew, when its time has come; None at the end."""
        with self._condition:
            while not self._stopped:
                self._keepings = [keeping for keeping in self._keepings if not keeping.is_over]
                first = min(self._keepings, key=lambda keeping: keeping.next_seconds, default=None)
                left = None if first is None else first.next_seconds - monotonic()
                if first is not None and left is not None and left <= 0:
                    return first
                self._condition.wait(left)
        return None

    def _renew_one(self, keeping: Keeping) -> None:
        asked = monotonic()
        try:
            self._renew(keeping.lease, keeping.ttl_seconds)
        except (Conflict, NotFound):
            keeping.lose()
            keeping.next_seconds = asked + keeping.ttl_seconds
        except BoughError:  # the store may be back before the lease ends
            keeping.next_seconds = monotonic() + min(_RETRY_SECONDS, keeping.ttl_seconds / 3)
        else:
            keeping.extend(asked)
