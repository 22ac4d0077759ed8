"""Bad SQL is refused before it runs: what reads files, attaches, stacks, changes, or names what it should not see."""

from __future__ import annotations

import duckdb
import pytest

from bough.evals.data.catalog import WarehouseCatalog
from bough.evals.data.fault import QueryError
from bough.evals.data.sql import SYSTEM_PREFIXES, WriteMode, check_sql

COLUMN = {"name": "a", "type": "INTEGER", "mode": "NULLABLE", "description": ""}
TABLE = {"name": "t", "kind": "TABLE", "rows": 1, "description": "", "columns": [COLUMN]}
CATALOG = WarehouseCatalog.of(
    {"projects": {"p-x": {"d": {"description": "", "tables": [TABLE]}}}, "temporary": ["mine"]}
)


def code_of(query: str, mode: WriteMode = "blocked") -> str:
    try:
        check_sql(query, "p-x", CATALOG, mode)
    except QueryError as error:
        return error.code
    return "ok"


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("select a from d.t", "ok"),
        ("select a from `p-x.d.t`", "ok"),
        ("select a from p-x.d.t where a in (select a from d.t)", "ok"),
        ("with x as (select a from d.t), y as (select * from x) select * from y", "ok"),
        ("with recursive x as (select 1 as n union all select n + 1 from x where n < 5) select * from x", "ok"),
        ("select * from unnest([1, 2]) as n", "ok"),
        ("select table_name from d.INFORMATION_SCHEMA.TABLES", "ok"),
        ("select safe_divide(1, 0) -- a comment", "ok"),
        ("select 1; select 2", "SQL_STATEMENTS"),
        ("", "SQL_STATEMENTS"),
        ("-- nothing", "SQL_STATEMENTS"),
        ("select a b c from", "SQL_PARSE"),
        ("select " + "(" * 5000 + "1" + ")" * 5000, "SQL_PARSE"),
        (f"select '{'x' * 70_000}'", "SQL_PARSE"),
        ("select * from 'secret.csv'", "DATASET_NOT_FOUND"),
        ("select * from `secret.csv`", "DATASET_NOT_FOUND"),
        ("select * from read_csv('/etc/passwd')", "SQL_FUNCTION"),
        ("select * from read_text('/etc/passwd')", "SQL_FUNCTION"),
        ("select read_text('/etc/passwd')", "SQL_FUNCTION"),
        ("select system.main.read_text('/etc/passwd')", "SQL_FUNCTION"),
        ("select * from glob('/*')", "SQL_PARSE"),
        ("select * from query('select 1')", "SQL_FUNCTION"),
        ("select current_setting('home_directory')", "SQL_FUNCTION"),
        ("select * from duckdb_databases()", "SQL_FUNCTION"),
        ("select * from duckdb_databases", "TABLE_NOT_FOUND"),
        ("select * from later, d.t where exists (with later as (select 1) select * from later)", "TABLE_NOT_FOUND"),
        ("with a as (select * from b), b as (select 1) select * from a", "TABLE_NOT_FOUND"),
        ("with a as (select * from a) select * from a", "TABLE_NOT_FOUND"),
        ("with duckdb_databases as (select 1) select * from duckdb_databases", "SQL_NOT_ALLOWED"),
        ("with recursive pg_class as (select * from pg_class) select * from pg_class", "SQL_NOT_ALLOWED"),
        ("select * from information_schema.tables", "TABLE_NOT_FOUND"),
        ("select * from d.nothing", "TABLE_NOT_FOUND"),
        ("select * from other.d.t", "PROJECT_NOT_FOUND"),
        ("copy d.t to '/tmp/x'", "SQL_NOT_ALLOWED"),
        ("pragma version", "SQL_NOT_ALLOWED"),
        ("describe d.t", "SQL_NOT_ALLOWED"),
        ("set x = 1", "SQL_NOT_ALLOWED"),
        ("call f()", "SQL_NOT_ALLOWED"),
        ("execute immediate 'select 1'", "SQL_NOT_ALLOWED"),
        ("prepare x as select 1", "SQL_NOT_ALLOWED"),
        ("explain select 1", "SQL_NOT_ALLOWED"),
        ("detach x", "SQL_NOT_ALLOWED"),
        ("install httpfs", "SQL_NOT_ALLOWED"),
        ("select @@version", "SQL_NOT_ALLOWED"),
        ("insert into d.t values (1)", "SQL_NOT_ALLOWED"),
        ("create temp table x as select 1", "SQL_NOT_ALLOWED"),
        ("drop table d.t", "SQL_NOT_ALLOWED"),
    ],
)
def test_a_query_may_only_read_tables_that_are_there(query: str, code: str) -> None:
    assert code_of(query) == code


