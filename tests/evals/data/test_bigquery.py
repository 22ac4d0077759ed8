"""BigQuery without an account: what is asked of it, and what is said where its extra is not installed."""

from __future__ import annotations

import datetime
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import sqlglot
from sqlglot import exp

from bough.errors import InvalidInput, Unavailable
from bough.evals.data.bigquery import plain_value, quote_literal
from bough.evals.data.catalog import WarehouseCatalog
from bough.evals.data.evaluate import evaluate_data, read_data_set
from bough.evals.data.sql import check_sql
from bough.evals.data.tools import DataTools
from bough.settings import Settings

COLUMN = {"name": "a", "type": "INTEGER", "mode": "NULLABLE", "description": ""}
TABLE = {"name": "t", "kind": "TABLE", "rows": 1, "description": "", "columns": [COLUMN]}
CATALOG = WarehouseCatalog.of({"projects": {"p-x": {"d": {"description": "", "tables": [TABLE]}}}, "temporary": []})


def test_what_was_checked_is_written_out_in_bigquerys_dialect() -> None:
    query = "select format_date('%Y', date '2024-05-01') as y, safe_divide(a, 2) from d.t -- a comment"
    checked = check_sql(query, "p-x", CATALOG, dialect="bigquery")
    assert (checked.tables, checked.statement_type) == (("p-x.d.t",), "SELECT")
    assert "`p-x`.`d`.`t`" in checked.sql and "FORMAT_DATE('%Y'" in checked.sql and "comment" not in checked.sql
    listed = check_sql("select table_name from d.INFORMATION_SCHEMA.TABLES", "p-x", CATALOG, dialect="bigquery")
    assert "UNNEST" in listed.sql and sqlglot.parse_one(listed.sql, read="bigquery")


@pytest.mark.parametrize("text", ["plain", "it's", 'a "b"', "back\\slash", "new\nline", "') OR 1=1 --"])
def test_a_text_is_one_literal_whatever_is_in_it(text: str) -> None:
    literal = sqlglot.parse_one(f"select {quote_literal(text)}", read="bigquery").expressions[0]
    assert isinstance(literal, exp.Literal) and literal.is_string
    assert quote_literal(["a", "b"]) == '["a", "b"]'
    assert (quote_literal(0.95), quote_literal(True)) == ("0.95", "true")


def test_values_become_json() -> None:
    row: dict[str, Any] = {"d": datetime.date(2026, 1, 2), "n": Decimal("1.50"), "b": b"\x00", "l": [None, {"x": 1}]}
    assert plain_value(row) == {"d": "2026-01-02", "n": "1.50", "b": "AA==", "l": [None, {"x": 1}]}


@pytest.mark.anyio
async def test_without_the_extra_the_line_that_installs_it_is_told(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "google.cloud.bigquery", None)  # where the extra is installed, as if it were not
    with pytest.raises(Unavailable) as refused:
        DataTools.bigquery("p-x")
    assert refused.value.hint == "pip install 'bough[bigquery]'"
    with pytest.raises(Unavailable, match="BigQuery needs the package"):
        await evaluate_data(read_data_set(), "offline", settings=settings, projects={"p-x": "bigquery"})  # type: ignore[arg-type]


@pytest.mark.anyio
async def test_bigquery_is_not_asked_together_with_files(settings: Settings, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="must be the only one"):
        projects: Any = {"p-x": "bigquery", "sales": tmp_path / "sales.duckdb"}
        await evaluate_data(read_data_set(), "offline", settings=settings, projects=projects)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="maximum_bytes_billed"):
        DataTools.bigquery("p-x", maximum_bytes_billed=0)
