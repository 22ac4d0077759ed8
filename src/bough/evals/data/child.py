"""The process that runs queries: DuckDB without files, network, extensions or settings, under kernel resource limits.

Started as `python -I -m bough.evals.data.child REQUESTS RESPONSES` with two pipes. It exits with its parent: a thread
reads the requests and ends the process at the end of the pipe, even while a query runs.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
from __future__ import annotations

import contextlib
import json
import os
import queue
import resource
import struct
import sys
import threading
from typing import Any

from bough.types import JsonObject

MAX_FRAME_BYTES = 256 << 20
_LENGTH = struct.Struct(">I")


def write_frame(fd: int, message: JsonObject) -> None:
    """Write one message to a pipe.

    Raises:
        OSError: The other process closed the pipe.
    """
    body = json.dumps(message, default=str).encode()
    unwritten = memoryview(_LENGTH.pack(len(body)) + body)
    while unwritten:
        unwritten = unwritten[os.write(fd, unwritten) :]


def read_frame(fd: int) -> JsonObject:
    """Read one message from a pipe.

    Raises:
        EOFError: The other process closed the pipe.
        ValueError: The bytes are not a message.
    """
    (size,) = _LENGTH.unpack(_read_exactly(fd, _LENGTH.size))
    if size > MAX_FRAME_BYTES:
        raise ValueError(f"the message has {size} bytes")
    message: Any = json.loads(_read_exactly(fd, size))
    if not isinstance(message, dict):
        raise ValueError("the message is not an object")  # noqa: TRY004 - the content is wrong, not the type
    return message  # pyright: ignore[reportUnknownVariableType]


def _read_exactly(fd: int, size: int) -> bytes:
    parts: list[bytes] = []
    while size:
        part = os.read(fd, min(size, 1 << 20))
        if not part:
            raise EOFError("the other process closed the pipe")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


_SETTINGS = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "allow_unsigned_extensions": "false",
    "allow_persistent_secrets": "false",
    "python_enable_replacements": "false",
    "threads": "2",
    "temp_directory": "",
    "max_temp_directory_size": "0B",
}
_CHUNK_ROWS = 1000
_BIGQUERY_TYPES = {
    "int8": "INTEGER", "int16": "INTEGER", "int32": "INTEGER", "int64": "INTEGER", "uint8": "INTEGER",
    "uint16": "INTEGER", "uint32": "INTEGER", "uint64": "INTEGER", "float32": "FLOAT", "float64": "FLOAT",
    "string": "STRING", "boolean": "BOOLEAN", "date": "DATE", "time": "TIME", "binary": "BYTES", "json": "JSON",
}  # fmt: skip


def main(request_fd: int, response_fd: int) -> None:
    """Open the warehouse that the first request describes, then respond to requests until the pipe ends."""
    settings = read_frame(request_fd)
    connection: Any = None
    pending: queue.Queue[JsonObject] = queue.Queue()

    def read_requests() -> None:
        while True:
            try:
                request = read_frame(request_fd)
            except (EOFError, OSError, ValueError):
                os._exit(0)  # the parent ended; a running query must not keep this process alive
            if request["op"] != "interrupt":
                pending.put(request)
            elif connection is not None:
                connection.interrupt()

    try:
        connection, backend = _open_warehouse(settings)
    except Exception as error:  # noqa: BLE001 - the boundary of this process: the parent reports it
        write_frame(response_fd, _describe_failure(error))
        return
    # The reader thread starts after this response, so nothing can interrupt the opening.
    write_frame(response_fd, {"ok": True})
    threading.Thread(target=read_requests, daemon=True).start()
    while True:
        request = pending.get()
        try:
            if request["op"] == "catalog":
                response = _describe_catalog(connection, backend)
            else:
                response = _run_query(connection, request)
        except Exception as error:  # noqa: BLE001 - as above
            response = _describe_failure(error)
        write_frame(response_fd, response)


def _open_warehouse(settings: JsonObject) -> tuple[Any, Any]:
    """Return (connection, ibis backend) with the projects attached and everything else locked."""
    # Before the imports and the files, because native code that parses a file must already be limited.
    _limit_resources(settings)
    import duckdb
    import ibis

    connection = duckdb.connect(":memory:", config={**_SETTINGS, "memory_limit": f"{settings['memory_bytes'] >> 20}MB"})
    for project, file in settings["projects"].items():
        options = "" if settings["writable"] else " (read_only)"
        connection.execute(f"attach {_quote(file, chr(39))} as {_quote(project)}{options}")
    backend = ibis.duckdb.from_connection(connection)  # before the lock, because ibis sets options
    connection.execute("set enable_external_access=false")
    connection.execute("set lock_configuration=true")  # last, since it also prevents the settings above
    return connection, backend


def _limit_resources(settings: JsonObject) -> None:
    # Above DuckDB's own limit, so that its error is raised first; this limit includes memory DuckDB does not count.
    address_space_bytes = 2 * settings["memory_bytes"] + (1 << 30)
    resource.setrlimit(resource.RLIMIT_AS, (address_space_bytes, address_space_bytes))
    # A core dump would write the data of the projects to disk.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if not settings["writable"]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


def _describe_catalog(connection: Any, backend: Any) -> JsonObject:
    """Return the catalogue: names and types from ibis, comments and row counts from DuckDB's system tables."""
    rows_and_comments = {
        (project, dataset, table): (rows, comment)
        for project, dataset, table, rows, comment in connection.execute(
            "select database_name, schema_name, table_name, estimated_size, coalesce(comment, '') from duckdb_tables()"
        ).fetchall()
    }
    column_comments = {
        (project, dataset, table, column): comment
        for project, dataset, table, column, comment in connection.execute(
            "select database_name, schema_name, table_name, column_name, coalesce(comment, '') from duckdb_columns()"
        ).fetchall()
    }
    dataset_comments = {
        (project, dataset): comment or ""
        for project, dataset, comment in connection.execute(
            "select database_name, schema_name, comment from duckdb_schemas()"
        ).fetchall()
    }
    views = set(
        connection.execute(
            "select database_name, schema_name, view_name from duckdb_views() where not internal"
        ).fetchall()
    )
    projects: dict[str, Any] = {}
    for project in sorted(set(backend.list_catalogs()) - {"memory", "system", "temp"}):
        datasets = projects.setdefault(project, {})
        for dataset in sorted(set(backend.list_databases(catalog=project)) - {"information_schema", "pg_catalog"}):
            tables: list[JsonObject] = []
            left_out: dict[str, str] = {}
            for table in sorted(backend.list_tables(database=(project, dataset))):
                name = (project, dataset, table)
                if name not in rows_and_comments and name not in views:
                    continue  # a temporary table of the session
                try:
                    tables.append(_describe_table(backend, name, rows_and_comments, column_comments))
                except Exception as error:  # noqa: BLE001 - a broken view must not hide the other tables
                    left_out[table] = str(error)
            if tables or left_out or dataset != "main":
                description = dataset_comments.get((project, dataset), "")
                datasets[dataset] = {"description": description, "tables": tables, "left_out": left_out}
    temporary = connection.execute(
        "select lower(table_name) from duckdb_tables() where temporary "
        "union select lower(view_name) from duckdb_views() where temporary and not internal"
    ).fetchall()
    return {"projects": projects, "temporary": [name for (name,) in temporary]}


