"""The warehouse protocol that the data tools use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from bough.evals.data.catalog import WarehouseCatalog
from bough.evals.data.sql import WriteMode
from bough.types import JsonObject


class Warehouse(Protocol):
    """A warehouse with its projects. All methods block, may raise `QueryError`, and are called one after another."""

    write_mode: WriteMode

    def catalog(self) -> WarehouseCatalog:
        """Return the projects, datasets and tables a query can use."""
        ...

    def execute(self, project: str, query: str, *, dry_run: bool = False) -> JsonObject:
        """Run one statement and return the result of the tool `execute_sql`."""
        ...

    def forecast(
        self, project: str, history: str, time_column: str, value_column: str, horizon: int, id_columns: Sequence[str]
    ) -> JsonObject:
        """Return the result of the tool `forecast`."""
        ...

    def detect_anomalies(
        self,
        project: str,
        data: tuple[str, str | None],
        time_column: str,
        value_column: str,
        id_columns: Sequence[str],
        *,
        horizon: int,
        threshold: float,
    ) -> JsonObject:
        """Return the result of the tool `detect_anomalies`; `data` is (history, target)."""
        ...

    def analyze_contribution(
        self,
        project: str,
        data: str,
        metric: str,
        dimensions: Sequence[str],
        is_test: str,
        *,
        max_insights: int,
        pruning: str,
    ) -> JsonObject:
        """Return the result of the tool `analyze_contribution`."""
        ...

    def cluster_data(
        self, project: str, data: str, features: Sequence[str], clusters: int, id_columns: Sequence[str]
    ) -> JsonObject:
        """Return the result of the tool `cluster_data`."""
        ...

    def close(self) -> None:
        """Release the process or the client."""
        ...
