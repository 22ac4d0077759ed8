"""The inputs of a task skill: parsed from a message, validated, substituted into the instructions."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping, Sequence

from bough.errors import InvalidInput
from bough.skills.model import Diagnostic, InputMetadata, Skill
from bough.skills.read.resources import suggest_nearest

ARGUMENTS = "ARGUMENTS"
"""The whole text after `/name`; in instructions `$ARGUMENTS` or `${ARGUMENTS}`."""

MAX_VALUE = 32 << 10
_MAX_NAMED = 10
_PAIR = re.compile(r"(?<![\w-])([A-Za-z_][\w-]*)=(\"(?:[^\"\\]|\\.)*\"|'[^']*'|\S*)")
_PLACE = re.compile(r"([ \t]?)(?:\$\{([A-Za-z_][\w-]*)\}|\$ARGUMENTS\b)")
CODE = re.compile(r"(?ms)^[ \t]*(```|~~~).*?(?:^[ \t]*\1[^\n]*$|\Z)|`[^`\n]+`")
"""Fenced code blocks and code spans of a Markdown text."""


def parse_arguments(text: str, inputs: Sequence[InputMetadata]) -> dict[str, str]:
    """Return the inputs in the text after `/name`: `key=value` pairs first, then the remaining words by position.

    A single input without a value takes all remaining words; several such inputs take one word each, in declaration
    order. If there are more words than inputs, a single required input takes all of them; with several required inputs
    none is filled, and the words are only available as `ARGUMENTS`.
    """
    names = {entry.name for entry in inputs}
    values = parse_pairs(text, inputs)
    remainder = _PAIR.sub(lambda match: "" if match[1] in names else match[0], text).strip()
    still_open = [entry.name for entry in inputs if entry.name not in values]
    if remainder and still_open:
        words = split_words(remainder)
        if len(still_open) == 1:
            values[still_open[0]] = words[0] if len(words) == 1 else remainder
        elif len(words) > len(still_open) and len(needed := [entry.name for entry in inputs if is_needed(entry)]) == 1:
            values |= dict.fromkeys(set(needed) - set(values), remainder)
        elif len(words) <= len(still_open):
            values |= dict(zip(still_open, words, strict=False))
    return values


def parse_pairs(text: str, inputs: Sequence[InputMetadata]) -> dict[str, str]:
    """Return the `key=value` pairs whose keys are inputs; values may be quoted, and the last value of a key wins."""
    names = {entry.name for entry in inputs}
    return {match[1]: _unquote(match[2]) for match in _PAIR.finditer(text) if match[1] in names} if names else {}


def missing_inputs(inputs: Sequence[InputMetadata], values: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of required inputs without a value, or with an empty one, in declaration order."""
    return tuple(entry.name for entry in inputs if is_needed(entry) and not values.get(entry.name, "").strip())


def is_needed(entry: InputMetadata) -> bool:
    """Whether the user must provide an input: it is required and has no default."""
    return entry.required and entry.default is None


def check_inputs(inputs: Sequence[InputMetadata], values: Mapping[str, str]) -> dict[str, str]:
    """Return the values to substitute: the user's, and defaults for other inputs.

    Raises:
        InvalidInput: The skill has no input of a name, or a value is too long or contains control characters.
    """
    names = tuple(entry.name for entry in inputs)
    for name, value in values.items():
        if name not in names and name != ARGUMENTS:
            raise InvalidInput(f"the skill has no input {name[:60]!r}", hint=suggest_nearest(name, names))
        if len(value) > MAX_VALUE or re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]", value):
            raise InvalidInput(f"input {name!r} is too long or contains control characters", hint="pass plain text")
    return {entry.name: entry.default for entry in inputs if entry.default is not None} | dict(values)


def substitute(text: str, values: Mapping[str, str], *, without: Collection[str] = ()) -> str:
    """Return `text` with `${name}` replaced by its value; unknown names stay. Values are not expanded again.

    Args:
        without: Optional inputs without a value: their placeholders are removed, with one blank before them.
    """

    def put(match: re.Match[str]) -> str:
        name = match[2] or ARGUMENTS
        return "" if name in without and name not in values else match[1] + values.get(name, match[0][len(match[1]) :])

    # One pass: a value that contains `${name}` is not expanded again.
    return _PLACE.sub(put, text) if values or without else text


def list_inputs(skill: Skill) -> tuple[InputMetadata, ...]:
    """Return the declared inputs of a skill; without any, the `${name}` placeholders of its text, as required inputs.

    Names in capitals are shell variables, and placeholders in code are code; neither are inputs.
    """
    return skill.inputs or tuple(InputMetadata(name) for name in list_undeclared(skill.content))


def check_inputs_declared(skill: Skill) -> tuple[Diagnostic, ...]:
    """Return a note if a skill's text uses `${name}` but the skill declares no inputs. Reads its text."""
    names = () if skill.inputs else list_undeclared(skill.content)
    if not names:
        return ()
    listed = ", ".join(f"`{name}`" for name in names[:_MAX_NAMED])
    message = f"the text uses {listed} without declaring inputs; they are treated as required inputs"
    fix = "declare them under `inputs`, or put literal text into a code span"
    return (Diagnostic("input-undeclared", "info", message, None, fix, str(skill.path or "")),)


def list_undeclared(text: str) -> tuple[str, ...]:
    """Return the names of `${name}` in a text, outside code, each once, in order of appearance. O(n)."""
    if "${" not in text:
        return ()
    names = (match[2] for match in _PLACE.finditer(CODE.sub(" ", text)) if match[2])
    return tuple(dict.fromkeys(name for name in names if not name.isupper()))


def split_words(text: str) -> list[str]:
    """Split a text like a POSIX shell; at white space if a quote is unbalanced."""
    try:
        return shlex.split(text)
    except ValueError:  # an unbalanced quote is plain text
        return text.split()


def _unquote(value: str) -> str:
    if value[:1] == '"' and len(value) > 1:
        return re.sub(r"\\(.)", r"\1", value[1:-1])
    return value[1:-1] if value[:1] == "'" and len(value) > 1 else value
