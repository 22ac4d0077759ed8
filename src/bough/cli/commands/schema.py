"""`bough schema`: the JSON schemas of what bough prints and reads."""

from __future__ import annotations

import json as json_text
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from bough.cli import options
from bough.cli.complete import complete_schemas
from bough.cli.render import Report
from bough.cli.text import Span, Table, line, paragraph
from bough.errors import InvalidInput

_EVENT = "event:"

_Name = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[NAME]", help="For example `command:conv list`, or conv list.", autocompletion=complete_schemas
    ),
]


def schema(
    name: _Name = None,
    validate: Annotated[
        str | None,
        typer.Option("--validate", metavar="FILE", help="Validate a file, or stdin for -, instead; 1 if invalid."),
    ] = None,
    home: options.Home = None,
    store: options.Store = None,
    json: options.Json = False,
) -> Report:
    """Print the JSON schema of what a command prints, or of a file.

    Without NAME, lists the schemas. `command:NAME` describes each line that the command prints with --json: the
    envelope of its data or of an error, or a record of a stream. `agent`, `config` and `variants` describe files for
    editors, `chat` the lines that `bough chat --json` reads, `event:KIND` what a log holds. --validate reads what a
    command printed with --json, whose envelope names the schema; a file needs NAME.
    """
    from bough.cli.schemas.build import build_schema, list_schemas

    schemas = list_schemas()
    # Words of a command need no quotes and no prefix.
    words = " ".join(name or [])
    full_name = words if words in schemas or f"command:{words}" not in schemas else f"command:{words}"
    if validate is not None:
        return _report_problems(full_name, validate)
    if not name:
        return _report_list(schemas)
    document = build_schema(full_name)
    return Report(command="schema", data=document, blocks=[*paragraph(json_text.dumps(document, indent=2))])


def _report_problems(name: str, file: str) -> Report:
    """Return whether a file is valid. Without the name of a schema, the file itself names the command."""
    from bough.cli.schemas.validate import find_problems, infer_name

    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(
            f"{file} cannot be read: {error}", hint="give a text file in UTF-8, or - for stdin"
        ) from error
    name = name or infer_name(text)
    documents, problems = find_problems(name, text)
    source = "stdin" if file == "-" else file
    counted = "1 document" if documents == 1 else f"{documents} documents"
    return Report(
        command="schema",
        data={
            "schema": name,
            "valid": not problems,
            "documents": documents,
            "problems": [asdict(problem) for problem in problems],
        },
        blocks=[
            *(
                line(f"{source}:{problem.line}:{problem.column}: {problem.path}: {problem.message}")
                for problem in problems
            ),
            *([] if problems else [line(f"valid: {counted} by {name}")]),
        ],
        next=(f"bough schema {name.removeprefix('command:')}",),
        exit_code=1 if problems else 0,
    )


def _report_list(schemas: Mapping[str, str]) -> Report:
    """Return the list of schemas; for people, all kinds of events are one row."""
    events = [name for name in schemas if name.startswith(_EVENT)]
    names = {name: about for name, about in schemas.items() if name not in events}
    names[f"{_EVENT}KIND"] = f"One of {len(events)} kinds: event:UserMessage, …"
    rows: tuple[tuple[Span, ...], ...] = tuple(((name, "id"), (about, "")) for name, about in names.items())
    return Report(
        command="schema",
        data={"schemas": dict(schemas)},
        blocks=[Table(head=("name", "describes"), rows=rows, flexible=(1,))],
        next=("bough schema conv list",),
    )
