"""YAML as text, lists and mappings: no types, no tags, bounded, and it says which keys came twice."""

from __future__ import annotations

from typing import Any

import yaml

from bough.skills.model import Diagnostic

MAX_NODES = 10_000
"""How many values a frontmatter may hold once aliases are written out."""

MAX_DEPTH = 32

_compose: Any = getattr(yaml, "compose")  # noqa: B009 - its types are unknown
_LOADER: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)


class NotText(ValueError):
    """YAML that is valid but cannot be read as text, lists and mappings."""


def read_yaml(text: str, first_line: int, notes: list[Diagnostic]) -> Any:
    """Return what a YAML document says; None for an empty one. The last of several equal keys counts.

    Args:
        first_line: The line its first line has in the file, for `notes`.
        notes: Takes a diagnostic for every repeated key.

    Raises:
        NotText: It is not valid YAML, or a key of it is not text.
        OverflowError: It grows beyond bounds when its aliases are written out.
    """
    try:
        node = _compose(text, Loader=_LOADER)
        return None if node is None else _build(node, first_line, notes, [MAX_NODES], 0)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise NotText(str(error)) from error


def _build(node: Any, first_line: int, notes: list[Diagnostic], left: list[int], depth: int) -> Any:
    left[0] -= 1
    if left[0] < 0 or depth > MAX_DEPTH:
        raise OverflowError
    match node:
        case yaml.ScalarNode():
            return node.value
        case yaml.SequenceNode():
            return [_build(item, first_line, notes, left, depth + 1) for item in node.value]
        case _:
            mapping: dict[str, Any] = {}
            for key, value in node.value:
                if not isinstance(key, yaml.ScalarNode):
                    raise NotText("a key is not text")
                if key.value in mapping:
                    notes.append(_duplicate(str(key.value), int(key.start_mark.line) + first_line))
                mapping[key.value] = _build(value, first_line, notes, left, depth + 1)
            return mapping


def _duplicate(key: str, line: int) -> Diagnostic:
    message = f"the key `{key[:64]}` comes twice; the last one counts"
    return Diagnostic("yaml-duplicate-key", "warning", message, line, "keep one")
