"""Recovering what is readable of a frontmatter that is not valid YAML.

Every entry is parsed separately, so that a bad value affects only its own key. A value that is not valid YAML is read
as plain text, and the diagnostic says what to write instead.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, cast

from bough.skills.model import Diagnostic
from bough.skills.read.plain import Fields, plain_value

_MAX_DEPTH = 4
_ENTRY = re.compile(r"([A-Za-z_][\w-]*|\"[^\"\n]*\"|'[^'\n]*')[ \t]*:(?:[ \t]+(.*)|$)")
_GLUED = re.compile(r"(name|description|license|compatibility|version):(\S.*)")
_BLOCK = re.compile(r"([|>])[-+0-9]*")
_ESCAPES = {'\\"': '"', "\\\\": "\\", "\\n": "\n", "\\t": "\t"}


@dataclass(slots=True)
class _Entry:
    key: str
    first: str
    rest: list[str]
    line: int


def salvage(header: str, first_line: int) -> Fields:
    """Return the entries of a broken frontmatter, with a diagnostic for each repair. O(n); never raises."""
    fields = Fields({})
    _read_block(header.split("\n"), first_line, 0, fields)
    if not fields.values and header.strip():
        fields.diagnostics.append(
            Diagnostic("yaml-not-a-mapping", "warning", "the frontmatter has no `key: value` lines", first_line)
        )
    return fields


def _read_block(lines: list[str], first_line: int, depth: int, fields: Fields) -> None:
    for entry in _entries(lines, first_line, fields.diagnostics):
        if entry.key in fields.values:
            fields.diagnostics.append(_duplicate(entry))
        fields.values[entry.key] = _read_entry(entry, depth, fields.diagnostics)


def _entries(lines: list[str], first_line: int, found: list[Diagnostic]) -> list[_Entry]:
    entries: list[_Entry] = []
    for number, line in enumerate(lines, first_line):
        match = _ENTRY.match(line)
        if match is None and (match := _GLUED.fullmatch(line)):
            found.append(_note("yaml-missing-space", f"no space after `{match[1]}:`", number, f"{match[1]}: …"))
        if match is not None:
            entries.append(_Entry(match[1].strip("\"'"), (match[2] or "").strip(), [], number))
        elif entries and not _is_complete(entries[-1]):
            entries[-1].rest.append(line)
        elif line.strip() and not line.lstrip().startswith("#"):
            found.append(
                _note("yaml-stray-line", f"a line that belongs to no key: {line.strip()[:60]}", number, "remove it")
            )
    return entries


def _is_complete(entry: _Entry) -> bool:
    """Whether further lines cannot belong to the entry: a name is a single line."""
    return entry.key.lower() == "name" and bool(entry.first)


def _read_entry(entry: _Entry, depth: int, found: list[Diagnostic]) -> Any:
    if not any(entry.rest) and (plain := plain_value(f" {entry.first}")) is not None:
        return plain
    text = "\n".join([entry.first, *entry.rest])
    value, ok = _as_yaml(text)
    if ok:
        return value
    if "\t" in text:
        value, ok = _as_yaml(text.expandtabs(2))
        if ok:
            found.append(_note("yaml-tab", f"tabs in `{entry.key}`", entry.line, "indent with spaces"))
            return value
    if not entry.first and depth < _MAX_DEPTH:
        return _read_nested(entry, depth, found)
    return _as_text(entry, found)


def _as_yaml(text: str) -> tuple[Any, bool]:
    """Return the value as parsed by YAML, and whether it is valid YAML."""
    from bough.skills.read.yaml_text import NotText, read_yaml

    try:
        data = read_yaml(f"key: {text}\n", 1, [])
    except (NotText, OverflowError):
        return None, False
    if not isinstance(data, dict) or list(cast("dict[str, Any]", data)) != ["key"]:
        return None, False
    return cast("dict[str, Any]", data)["key"], True


def _read_nested(entry: _Entry, depth: int, found: list[Diagnostic]) -> Any:
    lines = [line.expandtabs(2) for line in entry.rest]
    filled = [line for line in lines if line.strip()]
    if not filled:
        return ""
    margin = min(len(line) - len(line.lstrip()) for line in filled)
    lines = [line[margin:] for line in lines]
    if all(line[margin:].startswith(("-", " ")) for line in filled):
        return _read_list(lines, entry, found)
    if _ENTRY.match(filled[0][margin:]):
        inner = Fields({}, found)
        _read_block(lines, entry.line + 1, depth + 1, inner)
        return inner.values
    return _as_text(entry, found)


def _read_list(lines: list[str], entry: _Entry, found: list[Diagnostic]) -> list[Any]:
    items: list[list[str]] = []
    for line in lines:
        if line.startswith("-"):
            items.append([line[1:].strip()])
        elif items and line.strip():
            items[-1].append(line.strip())
    return [
        _read_entry(_Entry(entry.key, item[0], [f"  {more}" for more in item[1:]], entry.line), 9, found)
        for item in items
    ]


def _as_text(entry: _Entry, found: list[Diagnostic]) -> str:
    code, message = _reason(entry)
    found.append(_note(code, f"`{entry.key}`: {message}", entry.line, "put the value in quotes, or write it as `>-`"))
    rest = [line.strip() for line in entry.rest]
    if block := _BLOCK.fullmatch(entry.first):
        return ("\n" if block[1] == "|" else " ").join(rest).strip()
    return _unquote(" ".join(part for part in [entry.first, *rest] if part))


def _reason(entry: _Entry) -> tuple[str, str]:
    first, whole = entry.first, "\n".join([entry.first, *entry.rest])
    if first.startswith("*") or first.startswith("&"):
        return "yaml-unquoted-alias", f"an unquoted value cannot start with `{first[0]}`"
    if _BLOCK.match(first):
        return "yaml-block", "the block is not indented correctly"
    if first[:1] in ('"', "'"):
        return _quote_reason(first, whole)
    if first[:1] in tuple("@`%!?,]}[{"):
        return "yaml-special-character", f"an unquoted value cannot start with `{first[0]}`"
    if re.search(r":(\s|$)", whole):
        return "yaml-unquoted-colon", "an unquoted `: ` in the value"
    return "yaml-invalid", "the value is not valid YAML"


def _quote_reason(first: str, whole: str) -> tuple[str, str]:
    if first[0] == '"' and re.search(r"\\[^\"\\/0abtnvfre\sNLPxuU_]", whole):
        return "yaml-bad-escape", "an invalid escape sequence"
    return "yaml-stray-quote", "an unbalanced quote"


def _unquote(text: str) -> str:
    quote = text[:1]
    if quote not in ('"', "'"):
        return text
    inner = text[1:-1] if len(text) > 1 and text.endswith(quote) else text[1:]
    if quote == "'":
        return inner.replace("''", "'")
    return re.sub(r'\\["\\nt]', lambda match: _ESCAPES[match[0]], inner)


def _duplicate(entry: _Entry) -> Diagnostic:
    return _note(
        "yaml-duplicate-key", f"duplicate key `{entry.key[:64]}`; the last one is used", entry.line, "keep one"
    )


def _note(code: str, message: str, line: int, fix: str) -> Diagnostic:
    return Diagnostic(code, "warning", message, line, fix)
