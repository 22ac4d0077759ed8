"""Renew leases in a thread of the store, so that a busy event loop never loses one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from time import monotonic

from bough.errors import BoughError, Conflict, NotFound
from bough.events.record import Lease

Renew = Callable[[Lease, float], object]
"""Extends a lease by a number of seconds. Blocks."""

_RETRY_SECONDS = 1.0


class RenewedLease:
    """A lease that is renewed until `stop`.

    It is lost if a renewal is refused, or if none succeeds for as long as the lease lasts. Then `lost` is called once,
    in the event loop of the holder.
    """

    def __init__(self, lease: Lease, ttl_seconds: float, lost: Callable[[], object]) -> None:
        self.lease = lease
        self.ttl_seconds = ttl_seconds
        self.next_seconds = monotonic() + ttl_seconds / 3
        self._expires_seconds = monotonic() + ttl_seconds
        self._on_lost = lost
        self._loop = asyncio.get_running_loop()
        self._has_ended = False
        # In the holder's loop, because the renewal thread may hang in a call to the store.
        self._timer = self._loop.call_later(ttl_seconds, self._check_expiry)

    @property
    def has_ended(self) -> bool:
        """Whether the renewal was stopped or the lease was lost."""
        return self._has_ended

    def stop(self) -> None:
        """Stop renewing; `lost` is not called afterwards. Idempotent. Only call it in the holder's loop."""
        self._has_ended = True
        self._timer.cancel()

    def extend(self, requested_at: float) -> None:
        """Record a successful renewal. Called by the renewal thread.

        Args:
            requested_at: When the renewal was requested, by the monotonic clock. The store counts from a later time, so
                the lease lasts at least `ttl_seconds` from here.
        """
        self._expires_seconds = requested_at + self.ttl_seconds
        self.next_seconds = requested_at + self.ttl_seconds / 3

    def lose(self) -> None:
        """Report a refused renewal. Called by the renewal thread."""
        try:
            self._loop.call_soon_threadsafe(self._lose)
        except RuntimeError:
            if not self._loop.is_closed():
                raise  # a closed loop runs nothing that would have to stop

    def _check_expiry(self) -> None:
        """Report the lease as lost if it has expired, even if the renewal thread is blocked."""
        remaining = self._expires_seconds - monotonic()
        if remaining <= 0:
            self._lose()
        elif not self._has_ended:
            self._timer = self._loop.call_later(remaining, self._check_expiry)

    def _lose(self) -> None:
        if not self._has_ended:
            self.stop()
            self._on_lost()


class LeaseRenewer:
    """The thread that renews all leases of a store, each three times in its period. The first lease starts it.

    Args:
        renew: Extends a lease; called in the thread, one at a time.
        close: Called at the end of the thread.
    """

    def __init__(self, renew: Renew, close: Callable[[], object] = lambda: None) -> None:
        self._renew = renew
        self._close = close
        self._condition = threading.Condition()
        self._leases: list[RenewedLease] = []
        self._thread: threading.Thread | None = None
        self._stopped = False

    def keep(self, lease: Lease, ttl_seconds: float, lost: Callable[[], object]) -> RenewedLease:
        """Start renewing a lease."""
        renewed = RenewedLease(lease, ttl_seconds, lost)
        with self._condition:
            self._leases.append(renewed)
            if self._thread is None and not self._stopped:
                self._thread = threading.Thread(target=self._run, name="bough-leases", daemon=True)
                self._thread.start()
            self._condition.notify()
        return renewed

    def stop(self) -> None:
        """End the thread. Idempotent; callable from any thread."""
        with self._condition:
            self._stopped = True
            self._condition.notify()

    def join(self) -> None:
        """Wait for the thread to end. Blocks."""
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            while (renewed := self._wait()) is not None:
                self._renew_one(renewed)
        finally:
            self._close()

    def _wait(self) -> RenewedLease | None:
        """Wait until a lease is due and return it; None once stopped."""
        with self._condition:
            while not self._stopped:
                self._leases = [renewed for renewed in self._leases if not renewed.has_ended]
                next_due = min(self._leases, key=lambda renewed: renewed.next_seconds, default=None)
                remaining = None if next_due is None else next_due.next_seconds - monotonic()
                if next_due is not None and remaining is not None and remaining <= 0:
                    return next_due
                self._condition.wait(remaining)  # a new lease notifies, since it may be due earlier
        return None

    def _renew_one(self, renewed: RenewedLease) -> None:
        requested_at = monotonic()
        try:
            self._renew(renewed.lease, renewed.ttl_seconds)
        except (Conflict, NotFound):
            renewed.lose()
            # Do not renew again until the holder's loop has stopped it.
            renewed.next_seconds = requested_at + renewed.ttl_seconds
        except BoughError:  # unavailable: retry, since the store may be back before the lease expires
            renewed.next_seconds = monotonic() + min(_RETRY_SECONDS, renewed.ttl_seconds / 3)
        else:
            renewed.extend(requested_at)
