"""A session with a warehouse: its catalogue, and statements that are checked before they run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bough.evals.data.catalog import WarehouseCatalog
from bough.evals.data.duck import DuckProcess
from bough.evals.data.fault import QueryError, suggest_similar
from bough.evals.data.sql import CheckedSql, SqlDialect, WriteMode, check_sql
from bough.types import JsonObject

MAX_ANALYSED_ROWS = 100_000
MAX_ANALYSED_BYTES = 64 << 20
_TABLE = re.compile(r"\s*`?[A-Za-z_][\w-]*(?:`?\.`?[A-Za-z_][\w-]*){1,2}`?\s*")


@dataclass(frozen=True)
class QueryRows:
    """The rows of a statement.

    Attributes:
        truncated: Whether the statement had more rows.
    """

    columns: tuple[str, ...]
    rows: Sequence[Sequence[Any]]
    truncated: bool


class DataSession:
    """Runs checked statements in a query process and caches its catalogue. Not safe for several threads at once.

    Attributes:
        max_rows: Maximum number of rows of a result.
    """

    def __init__(self, process: DuckProcess, write_mode: WriteMode, *, max_rows: int, max_bytes: int) -> None:
        """Create the session; the process starts at the first request."""
        self.write_mode: WriteMode = write_mode
        self.max_rows = max_rows
        self._max_bytes = max_bytes
        self._process = process
        self._catalog: WarehouseCatalog | None = None

    def catalog(self) -> WarehouseCatalog:
        """Return the catalogue; cached until a statement changes it.

        Raises:
            QueryError: The warehouse cannot be opened.
        """
        if self._catalog is None:
            self._catalog = WarehouseCatalog.of(self._process.ask({"op": "catalog"}), self._process.mask)
        return self._catalog

    def execute(self, project: str, query: str, *, dry_run: bool = False) -> JsonObject:
        """Run a statement and return the result of the tool `execute_sql`.

        Raises:
            QueryError: The statement is not allowed, or failed.
        """
        checked = check_sql(query, project, self.catalog(), self.write_mode)
        if dry_run:
            columns = () if checked.changes_tables else self._columns(checked)
            return {
                "status": "SUCCESS",
                "dry_run_info": {
                    "statement_type": checked.statement_type,
                    "tables": list(checked.tables),
                    "columns": list(columns),
                    "sql": checked.sql,
                },
            }
        query_rows = self._run(checked.sql, checked.statement_type, self.max_rows, self._max_bytes)
        rows: list[JsonObject] = []
        if checked.changes_tables:
            self._catalog = None
        else:
            rows = [dict(zip(query_rows.columns, row, strict=True)) for row in query_rows.rows]
        result: JsonObject = {"status": "SUCCESS", "rows": rows}
        return result | ({"result_is_likely_truncated": True} if query_rows.truncated else {})

    def source(self, project: str, data: str, columns: Sequence[str]) -> str:
        """Return the checked SQL of a table or query that has these columns.

        Raises:
            QueryError: The query is not allowed, or a column does not exist.
        """
        checked = read_source(data, project, self.catalog())
        available = self._columns(checked)
        for name in columns:
            if name not in available:
                raise QueryError("COLUMN_NOT_FOUND", f"no column {name!r}{suggest_similar(name, available)}")
        return checked.sql

    def analyse(self, sql: str) -> QueryRows:
        """Run a query over the SQL that `source` returned, and return all rows.

        Raises:
            QueryError: The query failed, or has more than 100,000 rows or 64 MiB.
        """
        result = self._run(sql, "SELECT", MAX_ANALYSED_ROWS, MAX_ANALYSED_BYTES)
        if result.truncated:
            raise QueryError(
                "INVALID_ARGUMENT",
                f"too many rows (more than {MAX_ANALYSED_ROWS}) or too large; aggregate them in a query",
            )
        return result

    def close(self) -> None:
        """End the query process."""
        self._process.close()

    def _columns(self, checked: CheckedSql) -> tuple[str, ...]:
        """Return the names of the columns of a query."""
        return self._run(f"select * from ({checked.sql}) limit 0", "SELECT", 1, self._max_bytes).columns  # noqa: S608

    def _run(self, sql: str, statement_type: str, max_rows: int, max_bytes: int) -> QueryRows:
        """Run SQL in the process; drop the cached catalogue if the process ended."""
        request = {"op": "run", "sql": sql, "statement_type": statement_type}
        try:
            response = self._process.ask(request | {"max_rows": max_rows, "max_bytes": max_bytes})
        except QueryError as error:
            # A new process has no temporary tables, but a cached catalogue would still list them.
            if error.session_lost:
                self._catalog = None
            raise
        return QueryRows(tuple(response["columns"]), response["rows"], response["truncated"])


def read_source(data: str, project: str, catalog: WarehouseCatalog, *, dialect: SqlDialect = "duckdb") -> CheckedSql:
    """Return the checked read-only statement for a table name or a query.

    Raises:
        QueryError: The query is not allowed.
    """
    query = f"select * from {data.strip()}" if _TABLE.fullmatch(data) else data  # noqa: S608 - it is checked next
    return check_sql(query, project, catalog, "blocked", dialect=dialect)


def quote_column(name: str) -> str:
    """Quote a name as a DuckDB identifier."""
    return '"' + name.replace('"', '""') + '"'
