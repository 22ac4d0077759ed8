"""Untrusted Markdown in a document: formatting and code stay, HTML and links that could run code become text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape

_OPENING = re.compile(r"[ \t]*(?:(?P<ticks>`{3,})(?P<info>[^`]*)|(?P<waves>~{3,})(?P<words>.*))")
_LANGUAGE = re.compile(r"[\w+#.-]+")
_TAG = re.compile(r"<(?=[A-Za-z/!?])")
_MAX_SCHEME = 100
"""Characters of an address that are searched for its scheme."""

_TARGET = re.compile(rf"\]([(:])(?=[\s>]*(<[^>\n]{{0,{_MAX_SCHEME}}}|[^\s)]{{0,{_MAX_SCHEME}}}))")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(?=:)")
_SAFE_SCHEMES = frozenset({"http", "https", "mailto"})
_ESCAPED = re.compile(r"\\([!-/:-@\[-`{-~])")
_TICKS = re.compile(r"`+")


def fence(text: str, language: str = "") -> str:
    """Return text as a fenced code block. The fence is longer than any run of backticks in the text."""
    marks = "`" * max(3, longest_run(text) + 1)
    return f"{marks}{language}\n{text}\n{marks}"


def longest_run(text: str) -> int:
    """Return the length of the longest run of backticks in `text`."""
    return max((len(run) for run in _TICKS.findall(text)), default=0)


def escape_html(text: str) -> str:
    """Return Markdown in which no viewer finds an HTML tag. O(length).

    Fenced blocks are rewritten at the beginning of a line, with new fences. That ends every list and quotation, so that
    all viewers agree on what is code. An unclosed block is closed.
    """
    parts: list[str] = []
    lines = iter(text.split("\n"))
    pending: list[str] = []
    for line in lines:
        opening = _OPENING.fullmatch(line)
        if opening is None:
            pending.append(line)
            continue
        parts += [*_escape_paragraphs(pending), _read_block(line, opening, lines)]
        pending = []
    return "\n".join([*parts, *_escape_paragraphs(pending)])


def escape_line(text: str) -> str:
    """Escape one line of Markdown, such as the text of a heading, like `escape_html`."""
    return _escape_paragraph([text])


def _read_block(line: str, opening: re.Match[str], lines: Iterator[str]) -> str:
    marks = opening["ticks"] or opening["waves"]
    indent = len(line) - len(line.lstrip())
    inside: list[str] = []
    for inner in lines:
        ending = inner.strip()
        if ending and len(ending) >= len(marks) and not ending.strip(marks[0]):
            break
        inside.append(inner[indent:] if not inner[:indent].strip() else inner.lstrip())
    language = _LANGUAGE.match((opening["info"] or opening["words"] or "").strip())
    return fence("\n".join(inside), "" if language is None else language[0])


def _escape_paragraphs(lines: list[str]) -> Iterator[str]:
    """Yield escaped lines. Each paragraph is escaped separately, since a code span ends with its paragraph."""
    paragraph: list[str] = []
    for line in lines:
        if line.strip():
            paragraph.append(line)
            continue
        if paragraph:
            yield _escape_paragraph(paragraph)
            paragraph = []
        yield line
    if paragraph:
        yield _escape_paragraph(paragraph)


def _escape_paragraph(lines: list[str]) -> str:
    spans = [_find_code(line) for line in lines]
    # One line whose code viewers may read differently makes the whole paragraph text: a span can cross its lines.
    is_clear = None not in spans
    escaped = (
        _escape_outside(line, code if is_clear and code else []) for line, code in zip(lines, spans, strict=True)
    )
    return _TARGET.sub(_escape_target, "\n".join(escaped))


def _find_code(line: str) -> list[tuple[int, int]] | None:
    """Return the code spans of a line; None if they depend on other lines, on tables or on backslashes."""
    runs = [match.span() for match in _TICKS.finditer(line)]
    if "\\`" in line:
        return None
    spans: list[tuple[int, int]] = []
    place = 0
    while place < len(runs):
        start, end = runs[place]
        after = range(place + 1, len(runs))
        closing = next((other for other in after if runs[other][1] - runs[other][0] == end - start), None)
        if closing is None or "|" in line[start : runs[closing][1]]:
            return None
        spans.append((start, runs[closing][1]))
        place = closing + 1
    return spans


def _escape_outside(line: str, code: list[tuple[int, int]]) -> str:
    parts: list[str] = []
    done = 0
    for start, end in code:
        parts += [_TAG.sub("&lt;", line[done:start]), line[start:end]]
        done = end
    return "".join([*parts, _TAG.sub("&lt;", line[done:])])


def _escape_target(link: re.Match[str]) -> str:
    """Return a link unchanged if it is relative or its scheme is http, https or mailto; otherwise as text."""
    target = link[2]
    address = unescape(_ESCAPED.sub(r"\1", target))
    # Browsers ignore tabs and line breaks inside a scheme: `java\tscript:` runs code, too.
    scheme = _SCHEME.match("".join(char for char in address if char > " ").lstrip("<"))
    if scheme is None:
        is_hidden = len(target) >= _MAX_SCHEME and address != target
        return f"]\\{link[1]}" if is_hidden else link[0]
    return link[0] if scheme[0].lower() in _SAFE_SCHEMES else f"]\\{link[1]}"
