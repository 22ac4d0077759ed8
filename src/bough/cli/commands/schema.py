"""`bough schema`: the JSON schemas of what bough prints and reads."""

from __future__ import annotations

import json as json_text
from collections.abc import Mapping
from typing import Annotated

import typer

from bough.cli import options
from bough.cli.complete import complete_schemas
from bough.cli.render import Report
from bough.cli.text import Span, Table, paragraph

_EVENT = "event:"

_Name = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[NAME]", help="For example `command:conv list`, or conv list.", autocompletion=complete_schemas
    ),
]


def schema(
    name: _Name = None,
    home: options.Home = None,
    store: options.Store = None,
    json: options.Json = False,
) -> Report:
    """Print the JSON schema of what a command prints, or of a file.

    Without NAME, lists the schemas. `command:NAME` describes each line that the command prints with --json: the
    envelope of its data or of an error, or a record of a stream. `agent` and `config` describe files for editors,
    `chat` the lines that `bough chat --json` reads, `event:KIND` what a log holds.
    """
    from bough.cli.schemas.build import build_schema, list_schemas

    schemas = list_schemas()
    if not name:
        return _report_list(schemas)
    # Words of a command need no quotes and no prefix.
    words = " ".join(name)
    document = build_schema(words if words in schemas or f"command:{words}" not in schemas else f"command:{words}")
    return Report(command="schema", data=document, blocks=[*paragraph(json_text.dumps(document, indent=2))])


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
