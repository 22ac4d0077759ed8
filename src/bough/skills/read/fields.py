"""Converting frontmatter fields to attributes of a skill. Values of the wrong type are converted, with a diagnostic.

Source: Agent Skills specification; OpenHands (`trigger`, `inputs`, `mcp_tools`); fields that other clients write
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
    InputMetadata,
    KeywordTrigger,
    Notes,
    PathTrigger,
    TaskTrigger,
    Trigger,
)
from bough.skills.read.expressions import explain_bad_glob, explain_bad_pattern

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
_MIN_SIMILARITY = 0.8
"""How similar to a known field (0 to 1) an unknown one must be to be reported as misspelt."""

_NOTHING = frozenset({"", "null", "~", "none"})
_TRUE = frozenset({"true", "yes", "on", "1", "y"})


def rename_aliases(values: dict[str, Any], notes: Notes) -> dict[str, Any]:
    """Return `values` with the canonical names of fields, which may be aliases or in another case."""
    if _KNOWN.issuperset(values):
        return values
    renamed: dict[str, Any] = {}
    for key, value in values.items():
        lowercase_key = key.lower()
        canonical_name = next(
            (name for name in (key, lowercase_key) if name in _KNOWN), _ALIASES.get(lowercase_key, key)
        )
        if canonical_name != key and canonical_name in values:
            canonical_name = key  # the canonical field is also present and takes precedence
        if canonical_name != key and canonical_name in ("name", "description", "allowed-tools"):
            notes.warn("field-name", f"`{key}` is read as `{canonical_name}`", f"write `{canonical_name}:`")
        if canonical_name not in _KNOWN and (similar_name := _find_similar_field(lowercase_key)):
            message = f"unknown field `{key}` is ignored; did you mean `{similar_name}`?"
            notes.warn("field-misspelt", message, f"write `{similar_name}:`")
        renamed[canonical_name] = value
    return renamed


@lru_cache(maxsize=1024)
def _find_similar_field(field: str) -> str:
    """Return the known field most similar to an unknown one; empty if none is similar."""
    return next(iter(get_close_matches(field, sorted(_KNOWN), 1, _MIN_SIMILARITY)), "")


def is_nothing(value: Any) -> bool:
    """Whether a field is absent, empty or null."""
    return value is None or (isinstance(value, str) and value.strip().lower() in _NOTHING) or value in ({}, [])


def means_true(value: Any) -> bool:
    """Whether a value is a text that means true, such as `yes`."""
    return isinstance(value, str) and value.strip().lower() in _TRUE


def read_name(values: Mapping[str, Any], default_name: str, notes: Notes, *, is_folder: bool) -> str:
    """Return the skill's name in NFC: the field `name`, else `default_name`.

    Args:
        default_name: The folder's name, or a flat file's name without its extension.
        is_folder: Whether the name must equal the folder's name, as the specification requires.
    """
    value = values.get("name")
    default_name = unicodedata.normalize("NFC", default_name)
    if value is None or value == "":
        notes.warn("name-missing", f"no `name`; {default_name!r} is used", f"name: {default_name}")
        return default_name
    if not isinstance(value, str):
        notes.warn("name-not-text", f"`name` is not text; {default_name!r} is used", f"name: {default_name}")
        return default_name
    name = unicodedata.normalize("NFC", value.strip())
    if (
        is_folder
        and name != default_name
        and unicodedata.normalize("NFKC", name) != unicodedata.normalize("NFKC", default_name)
    ):
        message = f"name {name[:80]!r} differs from the folder name {default_name[:80]!r}"
        notes.warn("name-folder", message, f"name: {default_name}")
    if not is_good_name(name):
        check_name(name, notes)
    return name


def is_good_name(name: str) -> bool:
    """Whether a name is valid by the specification and ASCII."""
    return len(name) <= MAX_NAME and _GOOD_NAME.fullmatch(name) is not None


def normalize_name(name: str) -> str | None:
    """Return a valid name in NFC; None for a name that violates the specification.

    Letters and digits of any script are valid, except compatibility characters such as full-width letters.
    """
    if is_good_name(name):
        return name
    normal = unicodedata.normalize("NFC", name)
    notes: Notes = Notes()
    check_name(normal, notes)
    if notes or normal != unicodedata.normalize("NFKC", name) or explain_unsafe_name(normal):
        return None
    return normal


def check_name(name: str, notes: Notes) -> None:
    """Add a diagnostic for each rule of the specification that `name` violates."""
    normal = unicodedata.normalize("NFKC", name)
    if len(normal) > MAX_NAME:
        notes.warn("name-length", f"the name has {len(normal)} characters, more than {MAX_NAME}", "shorten it")
    if normal != normal.lower():
        notes.warn("name-case", f"name {name[:80]!r} is not lowercase", f"name: {name.lower()[:80]}")
    if normal.startswith("-") or normal.endswith("-") or "--" in normal:
        notes.warn("name-hyphens", "the name has a leading, trailing or double hyphen", "single hyphens between words")
    if not all(char.isalnum() or char == "-" for char in normal):
        notes.warn(
            "name-characters",
            f"name {name[:80]!r} has characters other than letters, digits and -",
            "use letters, digits and hyphens",
        )


def explain_unsafe_name(name: str) -> str | None:
    """Return why a name is refused; None if it is safe to display and to use in a path."""
    if is_good_name(name):
        return None
    if not name:
        return "it is empty"
    if any(unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp") for char in name):
        return "it contains control characters"
    if name.startswith(("/", "~")) or "\\" in name or any(part in ("..", ".", "") for part in name.split("/")):
        return "it is a path outside its folder"
    if len(name.encode("utf-8", "replace")) > 255:
        return "it is too long for a file name"
    return None


def read_text(values: Mapping[str, Any], field: str, notes: Notes) -> str | None:
    """Return a text field, None if it is absent or empty; lists and mappings are converted to text."""
    value = values.get(field)
    if value is None:
        return None
    if isinstance(value, str):
        return value.strip() or None
    notes.warn(f"{field}-not-text", f"`{field}` is not text and was converted", "write it as text")
    return as_text(value) or None


def as_text(value: Any) -> str:
    """Return a value as text: list items separated by commas, `key: value` pairs of mappings by semicolons."""
    if isinstance(value, Mapping):
        pairs = cast("Mapping[str, Any]", value).items()
        return "; ".join(f"{key}: {as_text(item)}" for key, item in pairs)
    if isinstance(value, list):
        return ", ".join(as_text(item) for item in cast("list[Any]", value))
    return str(value).strip()


def read_metadata(values: Mapping[str, Any], notes: Notes) -> dict[str, str]:
    """Return `metadata` as a mapping of text to text."""
    value = values.get("metadata")
    if is_nothing(value):
        return {}
    if not isinstance(value, Mapping):
        notes.warn("metadata-not-mapping", "`metadata` is not a mapping", "write `key: value` lines under it")
        return {"value": as_text(value)}
    pairs = cast("Mapping[str, Any]", value)
    if any(not isinstance(item, str) for item in pairs.values()):
        notes.warn("metadata-not-text", "`metadata` has values that are not text; they were converted", "use text")
    return {key: as_text(item) for key, item in pairs.items()}


def read_words(value: Any) -> tuple[str, ...]:
    """Return the items of a list, the keys of a mapping or the comma-separated parts of a text, without duplicates."""
    if isinstance(value, Mapping):
        value = list(cast("Mapping[str, Any]", value))
    items = cast("list[Any]", value) if isinstance(value, list) else str(value or "").split(",")
    return tuple(dict.fromkeys(word for item in items if (word := as_text(item)) and word.lower() != "null"))


def read_trigger(values: Mapping[str, Any], inputs: tuple[InputMetadata, ...], notes: Notes) -> Trigger | None:
    """Return what activates the skill without a call: `trigger`, `triggers`, or path patterns.

    A skill has one kind of trigger; a field of a second kind is ignored, with a diagnostic.
    """
    word_fields = [values[name] for name in ("trigger", "triggers") if not is_nothing(values.get(name))]
    mapping = next((cast("Mapping[str, Any]", field) for field in word_fields if isinstance(field, Mapping)), None)
    globs = (*read_globs(values.get("globs")), *read_globs(values.get("paths")))
    if mapping is not None:
        trigger = _read_trigger_mapping(mapping, inputs, notes)
        word_fields = [field for field in word_fields if field is not mapping]
        if trigger is not None:
            if word_fields or globs:
                _note_two_triggers("`triggers`" if word_fields else "`paths`", "`trigger`", notes)
            return trigger
    _check_globs(globs, notes)
    words = tuple(dict.fromkeys(word for field in word_fields for word in _read_trigger_words(field, notes)))
    if globs and (words or inputs):
        _note_two_triggers("`paths`", "`triggers`" if words else "`inputs`", notes)
    if words:
        return TaskTrigger(words) if inputs or values.get("type") == "task" else KeywordTrigger(words)
    if inputs:
        return TaskTrigger(())
    return PathTrigger(globs) if globs else None


def _read_trigger_mapping(value: Mapping[str, Any], inputs: tuple[InputMetadata, ...], notes: Notes) -> Trigger | None:
    """Return the trigger that a mapping describes, as in OpenHands; None, with a diagnostic, if it is empty."""
    kind = str(value.get("type", value.get("kind", ""))).lower()
    globs = read_globs(value.get("globs", value.get("paths", value.get("path"))))
    raw_words = value.get("keywords", value.get("triggers", value.get("keyword", value.get("words"))))
    if globs:
        _check_globs(globs, notes)
        if inputs or not is_nothing(raw_words):
            _note_two_triggers("`inputs`" if is_nothing(raw_words) else "keywords", "`globs`", notes)
        return PathTrigger(globs)
    words = () if is_nothing(raw_words) else _read_trigger_words(raw_words, notes)
    if "task" in kind or inputs:
        return TaskTrigger(words)
    if words:
        return KeywordTrigger(words)
    notes.warn("trigger-empty", "`trigger` has no keywords, triggers or globs", "trigger: {keywords: [word]}")
    return None


def _note_two_triggers(unused: str, used: str, notes: Notes) -> None:
    message = f"{unused} cannot be used together with {used}: a skill has one kind of trigger; {unused} is ignored"
    notes.warn("trigger-both", message, "split it into two skills, or remove one of the two fields")


def _read_trigger_words(value: Any, notes: Notes) -> tuple[str, ...]:
    """Return trigger words and `re:` expressions; add a diagnostic for each invalid expression."""
    if isinstance(value, list) and any(not isinstance(item, str) for item in cast("list[Any]", value)):
        notes.warn("trigger-not-text", "a trigger is not text and was converted", "use a list of words")
    words = tuple(value.split("\n")) if isinstance(value, str) and value.startswith("re:") else read_words(value)
    for word in words:
        if word.strip().startswith("re:") and (reason := explain_bad_pattern(word.strip()[3:].strip())):
            message = f"invalid regular expression {word.strip()[:80]!r}, ignored: {reason}"
            notes.warn("trigger-bad-regex", message, "use RE2 syntax: no lookaround, no backreferences")
    return tuple(word.strip() for word in words if word.strip())


def _check_globs(globs: tuple[str, ...], notes: Notes) -> None:
    for glob in globs:
        if reason := explain_bad_glob(glob):
            message = f"invalid path pattern {glob[:80]!r}, ignored: {reason}"
            notes.warn("trigger-bad-glob", message, "write a pattern such as src/**")


def read_globs(value: Any) -> tuple[str, ...]:
    """Return path patterns: a list's items, or the parts of a text between commas outside braces."""
    if is_nothing(value):
        return ()
    if isinstance(value, str):
        value = re.split(r",(?![^{]*\})", value.strip("[]"))
    return tuple(pattern for word in read_words(value) if (pattern := word.strip().strip("\"'")))


