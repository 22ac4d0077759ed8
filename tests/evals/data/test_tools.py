"""The nine tools answer over real DuckDB: schema, rows, bounds, and the process that is killed at its deadline."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import duckdb
import pytest

from bough.errors import InvalidInput
from bough.evals.data.public_data import PROJECT, ensure_datasets
from bough.evals.data.tools import DataTools

pytestmark = pytest.mark.anyio

MEASURES = ["culmen_length_mm", "culmen_depth_mm", "flipper_length_mm", "body_mass_g"]


async def test_the_schema_is_told_in_bigquerys_words(tools: DataTools) -> None:
    assert await tools.list_dataset_ids(PROJECT) == ["ml_datasets", "retail", "transport"]
    assert await tools.list_table_ids(PROJECT, "retail") == ["customers", "orders", "products"]
    info: Any = await tools.get_dataset_info(PROJECT, "retail")
    assert info["id"] == f"{PROJECT}:retail" and info["tables"] == 3
    table: Any = await tools.get_table_info(PROJECT, "retail", "orders")
    types = {each["name"]: each["type"] for each in table["schema"]["fields"]}
    assert (table["numRows"], table["type"]) == ("20000", "TABLE")
    assert (types["order_id"], types["order_date"], types["amount"]) == ("INTEGER", "DATE", "FLOAT")
    assert all(each["description"] for each in table["schema"]["fields"]) and table["description"]


async def test_a_stale_view_is_left_out_with_a_note_and_the_rest_of_the_file_is_usable(tmp_path: Path) -> None:
    file = tmp_path / "shop.duckdb"
    with duckdb.connect(str(file)) as connection:
        connection.execute(
            "create schema s; create table s.orders as select 1 as n; create table s.old as select 2 as n"
        )
        connection.execute("create view s.stale as select n from s.old; create view s.good as select n from s.orders")
        connection.execute("drop table s.old")
    tools = DataTools.duckdb({"shop": file})
    try:
        assert await tools.execute_sql("shop", "select n from s.orders") == {"status": "SUCCESS", "rows": [{"n": 1}]}
        assert await tools.execute_sql("shop", "select n from s.good") == {"status": "SUCCESS", "rows": [{"n": 1}]}
        assert await tools.list_table_ids("shop", "s") == ["good", "orders"]
        info: Any = await tools.get_dataset_info("shop", "s")
        assert list(info["left_out"]) == ["stale"] and str(tmp_path) not in str(info)
        for answer in (
            await tools.execute_sql("shop", "select n from s.stale"),
            await tools.get_table_info("shop", "s", "stale"),
        ):
            found: Any = answer
            assert found["error_code"] == "TABLE_NOT_FOUND" and "cannot be used" in found["error_details"]
    finally:
        await tools.aclose()


async def test_a_wrong_name_is_an_answer_with_a_code(tools: DataTools) -> None:
    async def code(answer: Any) -> str:
        assert answer["status"] == "ERROR" and answer["error_details"]
        return answer["error_code"]

    assert await code(await tools.list_dataset_ids("nothing")) == "PROJECT_NOT_FOUND"
    assert await code(await tools.list_table_ids(PROJECT, "retial")) == "DATASET_NOT_FOUND"
    assert await code(await tools.get_table_info(PROJECT, "retail", "order")) == "TABLE_NOT_FOUND"
    assert await code(await tools.list_dataset_ids("a'; drop")) == "INVALID_ARGUMENT"
    assert await code(await tools.forecast(PROJECT, "transport.trips_daily", "day", "trips")) == "COLUMN_NOT_FOUND"
    assert await code(await tools.forecast(PROJECT, "select 1; select 2", "a", "b")) == "SQL_STATEMENTS"
    assert await code(await tools.cluster_data(PROJECT, "ml_datasets.penguins", ["species"])) == "INVALID_ARGUMENT"
    assert await code(await tools.execute_sql(PROJECT, "select nothing from retail.orders")) == "SQL_FAILED"


async def test_rows_and_bytes_are_bounded_by_whole_rows(datasets: Path) -> None:
    tools = DataTools.duckdb({PROJECT: datasets}, max_rows=3, max_bytes=1000)
    try:
        found: Any = await tools.execute_sql(PROJECT, "select order_id from retail.orders order by order_id")
        assert [row["order_id"] for row in found["rows"]] == [1, 2, 3] and found["result_is_likely_truncated"]
        wide: Any = await tools.execute_sql(PROJECT, "select repeat('x', 600) as w from retail.products")
        assert len(wide["rows"]) == 1 and wide["result_is_likely_truncated"]
        whole: Any = await tools.execute_sql(PROJECT, "select count(*) as n from retail.orders")
        assert whole == {"status": "SUCCESS", "rows": [{"n": 20000}]}
    finally:
        await tools.aclose()


@pytest.mark.parametrize(
    "query",
    [
        "with recursive t as (select 1 as n union all select n + 1 from t) select count(*) as n from t",
        "select count(*) as n from retail.orders a, retail.orders b, retail.orders c where a.amount < b.amount",
    ],
)
async def test_a_query_that_never_ends_is_ended_and_the_next_one_runs(datasets: Path, query: str) -> None:
    tools = DataTools.duckdb({PROJECT: datasets}, timeout_seconds=1, memory_bytes=256 << 20)
    try:
        found: Any = await tools.execute_sql(PROJECT, query)
        assert found["error_code"] in {"SQL_TIMEOUT", "SQL_MEMORY"}
        assert await tools.list_dataset_ids(PROJECT) == ["ml_datasets", "retail", "transport"]
    finally:
        await tools.aclose()


async def test_one_huge_value_is_refused_by_the_limit_of_memory(tools: DataTools) -> None:
    found: Any = await tools.execute_sql(PROJECT, "select length(repeat('x', 2000000000)) as n")
    assert found["error_code"] == "SQL_MEMORY"


async def test_temporary_tables_live_as_long_as_the_session(datasets: Path) -> None:
    tools = DataTools.duckdb({PROJECT: datasets}, write_mode="protected")
    try:
        for query in ("create temp table x as select 1 as a", "insert into x values (2)"):
            assert (await tools.execute_sql(PROJECT, query))["status"] == "SUCCESS"  # type: ignore[index, call-overload]
        assert (await tools.execute_sql(PROJECT, "select sum(a) as s from x")) == {
            "status": "SUCCESS",
            "rows": [{"s": 3}],
        }
    finally:
        await tools.aclose()


async def test_allowed_changes_a_copy_and_leaves_the_file(datasets: Path) -> None:
    before = datasets.read_bytes()
    tools = DataTools.duckdb({PROJECT: datasets}, write_mode="allowed")
    try:
        assert (await tools.execute_sql(PROJECT, "delete from retail.orders where true"))["status"] == "SUCCESS"  # type: ignore[index, call-overload]
        found: Any = await tools.execute_sql(PROJECT, "select count(*) as n from retail.orders")
        assert found["rows"] == [{"n": 0}]
    finally:
        await tools.aclose()
    assert datasets.read_bytes() == before


async def test_a_dry_run_says_what_would_be_read(tools: DataTools) -> None:
    found: Any = await tools.execute_sql(PROJECT, "select island, 1 as n from ml_datasets.penguins", dry_run=True)
    told = found["dry_run_info"]
    assert told["tables"] == [f"{PROJECT}.ml_datasets.penguins"] and told["columns"] == ["island", "n"]


async def test_the_planted_day_is_found_and_a_season_is_forecast(tools: DataTools) -> None:
    daily = "select order_date, count(*) as n from retail.orders group by order_date"
    found: Any = await tools.detect_anomalies(PROJECT, daily, "order_date", "n", anomaly_prob_threshold=0.9999)
    assert [row["order_date"] for row in found["rows"] if row["is_anomaly"]][:1] == ["2025-06-15"]
    week: Any = await tools.forecast(PROJECT, "transport.trips_daily", "trip_date", "trips", horizon=7)
    rows = week["rows"]
    assert [row["forecast_timestamp"] for row in rows][:2] == ["2025-12-31", "2026-01-01"]
    # 2026-01-04 is a Sunday: the planted season takes 260 trips off it, the trend is one a day.
    sunday = rows[4]
    assert sunday["forecast_timestamp"] == "2026-01-04" and abs(sunday["forecast_value"] - (1000 + 734 - 260)) < 15
    assert sunday["prediction_interval_lower_bound"] < sunday["forecast_value"]


async def test_the_species_are_the_clusters(tools: DataTools) -> None:
    found: Any = await tools.cluster_data(PROJECT, "ml_datasets.penguins", MEASURES, 3, ["species"])
    assert [each["size"] for each in found["centroids"]] == [150, 123, 67]
    assert len(found["rows"]) == 50 and found["result_is_likely_truncated"]
    assert found["evaluation"]["davies_bouldin_index"] < 1


async def test_contributions_are_sums_of_the_database(tools: DataTools) -> None:
    rows = (("A", 100, "false"), ("B", 100, "false"), ("A", 120, "true"), ("B", 90, "true"))
    data = " union all ".join(f"select '{g}' as g, {v} as v, {t} as t" for g, v, t in rows)
    found: Any = await tools.analyze_contribution(PROJECT, data, "SUM(v)", ["g"], "t")
    first, second = found["rows"]
    assert first["contributors"] == ["g=A"] and first["difference"] == 20 and first["relative_difference"] == 0.2
    assert first["unexpected_difference"] == 30
    assert round(first["relative_unexpected_difference"], 4) == 0.3333 and round(first["apriori_support"], 4) == 0.5714
    assert (second["difference"], second["unexpected_difference"]) == (-10, -30)
    assert (second["relative_unexpected_difference"], second["apriori_support"]) == (-0.25, 0.5)


async def test_the_query_process_has_no_files_and_ends_with_its_tools(tools: DataTools, datasets: Path) -> None:
    await tools.list_dataset_ids(PROJECT)
    process = tools._warehouse._process._process  # type: ignore[union-attr]
    assert process is not None
    limits = Path(f"/proc/{process.pid}/limits").read_text()
    written = next(line for line in limits.splitlines() if line.startswith("Max file size"))
    assert written.split()[3:5] == ["0", "0"] and os.getsid(process.pid) == process.pid
    await tools.aclose()
    assert process.poll() is not None


def test_bounds_and_files_are_checked_first(datasets: Path, tmp_path: Path) -> None:
    for given in ({"max_rows": 0}, {"timeout_seconds": -1}, {"memory_bytes": 1}, {"write_mode": "some"}):
        with pytest.raises(InvalidInput):
            DataTools.duckdb({PROJECT: datasets}, **given)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="there is no file"):
        DataTools.duckdb({PROJECT: tmp_path / "none.duckdb"})


def test_the_datasets_are_the_same_every_time(datasets: Path, tmp_path: Path) -> None:
    other = ensure_datasets(tmp_path)
    assert other.name == datasets.name and ensure_datasets(tmp_path) == other
    sums: list[Any] = []
    for path in (datasets, other):
        with duckdb.connect(str(path), read_only=True) as connection:
            sums.append(connection.execute("select sum(hash(o)::hugeint) from retail.orders as o").fetchall())
    assert sums[0] == sums[1]
