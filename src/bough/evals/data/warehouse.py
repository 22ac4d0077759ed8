"""The warehouse protocol that the data tools use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from bough.evals.data.catalog import WarehouseCatalog
from bough.evals.data.sql import WriteMode
from bough.types import JsonObject


class Warehouse(Protocol):
    """A warehouse with its projects. All methods block, raise `QueryError`, and are called one after another."""

    write_mode: WriteMode

    def catalog(self) -> WarehouseCatalog:
        """Return the projects, datasets and tables a query can use."""
        ...

    def execute(self, project: str, query: str, *, dry_run: bool = False) -> JsonObject:
        """Run one statement and return the answer of `execute_sql`."""
        ...

    def forecast(
        self, project: str, history: str, time: str, value: str, horizon: int, ids: Sequence[str]
    ) -> JsonObject:
        """Return the answer of `forecast`."""
        ...

    def detect_anomalies(
        self,
        project: str,
        data: tuple[str, str | None],
        time: str,
        value: str,
        ids: Sequence[str],
        *,
        horizon: int,
        threshold: float,
    ) -> JsonObject:
        """Return the answer of `detect_anomalies`; `data` is (history, target)."""
        ...

    def analyze_contribution(
        self,
        project: str,
        data: str,
        metric: str,
        dimensions: Sequence[str],
        is_test: str,
        *,
        top: int,
        pruning: str,
    ) -> JsonObject:
        """Return the answer of `analyze_contribution`."""
        ...

    def cluster_data(
        self, project: str, data: str, features: Sequence[str], clusters: int, ids: Sequence[str]
    ) -> JsonObject:
        """Return the answer of `cluster_data`."""
        ...

    def close(self) -> None:
        """Release the process or the client."""
        ...
