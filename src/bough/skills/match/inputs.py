"""The inputs of a task skill: parsed from a message, validated, substituted into the instructions."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping, Sequence

from bough.errors import InvalidInput
from bough.skills.model import Diagnostic, InputMetadata, Skill
from bough.skills.read.resources import suggest_nearest

ARGUMENTS = "ARGUMENTS"
"""The name for all the text after `/name`; instructions contain it as `$ARGUMENTS` or `${ARGUMENTS}`."""

MAX_VALUE = 32 << 10
_MAX_LISTED_NAMES = 10
_PAIR = re.compile(r"(?<![\w-])([A-Za-z_][\w-]*)=(\"(?:[^\"\\]|\\.)*\"|'[^']*'|\S*)")
_PLACEHOLDER = re.compile(r"([ \t]?)(?:\$\{([A-Za-z_][\w-]*)\}|\$ARGUMENTS\b)")
CODE = re.compile(r"(?ms)^[ \t]*(```|~~~).*?(?:^[ \t]*\1[^\n]*$|\Z)|`[^`\n]+`")
"""Fenced code blocks and code spans of a Markdown text."""


def parse_arguments(text: str, inputs: Sequence[InputMetadata]) -> dict[str, str]:
    """Return the inputs in the text after `/name`: from `key=value` pairs, then from the remaining words by position.

    If one input has no value yet, it gets all remaining words. If several have none, each gets one word, in declaration
    order. If there are more words than such inputs, the only required input gets all words; if there are several
    required inputs, none gets a value, and the words are only available as `ARGUMENTS`.
    """
    names = {entry.name for entry in inputs}
    values = parse_pairs(text, inputs)
    remainder = _PAIR.sub(lambda match: "" if match[1] in names else match[0], text).strip()
    unset_names = [entry.name for entry in inputs if entry.name not in values]
    if remainder and unset_names:
        words = split_words(remainder)
        if len(unset_names) == 1:
            values[unset_names[0]] = words[0] if len(words) == 1 else remainder
        elif len(words) <= len(unset_names):
            values |= dict(zip(unset_names, words, strict=False))
        else:
            required_names = [entry.name for entry in inputs if is_needed(entry)]
            if len(required_names) == 1:
                values.setdefault(required_names[0], remainder)
    return values


def parse_pairs(text: str, inputs: Sequence[InputMetadata]) -> dict[str, str]:
    """Return the `key=value` pairs whose keys are inputs. Values may be quoted; the last value of a key is used."""
    names = {entry.name for entry in inputs}
    return {match[1]: _unquote(match[2]) for match in _PAIR.finditer(text) if match[1] in names}


def list_missing_inputs(inputs: Sequence[InputMetadata], values: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of required inputs that have no value or an empty value, in declaration order."""
    return tuple(entry.name for entry in inputs if is_needed(entry) and not values.get(entry.name, "").strip())


def is_needed(entry: InputMetadata) -> bool:
    """Whether the user must provide an input: it is required and has no default."""
    return entry.required and entry.default is None


def check_inputs(inputs: Sequence[InputMetadata], values: Mapping[str, str]) -> dict[str, str]:
    """Return the values to substitute: those of the user, and the defaults of the other inputs.

    Raises:
        InvalidInput: The skill does not have one of the inputs, or a value is too long or has control characters.
    """
    names = tuple(entry.name for entry in inputs)
    for name, value in values.items():
        if name not in names and name != ARGUMENTS:
            raise InvalidInput(f"the skill has no input {name[:60]!r}", hint=suggest_nearest(name, names))
        if len(value) > MAX_VALUE or re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]", value):
            raise InvalidInput(f"input {name!r} is too long or contains control characters", hint="pass plain text")
    return {entry.name: entry.default for entry in inputs if entry.default is not None} | dict(values)


def substitute(text: str, values: Mapping[str, str], *, omitted: Collection[str] = ()) -> str:
    """Return `text` with each `${name}` replaced with its value; unknown names are unchanged.

    Args:
        omitted: Optional inputs without a value; their placeholders are removed, with one blank before each.
    """

    def replace_placeholder(match: re.Match[str]) -> str:
        blank, name = match[1], match[2] or ARGUMENTS
        if name in values:
            return blank + values[name]
        return "" if name in omitted else match[0]

    # In one pass, so that a `${name}` inside a value is not replaced.
    return _PLACEHOLDER.sub(replace_placeholder, text) if values or omitted else text


def list_inputs(skill: Skill) -> tuple[InputMetadata, ...]:
    """Return a skill's declared inputs; if it declares none, the placeholders in its text, as required inputs.

    Names in capitals are shell variables, and placeholders in code are part of the code; neither is an input.
    """
    return skill.inputs or tuple(InputMetadata(name) for name in list_undeclared(skill.content))


def check_inputs_declared(skill: Skill) -> tuple[Diagnostic, ...]:
    """Return a diagnostic if a skill's text contains `${name}` but the skill declares no inputs. Reads its file."""
    names = () if skill.inputs else list_undeclared(skill.content)
    if not names:
        return ()
    quoted_names = ", ".join(f"`{name}`" for name in names[:_MAX_LISTED_NAMES])
    message = f"the text uses {quoted_names} without declaring inputs; they are treated as required inputs"
    fix = "declare them under `inputs`, or put literal text into a code span"
    return (Diagnostic("input-undeclared", "info", message, None, fix, str(skill.path or "")),)


def list_undeclared(text: str) -> tuple[str, ...]:
    """Return the names of the placeholders in a text, outside code, each once, in order of appearance. O(n)."""
    if "${" not in text:
        return ()
    names = (match[2] for match in _PLACEHOLDER.finditer(CODE.sub(" ", text)) if match[2])
    return tuple(dict.fromkeys(name for name in names if not name.isupper()))


def split_words(text: str) -> list[str]:
    """Split a text as a POSIX shell does, or at white space if a quote is unbalanced."""
    try:
        return shlex.split(text)
    except ValueError:  # an unbalanced quote, such as an apostrophe
        return text.split()


def _unquote(value: str) -> str:
    if value[:1] == '"' and len(value) > 1:
        return re.sub(r"\\(.)", r"\1", value[1:-1])
    return value[1:-1] if value[:1] == "'" and len(value) > 1 else value
