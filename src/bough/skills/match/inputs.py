"""The inputs of a task skill: read from a message, checked, put into the instructions."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping, Sequence

from bough.errors import InvalidInput
from bough.skills.model import InputMetadata, Skill
from bough.skills.read.resources import nearest

ARGUMENTS = "ARGUMENTS"
"""What `/name` was followed by, as a whole; in instructions `$ARGUMENTS` or `${ARGUMENTS}`."""

MAX_VALUE = 32 << 10
_PAIR = re.compile(r"(?<![\w-])([A-Za-z_][\w-]*)=(\"(?:[^\"\\]|\\.)*\"|'[^']*'|\S*)")
_PLACE = re.compile(r"([ \t]?)(?:\$\{([A-Za-z_][\w-]*)\}|\$ARGUMENTS\b)")
_CODE = re.compile(r"(?ms)^[ \t]*(```|~~~).*?(?:^[ \t]*\1[^\n]*$|\Z)|`[^`\n]+`")


def parse_arguments(text: str, inputs: Sequence[InputMetadata]) -> dict[str, str]:
    """Return the inputs that the text after `/name` gives: `key=value` pairs, then the rest in order.

    A single open input takes all of the rest; several open ones take a word each, in their declared order. More words
    than there are open inputs are all for the one that must be given; where several must be, they are for none of
    them, and in `ARGUMENTS` alone.
    """
    known = {each.name for each in inputs}
    given = parse_pairs(text, inputs)
    rest = _PAIR.sub(lambda match: "" if match[1] in known else match[0], text).strip()
    still_open = [each.name for each in inputs if each.name not in given]
    if rest and still_open:
        words = _words(rest)
        if len(still_open) == 1:
            given[still_open[0]] = words[0] if len(words) == 1 else rest
        elif len(words) > len(still_open) and len(needed := [each.name for each in inputs if is_needed(each)]) == 1:
            given |= dict.fromkeys(set(needed) - set(given), rest)
        elif len(words) <= len(still_open):
            given |= dict(zip(still_open, words, strict=False))
    return given


def parse_pairs(text: str, inputs: Sequence[InputMetadata]) -> dict[str, str]:
    """Return the `key=value` pairs of a text whose keys are inputs; values may be quoted, the last of a key counts."""
    known = {each.name for each in inputs}
    return {match[1]: _unquote(match[2]) for match in _PAIR.finditer(text) if match[1] in known} if known else {}


def missing_inputs(inputs: Sequence[InputMetadata], given: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of required inputs that are not given, or given empty, in their order."""
    return tuple(each.name for each in inputs if is_needed(each) and not given.get(each.name, "").strip())


def is_needed(entry: InputMetadata) -> bool:
    """Whether an input must be given: it is required and nothing stands in for it."""
    return entry.required and entry.default is None


def check_inputs(inputs: Sequence[InputMetadata], given: Mapping[str, str]) -> dict[str, str]:
    """Return the values to put in: what is given over the defaults.

    Raises:
        InvalidInput: A name is not an input of the skill, or a value is too long or holds control characters.
    """
    known = tuple(each.name for each in inputs)
    for name, value in given.items():
        if name not in known and name != ARGUMENTS:
            raise InvalidInput(f"the skill has no input {name[:60]!r}", hint=nearest(name, known))
        if len(value) > MAX_VALUE or re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]", value):
            raise InvalidInput(f"the value of {name!r} is too long or holds control characters", hint="give plain text")
    return {each.name: each.default for each in inputs if each.default is not None} | dict(given)


def substitute(text: str, values: Mapping[str, str], *, without: Collection[str] = ()) -> str:
    """Return `text` with `${name}` replaced where `values` has the name; all else stays. Values are not looked into.

    Args:
        without: Names that nobody gave and that need not be given: they vanish, with one blank before them.
    """

    def put(match: re.Match[str]) -> str:
        name = match[2] or ARGUMENTS
        return "" if name in without and name not in values else match[1] + values.get(name, match[0][len(match[1]) :])

    return _PLACE.sub(put, text) if values or without else text


def inputs_of(skill: Skill) -> tuple[InputMetadata, ...]:
    """Return the inputs of a skill: those it declares, else the `${name}` of its text, which are then required.

    Names in capitals only are variables of a shell, and what stands in code is code: these are not inputs.
    """
    return skill.inputs or tuple(InputMetadata(name) for name in list_undeclared(skill.content))


def list_undeclared(text: str) -> tuple[str, ...]:
    """Return the names of `${name}` in a text outside of code, each once, in their order. O(n)."""
    if "${" not in text:
        return ()
    names = (match[2] for match in _PLACE.finditer(_CODE.sub(" ", text)) if match[2])
    return tuple(dict.fromkeys(name for name in names if not name.isupper()))


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # a lone quote is text
        return text.split()


def _unquote(value: str) -> str:
    if value[:1] == '"' and len(value) > 1:
        return re.sub(r"\\(.)", r"\1", value[1:-1])
    return value[1:-1] if value[:1] == "'" and len(value) > 1 else value
