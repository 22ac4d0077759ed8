"""Reading YAML as text, lists and mappings: no types, no tags, bounded, with a diagnostic for duplicate keys.

Built from the parser's events, because PyYAML's own composer recurses as deep as a file nests, which can end the
process.
"""

from __future__ import annotations

from typing import Any

import yaml

from bough.skills.model import Diagnostic

MAX_NODES = 10_000
"""How many values a frontmatter may have once its aliases are expanded."""

MAX_DEPTH = 32

_LOADER: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)


class NotText(ValueError):
    """The document is not valid YAML, or cannot be read as text, lists and mappings."""


def read_yaml(text: str, first_line: int, notes: list[Diagnostic]) -> Any:
    """Return the value of a YAML document; None for an empty one. Of duplicate keys, the last one is used.

    Args:
        first_line: The line of the file at which the text starts, for `notes`.
        notes: Receives a diagnostic for every duplicate key.

    Raises:
        NotText: It is not valid YAML, contains several documents, or has a key that is not text.
        OverflowError: It exceeds the limits when its aliases are expanded.
    """
    try:
        loader = _LOADER(text)
        try:
            return _Builder(loader, first_line, notes).document()
        finally:
            loader.dispose()
    except (yaml.YAMLError, ValueError) as error:
        raise NotText(str(error)) from error


class _Builder:
    """Builds values from a parser's events, counting them."""

    def __init__(self, loader: Any, first_line: int, notes: list[Diagnostic]) -> None:
        self._next: Any = loader.get_event
        self._first_line = first_line
        self._notes = notes
        self._left = MAX_NODES
        self._anchors: dict[str, tuple[Any, int]] = {}

    def document(self) -> Any:
        """Return the value of the stream's only document."""
        self._next()  # the stream starts
        if isinstance(self._next(), yaml.StreamEndEvent):
            return None
        value = self._value(self._next(), 0)
        self._next()  # the document ends
        if not isinstance(self._next(), yaml.StreamEndEvent):
            raise NotText("several documents")
        return value

    def _value(self, event: Any, depth: int) -> Any:
        self._spend(1)
        if depth > MAX_DEPTH:
            raise OverflowError
        before = self._left
        match event:
            case yaml.ScalarEvent():
                value = event.value
            case yaml.AliasEvent():
                return self._alias(event)
            case yaml.SequenceStartEvent():
                value = self._list(depth)
            case _:
                value = self._mapping(depth)
        if event.anchor:
            self._anchors[event.anchor] = (value, before - self._left)
        return value

    def _spend(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise OverflowError

    def _alias(self, event: Any) -> Any:
        if event.anchor not in self._anchors:
            raise NotText("an undefined alias")
        value, size = self._anchors[event.anchor]
        self._spend(size)
        return value

    def _list(self, depth: int) -> list[Any]:
        items: list[Any] = []
        while not isinstance(event := self._next(), yaml.SequenceEndEvent):
            items.append(self._value(event, depth + 1))
        return items

    def _mapping(self, depth: int) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        while not isinstance(event := self._next(), yaml.MappingEndEvent):
            if not isinstance(event, yaml.ScalarEvent):
                raise NotText("a key is not text")
            key = str(event.value)
            if key in mapping:
                self._notes.append(_duplicate(key, int(event.start_mark.line) + self._first_line))
            mapping[key] = self._value(self._next(), depth + 1)
        return mapping


def _duplicate(key: str, line: int) -> Diagnostic:
    message = f"duplicate key `{key[:64]}`; the last one is used"
    return Diagnostic("yaml-duplicate-key", "warning", message, line, "keep one")
