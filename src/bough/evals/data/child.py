"""The process that runs queries: DuckDB without files, network, extensions or settings, under kernel resource limits.

Started as `python -I -m bough.evals.data.child REQUESTS ANSWERS` with two pipes. It exits with its parent: a thread
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
    """Write one message completely.

    Raises:
        OSError: The other side is gone.
    """
    body = json.dumps(message, default=str).encode()
    data = memoryview(_LENGTH.pack(len(body)) + body)
    while data:
        data = data[os.write(fd, data) :]


def read_frame(fd: int) -> JsonObject:
    """Read one message.

    Raises:
        EOFError: The other side is gone.
        ValueError: The data are not a message.
    """
    (size,) = _LENGTH.unpack(_read_exactly(fd, _LENGTH.size))
    if size > MAX_FRAME_BYTES:
        raise ValueError(f"a message of {size} bytes")
    message: Any = json.loads(_read_exactly(fd, size))
    if not isinstance(message, dict):
        raise ValueError("the message is not an object")  # noqa: TRY004 - what it holds is wrong, not its type
    return message  # pyright: ignore[reportUnknownVariableType]


def _read_exactly(fd: int, size: int) -> bytes:
    parts: list[bytes] = []
    while size:
        part = os.read(fd, min(size, 1 << 20))
        if not part:
            raise EOFError("the other side is gone")
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


def main(requests: int, answers: int) -> None:
    """Open the warehouse that the first request describes, then answer requests until the pipe ends."""
    settings = read_frame(requests)
    connection: Any = None
    pending: queue.Queue[JsonObject] = queue.Queue()

    def read_requests() -> None:
        while True:
            try:
                request = read_frame(requests)
            except (EOFError, OSError, ValueError):
                os._exit(0)  # the parent is gone; a query that still runs must not keep this process
            if request["op"] != "interrupt":
                pending.put(request)
            elif connection is not None:
                connection.interrupt()

    try:
        connection, backend = _open(settings)
    except Exception as error:  # noqa: BLE001 - the boundary of this process: the parent reports it
        write_frame(answers, _describe_failure(error))
        return
    # The reader thread starts after this answer, so nothing can interrupt the opening.
    write_frame(answers, {"ok": True})
    threading.Thread(target=read_requests, daemon=True).start()
    while True:
        request = pending.get()
        try:
            answer = _describe(connection, backend) if request["op"] == "catalog" else _run(connection, request)
        except Exception as error:  # noqa: BLE001 - as above
            answer = _describe_failure(error)
        write_frame(answers, answer)


def _open(settings: JsonObject) -> tuple[Any, Any]:
    """Return (connection, ibis backend) with the projects attached and everything else locked."""
    # Before the imports and the files: native code that parses a file must already be limited.
    _limit(settings)
    import duckdb
    import ibis

    connection = duckdb.connect(":memory:", config={**_SETTINGS, "memory_limit": f"{settings['memory_bytes'] >> 20}MB"})
    for project, file in settings["projects"].items():
        how = "" if settings["writable"] else " (read_only)"
        connection.execute(f"attach {_quote(file, chr(39))} as {_quote(project)}{how}")
    backend = ibis.duckdb.from_connection(connection)  # before the lock: ibis sets options itself
    connection.execute("set enable_external_access=false")
    connection.execute("set lock_configuration=true")  # last: nothing above can be set after it
    return connection, backend


def _limit(settings: JsonObject) -> None:
    # Above DuckDB's own limit, so that its error comes first; this bound stops what DuckDB does not count.
    bound = 2 * settings["memory_bytes"] + (1 << 30)
    resource.setrlimit(resource.RLIMIT_AS, (bound, bound))
    # A core dump would write the data of the projects to disk.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if not settings["writable"]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


def _describe(connection: Any, backend: Any) -> JsonObject:
    """Return the catalogue: ibis lists names and types, DuckDB's system tables have comments and row counts."""
    texts = {
        (project, dataset, table): (rows, text)
        for project, dataset, table, rows, text in connection.execute(
            "select database_name, schema_name, table_name, estimated_size, coalesce(comment, '') from duckdb_tables()"
        ).fetchall()
    }
    notes = {
        (project, dataset, table, column): text
        for project, dataset, table, column, text in connection.execute(
            "select database_name, schema_name, table_name, column_name, coalesce(comment, '') from duckdb_columns()"
        ).fetchall()
    }
    schemas = {
        (project, schema): text or ""
        for project, schema, text in connection.execute(
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
                if name not in texts and name not in views:
                    continue  # a temporary table of the session
                try:
                    tables.append(_describe_table(backend, name, texts, notes))
                except Exception as error:  # noqa: BLE001 - a view of a changed table must not hide the others
                    left_out[table] = str(error)
            if tables or left_out or dataset != "main":
                text = schemas.get((project, dataset), "")
                datasets[dataset] = {"description": text, "tables": tables, "left_out": left_out}
    temporary = connection.execute(
        "select lower(table_name) from duckdb_tables() where temporary "
        "union select lower(view_name) from duckdb_views() where temporary and not internal"
    ).fetchall()
    return {"projects": projects, "temporary": [name for (name,) in temporary]}


def _describe_table(
    backend: Any, name: tuple[str, str, str], texts: dict[Any, tuple[int, str]], notes: dict[Any, str]
) -> JsonObject:
    project, dataset, table = name
    schema = backend.get_schema(table, catalog=project, database=dataset)
    rows, text = texts.get(name, (0, ""))
    return {
        "name": table,
        "kind": "TABLE" if name in texts else "VIEW",
        "rows": rows,
        "description": text,
        "columns": [
            {
                "name": column,
                "type": _column_type(type),
                "mode": _column_mode(type),
                "description": notes.get((*name, column), ""),
            }
            for column, type in schema.items()
        ],
    }


def _column_mode(type: Any) -> str:
    if type.is_array():
        return "REPEATED"
    return "NULLABLE" if type.nullable else "REQUIRED"


def _column_type(type: Any) -> str:
    """Return BigQuery's name for an ibis type."""
    if type.is_array():
        return _column_type(type.value_type)
    if type.is_timestamp():
        return "TIMESTAMP" if type.timezone else "DATETIME"
    if type.is_decimal():
        return "NUMERIC"
    if type.is_struct() or type.is_map():
        return "RECORD"
    return _BIGQUERY_TYPES.get(type.__class__.__name__.lower(), "STRING")


def _run(connection: Any, request: JsonObject) -> JsonObject:
    """Run one statement and return its columns and rows, whole rows up to both bounds."""
    import duckdb

    statements = duckdb.extract_statements(request["sql"])
    kinds = [statement.type.name for statement in statements]
    # DuckDB's parser has the last word: sqlglot may have read the same text as another statement.
    if kinds != [request["statement_type"]]:
        return {"error": "SQL_STATEMENTS", "details": f"the statement is read as {', '.join(kinds) or 'nothing'}"}
    cursor = connection.execute(statements[0])
    columns = [column[0] for column in cursor.description or ()]
    rows: list[list[Any]] = []
    size, limit, truncated = 0, request["max_rows"], False
    # One row more than the limit is fetched, to tell a complete result from a truncated one.
    while not truncated and (chunk := cursor.fetchmany(min(_CHUNK_ROWS, limit + 1 - len(rows)))):
        for row in chunk:
            plain = [_as_json(value) for value in row]
            size += sum(len(str(value)) for value in plain) + 4 * len(plain) + sum(map(len, columns))
            if len(rows) == limit or size > request["max_bytes"]:
                truncated = True
                break
            rows.append(plain)
    return {"columns": columns, "rows": rows, "truncated": truncated}


def _as_json(value: Any) -> Any:
    """Convert a value to JSON; values without a JSON form become text."""
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
    name = type(error).__name__
    code = "SQL_TIMEOUT" if name == "InterruptException" else "SQL_FAILED"
    if isinstance(error, MemoryError) or name == "OutOfMemoryException":
        code = "SQL_MEMORY"
    return {"error": code, "details": str(error)}


def _quote(text: str, mark: str = '"') -> str:
    return mark + text.replace(mark, mark * 2) + mark


if __name__ == "__main__":
    with contextlib.suppress(EOFError, BrokenPipeError):  # the parent is gone
        main(int(sys.argv[1]), int(sys.argv[2]))
    os._exit(0)
