"""BigQuery as a warehouse: a query runs if it passes the checks as for DuckDB and BigQuery's dry run agrees.

BigQuery computes forecasts and models. Three analyses create a temporary model, so they need write mode `protected`
or `allowed`.
Source: ADK's BigQuery tools.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# ruff: noqa: S608 - sources are checked, and names are quoted
from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, Final, TypeVar

import sqlglot
from sqlglot import exp

from bough.errors import Unavailable
from bough.evals.data.analysis import check_contribution, check_features, check_horizon, check_probability
from bough.evals.data.catalog import WarehouseCatalog, WarehouseColumn, WarehouseDataset, WarehouseTable
from bough.evals.data.fault import QueryError, suggest_similar
from bough.evals.data.session import read_source
from bough.evals.data.sql import CheckedSql, WriteMode, check_sql, is_temporary
from bough.types import Json, JsonObject

T = TypeVar("T")

MAX_LISTED: Final = 1000
"""Maximum number of datasets or tables that are listed."""
FORECAST_MODEL: Final = "TimesFM 2.0"
CONFIDENCE: Final = 0.95

_STATEMENTS: Mapping[str, frozenset[str]] = {
    "SELECT": frozenset({"SELECT"}),
    "INSERT": frozenset({"INSERT"}),
    "UPDATE": frozenset({"UPDATE"}),
    "DELETE": frozenset({"DELETE", "TRUNCATE_TABLE"}),
    "MERGE_INTO": frozenset({"MERGE"}),
    "DROP": frozenset({"DROP_TABLE", "DROP_VIEW"}),
    "CREATE": frozenset({"CREATE_TABLE", "CREATE_TABLE_AS_SELECT", "CREATE_VIEW"}),
}
"""BigQuery's statement types for each checked type; any other means that BigQuery parsed the statement differently."""


def connect_bigquery(project: str, credentials: Any = None) -> Any:
    """Return a BigQuery client, created by ibis. Blocks.

    Args:
        credentials: google-auth credentials; None uses the default ones of the environment.

    Raises:
        Unavailable: The extra is not installed, or there are no credentials.
    """
    try:
        import ibis

        backend = ibis.bigquery.connect(project_id=project, credentials=credentials)
    except ImportError as error:
        raise Unavailable(
            f"BigQuery needs the package {error.name or 'google-cloud-bigquery'}", hint="pip install 'bough[bigquery]'"
        ) from error
    except Exception as error:  # google-auth may be missing, so its error classes cannot be imported here
        if not type(error).__module__.startswith(("google.", "pydata_google_auth")):
            raise
        raise Unavailable(
            f"BigQuery cannot be opened: {error}", hint="gcloud auth application-default login, or give credentials"
        ) from error
    return backend.client


