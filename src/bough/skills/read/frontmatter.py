"""Where the frontmatter of a file ends and what it says.

YAML is read without types: every scalar is text, so `name: yes` is the name `yes` and `version: 1.10` keeps its zero.
What YAML rejects goes to `bough.skills.read.repair`, entry by entry.

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
    """A file cut in two.

    Attributes:
        header: The frontmatter's text; None when there is none.
        body: What comes after it.
        header_line: The line of the file that `header` begins with, counted from 1.
    """

    header: str | None
    body: str
    header_line: int = 1
    diagnostics: tuple[Diagnostic, ...] = ()


def split(text: str) -> Split:
    """Return frontmatter and body of `text`, whose lines end with line feeds. O(n)."""
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
        message = "the frontmatter's last line has text behind `---`"
        found.append(_warn("fence-with-text", message, at, "begin a new line after `---`"))
        return Split(text[opening.end() : fence.start()], fence[1] + text[fence.end() :], line, tuple(found))
    if closing is None:
        return _unclosed(text, opening.end(), line, found)
    if closing[0] != "---":
        at = text.count("\n", 0, closing.start()) + 1
        found.append(_warn("fence", "the frontmatter's last line is not exactly `---`", at, "write `---`"))
    return Split(text[opening.end() : closing.start()], text[closing.end() + 1 :], line, tuple(found))


def _find_fence_with_text(text: str, start: int, closing: re.Match[str] | None) -> re.Match[str] | None:
    """Return the line of dashes and text at which a person would end the frontmatter; None where there is none.

    That is where what stands before it says something, and no line of dashes alone comes before the first heading.
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
        found.append(_warn("leading-blank-lines", "blank space before the frontmatter", 1, "begin with `---`"))
    for pattern, what in ((_CODE_FENCE, "a code fence"), (_COMMENT, "a comment")):
        if wrapped := pattern.match(text, start):
            found.append(_warn("text-before-frontmatter", f"{what} before the frontmatter", 1, "begin with `---`"))
            return wrapped.end(), found
    return start, found


def _unclosed(text: str, start: int, line: int, found: list[Diagnostic]) -> Split:
    """A header without an end: the entries up to the first blank line or heading; nothing when there are none."""
    lines = text[start:].split("\n")
    count = next((i for i, each in enumerate(lines) if not each.strip() or each.startswith("#")), len(lines))
    if not any(_ENTRY.match(each) for each in lines[:count]):
        return Split(None, text, 1, ())
    note = _warn("unclosed-frontmatter", "the frontmatter has no closing `---`", line + count, "add a line `---`")
    return Split("\n".join(lines[:count]) + "\n", "\n".join(lines[count:]), line, (*found, note))


def load(header: str, first_line: int = 2) -> Fields:
    """Return what a frontmatter says, repaired where need be. O(n); never raises.

    Args:
        header: The text between the fences.
        first_line: The line of the file it begins with, for diagnostics.
    """
    plain = plain_fields(header)
    return load_yaml(header, first_line) if plain is None else Fields(plain)


def load_yaml(header: str, first_line: int = 2) -> Fields:
    """As `load`, for a frontmatter that is not plain."""
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
        return Fields({}, [_error("yaml-bomb", "the frontmatter grows beyond bounds", first_line, "write it out")])
    except NotText:
        return None
    if data is None or data == "":
        return Fields({}, notes)
    return Fields(cast("dict[str, Any]", data), notes) if isinstance(data, dict) else None


def _keep_hash(header: str, first_line: int, loaded: Fields) -> None:
    """YAML ends a plain value at ` #`; in a description that is nearly always meant as text."""
    match = _HASH_IN_TEXT.search(header)
    value = loaded.values.get("description")
    whole = match[1].rstrip() if match else ""
    if match is None or " #" not in whole or not isinstance(value, str) or not whole.startswith(value):
        return
    loaded.values["description"] = whole
    line = first_line + header.count("\n", 0, match.start())
    loaded.diagnostics.append(
        _warn("yaml-hash-in-text", "YAML would drop the description from ` #` on", line, "put the value in quotes")
    )


def _warn(code: str, message: str, line: int, fix: str) -> Diagnostic:
    return Diagnostic(code, "warning", message, line, fix)


def _error(code: str, message: str, line: int, fix: str) -> Diagnostic:
    return Diagnostic(code, "error", message, line, fix)
