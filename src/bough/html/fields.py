"""Reading fields of recorded events, which may be damaged, erased or newer: a wrong type reads as empty."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, cast

from bough.types import Json, JsonObject, parse_arguments

SUBJECTS = ("command", "cmd", "path", "file_path", "url", "query", "question", "skill_name", "code", "name")
"""Arguments that say most of a call, in this order."""


def read_text(fields: JsonObject, name: str) -> str:
    """Return a text; empty for null or a missing field, and JSON for any other value."""
    value = fields.get(name)
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def read_number(fields: JsonObject, name: str) -> float | None:
    """Return a number; None if the field is missing or something else."""
    value = fields.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def read_count(fields: JsonObject, name: str) -> int:
    """Return an integer; 0 if the field is missing or something else."""
    value = fields.get(name)
    return value if isinstance(value, int) else 0


def read_object(fields: JsonObject, name: str) -> JsonObject:
    """Return an object; empty if the field is missing or something else."""
    value = fields.get(name)
    return cast("JsonObject", value) if isinstance(value, dict) else {}


def read_list(fields: JsonObject, name: str) -> list[Any]:
    """Return a list; empty if the field is missing or something else."""
    value = fields.get(name)
    return cast("list[Any]", value) if isinstance(value, list) else []


def read_texts(fields: JsonObject, name: str) -> tuple[str, ...]:
    """Return the texts of a list."""
    return tuple(item if isinstance(item, str) else json.dumps(item) for item in read_list(fields, name))


def read_objects(fields: JsonObject, name: str) -> list[JsonObject]:
    """Return the objects of a list."""
    return [item for item in read_list(fields, name) if isinstance(item, dict)]


def read_arguments(value: Json) -> JsonObject:
    """Return the arguments of a call as an object: empty if missing; invalid JSON is under the key `_`."""
    return {} if value is None else parse_arguments(value)


def find_subject(arguments: JsonObject) -> str:
    """Return what a call is about, on one line: its command, path, address or name, else all arguments as JSON."""
    # A script of a skill is called by two names, which together say what runs.
    if "script" in arguments and isinstance(arguments["script"], str):
        skill = read_text(arguments, "skill") or read_text(arguments, "skill_name")
        words = read_list(arguments, "args") or read_list(arguments, "argv")
        return " ".join(["/".join(filter(None, (skill, arguments["script"]))), *map(str, words)])
    for name in SUBJECTS:
        if isinstance(text := arguments.get(name), str):
            return first_line(text)
    return first_line(json.dumps(arguments, ensure_ascii=False)) if arguments else ""


def first_line(text: str, max_chars: int = 200) -> str:
    """Return the first line that is not blank, cut to `max_chars`."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= max_chars else f"{line[:max_chars]}…"


def join_words(words: Sequence[str]) -> str:
    """Return the texts that are not empty, separated by middle dots."""
    return " · ".join(filter(None, words))
