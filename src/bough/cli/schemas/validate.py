"""Validates what a command printed, or a file that a person wrote, against its schema."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import yaml
from jsonschema import Draft202012Validator, ValidationError, exceptions

from bough.cli.schemas.build import build_schema, list_schemas
from bough.errors import InvalidInput
from bough.types import JsonObject

_FILES = ("agent", "config")
"""Schemas of whole files in YAML or JSON; all others describe one line of JSON each."""
_MESSAGE_LENGTH = 200


@dataclass(frozen=True)
class SchemaViolation:
    """Why a document is invalid.

    Attributes:
        line: Line of the text, from 1; `column` likewise.
        path: The value, for example `$.data.events[0].seq`.
    """

    line: int
    column: int
    path: str
    message: str


def infer_name(text: str) -> str:
    """Return the name of the schema of a command's output, from the envelope that names the command.

    Raises:
        InvalidInput: No line names a command with a schema.
    """
    schemas = list_schemas()
    for line in reversed(text.splitlines()):
        try:
            value: Any = json.loads(line)
        except ValueError:
            continue
        name = f"command:{cast('JsonObject', value).get('command')}" if isinstance(value, dict) else ""
        if name in schemas:
            return name
    raise InvalidInput(
        "no line names the command that printed it", hint="name the schema: `bough schema conv list --validate FILE`"
    )


def find_problems(name: str, text: str) -> tuple[int, list[SchemaViolation]]:
    """Return how many documents a text has, and what is wrong with them.

    Raises:
        NotFound: No schema has this name.
        InvalidInput: The text is empty.
    """
    validator: Any = Draft202012Validator(build_schema(name))
    if name in _FILES:
        return 1, list(_check_file(validator, text))
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not lines:
        raise InvalidInput("there is nothing to validate", hint="pass what the command printed with --json")
    return len(lines), [problem for number, line in lines for problem in _check_line(validator, number, line)]


def _check_line(validator: Any, number: int, line: str) -> Iterator[SchemaViolation]:
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        yield SchemaViolation(number, error.colno, "$", f"not JSON: {error.msg}")
        return
    # The alternatives of a line all fail at once; only the error of the nearest one tells what is wrong.
    error: Any = cast("Any", exceptions).best_match(validator.iter_errors(value))
    if error is not None:
        yield SchemaViolation(number, 1, error.json_path, _shorten(error))


def _check_file(validator: Any, text: str) -> Iterator[SchemaViolation]:
    try:
        node: yaml.Node | None = cast("Any", yaml).compose(text, yaml.SafeLoader)
        value = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line, column = (1, 1) if mark is None else (mark.line + 1, mark.column + 1)
        yield SchemaViolation(line, column, "$", f"not YAML: {getattr(error, 'problem', None) or error}")
        return
    for error in validator.iter_errors(value):
        mark = _find_node(node, list(error.absolute_path)).start_mark if node is not None else None
        line, column = (1, 1) if mark is None else (mark.line + 1, mark.column + 1)
        yield SchemaViolation(line, column, error.json_path, _shorten(error))


def _find_node(node: yaml.Node, path: list[Any]) -> yaml.Node:
    """Return the node of a value; the nearest one above it if a merge key brought it."""
    for step in path:
        if isinstance(node, yaml.MappingNode):
            children = [value for key, value in _list_pairs(node) if key.value == str(step)]
        elif isinstance(node, yaml.SequenceNode):
            children = cast("list[yaml.Node]", node.value)[step : step + 1]
        else:
            children = []
        if not children:
            return node
        node = children[-1]
    return node


def _list_pairs(node: yaml.MappingNode) -> list[tuple[yaml.Node, yaml.Node]]:
    return cast("list[tuple[yaml.Node, yaml.Node]]", node.value)


def _shorten(error: ValidationError) -> str:
    return error.message if len(error.message) <= _MESSAGE_LENGTH else f"{error.message[:_MESSAGE_LENGTH]}…"