def read_inputs(values: Mapping[str, Any], notes: Notes) -> tuple[InputMetadata, ...]:
    """Return the inputs that a task skill declares, as a list of mappings, a mapping by name, or a list of names."""
    value = values.get("inputs")
    if is_nothing(value):
        return ()
    inputs: dict[str, InputMetadata] = {}
    for name, entry in _list_input_entries(value):
        if not re.fullmatch(r"[A-Za-z_][\w-]*", name):
            notes.warn("input-name", f"invalid input name {name[:60]!r}", "use letters, digits, _ and -")
            continue
        inputs[name] = _read_input(name, entry)
    return tuple(inputs.values())


def _list_input_entries(value: Any) -> list[tuple[str, Any]]:
    """Return (name, description or mapping) of each declared input."""
    if isinstance(value, Mapping):
        return list(cast("Mapping[str, Any]", value).items())
    items = cast("list[Any]", value) if isinstance(value, list) else list(read_words(value))
    return [_parse_input_entry(item) for item in items]


def _parse_input_entry(item: Any) -> tuple[str, Any]:
    if not isinstance(item, Mapping):
        return as_text(item), ""
    entry = cast("Mapping[str, Any]", item)
    return as_text(entry.get("name", "")), entry


def _read_input(name: str, entry: Any) -> InputMetadata:
    if not isinstance(entry, Mapping):
        return InputMetadata(name, "" if is_nothing(entry) else as_text(entry))
    fields = cast("Mapping[str, Any]", entry)
    value = fields.get("default")
    # An empty text or `none` may be meant for a script, so they are defaults; `null` and an absent field are not.
    is_default_text = isinstance(value, str) and value.strip().lower() in ("", "none")
    default = None if is_nothing(value) and not is_default_text else as_text(value)
    required = means_true(fields["required"]) if "required" in fields else default is None
    return InputMetadata(name, as_text(fields.get("description", "")), required and default is None, default)
