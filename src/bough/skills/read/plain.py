"""Parsing frontmatter of plain `key: value` lines, the common case, without YAML and at a fraction of its cost."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from bough.skills.model import Diagnostic

_BLOCKS = frozenset({" >", " >-", " |", " |-"})
_PRINTABLE = bytes([10, *range(32, 127)])


@dataclass(slots=True)
class Fields:
    """The frontmatter as a mapping of text, lists and mappings, and its diagnostics."""

    values: dict[str, Any]
    diagnostics: list[Diagnostic] = field(default_factory=list[Diagnostic])


def plain_fields(header: str) -> dict[str, Any] | None:
    """Return the fields of a frontmatter of plain `key: value` lines, equal to YAML's; None if YAML is needed."""
    if ("#" in header and " #" in header) or not _is_printable(header):
        return None
    values: dict[str, Any] = {}
    target, parent, margin, read = values, "", 0, 0
    lines = header.split("\n")
    for at, line in enumerate(lines):
        if not line or at < read or line[0] == "#":
            continue
        key, colon, raw = line.partition(":")
        if line[0] == " ":
            spaces = len(key) - len(key := key.lstrip(" "))
            if target is values:
                if not parent:
                    return None
                target, margin = dict[str, Any](), spaces
                values[parent] = target
            if spaces != margin:
                return None
        else:
            target, parent = values, "" if raw else key
        if len(raw) < 4 and raw in _BLOCKS and target is values:
            value, read = _block(lines, at + 1, raw[1:])
        else:
            value = _plain(raw)
        if value is None or not colon or key in target or not _is_key(key):
            return None
        target[key] = value
    return values


def _is_printable(text: str) -> bool:
    """Whether every character except line feeds is printable."""
    if text.isascii():  # a third of the time of the general case
        return not text.encode().translate(None, _PRINTABLE)
    return text.replace("\n", "").isprintable()


def _is_key(key: str) -> bool:
    return key.isascii() and key.replace("-", "_").isidentifier()


def _plain(raw: str) -> str | None:
    """Return the value after a colon if it is plain, or quoted without special characters; else None."""
    value = raw.strip(" ")
    if not value:
        return ""
    first = value[0]
    if raw[0] != " ":
        return None
    if first.isalnum():
        return None if ":" in value and (": " in value or value[-1] == ":") else value
    if first in "\"'" and len(value) > 1 and value[-1] == first:
        inner = value[1:-1]
        return None if first in inner or (first == '"' and "\\" in inner) else inner
    return None


def _block(lines: list[str], at: int, style: str) -> tuple[str | None, int]:
    """Return the text of a block scalar with uniform indentation, and the line after it; None for other blocks."""
    end = at
    while end < len(lines) and lines[end][:1] == " ":
        end += 1
    if end == at or (end < len(lines) and not lines[end] and end != len(lines) - 1):
        return None, end
    margin = len(lines[at]) - len(lines[at].lstrip(" "))
    texts = [
        line[margin:]
        for line in lines[at:end]
        if line[:margin].isspace() and line[margin : margin + 1] not in ("", " ")
    ]
    if len(texts) != end - at:
        return None, end
    return (" " if style[0] == ">" else "\n").join(texts) + ("" if style.endswith("-") else "\n"), end


def plain_value(raw: str) -> str | None:
    """Return the value after a colon if it needs no YAML; None otherwise."""
    return _plain(raw) if " #" not in raw and raw.isprintable() else None
