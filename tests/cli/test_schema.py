"""`bough schema`: a schema of everything that is printed with `--json`. `tests.preloaded` checks the output itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, cast

import jsonschema
import pytest
from tests.json_schemas import check_lines

from bough.cli.app import NOUNS, VERBS
from bough.cli.schemas.build import build_schema, list_schemas
from bough.cli.schemas.commands import DATA, LINES

COMMANDS = {*VERBS, *(f"{noun} {verb}" for noun, (_, verbs) in NOUNS.items() for verb in verbs)}
ANOTHER_PROTOCOL = {"acp", "mcp"}
"""Commands whose stdout belongs to a protocol."""


def objects(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        fields = cast("dict[str, Any]", schema)
        if "properties" in fields:
            yield fields
        for value in fields.values():
            yield from objects(value)
    elif isinstance(schema, list):
        for item in cast("list[Any]", schema):
            yield from objects(item)


def test_every_command_has_a_schema() -> None:
    assert COMMANDS - {*DATA, *LINES} <= ANOTHER_PROTOCOL


def test_schemas_are_valid_and_say_what_they_are() -> None:
    for name in list_schemas():
        schema = build_schema(name)
        jsonschema.Draft202012Validator.check_schema(schema)
        assert schema["$id"].startswith("urn:bough:schema:"), name
        assert " " not in schema["$id"]


@pytest.mark.parametrize("command", ["conv list", "conv diff", "run", "chat", "doctor", "exec", "skills check"])
def test_fields_have_descriptions(command: str) -> None:
    schema = build_schema(f"command:{command}")
    own = [part for part in objects(schema) if part.get("title", "").endswith(("Data", "Line"))]
    assert own
    for part in own:
        for name, field in part["properties"].items():
            assert "description" in field or "$ref" in field or "const" in field, (part["title"], name)


def test_the_check_finds_what_a_schema_does_not_name() -> None:
    envelope: dict[str, Any] = {
        "schema_version": 1,
        "command": "keys revoke",
        "data": {"id": "a", "revoked": True},
        "next": [],
    }
    check_lines(["keys", "revoke", "a", "--json"], json.dumps(envelope))
    for data in ({"id": "a"}, {"id": "a", "revoked": True, "more": 1}, {"id": 1, "revoked": True}):
        with pytest.raises(AssertionError, match="bough schema keys revoke"):
            check_lines(["keys", "revoke", "a", "--json"], json.dumps(envelope | {"data": data}))


def test_a_command_needs_no_prefix_and_no_quotes(cli: Any) -> None:
    schema = json.loads(cli("schema", "conv", "list").stdout)
    assert schema["$id"] == "urn:bough:schema:command:conv-list:1"
    assert json.loads(cli("schema", "command:conv list").stdout) == schema == cli.data("schema", "conv list")


def test_the_list_names_every_schema_and_a_mistake_the_nearest(cli: Any) -> None:
    assert set(cli.data("schema")["schemas"]) == set(list_schemas())
    done = cli("schema", "doctr")
    assert done.returncode == 3
    assert done.stderr == (
        "error: no schema named 'doctr'\nhint: `bough schema` lists them; did you mean `command:doctor`?\n"
    )


def test_a_schema_of_an_event_fits_what_is_stored(cli: Any) -> None:
    assert cli("run", "bake a cake").returncode == 0
    for event in cli.data("conv", "show")["events"]:
        jsonschema.validate(event, build_schema(f"event:{event['kind']}"))


def test_a_schema_of_a_file_accepts_what_init_writes(cli: Any, tmp_path: Any) -> None:
    import yaml

    assert cli("init", tmp_path / "project").returncode == 0
    jsonschema.validate(yaml.safe_load((tmp_path / "project" / "agent.yaml").read_text()), build_schema("agent"))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"modle": "openai:gpt-5"}, build_schema("agent"))
