"""`bough schema`: a schema of everything that is printed with `--json`. `tests.preloaded` checks the output itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import jsonschema
import pytest
import yaml
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


def test_the_output_of_a_command_is_validated_from_stdin_and_a_file_with_its_lines(cli: Any, tmp_path: Any) -> None:
    """The envelope names the schema; a wrong line is told with its number and the value that is wrong."""
    assert cli("run", "bake a cake").returncode == 0
    printed = cli("conv", "list", "--json").stdout
    assert cli("schema", "--validate", "-", stdin=printed).stdout == "valid: 1 document by command:conv list\n"
    lines = cli("conv", "show", "--all", "--json").stdout
    assert cli("schema", "conv", "show", "--validate", "-", stdin=lines).returncode == 0

    envelope = json.loads(printed)
    envelope["data"]["conversations"][0]["id"] = 5
    (tmp_path / "out.jsonl").write_text(f"{printed}{json.dumps(envelope)}\n{{\n")
    data = json.loads((done := cli("schema", "--validate", tmp_path / "out.jsonl", "--json")).stdout)["data"]
    assert done.returncode == 1
    assert (data["schema"], data["documents"], data["valid"]) == ("command:conv list", 3, False)
    assert [(problem["line"], problem["path"]) for problem in data["problems"]] == [
        (2, "$.data.conversations[0].id"),
        (3, "$"),
    ]
    shown = cli("schema", "--validate", tmp_path / "out.jsonl").stdout
    assert "out.jsonl:2:1: $.data.conversations[0].id: 5 is not of type 'string'" in shown


def test_a_file_is_validated_with_the_line_and_column_of_what_is_wrong(cli: Any, tmp_path: Any) -> None:
    assert cli("init", tmp_path / "project").returncode == 0
    assert cli("schema", "agent", "--validate", tmp_path / "project" / "agent.yaml").returncode == 0
    (tmp_path / "bad.yaml").write_text("name: helper\ndescription: [5]\n")
    done = cli("schema", "agent", "--validate", tmp_path / "bad.yaml")
    assert done.returncode == 1
    assert "bad.yaml:2:14: $.description: " in done.stdout
    (tmp_path / "broken.yaml").write_text("name: [\n")
    assert "not YAML" in cli("schema", "agent", "--validate", tmp_path / "broken.yaml").stdout


@pytest.mark.parametrize(
    ("arguments", "stdin", "code", "message"),
    [
        (["--validate", "-"], "hello", 2, "no line names the command that printed it"),
        (["conv", "list", "--validate", "-"], "", 2, "there is nothing to validate"),
        (["agent", "--validate", "missing.yaml"], "", 2, "missing.yaml cannot be read"),
        (["agnet", "--validate", "-"], "{}", 3, "no schema named 'agnet'"),
    ],
)
def test_what_cannot_be_validated_is_said(cli: Any, arguments: list[str], stdin: str, code: int, message: str) -> None:
    done = cli("schema", *arguments, stdin=stdin)
    assert done.returncode == code
    assert done.stderr.startswith(f"error: {message}")


def test_the_schema_of_variants_takes_the_example_and_refuses_what_the_command_refuses() -> None:
    schema = build_schema("variants")
    example = Path(__file__).parents[2] / "examples/try/variants.yaml"
    jsonschema.validate(yaml.safe_load(example.read_text()), schema)
    for data in ({}, {"variants": [{"message": "x"}]}, {"variants": [], "varaints": []}, {"variants": [{"name": 7}]}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(data, schema)
