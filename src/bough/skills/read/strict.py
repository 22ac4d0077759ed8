"""Validating a skill against the Agent Skills specification, reporting all violations at once.

The verdict equals the reference validator's on its documented rules, including how it finds the end of the
frontmatter. The reference stops at the first violation; this continues with whatever is readable.

Source: Agent Skills specification; its reference validator `skills-ref`.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from bough.skills.model import Diagnostic
from bough.skills.read.encoding import decode
from bough.skills.read.fields import MAX_COMPATIBILITY, MAX_DESCRIPTION, MAX_NAME
from bough.skills.read.frontmatter import load, split

FIELDS = ("allowed-tools", "compatibility", "description", "license", "metadata", "name")


def faults(file: Path, data: bytes) -> list[Diagnostic]:
    """Return an `error` for every rule of the specification that a file violates.

    Args:
        file: Its path; the folder's name must equal the skill's name.
        data: Its bytes.
    """
    values, found = _read(data)
    if values is not None:
        found.extend(_check(values, file.absolute().parent.name))
    return found


def _read(data: bytes) -> tuple[dict[str, Any] | None, list[Diagnostic]]:
    try:
        text = data.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError:
        return _guess(data), [_fault("encoding", "the file is not UTF-8", "save as UTF-8")]
    if not text.startswith("---"):
        message = "the file does not start with `---`" + (" but with a byte order mark" if text[:1] == "\ufeff" else "")
        return _guess(data), [_fault("frontmatter-missing", message, "start with a line `---`")]
    parts = text.split("---", 2)  # the reference ends the frontmatter at the next `---`, even inside a line
    if len(parts) < 3:
        return _guess(data), [
            _fault("frontmatter-unclosed", "the frontmatter has no closing `---`", "add a line `---`")
        ]
    values, fault = _load_strict(parts[1])
    if fault is not None:
        return _guess(data), [fault]
    return values, _cut_short(text, parts[1])


def _load_strict(header: str) -> tuple[dict[str, Any] | None, Diagnostic | None]:
    strictyaml: Any = import_module("strictyaml")  # it carries no types
    base: type[Exception] = import_module("strictyaml.ruamel.error").YAMLError
    try:
        values: Any = strictyaml.load(header).data
    except (base, ValueError, TypeError, KeyError, IndexError, AttributeError, AssertionError, RecursionError) as error:
        return None, _yaml_fault(error)
    if not isinstance(values, dict):
        return None, _fault("frontmatter-not-mapping", "the frontmatter is not a mapping", "write `key: value` lines")
    return cast("dict[str, Any]", values), None


def _yaml_fault(error: Exception) -> Diagnostic:
    mark: Any = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    problem = " ".join(str(getattr(error, "problem", None) or error or type(error).__name__).split())[:200]
    return Diagnostic("yaml-invalid", "error", f"invalid YAML by the specification: {problem}",
                      None if mark is None else int(mark.line) + 1,
                      "block style, no tags, anchors or repeated keys; quote values with `: `")  # fmt: skip


def _guess(data: bytes) -> dict[str, Any] | None:
    """Return the fields as read leniently, so that the other rules can still be checked."""
    header = split(decode(data)[0]).header
    return None if header is None else load(header[: 64 << 10]).values


def _cut_short(text: str, header: str) -> list[Diagnostic]:
    whole = split(text).header
    if whole is None or whole.strip() == header.strip():
        return []
    return [Diagnostic("fence-in-value", "warning", "many parsers end the frontmatter at `---` inside a value", None,
                       "write a dash (—) instead of `---`")]  # fmt: skip


def _check(values: dict[str, Any], folder: str) -> Iterator[Diagnostic]:
    unknown = sorted(set(values) - set(FIELDS))
    if unknown:
        yield _fault(
            "field-unknown",
            f"unknown fields: {', '.join(unknown)}",
            f"use only {', '.join(FIELDS)}; put others under `metadata`",
        )
    yield from _check_name(values, folder)
    yield from _check_description(values)
    yield from _check_compatibility(values)


def _check_name(values: dict[str, Any], folder: str) -> Iterator[Diagnostic]:
    if "name" not in values:
        yield _fault("name-missing", "no `name`", f"name: {folder}")
        return
    value = values["name"]
    if not isinstance(value, str) or not value.strip():
        yield _fault("name-empty", "`name` is empty or not text", f"name: {folder}")
        return
    name = unicodedata.normalize("NFKC", value.strip())
    if len(name) > MAX_NAME:
        yield _fault("name-length", f"the name has {len(name)} characters, more than {MAX_NAME}", "shorten it")
    if name != name.lower():
        yield _fault("name-case", f"name {name[:80]!r} is not lowercase", f"name: {name.lower()[:80]}")
    if name.startswith("-") or name.endswith("-"):
        yield _fault("name-hyphen-end", "the name starts or ends with a hyphen", f"name: {name.strip('-')[:80]}")
    if "--" in name:
        yield _fault("name-hyphen-double", "the name has a double hyphen", "single hyphens between words")
    if not all(char.isalnum() or char == "-" for char in name):
        yield _fault("name-characters", f"name {name[:80]!r} has characters other than letters, digits and hyphens",
                     "use letters, digits and hyphens")  # fmt: skip
    if unicodedata.normalize("NFKC", folder) != name:
        yield _fault("name-folder", f"name {name[:80]!r} differs from the folder name {folder[:80]!r}",
                     f"name: {folder}")  # fmt: skip


def _check_description(values: dict[str, Any]) -> Iterator[Diagnostic]:
    if "description" not in values:
        yield _fault("description-missing", "no `description`", "description: what it does and when to use it")
        return
    value = values["description"]
    if not isinstance(value, str) or not value.strip():
        yield _fault("description-empty", "`description` is empty or not text", "say what it does and when to use it")
    elif len(value) > MAX_DESCRIPTION:
        yield _fault("description-length", f"the description has {len(value)} characters, more than {MAX_DESCRIPTION}",
                     "shorten it")  # fmt: skip


def _check_compatibility(values: dict[str, Any]) -> Iterator[Diagnostic]:
    value = values.get("compatibility", "")
    if not isinstance(value, str):
        yield _fault("compatibility-not-text", "`compatibility` is not text", "write it as text")
    elif len(value) > MAX_COMPATIBILITY:
        yield _fault("compatibility-length", f"`compatibility` has more than {MAX_COMPATIBILITY} characters",
                     "shorten it")  # fmt: skip


def _fault(code: str, message: str, fix: str) -> Diagnostic:
    return Diagnostic(code, "error", message, None, fix)
