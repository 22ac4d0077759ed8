"""Checks SQL: parses it, checks the tree, and generates the SQL that runs from that tree.

Source: ADK's BigQuery tools (`write_mode`).
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Literal, TypeAlias

import sqlglot
from sqlglot import exp
from sqlglot.errors import ErrorLevel, SqlglotError

from bough.evals.data.catalog import WarehouseCatalog
from bough.evals.data.fault import QueryError

WriteMode: TypeAlias = Literal["blocked", "protected", "allowed"]
"""What SQL may change. `blocked`: nothing. `protected`: temporary tables. `allowed`: all tables."""

SqlDialect: TypeAlias = Literal["duckdb", "bigquery"]
"""The dialect of a checked statement, that of the database that runs it."""

MAX_QUERY_BYTES = 64 << 10
SCALARS = frozenset({"SAFE_DIVIDE", "IEEE_DIVIDE", "DIV", "TO_JSON_STRING", "LOG10", "CODE_POINTS_TO_STRING"})
"""Allowed functions without a node type in sqlglot."""
SYSTEM_PREFIXES = ("duckdb_", "pragma_", "sqlite_", "pg_")
"""Name prefixes of DuckDB system views that can be read without a schema."""

_ROW_SOURCES = (exp.GenerateSeries, exp.GenerateDateArray)
_REFUSED_FUNCTIONS = (exp.ReadCSV, exp.ReadParquet)
_CHANGE_NODES = (exp.Insert, exp.Update, exp.Delete, exp.Merge, exp.TruncateTable, exp.Drop)
_STATEMENT_TYPES: dict[type[exp.Expr], str] = {
    exp.Insert: "INSERT",
    exp.Update: "UPDATE",
    exp.Delete: "DELETE",
    exp.Merge: "MERGE_INTO",
    exp.TruncateTable: "DELETE",  # DuckDB parses TRUNCATE as DELETE
    exp.Drop: "DROP",
    exp.Create: "CREATE",
}
_FORBIDDEN_NODES = (
    exp.Command, exp.Attach, exp.Detach, exp.Copy, exp.LoadData, exp.Set, exp.Pragma, exp.Use, exp.Describe,
    exp.Declare, exp.Execute, exp.Kill, exp.Export, exp.Alter, exp.Into, exp.Transaction, exp.Commit, exp.Rollback,
    exp.Analyze, exp.Cache, exp.Uncache, exp.Install, exp.SessionParameter, exp.Parameter, exp.Placeholder,
)  # fmt: skip
_SYSTEM_VIEWS = {"INFORMATION_SCHEMA.TABLES": "TABLES", "INFORMATION_SCHEMA.COLUMNS": "COLUMNS"}


@dataclass(frozen=True, kw_only=True)
class CheckedSql:
    """A statement that passed the checks.

    Attributes:
        sql: The statement in the database's dialect, with qualified names.
        statement_type: The type that the database's parser must report.
        tables: The tables that are read or changed, `project.dataset.table`, sorted.
        changes_tables: Whether the statement creates, drops or changes tables; False for a query.
    """

    sql: str
    statement_type: str
    tables: tuple[str, ...]
    changes_tables: bool = False


def check_sql(
    query: str,
    project: str,
    catalog: WarehouseCatalog,
    mode: WriteMode = "blocked",
    *,
    dialect: SqlDialect = "duckdb",
) -> CheckedSql:
    """Check the single statement of a query in BigQuery's dialect, and return it translated.

    Args:
        project: The project of tables that are written `dataset.table`.
        dialect: The dialect of the database that runs it.

    Raises:
        QueryError: The query does not parse, is not a single statement, or is not allowed.
    """
    catalog.datasets(project)
    try:
        root = _parse(query)
        _check_root(root, mode)
        _check_nodes(root)
        tables = _Tables(project, catalog, mode)
        root = tables.resolve(root)
        # Generated from the tree, without comments, so that the model's own text is never sent to the database.
        text = root.sql(dialect=dialect, comments=False, unsupported_level=ErrorLevel.IGNORE)
    except (SqlglotError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error).splitlines()[0][:300]
        raise QueryError("SQL_PARSE", f"the query does not parse: {reason}") from error
    statement_type = next(
        (name for node_type, name in _STATEMENT_TYPES.items() if isinstance(root, node_type)), "SELECT"
    )
    return CheckedSql(
        sql=text,
        statement_type=statement_type,
        tables=tuple(sorted(tables.names)),
        changes_tables=not isinstance(root, exp.Query),
    )


def _parse(query: str) -> exp.Expr:
    """Return the tree of a query that is a single statement."""
    if len(query.encode("utf-8", "replace")) > MAX_QUERY_BYTES:
        raise QueryError("SQL_PARSE", f"the query is longer than {MAX_QUERY_BYTES} bytes")
    # sqlglot logs a warning for unknown syntax, which the tool's result reports already.
    logging.getLogger("sqlglot").setLevel(logging.ERROR)
    expressions = [expression for expression in sqlglot.parse(query, read="bigquery") if expression is not None]
    statements = [expression for expression in expressions if not isinstance(expression, exp.Semicolon)]
    if len(statements) != 1:
        raise QueryError("SQL_STATEMENTS", f"give a single statement; the query has {len(statements)}")
    return statements[0]


def _check_root(root: exp.Expr, mode: WriteMode) -> None:
    """Check that the mode allows this type of statement; `_Tables` checks the table that it changes."""
    if isinstance(root, exp.Query):
        return
    kind = type(root).__name__.upper()
    if mode == "blocked" or not isinstance(root, (*_CHANGE_NODES, exp.Create)):
        raise QueryError("SQL_NOT_ALLOWED", f"{kind} is not allowed in write mode {mode}")
    if isinstance(root, exp.Drop) and root.args.get("kind") not in ("TABLE", "VIEW"):
        raise QueryError("SQL_NOT_ALLOWED", "only tables and views can be dropped")
    if isinstance(root, exp.Create):
        if root.args.get("kind") not in ("TABLE", "VIEW"):
            raise QueryError("SQL_NOT_ALLOWED", "only tables and views can be created")
        if not is_temporary(root) and mode != "allowed":
            raise QueryError("SQL_NOT_ALLOWED", "only CREATE TEMP TABLE or VIEW is allowed in write mode protected")
        if is_temporary(root) and not isinstance(root.expression, exp.Query):
            raise QueryError("SQL_NOT_ALLOWED", "a temporary table must be created AS a query")


def is_temporary(root: exp.Create) -> bool:
    """Whether a statement creates a temporary table or view."""
    properties = root.args.get("properties")
    return properties is not None and properties.find(exp.TemporaryProperty) is not None


def _check_nodes(root: exp.Expr) -> None:
    """Check every node: nested statements, unknown functions and reserved names are refused."""
    for node in root.walk():
        if isinstance(node, _FORBIDDEN_NODES):
            raise QueryError("SQL_NOT_ALLOWED", f"{type(node).__name__.upper()} is not allowed")
        # Only the WHEN clauses of a MERGE may contain INSERT, UPDATE and DELETE.
        if node is not root and isinstance(node, (*_CHANGE_NODES, exp.Create)) and not _belongs_to_merge(node):
            raise QueryError("SQL_NOT_ALLOWED", f"{type(node).__name__.upper()} inside a statement is not allowed")
        if isinstance(node, exp.CTE):
            _check_new_name(node.alias)
        if isinstance(node, exp.Table) and not isinstance(node.this, (exp.Identifier, *_ROW_SOURCES)):
            if _is_range(node.this):
                continue
            raise QueryError("SQL_FUNCTION", f"{_node_name(node.this)} is not allowed after FROM")
        if isinstance(node, (exp.Anonymous, exp.AnonymousAggFunc, *_REFUSED_FUNCTIONS)) and not _is_allowed(node):
            raise QueryError("SQL_FUNCTION", f"the function {_node_name(node)} is not allowed")


def _check_new_name(name: str) -> None:
    """Check a name that a statement defines: with a system prefix, it could shadow a system view of DuckDB."""
    if name.lower().startswith(SYSTEM_PREFIXES):
        raise QueryError("SQL_NOT_ALLOWED", f"the prefix of the name {name!r} is reserved by the database")


def _belongs_to_merge(node: exp.Expr) -> bool:
    return isinstance(node.parent, exp.When)


def _is_range(node: exp.Expr) -> bool:
    return isinstance(node, exp.Anonymous) and node.name.upper() == "RANGE"


def _is_allowed(node: exp.Expr) -> bool:
    """Return whether an unknown function is allowed: RANGE after FROM, or one of `SCALARS` without a prefix."""
    if _is_range(node):
        return isinstance(node.parent, exp.Table)
    return isinstance(node, exp.Anonymous) and node.name.upper() in SCALARS and not isinstance(node.parent, exp.Dot)


def _node_name(node: exp.Expr) -> str:
    """Return the name of a node for an error message."""
    if isinstance(node, exp.Anonymous):
        return node.name
    return node.sql_name() if isinstance(node, exp.Func) else type(node).__name__


class _Tables:
    """Looks up every table of a statement and qualifies its name.

    Attributes:
        names: Qualified names of the tables that were found.
    """

    def __init__(self, project: str, catalog: WarehouseCatalog, mode: WriteMode) -> None:
        self.names: set[str] = set()
        self._project = project
        self._catalog = catalog
        self._mode = mode

    def resolve(self, root: exp.Expr) -> exp.Expr:
        """Return the statement with every table qualified.

        Raises:
            QueryError: A table does not exist, or may not be changed.
        """
        target = None if isinstance(root, exp.Query) else _find_target_table(root)
        if not isinstance(root, exp.Query) and target is None:
            raise QueryError("SQL_NOT_ALLOWED", "the statement must change exactly one table")
        # A list, because _resolve_source replaces nodes of the tree while it is walked.
        for node in list(root.find_all(exp.Table)):
            if not isinstance(node.this, exp.Identifier):
                continue
            if node is target:
                self._resolve_target(root, node)
            else:
                self._resolve_source(node)
        return root

    def _resolve_source(self, node: exp.Table) -> None:
        """Qualify a table that is read; a view of INFORMATION_SCHEMA is replaced by rows of the catalogue."""
        if not node.db and not node.catalog:
            if not (_names_cte(node) or self._names_temporary(node)):
                raise QueryError("TABLE_NOT_FOUND", f"no table {node.name!r}; write dataset.table")
            return
        project, dataset = node.catalog or self._project, node.db
        if view := _SYSTEM_VIEWS.get(node.name.upper()):
            node.replace(self._make_catalog_query(node, project, dataset, view))
            return
        self._catalog.table(project, dataset, node.name)
        self._qualify(node, project, dataset)

    def _resolve_target(self, root: exp.Expr, node: exp.Table) -> None:
        """Check that the table may be changed; qualify it unless it is temporary."""
        creates_temporary = isinstance(root, exp.Create) and is_temporary(root)
        if not node.db and not node.catalog:
            if creates_temporary:
                _check_new_name(node.name)
                return
            if not isinstance(root, exp.Create) and self._names_temporary(node):
                return
            raise QueryError("TABLE_NOT_FOUND", f"no temporary table {node.name!r} in this session")
        if creates_temporary or self._mode != "allowed":
            raise QueryError("SQL_NOT_ALLOWED", f"{node.db}.{node.name} is not a temporary table of this session")
        project = node.catalog or self._project
        if isinstance(root, exp.Create):
            self._catalog.dataset(project, node.db)
        else:
            self._catalog.table(project, node.db, node.name)
        self._qualify(node, project, node.db)

    def _names_temporary(self, node: exp.Table) -> bool:
        return node.name.lower() in self._catalog.temporary

    def _qualify(self, node: exp.Table, project: str, dataset: str) -> None:
        self.names.add(f"{project}.{dataset}.{node.name}")
        # Qualified and quoted, so that DuckDB does not find another table of this name along its search path.
        node.set("this", exp.to_identifier(node.name, quoted=True))
        node.set("db", exp.to_identifier(dataset, quoted=True))
        node.set("catalog", exp.to_identifier(project, quoted=True))

    def _make_catalog_query(self, node: exp.Table, project: str, dataset: str, view: str) -> exp.Expr:
        """Return a subquery with the rows of a view of INFORMATION_SCHEMA, taken from the catalogue."""
        tables = self._catalog.dataset(project, dataset).tables.values()
        if view == "TABLES":
            columns = ("table_catalog", "table_schema", "table_name", "table_type")
            rows = [
                (project, dataset, table.name, "VIEW" if table.kind == "VIEW" else "BASE TABLE") for table in tables
            ]
        else:
            columns = ("table_catalog", "table_schema", "table_name", "column_name", "ordinal_position", "data_type")
            rows = [
                (project, dataset, table.name, column.name, position, column.type)
                for table in tables
                for position, column in enumerate(table.columns, 1)
            ]
        if not rows:
            null_columns = [exp.alias_(exp.Null(), column) for column in columns]
            return exp.select(*null_columns).where(exp.false()).subquery(node.alias or view)
        values = exp.values(rows, alias="listed", columns=columns)
        return exp.select("*").from_(values).subquery(node.alias or view)


def _find_target_table(root: exp.Expr) -> exp.Table | None:
    """Return the table that a statement changes; None if there is not exactly one."""
    target = root.this
    if isinstance(root, (exp.TruncateTable, exp.Drop)):
        targets = root.args.get("tables") or root.expressions
        target = targets[0] if len(targets) == 1 else None
    if isinstance(target, exp.Schema):
        target = target.this
    return target if isinstance(target, exp.Table) else None


def _names_cte(node: exp.Table) -> bool:
    """Return whether a name refers to an entry of a WITH clause that is visible at this node.

    Visible are the earlier entries, and the entry that contains the node if the clause is recursive. DuckDB would look
    up an invisible name elsewhere, including among its system tables.
    """
    name = node.name.lower()
    child: exp.Expr = node
    parent = node.parent
    while parent is not None:
        clause = parent if isinstance(parent, exp.With) else parent.args.get("with_")
        # If the child is the WITH itself, the previous step has checked its entries.
        if isinstance(clause, exp.With) and clause is not child:
            for entry in clause.expressions:
                if entry is child:
                    if bool(clause.recursive) and entry.alias.lower() == name:
                        return True
                    break
                if entry.alias.lower() == name:
                    return True
        child, parent = parent, parent.parent
    return False
