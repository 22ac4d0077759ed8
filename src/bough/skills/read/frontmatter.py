"""Splitting a file into frontmatter and body, and parsing the frontmatter.

`load` is the only way in which frontmatter is read: plain `key: value` lines directly, at a fraction of YAML's cost;
anything else as YAML; invalid YAML entry by entry. Every repair adds a diagnostic.

YAML is read without types: every scalar is text, so `name: yes` is the name `yes` and `version: 1.10` keeps its zero.

Source: Agent Skills specification (frontmatter between `---` lines, then Markdown).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from bough.skills.model import Diagnostic, Notes
from bough.skills.read.plain import load_plain

_FENCE = re.compile(r"^(?:-{3,}|\.\.\.)[ \t]*$", re.MULTILINE)
_FENCE_WITH_TEXT = re.compile(r"^-{3,}[ \t]*([^\s-].*)$", re.MULTILINE)
_HEADING = re.compile(r"^#{1,6}[ \t]+\S", re.MULTILINE)
_OPENING = re.compile(r"(-{3,}[ \t]*)(?:\n|$)")
_CODE_FENCE = re.compile(r"`{3,}[a-zA-Z]*[ \t]*\n(?=-{3,}[ \t]*\n)")
_COMMENT = re.compile(r"<!--.*?-->\s*(?=-{3,}[ \t]*\n)", re.DOTALL)
_ENTRY = re.compile(r"[A-Za-z_][\w-]*[ \t]*:(?=\s|$)")


@dataclass(frozen=True, slots=True)
class Split:
    """A file split into frontmatter and body.

    Attributes:
        header: The frontmatter's text; None if missing.
        body: The text after it.
        header_line: The 1-based line of the file at which `header` starts.
    """

    header: str | None
    body: str
    header_line: int = 1
    diagnostics: tuple[Diagnostic, ...] = ()


def split(text: str) -> Split:
    """Split `text`, which has line feeds only, into frontmatter and body. O(n)."""
    notes = Notes()
    start = _find_opening(text, notes)
    opening = _OPENING.match(text, start)
    if opening is None:
        return Split(None, text)
    start = opening.end()
    line = _line_at(text, start)
    if opening[1] != "---":
        _note_inexact_fence("first", line - 1, notes)
    closing = _FENCE.search(text, start)
    if (fence := _find_fence_with_text(text, start, closing)) is not None:
        message = "the frontmatter's last line has text after `---`"
        fix = "start a new line after `---`"
        notes.warn("fence-with-text", message, fix, _line_at(text, fence.start()))
        return Split(text[start : fence.start()], fence[1] + text[fence.end() :], line, tuple(notes))
    if closing is None:
        return _split_unclosed(text, start, line, notes)
    if closing[0] != "---":
        _note_inexact_fence("last", _line_at(text, closing.start()), notes)
    return Split(text[start : closing.start()], text[closing.end() + 1 :], line, tuple(notes))


def find_exact_header(head: bytes) -> str | None:
    """Return the frontmatter of a file's first bytes if it lies between exact fences; else None."""
    end = head.find(b"\n---\n", 3) if head.startswith(b"---\n") else -1
    header = head[3 : end + 1]  # with the line feed before its first line
    if end < 0 or b"\r" in header or b"\0" in header or b"\n..." in header or b"\n---" in header:
        return None
    try:
        return header[1:].decode("utf-8")
    except UnicodeDecodeError:
        return None


def _line_at(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def _note_inexact_fence(place: str, line: int, notes: Notes) -> None:
    notes.warn("fence", f"the frontmatter's {place} line is not exactly `---`", "write `---`", line)


def _find_fence_with_text(text: str, start: int, closing: re.Match[str] | None) -> re.Match[str] | None:
    """Return the line of dashes with text after them that ends the frontmatter; None if there is no such line.

    The text before it must be a mapping with a name or a description, and no plain fence may follow before the first
    heading.
    """
    fence = _FENCE_WITH_TEXT.search(text, start, len(text) if closing is None else closing.start())
    if fence is None or not any(_ENTRY.match(line) for line in text[start : fence.start()].split("\n")):
        return None
    heading = fence if fence[1].startswith("#") else _HEADING.search(text, fence.end())
    if closing is not None and (heading is None or closing.start() < heading.start()):
        return None
    values = load(text[start : fence.start()], Notes())
    return fence if "name" in values or "description" in values else None


def _find_opening(text: str, notes: Notes) -> int:
    start = 0
    while start < len(text) and text[start].isspace():
        start += 1
    if start and _OPENING.match(text, start):
        notes.warn("leading-blank-lines", "blank lines before the frontmatter", "start with `---`", 1)
    for pattern, wrapper in ((_CODE_FENCE, "a code fence"), (_COMMENT, "a comment")):
        if match := pattern.match(text, start):
            notes.warn("text-before-frontmatter", f"{wrapper} before the frontmatter", "start with `---`", 1)
            return match.end()
    return start


def _split_unclosed(text: str, start: int, first_line: int, notes: Notes) -> Split:
    """Split a file whose frontmatter has no end: it consists of the entries up to the first blank line or heading."""
    lines = text[start:].split("\n")
    count = next((i for i, line in enumerate(lines) if not line.strip() or line.startswith("#")), len(lines))
    if not any(_ENTRY.match(line) for line in lines[:count]):
        return Split(None, text)
    message = "the frontmatter has no closing `---`"
    notes.warn("unclosed-frontmatter", message, "add a line `---`", first_line + count)
    return Split("\n".join(lines[:count]) + "\n", "\n".join(lines[count:]), first_line, tuple(notes))


def load(header: str, notes: Notes, first_line: int = 2) -> dict[str, Any]:
    """Return the fields of a frontmatter as text, lists and mappings, repaired where necessary. O(n); never raises.

    Args:
        header: The text between the fences.
        notes: Receives a diagnostic for each repair.
        first_line: The line of the file at which `header` starts, for `notes`.
    """
    values = load_plain(header)
    if values is None:
        from bough.skills.read.yaml_text import load_yaml  # most libraries of skills need no YAML, slow to import

        values = load_yaml(header, notes, first_line)
    return values