def _describe_table(
    backend: Any,
    name: tuple[str, str, str],
    rows_and_comments: dict[Any, tuple[int, str]],
    column_comments: dict[Any, str],
) -> JsonObject:
    """Return the description of a table or view.

    Args:
        name: (project, dataset, table).
        rows_and_comments: Row counts and comments of tables; views are missing.
        column_comments: Comments by (project, dataset, table, column).
    """
    project, dataset, table = name
    schema = backend.get_schema(table, catalog=project, database=dataset)
    rows, comment = rows_and_comments.get(name, (0, ""))
    return {
        "name": table,
        "kind": "TABLE" if name in rows_and_comments else "VIEW",
        "rows": rows,
        "description": comment,
        "columns": [
            {
                "name": column,
                "type": _name_column_type(type),
                "mode": _name_column_mode(type),
                "description": column_comments.get((*name, column), ""),
            }
            for column, type in schema.items()
        ],
    }


def _name_column_mode(type: Any) -> str:
    """Return BigQuery's mode of a column with an ibis type."""
    if type.is_array():
        return "REPEATED"
    return "NULLABLE" if type.nullable else "REQUIRED"


def _name_column_type(type: Any) -> str:
    """Return BigQuery's name for an ibis type."""
    if type.is_array():
        return _name_column_type(type.value_type)
    if type.is_timestamp():
        return "TIMESTAMP" if type.timezone else "DATETIME"
    if type.is_decimal():
        return "NUMERIC"
    if type.is_struct() or type.is_map():
        return "RECORD"
    return _BIGQUERY_TYPES.get(type.__class__.__name__.lower(), "STRING")


def _run_query(connection: Any, request: JsonObject) -> JsonObject:
    """Run one statement and return its columns, and its rows up to `max_rows` and `max_bytes`."""
    import duckdb

    statements = duckdb.extract_statements(request["sql"])
    statement_types = [statement.type.name for statement in statements]
    # DuckDB's parser decides, since sqlglot may have parsed the same text as another statement.
    if statement_types != [request["statement_type"]]:
        actual_types = ", ".join(statement_types) or "nothing"
        return {"error": "SQL_STATEMENTS", "details": f"the database parses the statement as {actual_types}"}
    cursor = connection.execute(statements[0])
    columns = [column[0] for column in cursor.description or ()]
    rows: list[list[Any]] = []
    size = 0
    max_rows = request["max_rows"]
    truncated = False
    # One row more than the limit is fetched, to distinguish a complete result from a truncated one.
    while not truncated and (chunk := cursor.fetchmany(min(_CHUNK_ROWS, max_rows + 1 - len(rows)))):
        for row in chunk:
            json_row = [_as_json(value) for value in row]
            # About the length of the row as a JSON object: values, punctuation, names.
            size += sum(len(str(value)) for value in json_row) + 4 * len(json_row) + sum(map(len, columns))
            if len(rows) == max_rows or size > request["max_bytes"]:
                truncated = True
                break
            rows.append(json_row)
    return {"columns": columns, "rows": rows, "truncated": truncated}


def _as_json(value: Any) -> Any:
    """Convert a value to JSON; bytes become hexadecimal, other values without a JSON form become text."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else str(value)
    if isinstance(value, (list, tuple)):
        return [_as_json(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _as_json(item) for key, item in value.items()}
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).hex()
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _describe_failure(error: Exception) -> JsonObject:
    """Return the response for an error, with a `QueryErrorCode`."""
    name = type(error).__name__
    code = "SQL_TIMEOUT" if name == "InterruptException" else "SQL_FAILED"
    if isinstance(error, MemoryError) or name == "OutOfMemoryException":
        code = "SQL_MEMORY"
    return {"error": code, "details": str(error)}


def _quote(text: str, mark: str = '"') -> str:
    return mark + text.replace(mark, mark * 2) + mark


if __name__ == "__main__":
    with contextlib.suppress(EOFError, BrokenPipeError):  # the parent ended
        main(int(sys.argv[1]), int(sys.argv[2]))
    os._exit(0)
