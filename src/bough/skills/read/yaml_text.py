"""YAML as text, lists and mappings: no types, no tags, bounded, and it says which keys came twice.

Built from the parser's events, for PyYAML's own composer goes as deep as a file tells it to and ends the process.
"""

from __future__ import annotations

from typing import Any

import yaml

from bough.skills.model import Diagnostic

MAX_NODES = 10_000
"""How many values a frontmatter may hold once aliases are written out."""

MAX_DEPTH = 32

_LOADER: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)


class NotText(ValueError):
    """What is not valid YAML, or cannot be read as text, lists and mappings."""


def read_yaml(text: str, first_line: int, notes: list[Diagnostic]) -> Any:
    """Return what a YAML document says; None for an empty one. The last of several equal keys counts.

    Args:
        first_line: The line its first line has in the file, for `notes`.
        notes: Takes a diagnostic for every repeated key.

    Raises:
        NotText: It is not valid YAML, holds several documents, or a key of it is not text.
        OverflowError: It grows beyond bounds when its aliases are written out.
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
    """Makes values of a parser's events, counting them."""

    def __init__(self, loader: Any, first_line: int, notes: list[Diagnostic]) -> None:
        self._next: Any = loader.get_event
        self._first_line = first_line
        self._notes = notes
        self._left = MAX_NODES
        self._anchors: dict[str, tuple[Any, int]] = {}

    def document(self) -> Any:
        """The one document of the stream."""
        self._next()  # the stream begins
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
            raise NotText("an alias of nothing")
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
    message = f"the key `{key[:64]}` comes twice; the last one counts"
    return Diagnostic("yaml-duplicate-key", "warning", message, line, "keep one")
