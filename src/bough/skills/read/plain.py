"""Parsing frontmatter that consists of plain `key: value` lines, the common case. Much faster than a YAML parser."""

from __future__ import annotations

from typing import Any

_BLOCKS = frozenset({" >", " >-", " |", " |-"})
_PRINTABLE = bytes([10, *range(32, 127)])


def load_plain(header: str) -> dict[str, Any] | None:
    """Return the fields of a frontmatter that has only plain `key: value` lines; None if it needs a YAML parser.

    The result is the same as a YAML parser's. A key without a value may have one level of indented lines below it.
    """
    if ("#" in header and " #" in header) or not _is_printable(header):
        return None
    values: dict[str, Any] = {}
    mapping = values
    parent_key = ""
    indentation = 0
    next_number = 0  # lines before it belong to a block that was read
    lines = header.split("\n")
    for line_number, line in enumerate(lines):
        if not line or line_number < next_number or line[0] == "#":
            continue
        key, colon, raw_value = line.partition(":")
        if line[0] == " ":
            spaces = len(key) - len(key.lstrip(" "))
            key = key[spaces:]
            if mapping is values:
                if not parent_key:
                    return None
                mapping = dict[str, Any]()
                values[parent_key] = mapping
                indentation = spaces
            if spaces != indentation:
                return None
        else:
            mapping = values
            parent_key = "" if raw_value else key
        if len(raw_value) < 4 and raw_value in _BLOCKS and mapping is values:
            value, next_number = _load_block(lines, line_number + 1, raw_value[1:])
        else:
            value = _load_scalar(raw_value)
        if value is None or not colon or key in mapping or not _is_key(key):
            return None
        mapping[key] = value
    return values


def _is_printable(text: str) -> bool:
    """Whether every character except line feeds is printable."""
    if text.isascii():  # three times as fast as the general case
        return not text.encode().translate(None, _PRINTABLE)
    return text.replace("\n", "").isprintable()


def _is_key(key: str) -> bool:
    """Whether a key needs no quotes: an identifier that may contain hyphens."""
    return key.isascii() and key.replace("-", "_").isidentifier()


def _load_scalar(raw_value: str) -> str | None:
    """Return the value after a colon; None unless it is plain, or quoted without escapes."""
    value = raw_value.strip(" ")
    if not value:
        return ""
    first_char = value[0]
    if raw_value[0] != " ":
        return None
    if first_char.isalnum():
        is_mapping = ":" in value and (": " in value or value[-1] == ":")  # invalid in an unquoted value
        return None if is_mapping else value
    if first_char in "\"'" and len(value) > 1 and value[-1] == first_char:
        inner = value[1:-1]
        has_escapes = first_char in inner or (first_char == '"' and "\\" in inner)
        return None if has_escapes else inner
    return None


def _load_block(lines: list[str], start: int, style: str) -> tuple[str | None, int]:
    """Return (text, number of the next line) of a block scalar; the text is None if its indentation varies."""
    end = start
    while end < len(lines) and lines[end][:1] == " ":
        end += 1
    if end == start or (end < len(lines) and not lines[end] and end != len(lines) - 1):
        return None, end
    indentation = len(lines[start]) - len(lines[start].lstrip(" "))
    block_lines = [
        line[indentation:]
        for line in lines[start:end]
        if line[:indentation].isspace() and line[indentation : indentation + 1] not in ("", " ")
    ]
    if len(block_lines) != end - start:
        return None, end
    return (" " if style[0] == ">" else "\n").join(block_lines) + ("" if style.endswith("-") else "\n"), end
