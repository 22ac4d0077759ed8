"""Validating a skill against the Agent Skills specification, with all violations at once.

The result is the same as the reference validator's for its documented rules, including how it finds the end of the
frontmatter. The reference validator stops at the first violation; this one continues with whatever is readable.

Source: Agent Skills specification; its reference validator `skills-ref`.
"""

from __future__ import annotations

import unicodedata
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from bough.skills.model import Notes
from bough.skills.read.fields import MAX_COMPATIBILITY, MAX_DESCRIPTION, MAX_NAME

FIELDS = ("allowed-tools", "compatibility", "description", "license", "metadata", "name")


def find_violations(file: Path, data: bytes, header: str | None, fields: dict[str, Any]) -> Notes:
    """Return an `error` for every rule of the specification that a file violates.

    Args:
        file: The file's path; the folder's name must equal the skill's name.
        data: The bytes of the file.
        header: The frontmatter that the lenient reader found; None if it found none.
        fields: The fields that the lenient reader found; they are checked if strict parsing fails.
    """
    notes = Notes()
    values = _read_strictly(data, header, notes)
    if values is None and header is not None:
        values = fields
    if values is not None:
        _check_fields(values, file.absolute().parent.name, notes)
    return notes


def _read_strictly(data: bytes, lenient_header: str | None, notes: Notes) -> dict[str, Any] | None:
    """Return the fields as the reference parser reads them; None, with an error in `notes`, if it cannot."""
    try:
        text = data.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError:
        return notes.error("encoding", "the file is not UTF-8", "save as UTF-8")
    if not text.startswith("---"):
        message = "the file does not start with `---`" + (" but with a byte order mark" if text[:1] == "\ufeff" else "")
        return notes.error("frontmatter-missing", message, "start with a line `---`")
    sections = text.split("---", 2)  # the reference parser ends the frontmatter at the next `---`, even inside a line
    if len(sections) < 3:
        return notes.error("frontmatter-unclosed", "the frontmatter has no closing `---`", "add a line `---`")
    values = _load_strict(sections[1], notes)
    if values is not None and lenient_header is not None and lenient_header.strip() != sections[1].strip():
        message = "many parsers end the frontmatter at `---` inside a value"
        notes.warn("fence-in-value", message, "write a dash (—) instead of `---`")
    return values


def _load_strict(header: str, notes: Notes) -> dict[str, Any] | None:
    """Return the fields as strictyaml parses them; None, with an error in `notes`, if they are invalid."""
    strictyaml: Any = import_module("strictyaml")  # it has no type hints
    yaml_error: type[Exception] = import_module("strictyaml.ruamel.error").YAMLError
    try:
        values: Any = strictyaml.load(header).data
    except (
        yaml_error,
        ValueError,
        TypeError,
        KeyError,
        IndexError,
        AttributeError,
        AssertionError,
        RecursionError,
    ) as error:
        position: Any = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        problem = " ".join(str(getattr(error, "problem", None) or error or type(error).__name__).split())[:200]
        message = f"invalid YAML by the specification: {problem}"
        fix = "block style, no tags, anchors or repeated keys; quote values with `: `"
        return notes.error("yaml-invalid", message, fix, None if position is None else int(position.line) + 1)
    if not isinstance(values, dict):
        return notes.error("frontmatter-not-mapping", "the frontmatter is not a mapping", "write `key: value` lines")
    return cast("dict[str, Any]", values)


def _check_fields(values: dict[str, Any], folder: str, notes: Notes) -> None:
    unknown = sorted(set(values) - set(FIELDS))
    if unknown:
        notes.error(
            "field-unknown",
            f"unknown fields: {', '.join(unknown)}",
            f"use only {', '.join(FIELDS)}; put others under `metadata`",
        )
    _check_name(values, folder, notes)
    _check_description(values, notes)
    _check_compatibility(values, notes)


def _check_name(values: dict[str, Any], folder: str, notes: Notes) -> None:
    """Add an error for each rule about the name that is violated."""
    if "name" not in values:
        notes.error("name-missing", "no `name`", f"name: {folder}")
        return
    value = values["name"]
    if not isinstance(value, str) or not value.strip():
        notes.error("name-empty", "`name` is empty or not text", f"name: {folder}")
        return
    name = unicodedata.normalize("NFKC", value.strip())
    if len(name) > MAX_NAME:
        notes.error("name-length", f"the name has {len(name)} characters, more than {MAX_NAME}", "shorten it")
    if name != name.lower():
        notes.error("name-case", f"name {name[:80]!r} is not lowercase", f"name: {name.lower()[:80]}")
    if name.startswith("-") or name.endswith("-"):
        notes.error("name-hyphen-end", "the name starts or ends with a hyphen", f"name: {name.strip('-')[:80]}")
    if "--" in name:
        notes.error("name-hyphen-double", "the name has a double hyphen", "single hyphens between words")
    if not all(char.isalnum() or char == "-" for char in name):
        notes.error(
            "name-characters",
            f"name {name[:80]!r} has characters other than letters, digits and hyphens",
            "use letters, digits and hyphens",
        )
    if unicodedata.normalize("NFKC", folder) != name:
        notes.error(
            "name-folder", f"name {name[:80]!r} differs from the folder name {folder[:80]!r}", f"name: {folder}"
        )


def _check_description(values: dict[str, Any], notes: Notes) -> None:
    """Add an error if the description is missing, empty or too long."""
    if "description" not in values:
        notes.error("description-missing", "no `description`", "description: what it does and when to use it")
        return
    value = values["description"]
    if not isinstance(value, str) or not value.strip():
        notes.error("description-empty", "`description` is empty or not text", "say what it does and when to use it")
    elif len(value) > MAX_DESCRIPTION:
        notes.error(
            "description-length",
            f"the description has {len(value)} characters, more than {MAX_DESCRIPTION}",
            "shorten it",
        )


def _check_compatibility(values: dict[str, Any], notes: Notes) -> None:
    value = values.get("compatibility", "")
    if not isinstance(value, str):
        notes.error("compatibility-not-text", "`compatibility` is not text", "write it as text")
    elif len(value) > MAX_COMPATIBILITY:
        notes.error(
            "compatibility-length", f"`compatibility` has more than {MAX_COMPATIBILITY} characters", "shorten it"
        )
