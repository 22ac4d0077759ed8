"""Markdown of others in a document: formatting and code stay, HTML and links that could run something become text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape

_OPENING = re.compile(r"[ \t]*(?:(?P<ticks>`{3,})(?P<info>[^`]*)|(?P<waves>~{3,})(?P<words>.*))")
_LANGUAGE = re.compile(r"[\w+#.-]+")
_TAG = re.compile(r"<(?=[A-Za-z/!?])")
_MAX_SCHEME = 100
"""Characters of an address in which its scheme is looked for."""

_TARGET = re.compile(rf"\]([(:])(?=[\s>]*(<[^>\n]{{0,{_MAX_SCHEME}}}|[^\s)]{{0,{_MAX_SCHEME}}}))")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(?=:)")
_SAFE_SCHEMES = frozenset({"http", "https", "mailto"})
_ESCAPED = re.compile(r"\\([!-/:-@\[-`{-~])")
_TICKS = re.compile(r"`+")


def fence(text: str, language: str = "") -> str:
    """Return text as a fenced block that nothing in it can end."""
    marks = "`" * max(3, longest_run(text) + 1)
    return f"{marks}{language}\n{text}\n{marks}"


def longest_run(text: str) -> int:
    """Return how many backticks follow one another in `text` at most."""
    return max((len(run) for run in _TICKS.findall(text)), default=0)


def escape_html(text: str) -> str:
    """Return Markdown that a viewer which renders HTML shows as it is written: nothing in it is a tag. O(length).

    Fenced blocks are written at the beginning of a line with marks of their own, which end every list and quotation,
    so that all viewers agree on what is code. An open block is closed.
    """
    parts: list[str] = []
    lines = iter(text.split("\n"))
    spoken: list[str] = []
    for line in lines:
        opening = _OPENING.fullmatch(line)
        if opening is None:
            spoken.append(line)
            continue
        parts += [*_escape_paragraphs(spoken), _read_block(line, opening, lines)]
        spoken = []
    return "\n".join([*parts, *_escape_paragraphs(spoken)])


def escape_line(text: str) -> str:
    """Return one line of Markdown, such as a heading's text, as `escape_html` does."""
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
    """Yield lines escaped, each run of lines without a blank one by itself: code does not go beyond."""
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
    is_clear = None not in spans  # else viewers may not agree on what is code here
    escaped = (
        _escape_outside(line, code if is_clear and code else []) for line, code in zip(lines, spans, strict=True)
    )
    return _TARGET.sub(_escape_target, "\n".join(escaped))


def _find_code(line: str) -> list[tuple[int, int]] | None:
    """Return where a line's code is; None where that depends on other lines, on tables or on backslashes."""
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
    """Return a link unchanged if its address is one of the web or of mail, or is relative; else as text."""
    written = link[2]
    address = unescape(_ESCAPED.sub(r"\1", written))
    scheme = _SCHEME.match("".join(char for char in address if char > " ").lstrip("<"))
    if scheme is None:
        is_hidden = len(written) >= _MAX_SCHEME and address != written
        return f"]\\{link[1]}" if is_hidden else link[0]
    return link[0] if scheme[0].lower() in _SAFE_SCHEMES else f"]\\{link[1]}"