@pytest.mark.parametrize("query", ["attach 'x.db' as y", "attach database 'x.db'", "load httpfs", "checkpoint"])
def test_what_is_no_query_is_refused_however_it_parses(query: str) -> None:
    assert code_of(query, "allowed") in {"SQL_NOT_ALLOWED", "SQL_PARSE"}


@pytest.mark.parametrize(
    ("query", "protected", "allowed"),
    [
        ("create temp table x as select 1 as a", "ok", "ok"),
        ("create temp table x (a int64)", "SQL_NOT_ALLOWED", "SQL_NOT_ALLOWED"),
        ("create temp table duckdb_tables as select 1", "SQL_NOT_ALLOWED", "SQL_NOT_ALLOWED"),
        ("create temp function f() as (1)", "SQL_NOT_ALLOWED", "SQL_NOT_ALLOWED"),
        ("insert into mine values (2)", "ok", "ok"),
        ("drop table mine", "ok", "ok"),
        ("insert into other values (2)", "TABLE_NOT_FOUND", "TABLE_NOT_FOUND"),
        ("insert into mine select * from read_csv('x')", "SQL_FUNCTION", "SQL_FUNCTION"),
        ("create table d.y as select 1 as a", "SQL_NOT_ALLOWED", "ok"),
        ("delete from d.t where true", "SQL_NOT_ALLOWED", "ok"),
        ("update d.t set a = 1 where true", "SQL_NOT_ALLOWED", "ok"),
        ("merge into d.t x using d.t y on x.a = y.a when matched then delete", "SQL_NOT_ALLOWED", "ok"),
        ("truncate table d.t", "SQL_NOT_ALLOWED", "ok"),
        ("create table nowhere.y as select 1", "SQL_NOT_ALLOWED", "DATASET_NOT_FOUND"),
        ("drop schema d", "SQL_NOT_ALLOWED", "SQL_NOT_ALLOWED"),
        ("alter table d.t add column b int64", "SQL_NOT_ALLOWED", "SQL_NOT_ALLOWED"),
    ],
)
def test_what_may_be_changed_follows_from_the_mode(query: str, protected: str, allowed: str) -> None:
    assert (code_of(query, "protected"), code_of(query, "allowed")) == (protected, allowed)


def test_what_runs_is_what_was_checked_written_out_again() -> None:
    checked = check_sql("select format_date('%Y', date '2024-05-01') as y from d.t -- x; drop", "p-x", CATALOG)
    assert checked.tables == ("p-x.d.t",) and '"p-x"."d"."t"' in checked.sql and "drop" not in checked.sql
    assert checked.statement_type == "SELECT"


def test_every_view_of_duckdb_that_can_be_read_without_a_schema_has_a_name_that_is_refused() -> None:
    with duckdb.connect() as connection:
        found = connection.execute(
            "select view_name from duckdb_views() where internal and schema_name <> 'information_schema'"
        ).fetchall()
    assert found and [name for (name,) in found if not name.startswith(SYSTEM_PREFIXES)] == []


def test_a_wrong_name_carries_the_nearest() -> None:
    with pytest.raises(QueryError, match="did you mean 'p-x'"):
        check_sql("select 1", "p-y", CATALOG)
