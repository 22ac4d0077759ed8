"""Limits counted in this process: requests per second and open streams."""

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

_BURST_FACTOR = 2
_MAX_BUCKETS = 10_000


@dataclass
class _Bucket:
    """A token bucket, and when it was last filled."""

    tokens: float
    filled_at: float


class RequestLimits:
    """Limits the requests and streams of callers. Other servers count separately."""

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
        self._take_token(f"tenant {caller.tenant}", limits.requests_per_second)
        if caller.key is not None:
            self._take_token(f"key {caller.key}", min(limits.key_requests_per_second, limits.requests_per_second))

    @contextmanager
    def stream(self, caller: Caller) -> Generator[None]:
        """Count one open stream or socket while the block runs.

        Raises:
            LimitExceeded: The key or the tenant has the maximum number of streams.
        """
        counters = self.require_stream(caller)
        self._streams.update(counters)
        try:
            yield
        finally:
            self._streams.subtract(counters)

    def require_stream(self, caller: Caller) -> Collection[str]:
        """Check that the caller may open one more stream, and return the counters that `stream` increments for it.

        Raises:
            LimitExceeded: The key or the tenant has the maximum number of streams.
        """
        limits = self._settings.limits_for(caller.tenant)
        limit_by_counter = {f"tenant {caller.tenant}": limits.streams}
        if caller.key is not None:
            limit_by_counter[f"key {caller.key}"] = limits.key_streams
        for counter, limit in limit_by_counter.items():
            if self._streams[counter] >= limit:
                self._metrics.limited.labels("streams").inc()
                raise LimitExceeded(f"{limit} streams are open", hint="close one of them", details={"limit": "streams"})
        return limit_by_counter.keys()

    def _take_token(self, name: str, rate: float) -> None:
        """Take a token from a bucket that is filled with `rate` tokens a second, or raise `LimitExceeded`."""
        now = self._monotonic()
        bucket = self._buckets.pop(name, None) or _Bucket(tokens=rate * _BURST_FACTOR, filled_at=now)
        self._buckets[name] = bucket
        if len(self._buckets) > _MAX_BUCKETS:
            self._buckets.popitem(last=False)
        bucket.tokens = min(rate * _BURST_FACTOR, bucket.tokens + (now - bucket.filled_at) * rate)
        bucket.filled_at = now
        if bucket.tokens < 1:
            self._metrics.limited.labels("requests").inc()
            wait_seconds = (1 - bucket.tokens) / rate
            raise LimitExceeded(
                f"more than {rate:g} requests a second",
                hint="wait as long as Retry-After says",
                details={"limit": "requests_per_second", "retry_after_seconds": round(wait_seconds, 3)},
            )
        bucket.tokens -= 1