class BigQueryWarehouse:
    """BigQuery through its client.

    Attributes:
        write_mode: `blocked` only reads; `protected` also creates temporary tables and models in a session; `allowed`
            also writes to the tables of the project itself, not to a copy.
    """

    def __init__(
        self,
        client: Any,
        project: str,
        *,
        write_mode: WriteMode = "blocked",
        maximum_bytes_billed: int = 1 << 30,
        max_rows: int = 50,
        max_bytes: int = 262_144,
        timeout_seconds: float = 30.0,
    ) -> None:
        """Describe the warehouse; sends no request.

        Args:
            client: `google.cloud.bigquery.Client`; queries are billed to its project.
            maximum_bytes_billed: A query that would read more is refused.
        """
        self.write_mode: WriteMode = write_mode
        self._client = client
        self._project = project
        self._maximum_bytes = maximum_bytes_billed
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        self._timeout_seconds = timeout_seconds
        self._session: str | None = None
        self._temporary: set[str] = set()
        self._models = 0
        self._projects = _Projects(client, project)

    def catalog(self) -> WarehouseCatalog:
        """Return the catalogue; entries are looked up on first use and cached."""
        return WarehouseCatalog(self._projects, frozenset(self._temporary))

    def execute(self, project: str, query: str, *, dry_run: bool = False) -> JsonObject:
        """Run one statement."""
        checked = check_sql(query, project, self.catalog(), self.write_mode, dialect="bigquery")
        dry_run_job = self._dry_run(checked)
        if dry_run:
            return {
                "status": "SUCCESS",
                "dry_run_info": {
                    "statement_type": str(dry_run_job.statement_type),
                    "tables": list(checked.tables),
                    "columns": [field.name for field in dry_run_job.schema or ()],
                    "sql": checked.sql,
                    "total_bytes_processed": int(dry_run_job.total_bytes_processed or 0),
                },
            }
        rows = self._run(checked.sql)
        if checked.changes_tables:
            self._track_temporary(checked.sql)
            self._projects = _Projects(self._client, self._project)
            return {"status": "SUCCESS", "rows": []}
        return self._limit_rows(rows)

    def forecast(
        self, project: str, history: str, time_column: str, value_column: str, horizon: int, id_columns: Sequence[str]
    ) -> JsonObject:
        """Forecast a time series with `AI.FORECAST`."""
        check_horizon(horizon)
        source = self._read_source(project, history, [*id_columns, time_column, value_column])
        options = {
            "data_col": value_column,
            "timestamp_col": time_column,
            "model": FORECAST_MODEL,
            **({"id_cols": list(id_columns)} if id_columns else {}),
            "horizon": horizon,
            "confidence_level": CONFIDENCE,
        }
        arguments = ", ".join(f"{name} => {quote_literal(option)}" for name, option in options.items())
        return self._limit_rows(self._run(f"SELECT * FROM AI.FORECAST(({source}), {arguments})"))

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
        """Find anomalies in a time series with a temporary model."""
        check_probability(threshold)
        history, target = data
        columns = [*id_columns, time_column, value_column]
        source = self._read_source(project, history, columns)
        target_source = None if target is None else self._read_source(project, target, columns)
        options = {
            "MODEL_TYPE": "ARIMA_PLUS",
            "TIME_SERIES_TIMESTAMP_COL": time_column,
            "TIME_SERIES_DATA_COL": value_column,
            "HORIZON": horizon,
            **({"TIME_SERIES_ID_COL": list(id_columns)} if id_columns else {}),
        }
        model = self._create_model(options, source)
        settings = f"STRUCT({quote_literal(threshold)} AS anomaly_prob_threshold)"
        target_argument = "" if target_source is None else f", ({target_source})"
        return self._limit_rows(
            self._run(f"SELECT * FROM ML.DETECT_ANOMALIES(MODEL {model}, {settings}{target_argument})")
        )

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
        """Find the segments that explain a difference, with a temporary model."""
        parsed = check_contribution(metric, dimensions, max_insights=max_insights, pruning=pruning)
        columns = [parsed.numerator, *([parsed.denominator] if parsed.denominator else [])]
        source = self._read_source(project, data, [*dimensions, is_test, *columns])
        options = {
            "MODEL_TYPE": "CONTRIBUTION_ANALYSIS",
            "CONTRIBUTION_METRIC": metric,
            "DIMENSION_ID_COLS": list(dimensions),
            "IS_TEST_COL": is_test,
            "TOP_K_INSIGHTS_BY_APRIORI_SUPPORT": max_insights,
            "PRUNING_METHOD": pruning,
        }
        model = self._create_model(options, source)
        return self._limit_rows(self._run(f"SELECT * FROM ML.GET_INSIGHTS(MODEL {model})"))

    def cluster_data(
        self, project: str, data: str, features: Sequence[str], clusters: int, id_columns: Sequence[str]
    ) -> JsonObject:
        """Group rows with a temporary model."""
        check_features(features)
        source = self._read_source(project, data, [*features, *id_columns])
        columns = ", ".join(f"`{feature}`" for feature in features)
        options = {"MODEL_TYPE": "KMEANS", "NUM_CLUSTERS": clusters, "STANDARDIZE_FEATURES": True}
        model = self._create_model(options, f"SELECT {columns} FROM ({source})")
        selected = ", ".join([*(f"`{name}`" for name in id_columns), "CENTROID_ID", "NEAREST_CENTROIDS_DISTANCE"])
        centroids = self._run(f"SELECT * FROM ML.CENTROIDS(MODEL {model})")
        assignments = self._limit_rows(self._run(f"SELECT {selected} FROM ML.PREDICT(MODEL {model}, ({source}))"))
        evaluation = self._run(f"SELECT * FROM ML.EVALUATE(MODEL {model})")
        return assignments | {"centroids": centroids, "evaluation": evaluation[0] if evaluation else {}}

    def close(self) -> None:
        """End the session, which drops its temporary tables and models, and close the client."""
        if self._session is not None:
            session, self._session = self._session, None
            _call_client(lambda: self._client.query(f"CALL BQ.ABORT_SESSION({quote_literal(session)})").result())
        self._client.close()

    def _read_source(self, project: str, data: str, columns: Sequence[str]) -> str:
        """Return the checked SQL of a table or query that has these columns."""
        checked = read_source(data, project, self.catalog(), dialect="bigquery")
        available = [field.name for field in self._dry_run(checked).schema or ()]
        for name in columns:
            if name not in available:
                raise QueryError("COLUMN_NOT_FOUND", f"no column {name!r}{suggest_similar(name, available)}")
        return checked.sql

    def _create_model(self, options: Mapping[str, Json], source: str) -> str:
        """Create a temporary model trained on the rows of `source`, and return its name."""
        if self.write_mode == "blocked":
            raise QueryError(
                "SQL_NOT_ALLOWED", "this analysis creates a temporary model, which needs write mode protected"
            )
        self._models += 1
        name = f"bough_model_{self._models}"
        settings = ", ".join(f"{option} = {quote_literal(value)}" for option, value in options.items())
        self._run(f"CREATE TEMP MODEL {name} OPTIONS ({settings}) AS {source}")
        return name

    def _dry_run(self, checked: CheckedSql) -> Any:
        """Return the job of a dry run of a statement.

        Raises:
            QueryError: BigQuery parses the statement as another type, or the statement would read too many bytes.
        """
        dry_run_job = _call_client(
            lambda: self._client.query(checked.sql, job_config=self._make_job_config(dry_run=True))
        )
        # sqlglot and BigQuery are different parsers: a checked statement may run only if both find the same type.
        if dry_run_job.statement_type not in _STATEMENTS[checked.statement_type]:
            reason = f"BigQuery reads this as {dry_run_job.statement_type}, not as {checked.statement_type}"
            raise QueryError("SQL_NOT_ALLOWED", reason)
        scanned_bytes = int(dry_run_job.total_bytes_processed or 0)
        if scanned_bytes > self._maximum_bytes:
            limit = self._maximum_bytes
            reason = f"the query would read {scanned_bytes} bytes, more than {limit}; select fewer columns or rows"
            raise QueryError("SQL_NOT_ALLOWED", reason)
        return dry_run_job

    def _run(self, sql: str) -> list[JsonObject]:
        """Run SQL and return at most `max_rows + 1` rows; the extra row shows that the result is truncated."""
        job = _call_client(lambda: self._client.query(sql, job_config=self._make_job_config()))
        if self._session is None and self.write_mode != "blocked" and job.session_info is not None:
            self._session = str(job.session_info.session_id)
        try:
            rows = _call_client(lambda: list(job.result(timeout=self._timeout_seconds, max_results=self._max_rows + 1)))
        except TimeoutError as error:
            # Otherwise the job would continue, and be billed, although nothing waits for its result.
            _call_client(job.cancel)
            raise QueryError("SQL_TIMEOUT", f"the query was cancelled after {self._timeout_seconds:g} s") from error
        return [{name: plain_value(value) for name, value in row.items()} for row in rows]

    def _make_job_config(self, *, dry_run: bool = False) -> Any:
        """Return the configuration of a job; unless write mode is `blocked`, the job runs in the session."""
        bigquery = import_module("google.cloud.bigquery")
        config = bigquery.QueryJobConfig(
            dry_run=dry_run,
            use_query_cache=not dry_run,
            use_legacy_sql=False,
            labels={"bough": "eval"},
            **({} if dry_run else {"maximum_bytes_billed": self._maximum_bytes}),
        )
        if self._session is not None:
            config.connection_properties = [bigquery.ConnectionProperty("session_id", self._session)]
        elif self.write_mode != "blocked" and not dry_run:
            # Not for a dry run, whose session would never be aborted, since only `_run` records the session's id.
            config.create_session = True
        return config

    def _track_temporary(self, sql: str) -> None:
        """Add the temporary table that a statement created to the names of the session, or discard the dropped one."""
        root = sqlglot.parse_one(sql, read="bigquery")
        if isinstance(root, exp.Create) and is_temporary(root):
            created = _find_created_table(root)
            if created is not None:
                self._temporary.add(created.name.lower())
        elif isinstance(root, exp.Drop) and isinstance(root.this, exp.Table):
            self._temporary.discard(root.this.name.lower())

    def _limit_rows(self, rows: list[JsonObject]) -> JsonObject:
        """Return a tool's result with the rows up to the limits of rows and bytes."""
        shown_rows: list[JsonObject] = []
        remaining_bytes = self._max_bytes
        for row in rows[: self._max_rows]:
            remaining_bytes -= len(json.dumps(row, ensure_ascii=False).encode())
            if remaining_bytes < 0:
                break
            shown_rows.append(row)
        result: JsonObject = {"status": "SUCCESS", "rows": shown_rows}
        return result | ({"result_is_likely_truncated": True} if len(shown_rows) < len(rows) else {})


