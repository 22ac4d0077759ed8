"""Limits that are counted in this process: requests per second and open streams."""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager
from dataclasses import dataclass

from bough.errors import LimitExceeded
from bough.server.auth.caller import Caller
from bough.server.bounds.tenants import LimitsByTenant
from bough.server.metrics import Metrics

_BURST = 2
_BUCKETS = 10_000


@dataclass
class _Bucket:
    tokens: float
    at: float


class RequestLimits:
    """Counts the requests and streams of callers. Not shared between servers."""

    def __init__(
        self, settings: LimitsByTenant, metrics: Metrics, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._settings = settings
        self._metrics = metrics
        self._monotonic = monotonic
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()
        self._streams: Counter[str] = Counter()

    def count_request(self, caller: Caller) -> None:
        """Count one request of a caller.

        Raises:
            LimitExceeded: The key or the tenant sends too many requests; `retry_after_seconds` is the time to wait.
        """
        limits = self._settings.limits_for(caller.tenant)
        self._take(f"tenant {caller.tenant}", limits.requests_per_second)
        if caller.key is not None:
            self._take(f"key {caller.key}", min(limits.key_requests_per_second, limits.requests_per_second))

    @contextmanager
    def stream(self, caller: Caller) -> Generator[None]:
        """Count one open stream or socket while the block runs.

        Raises:
            LimitExceeded: The key or the tenant has as many as allowed.
        """
        names = self.require_stream(caller)
        self._streams.update(names)
        try:
            yield
        finally:
            self._streams.subtract(names)

    def require_stream(self, caller: Caller) -> Collection[str]:
        """Check that one more stream may be opened, before its answer begins; return the names it is counted under.

        Raises:
            LimitExceeded: The key or the tenant has as many as allowed.
        """
        limits = self._settings.limits_for(caller.tenant)
        bounds = {f"tenant {caller.tenant}": limits.streams}
        if caller.key is not None:
            bounds[f"key {caller.key}"] = limits.key_streams
        for name, bound in bounds.items():
            if self._streams[name] >= bound:
                self._metrics.limited.labels("streams").inc()
                raise LimitExceeded(f"{bound} streams are open", hint="close one", details={"limit": "streams"})
        return bounds.keys()

    def _take(self, name: str, rate: float) -> None:
        now = self._monotonic()
        bucket = self._buckets.pop(name, None) or _Bucket(tokens=rate * _BURST, at=now)
        self._buckets[name] = bucket
        if len(self._buckets) > _BUCKETS:
            self._buckets.popitem(last=False)
        bucket.tokens = min(rate * _BURST, bucket.tokens + (now - bucket.at) * rate)
        bucket.at = now
        if bucket.tokens < 1:
            self._metrics.limited.labels("requests").inc()
            wait = (1 - bucket.tokens) / rate
            raise LimitExceeded(
                f"more than {rate:g} requests a second",
                hint="wait as long as Retry-After says",
                details={"limit": "requests_per_second", "retry_after_seconds": round(wait, 3)},
            )
        bucket.tokens -= 1
