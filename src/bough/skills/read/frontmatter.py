"""Splitting a file into frontmatter and body, and parsing the frontmatter.

YAML is read without types: every scalar is text, so `name: yes` is the name `yes` and `version: 1.10` keeps its zero.
Invalid YAML is repaired by `bough.skills.read.repair`, entry by entry.

Source: Agent Skills specification (frontmatter between `---` lines, then Markdown).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, cast

from bough.skills.model import Diagnostic
from bough.skills.read.plain import Fields, plain_fields

_FENCE = re.compile(r"^(?:-{3,}|\.\.\.)[ \t]*$", re.MULTILINE)
_FENCE_WITH_TEXT = re.compile(r"^-{3,}[ \t]*([^\s-].*)$", re.MULTILINE)
_HEADING = re.compile(r"^#{1,6}[ \t]+\S", re.MULTILINE)
_OPENING = re.compile(r"(-{3,}[ \t]*)(?:\n|$)")
_CODE_FENCE = re.compile(r"`{3,}[a-zA-Z]*[ \t]*\n(?=-{3,}[ \t]*\n)")
_COMMENT = re.compile(r"<!--.*?-->\s*(?=-{3,}[ \t]*\n)", re.DOTALL)
_ENTRY = re.compile(r"[A-Za-z_][\w-]*[ \t]*:(?=\s|$)")
_HASH_IN_TEXT = re.compile(r"^description[ \t]*:[ \t]+([^\s\"'|>#&*!\[{].*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Split:
    """A file split into frontmatter and body.

    Attributes:
        header: The frontmatter's text; None if there is none.
        body: The text after it.
        header_line: The 1-based line of the file at which `header` starts.
    """

    header: str | None
    body: str
    header_line: int = 1
    diagnostics: tuple[Diagnostic, ...] = ()


def split(text: str) -> Split:
    """Split `text`, which has line feeds only, into frontmatter and body. O(n)."""
    start, found = _find_opening(text)
    opening = _OPENING.match(text, start)
    if opening is None:
        return Split(None, text, 1, ())
    line = text.count("\n", 0, opening.end()) + 1
    if opening[1] != "---":
        found.append(_warn("fence", "the frontmatter's first line is not exactly `---`", line - 1, "write `---`"))
    closing = _FENCE.search(text, opening.end())
    if (fence := _find_fence_with_text(text, opening.end(), closing)) is not None:
        at = text.count("\n", 0, fence.start()) + 1
        message = "the frontmatter's last line has text after `---`"
        found.append(_warn("fence-with-text", message, at, "start a new line after `---`"))
        return Split(text[opening.end() : fence.start()], fence[1] + text[fence.end() :], line, tuple(found))
    if closing is None:
        return _split_unclosed(text, opening.end(), line, found)
    if closing[0] != "---":
        at = text.count("\n", 0, closing.start()) + 1
        found.append(_warn("fence", "the frontmatter's last line is not exactly `---`", at, "write `---`"))
    return Split(text[opening.end() : closing.start()], text[closing.end() + 1 :], line, tuple(found))


def _find_fence_with_text(text: str, start: int, closing: re.Match[str] | None) -> re.Match[str] | None:
    """Return the line of dashes with text after them that ends the frontmatter; None if there is no such line.

    The text before it must be a mapping with a name or a description, and no plain fence may follow before the first
    heading.
    """
    fence = _FENCE_WITH_TEXT.search(text, start, len(text) if closing is None else closing.start())
    if fence is None or not any(_ENTRY.match(each) for each in text[start : fence.start()].split("\n")):
        return None
    heading = fence if fence[1].startswith("#") else _HEADING.search(text, fence.end())
    if closing is not None and (heading is None or closing.start() < heading.start()):
        return None
    values = load(text[start : fence.start()]).values
    return fence if "name" in values or "description" in values else None


def _find_opening(text: str) -> tuple[int, list[Diagnostic]]:
    start, found = 0, list[Diagnostic]()
    while start < len(text) and text[start].isspace():
        start += 1
    if start and _OPENING.match(text, start):
        found.append(_warn("leading-blank-lines", "blank lines before the frontmatter", 1, "start with `---`"))
    for pattern, what in ((_CODE_FENCE, "a code fence"), (_COMMENT, "a comment")):
        if wrapped := pattern.match(text, start):
            found.append(_warn("text-before-frontmatter", f"{what} before the frontmatter", 1, "start with `---`"))
            return wrapped.end(), found
    return start, found


def _split_unclosed(text: str, start: int, line: int, found: list[Diagnostic]) -> Split:
    """Split a file whose frontmatter has no end: it consists of the entries up to the first blank line or heading."""
    lines = text[start:].split("\n")
    count = next((i for i, each in enumerate(lines) if not each.strip() or each.startswith("#")), len(lines))
    if not any(_ENTRY.match(each) for each in lines[:count]):
        return Split(None, text, 1, ())
    note = _warn("unclosed-frontmatter", "the frontmatter has no closing `---`", line + count, "add a line `---`")
    return Split("\n".join(lines[:count]) + "\n", "\n".join(lines[count:]), line, (*found, note))


def load(header: str, first_line: int = 2) -> Fields:
    """Parse a frontmatter, repairing it where necessary. O(n); never raises.

    Args:
        header: The text between the fences.
        first_line: The line of the file at which it starts, for diagnostics.
    """
    plain = plain_fields(header)
    return load_yaml(header, first_line) if plain is None else Fields(plain)


def load_yaml(header: str, first_line: int = 2) -> Fields:
    """Parse a frontmatter that is not plain `key: value` lines; otherwise like `load`."""
    loaded = _load_yaml(header, first_line)
    if loaded is None:
        from bough.skills.read.repair import salvage

        return salvage(header, first_line)
    _keep_hash(header, first_line, loaded)
    return loaded


def _load_yaml(header: str, first_line: int) -> Fields | None:
    from bough.skills.read.yaml_text import NotText, read_yaml

    notes: list[Diagnostic] = []
    try:
        data = read_yaml(header, first_line, notes)
    except OverflowError:
        return Fields({}, [_error("yaml-bomb", "YAML aliases expand beyond limits", first_line, "do not use aliases")])
    except NotText:
        return None
    if data is None or data == "":
        return Fields({}, notes)
    return Fields(cast("dict[str, Any]", data), notes) if isinstance(data, dict) else None


def _keep_hash(header: str, first_line: int, loaded: Fields) -> None:
    """Restore a description that YAML ended at ` #`, which is nearly always meant as text."""
    match = _HASH_IN_TEXT.search(header)
    value = loaded.values.get("description")
    whole = match[1].rstrip() if match else ""
    if match is None or " #" not in whole or not isinstance(value, str) or not whole.startswith(value):
        return
    loaded.values["description"] = whole
    line = first_line + header.count("\n", 0, match.start())
    loaded.diagnostics.append(
        _warn("yaml-hash-in-text", "in YAML, ` #` starts a comment in the description", line, "quote the value")
    )


def _warn(code: str, message: str, line: int, fix: str) -> Diagnostic:
    return Diagnostic(code, "warning", message, line, fix)


def _error(code: str, message: str, line: int, fix: str) -> Diagnostic:
    return Diagnostic(code, "error", message, line, fix)