class _LazyMapping(Mapping[str, T]):
    """Mapping from names to resources, each looked up on first use and cached."""

    def __init__(self) -> None:
        self._cache: dict[str, T] = {}

    def __getitem__(self, name: str) -> T:
        if name not in self._cache:
            self._cache[name] = self._look_up(name)
        return self._cache[name]

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _look_up(self, name: str) -> T:
        """Return the resource with a name; raises `KeyError` if it does not exist."""
        raise NotImplementedError


class _Projects(_LazyMapping[Mapping[str, WarehouseDataset]]):
    def __init__(self, client: Any, own_project: str) -> None:
        super().__init__()
        self._client, self._own_project = client, own_project

    def __iter__(self) -> Iterator[str]:
        yield self._own_project  # other projects may be readable, but BigQuery does not list them

    def _look_up(self, name: str) -> Mapping[str, WarehouseDataset]:
        return _Datasets(self._client, name)


class _Datasets(_LazyMapping[WarehouseDataset]):
    def __init__(self, client: Any, project: str) -> None:
        super().__init__()
        self._client, self._project = client, project

    def __iter__(self) -> Iterator[str]:
        datasets = _call_client(lambda: list(self._client.list_datasets(self._project, max_results=MAX_LISTED)))
        return iter([dataset.dataset_id for dataset in datasets])

    def _look_up(self, name: str) -> WarehouseDataset:
        dataset = _call_client(lambda: self._client.get_dataset(f"{self._project}.{name}"), name)
        tables = _Tables(self._client, f"{self._project}.{name}")
        return WarehouseDataset(dataset.description or "", tables, str(dataset.location or ""))


