"""Builds the JSON schemas by name: of what commands print, of events, and of the files that people write."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import partial
from typing import Any, get_args

from pydantic import ConfigDict, TypeAdapter, create_model
from pydantic.json_schema import JsonSchemaMode

from bough.agents.config.schema import json_schema as build_config_schema
from bough.agents.spec import KEYS, AgentSpec
from bough.cli.render.base import SCHEMA_VERSION
from bough.cli.schemas.commands import DATA, LINES
from bough.cli.schemas.shared import DESCRIBED, ChatInput, ErrorData, VariantsFile
from bough.errors import NotFound
from bough.events.model import Event
from bough.types import JsonObject

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def list_schemas() -> dict[str, str]:
    """Return what each schema describes, by its name."""
    return {
        "agent": "An agent's file: bough run --agent FILE.",
        "config": "config.yaml.",
        "chat": "A line that `bough chat --json` reads.",
        "variants": "A file of `bough try --variant FILE`.",
        "event": "An event of a conversation, of any kind.",
        **{f"event:{kind}": f"The event {kind}." for kind in _list_events()},
        **{f"command:{name}": f"A line that {name} prints with --json." for name in sorted({*DATA, *LINES})},
    }


def build_schema(name: str) -> JsonObject:
    """Return a JSON schema (draft 2020-12).

    Raises:
        NotFound: No schema has this name.
    """
    kind, _, detail = name.partition(":")
    builders: Mapping[str, Callable[[], JsonObject]] = {
        "agent": _build_agent,
        "config": build_config_schema,
        "chat": partial(_describe, ChatInput, mode="validation"),
        "variants": _build_variants,
        "event": partial(_build_event, detail),
        "command": partial(_build_command, detail),
    }
    if name not in (names := list_schemas()):
        similar = get_close_matches(name, [*names, *(full_name.partition(":")[2] for full_name in names)], 1)
        more = (
            f"; did you mean `{next(full_name for full_name in names if full_name.endswith(similar[0]))}`?"
            if similar
            else ""
        )
        raise NotFound(f"no schema named {name!r}", hint=f"`bough schema` lists them{more}")
    schema = builders[kind]()
    return {"$schema": _DIALECT, "$id": f"urn:bough:schema:{name.replace(' ', '-')}:{SCHEMA_VERSION}"} | schema


def _describe(shape: Any, *, mode: JsonSchemaMode = "serialization") -> JsonObject:
    # In a list, because only a type without settings of its own may be given some.
    many: Any = list[shape]  # type: ignore[valid-type]  # pyright: ignore[reportInvalidTypeForm]
    schema = TypeAdapter[Any](many, config=DESCRIBED).json_schema(mode=mode)
    definitions: JsonObject = schema.get("$defs", {})
    if "Task" in definitions:  # printed without its events, which `bough tasks logs` prints
        del definitions["Task"]["properties"]["events"]
    return {**schema["items"], **({"$defs": definitions} if definitions else {})}


def _build_command(name: str) -> JsonObject:
    """Return the schema of each line: the envelope of data or of an error, or a line of a stream."""
    choices = [_build_envelope(name, "error", _describe(ErrorData))]
    if name in DATA:
        choices.append(_build_envelope(name, "data", _describe(DATA[name])))
    if name in LINES:
        choices.append(_describe(LINES[name]))
    definitions: JsonObject = {}
    for choice in choices:
        definitions |= choice.pop("$defs", {})
    return {"title": f"bough {name} --json", "anyOf": choices} | ({"$defs": definitions} if definitions else {})


def _build_envelope(name: str, field: str, content: JsonObject) -> JsonObject:
    definitions = content.pop("$defs", {})
    properties = {
        "schema_version": {"const": SCHEMA_VERSION, "description": "Raised when a field changes its meaning."},
        "command": {"description": "The command.", **({"const": name} if field == "data" else {"type": "string"})},
        field: content,
        "next": {"type": "array", "items": {"type": "string"}, "description": "Commands to run next."},
    }
    return {"type": "object", "properties": properties, "required": list(properties), "$defs": definitions}


def _list_events() -> dict[str, Any]:
    models = get_args(get_args(Event)[0])
    return {model.__name__: model for model in models}


def _build_event(kind: str) -> JsonObject:
    """Return the schema of an event as stores write and commands print it: with its position."""
    schema = _describe(_list_events()[kind] if kind else Event)
    for definition in (schema, *schema.get("$defs", {}).values()):
        if "ts" in definition.get("properties", {}):
            definition["properties"]["seq"] = {"type": "integer", "description": "Position in the log, from 0."}
    return schema


def _build_agent() -> JsonObject:
    fields: dict[str, Any] = {name: (field.annotation, field) for name, field in AgentSpec.model_fields.items()}
    # A file names its model; a model that is an object exists in programs only.
    fields["model"] = (str | None, AgentSpec.model_fields["model"])
    model = create_model("Agent", __config__=ConfigDict(extra="forbid"), **{name: fields[name] for name in KEYS})
    return model.model_json_schema()


def _build_variants() -> JsonObject:
    schema = _describe(VariantsFile, mode="validation")
    # `bough try` refuses unknown keys: an editor marks them before it runs.
    for definition in schema["$defs"].values():
        definition["additionalProperties"] = False
    return schema
