"""Prometheus metrics of the server. Labels are route templates or have few fixed values: no tenant and no id."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from bough.events.model import Usage

_BUCKETS = (0.005, 0.025, 0.1, 0.5, 2.5, 10, 60)
_LAG_BUCKETS = (1, 16, 256, 4096, 65536)


class Metrics:
    """The metrics of one server process, in a separate registry."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        options: dict[str, Any] = {"registry": self._registry}
        self._requests = Counter(
            "bough_http_requests_total", "Requests answered.", ["route", "method", "status"], **options
        )
        self._seconds = Histogram("bough_http_seconds", "Time of an answer.", ["route"], buckets=_BUCKETS, **options)
        self.streams = Gauge("bough_streams", "Open streams.", ["kind"], **options)
        self.deltas_dropped = Counter("bough_deltas_dropped_total", "Pieces that slow readers missed.", **options)
        self.runs = Gauge("bough_runs", "Runs in this process.", ["state"], **options)
        self.run_seconds = Histogram("bough_run_seconds", "Time of a run.", buckets=_BUCKETS, **options)
        self.steps = Counter("bough_steps_total", "Steps of runs in this process.", **options)
        self.tokens = Counter("bough_tokens_total", "Tokens of runs in this process.", ["direction"], **options)
        self.cost_usd = Counter("bough_cost_usd_total", "Cost of runs in this process.", **options)
        self.limited = Counter("bough_limited_total", "Requests over a limit.", ["limit"], **options)
        self.auth_failures = Counter("bough_auth_failures_total", "Keys that were refused.", **options)
        self.deliveries = Counter("bough_webhook_deliveries_total", "Webhook deliveries.", ["state"], **options)
        self.stream_lag = Histogram(
            "bough_stream_lag_events",
            "How many events a reader was behind when it read the store.",
            buckets=_LAG_BUCKETS,
            **options,
        )
        self.appends = Counter(
            "bough_appends_total", "Events appended by requests and by runs in this process.", **options
        )
        self.append_seconds = Histogram(
            "bough_append_seconds", "Time of an append of a request.", buckets=_BUCKETS, **options
        )
        self.cache_bytes = Gauge("bough_cache_bytes", "Bytes of folded conversations in memory.", **options)
        self.cache_hits = Counter("bough_cache_hits_total", "Conversations that were in memory.", **options)
        self.cache_misses = Counter("bough_cache_misses_total", "Conversations that had to be folded.", **options)
        self.store_up = Gauge("bough_store_up", "Whether the store answered the latest check.", **options)

    def count_request(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count one finished request."""
        self._requests.labels(route, method, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def count_usage(self, usage: Usage) -> None:
        """Count the usage of one request to a model."""
        self.tokens.labels("input").inc(usage.input_tokens)
        self.tokens.labels("output").inc(usage.output_tokens)
        self.cost_usd.inc(usage.cost_usd or 0.0)

    def render(self) -> bytes:
        """Return the metrics as Prometheus text."""
        return generate_latest(self._registry)