class _Tables(_LazyMapping[WarehouseTable]):
    def __init__(self, client: Any, dataset: str) -> None:
        super().__init__()
        self._client, self._dataset = client, dataset

    def __iter__(self) -> Iterator[str]:
        tables = _call_client(lambda: list(self._client.list_tables(self._dataset, max_results=MAX_LISTED)))
        return iter([table.table_id for table in tables])

    def _look_up(self, name: str) -> WarehouseTable:
        table = _call_client(lambda: self._client.get_table(f"{self._dataset}.{name}"), name)
        columns = tuple(
            WarehouseColumn(field.name, str(field.field_type), str(field.mode), field.description or "")
            for field in table.schema
        )
        kind = "VIEW" if table.table_type in ("VIEW", "MATERIALIZED_VIEW") else "TABLE"
        return WarehouseTable(name, kind, int(table.num_rows or 0), table.description or "", columns)


def _call_client(call: Callable[[], T], name: str | None = None) -> T:
    """Call the client and translate its errors.

    Args:
        name: The name that is looked up; None if the call looks up no name.

    Raises:
        KeyError: The name does not exist.
        QueryError: BigQuery refused the call or cannot be reached.
    """
    exceptions = import_module("google.api_core.exceptions")
    try:
        return call()
    except exceptions.NotFound as error:
        if name is not None:
            raise KeyError(name) from error
        raise QueryError("PROJECT_NOT_FOUND", _take_first_line(error)) from error
    except (exceptions.BadRequest, exceptions.Forbidden) as error:
        raise QueryError("SQL_FAILED", _take_first_line(error)) from error
    except (exceptions.GoogleAPICallError, import_module("google.auth.exceptions").GoogleAuthError) as error:
        raise QueryError("UNAVAILABLE", _take_first_line(error)) from error


def _take_first_line(error: Any) -> str:
    return (str(getattr(error, "message", "") or error).strip().splitlines() or ["it failed"])[0][:500]


def _find_created_table(root: exp.Create) -> exp.Table | None:
    target = root.this
    if isinstance(target, exp.Schema):
        target = target.this
    return target if isinstance(target, exp.Table) else None


def quote_literal(value: Json) -> str:
    """Format a value as a BigQuery literal."""
    if isinstance(value, list):
        return f"[{', '.join(quote_literal(item) for item in value)}]"
    return json.dumps(value, ensure_ascii=False)


def plain_value(value: Any) -> Json:
    """Convert a value of a row to JSON: bytes become base64, other values without a JSON form text."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case bytes():
            return base64.b64encode(value).decode()
        case Mapping():
            return {str(key): plain_value(item) for key, item in value.items()}
        case list() | tuple():
            return [plain_value(item) for item in value]
        case _:
            return value.isoformat() if hasattr(value, "isoformat") else str(value)
