"""The frontmatter's fields, made into what a skill has; each of a wrong shape is coerced, with a diagnostic.

Source: Agent Skills specification; seed 002 (`trigger`, `inputs`, `mcp_tools`); fields other clients write
(`globs`, `paths`, `applyTo`, `alwaysApply`, `disable-model-invocation`).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, cast

from bough.skills.model import (
    Diagnostic,
    InputMetadata,
    KeywordTrigger,
    PathTrigger,
    TaskTrigger,
    Trigger,
)
from bough.skills.read.expressions import refuse_glob, refuse_pattern

MAX_NAME = 64
MAX_DESCRIPTION = 1024
MAX_COMPATIBILITY = 500

_GOOD_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_KNOWN = frozenset(
    {
        "name",
        "description",
        "license",
        "compatibility",
        "metadata",
        "allowed-tools",
        "trigger",
        "triggers",
        "inputs",
        "mcp_tools",
        "hooks",
        "keywords",
        "globs",
        "paths",
        "disable-model-invocation",
    }
)
_ALIASES: Mapping[str, str] = {
    "allowed_tools": "allowed-tools",
    "allowedtools": "allowed-tools",
    "mcp-tools": "mcp_tools",
    "mcptools": "mcp_tools",
    "mcp_servers": "mcp_tools",
    "mcpservers": "mcp_tools",
    "applyto": "globs",
    "desc": "description",
    "title": "name",
}
_NEAR = 0.8
"""From so alike on, an unknown field is taken for a known one that was misspelt."""

_NOTHING = frozenset({"", "null", "~", "none"})
_TRUE = frozenset({"true", "yes", "on", "1", "y"})

Notes = list[Diagnostic]


def canonical(values: dict[str, Any], notes: Notes) -> dict[str, Any]:
    """Return `values` with the known fields under their own names, whatever case or alias the file uses."""
    if _KNOWN.issuperset(values):
        return values
    out: dict[str, Any] = {}
    for key, value in values.items():
        folded = key.lower()
        known = key if key in _KNOWN else folded if folded in _KNOWN else _ALIASES.get(folded, key)
        if known != key and known in values:
            known = key
        if known != key and known in ("name", "description", "allowed-tools"):
            notes.append(_note("field-name", f"the field `{key}` is called `{known}`", f"write `{known}:`"))
        if known not in _KNOWN and (near := _find_near(folded)):
            message = f"the field `{key}` is not known; is it `{near}`? Its value is not used"
            notes.append(_note("field-misspelt", message, f"write `{near}:`"))
        out[known] = value
    return out


@lru_cache(maxsize=1024)
def _find_near(field: str) -> str:
    """Return the known field that an unknown one was meant to be; empty for one that is like none."""
    return next(iter(get_close_matches(field, sorted(_KNOWN), 1, _NEAR)), "")


def is_nothing(value: Any) -> bool:
    """Whether a field says nothing: absent, empty or null."""
    return value is None or (isinstance(value, str) and value.strip().lower() in _NOTHING) or value in ({}, [])


def truth(value: Any) -> bool:
    """What a text says as yes or no; anything unknown is no."""
    return isinstance(value, str) and value.strip().lower() in _TRUE


def read_name(values: Mapping[str, Any], home: str, notes: Notes, *, is_folder: bool) -> str:
    """Return the skill's name: the field, else `home`.

    Args:
        home: The folder's name, or a flat file's name without its ending.
        is_folder: Whether the specification's rule holds that name and folder are equal.
    """
    value = values.get("name")
    if value is None or value == "":
        notes.append(_note("name-missing", f"no `name`; the name of the place is used: {home}", f"name: {home}"))
        return home
    if not isinstance(value, str):
        notes.append(_note("name-not-text", "`name` is not text; the name of the place is used", f"name: {home}"))
        return home
    name = value.strip()
    if is_folder and name != home and unicodedata.normalize("NFKC", name) != unicodedata.normalize("NFKC", home):
        message = f"the name {name[:80]!r} differs from the folder {home[:80]!r}"
        notes.append(_note("name-folder", message, f"name: {home}"))
    if not is_good_name(name):
        note_name(name, notes)
    return name


def is_good_name(name: str) -> bool:
    """Whether a name is one of the specification's, in ASCII."""
    return len(name) <= MAX_NAME and _GOOD_NAME.fullmatch(name) is not None


