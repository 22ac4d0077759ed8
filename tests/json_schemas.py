"""Checks what commands print with `--json` against the schemas that `bough schema` prints."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Any, cast

from jsonschema_rs import Draft202012Validator

from bough.cli.schemas.build import build_schema, list_schemas
from bough.cli.usage import arrange, name_command

RUNS_SCRIPTS = ("exec", "skills run")
"""Commands whose arguments belong to a script from some point on."""


def check_lines(args: Sequence[str], stdout: str) -> None:
    """Check each line that a command with `--json` printed; fields that its schema does not name are a fault, too."""
    argv = arrange(args)
    command = name_command(argv)
    if "--json" not in argv or "--help" in argv or command in RUNS_SCRIPTS:
        return
    name = f"command:{command}"
    if "--version" in argv:
        name = "command:version"
    if name not in list_schemas():  # a noun without a verb, or no command
        name = f"command:{command} list"
    if name not in list_schemas():
        name = "command:bough"
    for line in stdout.splitlines():
        value = json.loads(line)
        faults = [f"{'/'.join(map(str, fault.instance_path))}: {fault.message}" for fault in errors(name, value)]
        assert not faults, f"bough schema {name.partition(':')[2]}: {faults[:3]}\n{line[:2000]}"


def errors(name: str, value: Any) -> list[Any]:
    """The faults of a value by the schema of a command."""
    return list(validator(name).iter_errors(value))


@cache
def validator(name: str) -> Draft202012Validator:
    """The validator of a schema that also refuses fields without a description."""
    return Draft202012Validator(forbid_more(build_schema(name)))


def forbid_more(schema: Any) -> Any:
    """The schema with objects closed that name their fields and do not say that they have others."""
    if isinstance(schema, list):
        return [forbid_more(item) for item in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    closed: dict[str, Any] = {key: forbid_more(value) for key, value in cast("dict[str, Any]", schema).items()}
    if closed.get("type") == "object" and "properties" in closed:
        closed.setdefault("additionalProperties", False)
    return closed
