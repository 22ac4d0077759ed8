"""BigQuery as a warehouse: SQL is checked as for DuckDB, BigQuery's dry run must agree, then the query runs.

BigQuery computes forecasts and models. Three analyses create a temporary model and need a mode that allows it.
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
from bough.evals.data.fault import QueryError, nearest
from bough.evals.data.session import read_source
from bough.evals.data.sql import CheckedSql, WriteMode, check_sql, is_temporary
from bough.types import Json, JsonObject

T = TypeVar("T")

MAX_LISTED: Final = 1000
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
        write_mode: `blocked` reads only; `protected` has a session with temporary tables and models; `allowed`
            writes to the tables of the project itself, not to a copy.
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
        planned = self._plan(checked)
        if dry_run:
            return {
                "status": "SUCCESS",
                "dry_run_info": {
                    "statement_type": str(planned.statement_type),
                    "tables": list(checked.tables),
                    "columns": [field.name for field in planned.schema or ()],
                    "sql": checked.sql,
                    "total_bytes_processed": int(planned.total_bytes_processed or 0),
                },
            }
        rows = self._run(checked.sql)
        if checked.creates:
            self._track_temporary(checked.sql)
            self._projects = _Projects(self._client, self._project)
            return {"status": "SUCCESS", "rows": []}
        return self._limit(rows)

    def forecast(
        self, project: str, history: str, time: str, value: str, horizon: int, ids: Sequence[str]
    ) -> JsonObject:
        """Forecast by `AI.FORECAST`."""
        check_horizon(horizon)
        source = self._read_source(project, history, [*ids, time, value])
        options = {
            "data_col": value,
            "timestamp_col": time,
            "model": FORECAST_MODEL,
            **({"id_cols": list(ids)} if ids else {}),
            "horizon": horizon,
            "confidence_level": CONFIDENCE,
        }
        arguments = ", ".join(f"{name} => {quote_literal(option)}" for name, option in options.items())
        return self._limit(self._run(f"SELECT * FROM AI.FORECAST(({source}), {arguments})"))

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
        """Find anomalies by a temporary model."""
        check_probability(threshold)
        history, target = data
        columns = [*ids, time, value]
        source = self._read_source(project, history, columns)
        compared = None if target is None else self._read_source(project, target, columns)
        options = {
            "MODEL_TYPE": "ARIMA_PLUS",
            "TIME_SERIES_TIMESTAMP_COL": time,
            "TIME_SERIES_DATA_COL": value,
            "HORIZON": horizon,
            **({"TIME_SERIES_ID_COL": list(ids)} if ids else {}),
        }
        model = self._make_model(options, source)
        settings = f"STRUCT({quote_literal(threshold)} AS anomaly_prob_threshold)"
        more = "" if compared is None else f", ({compared})"
        return self._limit(self._run(f"SELECT * FROM ML.DETECT_ANOMALIES(MODEL {model}, {settings}{more})"))

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
        """Find insights by a temporary model."""
        parsed = check_contribution(metric, dimensions, top=top, pruning=pruning)
        columns = [parsed.numerator, *([parsed.denominator] if parsed.denominator else [])]
        source = self._read_source(project, data, [*dimensions, is_test, *columns])
        options = {
            "MODEL_TYPE": "CONTRIBUTION_ANALYSIS",
            "CONTRIBUTION_METRIC": metric,
            "DIMENSION_ID_COLS": list(dimensions),
            "IS_TEST_COL": is_test,
            "TOP_K_INSIGHTS_BY_APRIORI_SUPPORT": top,
            "PRUNING_METHOD": pruning,
        }
        model = self._make_model(options, source)
        return self._limit(self._run(f"SELECT * FROM ML.GET_INSIGHTS(MODEL {model})"))

    def cluster_data(
        self, project: str, data: str, features: Sequence[str], clusters: int, ids: Sequence[str]
    ) -> JsonObject:
        """Group rows by a temporary model."""
        check_features(features)
        source = self._read_source(project, data, [*features, *ids])
        columns = ", ".join(f"`{feature}`" for feature in features)
        options = {"MODEL_TYPE": "KMEANS", "NUM_CLUSTERS": clusters, "STANDARDIZE_FEATURES": True}
        model = self._make_model(options, f"SELECT {columns} FROM ({source})")
        selected = ", ".join([*(f"`{name}`" for name in ids), "CENTROID_ID", "NEAREST_CENTROIDS_DISTANCE"])
        centroids = self._run(f"SELECT * FROM ML.CENTROIDS(MODEL {model})")
        answer = self._limit(self._run(f"SELECT {selected} FROM ML.PREDICT(MODEL {model}, ({source}))"))
        evaluation = self._run(f"SELECT * FROM ML.EVALUATE(MODEL {model})")
        return answer | {"centroids": centroids, "evaluation": evaluation[0] if evaluation else {}}

    def close(self) -> None:
        """End the session, which drops its temporary tables and models, and close the client."""
        if self._session is not None:
            session, self._session = self._session, None
            _ask(lambda: self._client.query(f"CALL BQ.ABORT_SESSION({quote_literal(session)})").result())
        self._client.close()

    def _read_source(self, project: str, data: str, columns: Sequence[str]) -> str:
        checked = read_source(data, project, self.catalog(), dialect="bigquery")
        available = [field.name for field in self._plan(checked).schema or ()]
        for name in columns:
            if name not in available:
                raise QueryError("COLUMN_NOT_FOUND", f"no column {name!r}{nearest(name, available)}")
        return checked.sql

    def _make_model(self, options: Mapping[str, Json], source: str) -> str:
        if self.write_mode == "blocked":
            raise QueryError("SQL_NOT_ALLOWED", "this analysis makes a temporary model: it needs mode protected")
        self._models += 1
        name = f"bough_model_{self._models}"
        settings = ", ".join(f"{option} = {quote_literal(value)}" for option, value in options.items())
        self._run(f"CREATE TEMP MODEL {name} OPTIONS ({settings}) AS {source}")
        return name

    def _plan(self, checked: CheckedSql) -> Any:
        """Return the dry run of a statement.

        Raises:
            QueryError: BigQuery parses it as another statement type, or it would read too many bytes.
        """
        planned = _ask(lambda: self._client.query(checked.sql, job_config=self._config(dry_run=True)))
        # sqlglot and BigQuery are different parsers: a checked statement may run only if both see the same kind.
        if planned.statement_type not in _STATEMENTS[checked.statement_type]:
            reason = f"BigQuery reads this as {planned.statement_type}, not as {checked.statement_type}"
            raise QueryError("SQL_NOT_ALLOWED", reason)
        used = int(planned.total_bytes_processed or 0)
        if used > self._maximum_bytes:
            reason = f"the query would read {used} bytes, more than {self._maximum_bytes}; select fewer columns or rows"
            raise QueryError("SQL_NOT_ALLOWED", reason)
        return planned

    def _run(self, sql: str) -> list[JsonObject]:
        """Run SQL and return at most `max_rows + 1` rows; the extra row shows that there are more."""
        job = _ask(lambda: self._client.query(sql, job_config=self._config()))
        if self._session is None and self.write_mode != "blocked" and job.session_info is not None:
            self._session = str(job.session_info.session_id)
        try:
            rows = _ask(lambda: list(job.result(timeout=self._timeout_seconds, max_results=self._max_rows + 1)))
        except TimeoutError as error:
            # Without this the job would keep running, and be billed, after its answer was given up.
            _ask(job.cancel)
            raise QueryError("SQL_TIMEOUT", f"the query was ended after {self._timeout_seconds:g} s") from error
        return [{name: plain_value(value) for name, value in row.items()} for row in rows]

    def _config(self, *, dry_run: bool = False) -> Any:
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
            # A dry run must not create a session: it would never be aborted, since only `_run` records its id.
            config.create_session = True
        return config

    def _track_temporary(self, sql: str) -> None:
        root = sqlglot.parse_one(sql, read="bigquery")
        if isinstance(root, exp.Create) and is_temporary(root):
            self._temporary |= {table.name.lower() for table in root.find_all(exp.Table) if table is _target(root)}
        elif isinstance(root, exp.Drop) and isinstance(root.this, exp.Table):
            self._temporary.discard(root.this.name.lower())

    def _limit(self, rows: list[JsonObject]) -> JsonObject:
        shown_rows: list[JsonObject] = []
        remaining_bytes = self._max_bytes
        for row in rows[: self._max_rows]:
            remaining_bytes -= len(json.dumps(row, ensure_ascii=False).encode())
            if remaining_bytes < 0:
                break
            shown_rows.append(row)
        answer: JsonObject = {"status": "SUCCESS", "rows": shown_rows}
        return answer | ({"result_is_likely_truncated": True} if len(shown_rows) < len(rows) else {})


class _Looked(Mapping[str, T]):
    """Mapping from names to resources, each looked up on first use and cached."""

    def __init__(self) -> None:
        self._known: dict[str, T] = {}

    def __getitem__(self, name: str) -> T:
        if name not in self._known:
            self._known[name] = self._look_up(name)
        return self._known[name]

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _look_up(self, name: str) -> T:
        """Look up a name. Raises `KeyError` if it does not exist."""
        raise NotImplementedError


class _Projects(_Looked[Mapping[str, WarehouseDataset]]):
    def __init__(self, client: Any, own: str) -> None:
        super().__init__()
        self._client, self._own = client, own

    def __iter__(self) -> Iterator[str]:
        yield self._own  # other projects may be readable, but BigQuery does not list them

    def _look_up(self, name: str) -> Mapping[str, WarehouseDataset]:
        return _Datasets(self._client, name)


class _Datasets(_Looked[WarehouseDataset]):
    def __init__(self, client: Any, project: str) -> None:
        super().__init__()
        self._client, self._project = client, project

    def __iter__(self) -> Iterator[str]:
        datasets = _ask(lambda: list(self._client.list_datasets(self._project, max_results=MAX_LISTED)))
        return iter([dataset.dataset_id for dataset in datasets])

    def _look_up(self, name: str) -> WarehouseDataset:
        dataset = _ask(lambda: self._client.get_dataset(f"{self._project}.{name}"), name)
        tables = _Tables(self._client, f"{self._project}.{name}")
        return WarehouseDataset(dataset.description or "", tables, str(dataset.location or ""))


class _Tables(_Looked[WarehouseTable]):
    def __init__(self, client: Any, dataset: str) -> None:
        super().__init__()
        self._client, self._dataset = client, dataset

    def __iter__(self) -> Iterator[str]:
        tables = _ask(lambda: list(self._client.list_tables(self._dataset, max_results=MAX_LISTED)))
        return iter([table.table_id for table in tables])

    def _look_up(self, name: str) -> WarehouseTable:
        table = _ask(lambda: self._client.get_table(f"{self._dataset}.{name}"), name)
        columns = tuple(
            WarehouseColumn(field.name, str(field.field_type), str(field.mode), field.description or "")
            for field in table.schema
        )
        kind = "VIEW" if table.table_type in ("VIEW", "MATERIALIZED_VIEW") else "TABLE"
        return WarehouseTable(name, kind, int(table.num_rows or 0), table.description or "", columns)


def _ask(call: Callable[[], T], name: str | None = None) -> T:
    """Call the client and translate its errors.

    Args:
        name: The name that is looked up, if any.

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
        raise QueryError("PROJECT_NOT_FOUND", _first_line(error)) from error
    except (exceptions.BadRequest, exceptions.Forbidden) as error:
        raise QueryError("SQL_FAILED", _first_line(error)) from error
    except (exceptions.GoogleAPICallError, import_module("google.auth.exceptions").GoogleAuthError) as error:
        raise QueryError("UNAVAILABLE", _first_line(error)) from error


def _first_line(error: Any) -> str:
    return (str(getattr(error, "message", "") or error).strip().splitlines() or ["it failed"])[0][:500]


def _target(root: exp.Create) -> exp.Expr | None:
    target = root.this
    return target.this if isinstance(target, exp.Schema) else target


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
