"""The nine tools of a data warehouse; an invalid name or query gives a result with an error code, not an exception.

Source: ADK's BigQuery tools.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, get_args

import anyio

from bough.errors import InvalidInput
from bough.evals.data.analysis import LocalWarehouse
from bough.evals.data.catalog import WarehouseTable
from bough.evals.data.duck import DuckProcess
from bough.evals.data.fault import QueryError
from bough.evals.data.sql import WriteMode
from bough.evals.data.warehouse import Warehouse
from bough.types import Json, JsonObject

if TYPE_CHECKING:
    from pydantic_ai.toolsets import FunctionToolset

MAX_LISTED = 1000
"""Maximum number of datasets or tables in a result."""
_NAME = re.compile(r"[A-Za-z_][\w-]*")


class DataTools:
    """Tools over a warehouse: inspect its schema, query it, and analyse query results.

    Calls run one after another. Close the tools with `aclose`.

    Attributes:
        write_mode: What SQL may change: nothing, temporary tables, or tables of a copy.
    """

    def __init__(self, warehouse: Warehouse, *, copy: TemporaryDirectory[str] | None = None) -> None:
        """Create tools for a warehouse; usually called by `duckdb` or `bigquery`.

        Args:
            copy: Folder with the warehouse's writable copies, removed by `aclose`.
        """
        self.write_mode: WriteMode = warehouse.write_mode
        self._warehouse = warehouse
        self._copy = copy
        self._lock = anyio.Lock()

    @classmethod
    def duckdb(
        cls,
        projects: Mapping[str, Path],
        *,
        write_mode: WriteMode = "blocked",
        max_rows: int = 50,
        max_bytes: int = 262_144,
        timeout_seconds: float = 30.0,
        memory_bytes: int = 512 << 20,
    ) -> DataTools:
        """Return tools over read-only DuckDB files; with write mode `allowed`, over writable copies of them.

        Args:
            projects: DuckDB files by project name.
            max_rows: Maximum number of rows of a result.
            max_bytes: Maximum size of a result's rows in bytes.
            timeout_seconds: A longer query is cancelled.

        Raises:
            InvalidInput: A name or a limit is invalid, or a file is missing.
        """
        _check_limits(write_mode, max_rows=max_rows, max_bytes=max_bytes, timeout_seconds=timeout_seconds)
        if memory_bytes < 64 << 20:
            raise InvalidInput(f"memory_bytes is too small: {memory_bytes}", hint="give at least 64 MiB")
        for name, file in projects.items():
            if not _NAME.fullmatch(name):
                raise InvalidInput(f"{name!r} is not a project name", hint="use letters, digits, _ and -")
            if not file.is_file():
                raise InvalidInput(f"there is no file {file}", hint=f"give the DuckDB file of project {name}")
        copy: TemporaryDirectory[str] | None = None
        if write_mode == "allowed":
            # Only copies are opened writable: an agent must never change the caller's files.
            copy = TemporaryDirectory(prefix="bough-data-copy-")
            projects = {name: _copy_into(Path(copy.name), name, file) for name, file in projects.items()}
        process = DuckProcess(
            projects, memory_bytes=memory_bytes, timeout_seconds=timeout_seconds, writable=write_mode == "allowed"
        )
        return cls(LocalWarehouse(process, write_mode, max_rows=max_rows, max_bytes=max_bytes), copy=copy)

    @classmethod
    def bigquery(
        cls,
        project: str,
        credentials: Any = None,
        *,
        write_mode: WriteMode = "blocked",
        maximum_bytes_billed: int = 1 << 30,
        max_rows: int = 50,
        max_bytes: int = 262_144,
        timeout_seconds: float = 30.0,
    ) -> DataTools:
        """Return tools over BigQuery. Queries are billed to `project`. Blocks while it connects.

        Args:
            credentials: google-auth credentials; None uses the default ones of the environment.
            write_mode: `protected` also allows temporary tables and models; `allowed` also changes the project itself.
            maximum_bytes_billed: A query that would read more is refused.

        Raises:
            InvalidInput: A limit is not positive.
            Unavailable: The extra is not installed, or there are no credentials.
        """
        limits: dict[str, Any] = {"max_rows": max_rows, "max_bytes": max_bytes, "timeout_seconds": timeout_seconds}
        _check_limits(write_mode, maximum_bytes_billed=maximum_bytes_billed, **limits)
        from bough.evals.data.bigquery import BigQueryWarehouse, connect_bigquery

        return cls(
            BigQueryWarehouse(
                connect_bigquery(project, credentials),
                project,
                write_mode=write_mode,
                maximum_bytes_billed=maximum_bytes_billed,
                **limits,
            )
        )

    def toolset(self) -> FunctionToolset:
        """Return the tools as a toolset of PydanticAI."""
        from pydantic_ai.toolsets import FunctionToolset

        return FunctionToolset(list(self.functions()))

    def functions(self) -> Sequence[Callable[..., Any]]:
        """Return the tools as functions."""
        return (
            self.list_dataset_ids,
            self.list_table_ids,
            self.get_dataset_info,
            self.get_table_info,
            self.execute_sql,
            self.forecast,
            self.detect_anomalies,
            self.analyze_contribution,
            self.cluster_data,
        )

    async def aclose(self) -> None:
        """Close the warehouse and remove its copies."""
        async with self._lock:
            # Closed before the copy is removed, because DuckDB has its files open.
            await anyio.to_thread.run_sync(self._warehouse.close)
            if self._copy is not None:
                self._copy.cleanup()

    async def list_dataset_ids(self, project_id: str) -> Json:
        """List the datasets of a project."""
        return await self._run_tool(
            lambda: sorted(self._warehouse.catalog().datasets(_check_name(project_id)))[:MAX_LISTED], project_id
        )

    async def list_table_ids(self, project_id: str, dataset_id: str) -> Json:
        """List the tables of a dataset."""
        return await self._run_tool(
            lambda: sorted(self._warehouse.catalog().dataset(project_id, dataset_id).tables)[:MAX_LISTED],
            project_id,
            dataset_id,
        )

    async def get_dataset_info(self, project_id: str, dataset_id: str) -> Json:
        """Describe a dataset; `left_out` names tables that cannot be used, with the reason."""

        def describe() -> Json:
            dataset = self._warehouse.catalog().dataset(project_id, dataset_id)
            return {
                "id": f"{project_id}:{dataset_id}",
                "datasetReference": {"projectId": project_id, "datasetId": dataset_id},
                "description": dataset.description,
                "location": dataset.location,
                "tables": len(dataset.tables),
                **({"left_out": dict(dataset.left_out)} if dataset.left_out else {}),
            }

        return await self._run_tool(describe, project_id, dataset_id)

    async def get_table_info(self, project_id: str, dataset_id: str, table_id: str) -> Json:
        """Describe a table: its columns with their types, and how many rows it has."""
        return await self._run_tool(
            lambda: _describe_table(
                project_id, dataset_id, self._warehouse.catalog().table(project_id, dataset_id, table_id)
            ),
            project_id,
            dataset_id,
            table_id,
        )

    async def execute_sql(self, project_id: str, query: str, dry_run: bool = False) -> Json:
        """Run one SQL statement in BigQuery's dialect.

        Args:
            project_id: The project of tables that are written without a project.
            query: The statement; tables are written dataset.table or project.dataset.table.
            dry_run: Only check the statement, and return what it would read and return.
        """
        return await self._run_tool(lambda: self._warehouse.execute(project_id, query, dry_run=dry_run), project_id)

    async def forecast(
        self,
        project_id: str,
        history_data: str,
        timestamp_col: str,
        data_col: str,
        horizon: int = 10,
        id_cols: list[str] | None = None,
    ) -> Json:
        """Forecast a time series.

        Args:
            project_id: The project.
            history_data: A table (dataset.table) or a query.
            timestamp_col: The column with times.
            data_col: The column with values.
            horizon: Number of time steps to forecast.
            id_cols: Columns that distinguish several series.
        """
        return await self._run_tool(
            lambda: self._warehouse.forecast(project_id, history_data, timestamp_col, data_col, horizon, id_cols or []),
            project_id,
        )

    async def detect_anomalies(
        self,
        project_id: str,
        history_data: str,
        times_series_timestamp_col: str,
        times_series_data_col: str,
        horizon: int = 1000,
        target_data: str | None = None,
        times_series_id_cols: list[str] | None = None,
        anomaly_prob_threshold: float = 0.95,
    ) -> Json:
        """Find values of a time series that differ from the others, or from its history.

        Args:
            project_id: The project.
            history_data: A table (dataset.table) or a query.
            times_series_timestamp_col: The column with times.
            times_series_data_col: The column with values.
            horizon: Maximum number of values of target_data to check.
            target_data: Values to compare with the history, as a table or query; by default the history itself.
            times_series_id_cols: Columns that distinguish several series.
            anomaly_prob_threshold: The probability above which a value is an anomaly.
        """
        return await self._run_tool(
            lambda: self._warehouse.detect_anomalies(
                project_id,
                (history_data, target_data),
                times_series_timestamp_col,
                times_series_data_col,
                times_series_id_cols or [],
                horizon=horizon,
                threshold=anomaly_prob_threshold,
            ),
            project_id,
        )

    async def analyze_contribution(
        self,
        project_id: str,
        input_data: str,
        contribution_metric: str,
        dimension_id_cols: list[str],
        is_test_col: str,
        top_k_insights: int = 30,
        pruning_method: str = "PRUNE_REDUNDANT_INSIGHTS",
    ) -> Json:
        """Find the segments that explain a difference between test and control rows.

        Args:
            project_id: The project.
            input_data: A table (dataset.table) or a query.
            contribution_metric: SUM(a), SUM(a)/SUM(b) or SUM(a)/COUNT(DISTINCT c).
            dimension_id_cols: Columns that define the segments, at most five.
            is_test_col: A boolean column: true for the rows of the test.
            top_k_insights: Maximum number of segments to return.
            pruning_method: PRUNE_REDUNDANT_INSIGHTS or NO_PRUNING.
        """
        return await self._run_tool(
            lambda: self._warehouse.analyze_contribution(
                project_id,
                input_data,
                contribution_metric,
                dimension_id_cols,
                is_test_col,
                max_insights=top_k_insights,
                pruning=pruning_method,
            ),
            project_id,
        )

    async def cluster_data(
        self,
        project_id: str,
        input_data: str,
        feature_cols: list[str],
        num_clusters: int = 3,
        id_cols: list[str] | None = None,
    ) -> Json:
        """Group similar rows.

        Args:
            project_id: The project.
            input_data: A table (dataset.table) or a query.
            feature_cols: Numeric columns by which rows are compared.
            num_clusters: Number of groups, 2 to 20.
            id_cols: Columns to return with each row.
        """
        return await self._run_tool(
            lambda: self._warehouse.cluster_data(project_id, input_data, feature_cols, num_clusters, id_cols or []),
            project_id,
        )

    async def _run_tool(self, work: Callable[[], Json], *names: str) -> Json:
        """Check the names, run `work` in a thread, and return its result; a `QueryError` is returned as a result."""

        def run() -> Json:
            try:
                for name in names:
                    _check_name(name)
                return work()
            except QueryError as error:
                return error.as_result()

        async with self._lock:  # a warehouse handles one request at a time
            return await anyio.to_thread.run_sync(run)


def _check_limits(write_mode: str, **limits: float) -> None:
    if write_mode not in get_args(WriteMode):
        raise InvalidInput(f"invalid write mode {write_mode!r}", hint=f"one of: {', '.join(get_args(WriteMode))}")
    for name, limit in limits.items():
        if limit <= 0:
            raise InvalidInput(f"{name} is {limit}", hint="give a positive number")


def _check_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise QueryError("INVALID_ARGUMENT", f"{name[:60]!r} is not a name: letters, digits, _ and - only")
    return name


def _copy_into(folder: Path, name: str, file: Path) -> Path:
    """Copy the file of a project into a folder and return the copy."""
    target = folder / f"{name}.duckdb"
    shutil.copyfile(file, target)
    return target


def _describe_table(project: str, dataset: str, table: WarehouseTable) -> JsonObject:
    """Return the description of a table in the form of BigQuery's API."""
    return {
        "id": f"{project}:{dataset}.{table.name}",
        "tableReference": {"projectId": project, "datasetId": dataset, "tableId": table.name},
        "description": table.description,
        "type": table.kind,
        "numRows": str(table.rows),
        "schema": {
            "fields": [
                {"name": column.name, "type": column.type, "mode": column.mode, "description": column.description}
                for column in table.columns
            ]
        },
    }