def note_name(name: str, notes: Notes) -> None:
    """Note how `name` departs from the specification, if it does."""
    normal = unicodedata.normalize("NFKC", name)
    if len(normal) > MAX_NAME:
        notes.append(_note("name-length", f"the name has {len(normal)} characters, more than {MAX_NAME}", "shorten it"))
    if normal != normal.lower():
        notes.append(_note("name-case", f"the name {name[:80]!r} is not lower case", f"name: {name.lower()[:80]}"))
    if normal.startswith("-") or normal.endswith("-") or "--" in normal:
        notes.append(
            _note("name-hyphens", "a hyphen at an end of the name, or two in a row", "single hyphens between words")
        )
    if not all(char.isalnum() or char == "-" for char in normal):
        notes.append(_note("name-characters", f"the name {name[:80]!r} holds other characters than letters, digits, -",
                           "use letters, digits and hyphens"))  # fmt: skip


def unsafe_name(name: str) -> str | None:
    """Return why a name is refused; None when it is safe to show, to list and to join to a path."""
    if is_good_name(name):
        return None
    if not name:
        return "it is empty"
    if any(unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp") for char in name):
        return "it holds control characters"
    if name.startswith(("/", "~")) or "\\" in name or any(part in ("..", ".", "") for part in name.split("/")):
        return "it is a path out of its folder"
    if len(name.encode("utf-8", "replace")) > 255:
        return "it is longer than a file name may be"
    return None


def read_text(values: Mapping[str, Any], field: str, notes: Notes) -> str | None:
    """Return a field that must be text; lists and mappings are written out."""
    value = values.get(field)
    if value is None or isinstance(value, str):
        return value.strip() or None if value else None
    notes.append(_note(f"{field}-not-text", f"`{field}` is not text; it was written out as text", "write it as text"))
    return as_text(value) or None


def as_text(value: Any) -> str:
    """A value on one line: lists with commas, mappings as `key: value` with semicolons."""
    if isinstance(value, Mapping):
        pairs = cast("Mapping[str, Any]", value).items()
        return "; ".join(f"{key}: {as_text(item)}" for key, item in pairs)
    if isinstance(value, list):
        return ", ".join(as_text(item) for item in cast("list[Any]", value))
    return str(value).strip()


def read_metadata(values: Mapping[str, Any], notes: Notes) -> dict[str, str]:
    """Return `metadata` as text to text."""
    value = values.get("metadata")
    if is_nothing(value):
        return {}
    if not isinstance(value, Mapping):
        notes.append(_note("metadata-not-mapping", "`metadata` is not a mapping", "write `key: value` lines under it"))
        return {"value": as_text(value)}
    pairs = cast("Mapping[str, Any]", value)
    if any(not isinstance(item, str) for item in pairs.values()):
        notes.append(
            _note("metadata-not-text", "`metadata` holds more than text; it was written out", "use text values")
        )
    return {key: as_text(item) for key, item in pairs.items()}


def read_words(value: Any) -> tuple[str, ...]:
    """Return a list of words: a list's items, or a text's parts between commas; without blanks and repeats."""
    if isinstance(value, Mapping):
        value = list(cast("Mapping[str, Any]", value))
    items = cast("list[Any]", value) if isinstance(value, list) else str(value or "").split(",")
    return tuple(dict.fromkeys(word for item in items if (word := as_text(item)) and word.lower() != "null"))


def read_trigger(values: Mapping[str, Any], inputs: tuple[InputMetadata, ...], notes: Notes) -> Trigger | None:
    """Return what activates the skill by itself: `trigger`, `triggers`, or patterns of paths."""
    value = values.get("trigger", values.get("triggers"))
    if isinstance(value, Mapping):
        return _read_trigger_mapping(cast("Mapping[str, Any]", value), inputs, notes)
    words = () if is_nothing(value) else _only_words(value, notes)
    globs = read_globs(values.get("globs", values.get("paths")))
    _check_globs(globs, notes)
    if globs and (words or inputs):
        message = "`paths` are not used beside `triggers` or `inputs`: a skill has one kind of trigger"
        notes.append(_note("trigger-both", message, "make two skills of it, or take one of them out"))
    if words:
        return TaskTrigger(words) if inputs or values.get("type") == "task" else KeywordTrigger(words)
    if inputs:
        return TaskTrigger(())
    return PathTrigger(globs) if globs else None


def _read_trigger_mapping(value: Mapping[str, Any], inputs: tuple[InputMetadata, ...], notes: Notes) -> Trigger | None:
    kind = str(value.get("type", value.get("kind", ""))).lower()
    globs = read_globs(value.get("globs", value.get("paths", value.get("path"))))
    if globs:
        _check_globs(globs, notes)
        return PathTrigger(globs)
    raw = value.get("keywords", value.get("triggers", value.get("keyword", value.get("words"))))
    words = () if is_nothing(raw) else _only_words(raw, notes)
    if "task" in kind or inputs:
        return TaskTrigger(words)
    if words:
        return KeywordTrigger(words)
    notes.append(
        _note("trigger-empty", "`trigger` names no keywords, triggers or globs", "trigger: {keywords: [word]}")
    )
    return None


def _only_words(value: Any, notes: Notes) -> tuple[str, ...]:
    if isinstance(value, list) and any(not isinstance(item, str) for item in cast("list[Any]", value)):
        notes.append(_note("trigger-not-text", "a trigger is not text; it was written out", "use a list of words"))
    words = tuple(value.split("\n")) if isinstance(value, str) and value.startswith("re:") else read_words(value)
    for word in words:
        if word.strip().startswith("re:") and (reason := refuse_pattern(word.strip()[3:].strip())):
            message = f"the regular expression {word.strip()[:80]!r} triggers nothing: {reason}"
            notes.append(_note("trigger-bad-regex", message, "RE2's dialect: no look-around, no back-references"))
    return tuple(word.strip() for word in words if word.strip())


def _check_globs(globs: tuple[str, ...], notes: Notes) -> None:
    for glob in globs:
        if reason := refuse_glob(glob):
            message = f"the pattern {glob[:80]!r} matches nothing: {reason}"
            notes.append(_note("trigger-bad-glob", message, "for example src/**"))


def read_globs(value: Any) -> tuple[str, ...]:
    """Return patterns of paths: a list's items, or a text's parts between commas outside braces."""
    if is_nothing(value):
        return ()
    if isinstance(value, str):
        value = re.split(r",(?![^{]*\})", value.strip("[]"))
    return tuple(pattern for word in read_words(value) if (pattern := word.strip().strip("\"'")))


def read_inputs(values: Mapping[str, Any], notes: Notes) -> tuple[InputMetadata, ...]:
    """Return the inputs of a task skill: a list of mappings, a mapping by name, or a list of names."""
    value = values.get("inputs")
    if is_nothing(value):
        return ()
    found: dict[str, InputMetadata] = {}
    for name, entry in _input_entries(value):
        if not re.fullmatch(r"[A-Za-z_][\w-]*", name):
            notes.append(
                _note("input-name", f"{name[:60]!r} cannot be the name of an input", "letters, digits, _ and -")
            )
            continue
        found[name] = _input(name, entry)
    return tuple(found.values())


def _input_entries(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return list(cast("Mapping[str, Any]", value).items())
    items = cast("list[Any]", value) if isinstance(value, list) else list(read_words(value))
    return [_named(item) for item in items]


def _named(item: Any) -> tuple[str, Any]:
    if not isinstance(item, Mapping):
        return as_text(item), ""
    entry = cast("Mapping[str, Any]", item)
    return as_text(entry.get("name", "")), entry


def _input(name: str, entry: Any) -> InputMetadata:
    if not isinstance(entry, Mapping):
        return InputMetadata(name, "" if is_nothing(entry) else as_text(entry))
    given = cast("Mapping[str, Any]", entry)
    value = given.get("default")
    is_text = isinstance(value, str) and value.strip().lower() in ("", "none")  # both are words a script may take
    default = None if is_nothing(value) and not is_text else as_text(value)
    required = truth(given["required"]) if "required" in given else default is None
    return InputMetadata(name, as_text(given.get("description", "")), required and default is None, default)


def _note(code: str, message: str, fix: str) -> Diagnostic:
    return Diagnostic(code, "warning", message, None, fix)
