"""A conversation as a document: Markdown, or one self-contained HTML file without scripts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from html import unescape
from typing import NamedTuple

from bough.cli.describe import describe_event, read_thinking
from bough.cli.target import short
from bough.cli.text import Span, escape_controls
from bough.events.record import ConversationRecord
from bough.types import JsonObject

_MESSAGE_WORDS = ("user", "model")
"""The words of `describe_event` for messages; only their texts are Markdown."""


class Transcript(NamedTuple):
    """A document that is written event by event.

    Attributes:
        head: The text before the first event.
        write: Returns the text of an event.
        tail: The text after the last event.
        finish: Returns the text of events that `write` holds back, at the end.
    """

    head: str
    write: Callable[[JsonObject], str]
    tail: str = ""
    finish: Callable[[], str] = str


def markdown_document(record: ConversationRecord) -> Transcript:
    """Return a Markdown document: messages as Markdown without HTML, and tool output in fenced blocks."""
    title = _escape_controls(_one_line(record.title or "untitled"))
    summary = _escape_controls(_summarize_record(record))
    return Transcript(f"# {escape_line(title)}\n\n{escape_line(summary)}\n", _write_section)


def as_markdown(record: ConversationRecord, events: Iterable[JsonObject]) -> Iterator[str]:
    """Yield the pieces of a conversation's Markdown document."""
    document = markdown_document(record)
    yield document.head
    yield from map(document.write, events)


def _write_section(event: JsonObject) -> str:
    """Return the Markdown section of an event."""
    word, summary, text = describe_event(event)
    text, summary_text = _escape_controls(text), _escape_controls(_join_spans(summary))
    heading = f"\n## {event['seq']} {escape_line(_escape_controls(word))}\n"
    if word == "user":
        content = summary_text + (f"\n{text}" if text else "")
        return f"{heading}\n{escape_html(content)}\n"
    if summary_text:
        heading += f"\n{_code_span(summary_text)}\n"
    if thinking := _escape_controls(read_thinking(event)):
        heading += f"\n{fence(thinking, 'thinking')}\n"
    body = f"\n{escape_html(text) if word in _MESSAGE_WORDS else fence(text)}\n" if text else ""
    return heading + body


def html_document(record: ConversationRecord) -> Transcript:
    """Return an HTML document with the look of the web page. It loads nothing, and its policy forbids scripts.

    A call waits for its outcome, so the events are written in groups: each begins with a message.
    """
    from bough.cli.html_file import HtmlFile

    document = HtmlFile(_one_line(record.title or "untitled"), _summarize_record(record))
    return Transcript(document.head, document.write, document.tail, document.finish)


def _summarize_record(record: ConversationRecord) -> str:
    """Return id, agent, model, length, status and source of a conversation on one line."""
    parts = [
        f"conversation {record.id}",
        f"agent {record.config.get('agent', '?')}",
        f"model {record.config.get('model') or '?'}",
        f"{record.head} events",
        record.status,
    ]
    if record.forked_from is not None:
        parts.append(f"fork of {short(record.forked_from)}@{record.forked_at}")
    return " · ".join(parts)


def _escape_controls(text: str) -> str:
    """Return a text with Unix line ends and escaped control characters, because a terminal may show the document."""
    return escape_controls(text.replace("\r\n", "\n"))


def _join_spans(summary: Sequence[Span]) -> str:
    return "".join(text for text, _ in summary).strip()


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _code_span(text: str) -> str:
    """Return a text as an inline code span of Markdown."""
    ticks = "`" * (longest_run(text) + 1)
    # Without the space, a backtick at the edge would become part of the delimiter.
    padding = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{ticks}{padding}{_one_line(text)}{padding}{ticks}"


_FENCE_OPENING = re.compile(r"[ \t]*(?:(?P<ticks>`{3,})(?P<info>[^`]*)|(?P<waves>~{3,})(?P<words>.*))")
_LANGUAGE = re.compile(r"[\w+#.-]+")
_TAG = re.compile(r"<(?=[A-Za-z/!?])")
_MAX_SCHEME = 100
"""Maximum number of characters of a link target that are searched for its scheme."""

_LINK_TARGET = re.compile(rf"\]([(:])(?=[\s>]*(<[^>\n]{{0,{_MAX_SCHEME}}}|[^\s)]{{0,{_MAX_SCHEME}}}))")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(?=:)")
_SAFE_SCHEMES = frozenset({"http", "https", "mailto"})
_ESCAPED = re.compile(r"\\([!-/:-@\[-`{-~])")
_TICKS = re.compile(r"`+")


def fence(text: str, language: str = "") -> str:
    """Return `text` as a fenced code block, with a fence longer than any run of backticks in the text."""
    marks = "`" * max(3, longest_run(text) + 1)
    return f"{marks}{language}\n{text}\n{marks}"


def longest_run(text: str) -> int:
    """Return the length of the longest run of backticks in `text`."""
    return max((len(run) for run in _TICKS.findall(text)), default=0)


def escape_html(text: str) -> str:
    """Return Markdown with HTML tags escaped, so that no viewer interprets them. O(length).

    Fenced blocks get new fences without indentation. These end every list and quotation, so that all viewers agree on
    what is code. An unclosed block is closed.
    """
    parts: list[str] = []
    lines = iter(text.split("\n"))
    pending: list[str] = []
    for line in lines:
        opening = _FENCE_OPENING.fullmatch(line)
        if opening is None:
            pending.append(line)
            continue
        parts += [*_escape_paragraphs(pending), _read_block(line, opening, lines)]
        pending = []
    return "\n".join([*parts, *_escape_paragraphs(pending)])


def escape_line(text: str) -> str:
    """Return one line of Markdown, such as a heading, escaped as by `escape_html`."""
    return _escape_paragraph([text])


def _read_block(line: str, opening: re.Match[str], lines: Iterator[str]) -> str:
    """Return a fenced block with new fences.

    Args:
        line: The line with the opening fence.
        opening: The match of this line.
        lines: The lines after it; consumed up to the closing fence.
    """
    marks = opening["ticks"] or opening["waves"]
    indent = len(line) - len(line.lstrip())
    content: list[str] = []
    for content_line in lines:
        stripped = content_line.strip()
        is_closing_fence = len(stripped) >= len(marks) and not stripped.strip(marks[0])
        if is_closing_fence:
            break
        is_indented = not content_line[:indent].strip()
        content.append(content_line[indent:] if is_indented else content_line.lstrip())
    language = _LANGUAGE.match((opening["info"] or opening["words"] or "").strip())
    return fence("\n".join(content), "" if language is None else language[0])


def _escape_paragraphs(lines: list[str]) -> Iterator[str]:
    """Yield the lines with each paragraph escaped separately, because code spans do not cross paragraphs."""
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
    """Return a paragraph with tags outside code spans escaped, and with unsafe links as text."""
    spans = [_find_code_spans(line) for line in lines]
    # If the code spans of one line are ambiguous, the whole paragraph is escaped, because a span can cross lines.
    is_ambiguous = None in spans
    escaped = (
        _escape_outside_code(line, [] if is_ambiguous or code is None else code)
        for line, code in zip(lines, spans, strict=True)
    )
    return _LINK_TARGET.sub(_escape_target, "\n".join(escaped))


def _find_code_spans(line: str) -> list[tuple[int, int]] | None:
    """Return (start, end) of each code span of a line; None if other lines, a table or backslashes could change it."""
    runs = [match.span() for match in _TICKS.finditer(line)]
    if "\\`" in line:
        return None
    spans: list[tuple[int, int]] = []
    position = 0
    while position < len(runs):
        start, end = runs[position]
        later_runs = range(position + 1, len(runs))
        closing = next((other for other in later_runs if runs[other][1] - runs[other][0] == end - start), None)
        if closing is None or "|" in line[start : runs[closing][1]]:
            return None
        spans.append((start, runs[closing][1]))
        position = closing + 1
    return spans


def _escape_outside_code(line: str, code_spans: list[tuple[int, int]]) -> str:
    """Return a line with the tags outside its code spans escaped."""
    parts: list[str] = []
    position = 0
    for start, end in code_spans:
        parts += [_TAG.sub("&lt;", line[position:start]), line[start:end]]
        position = end
    return "".join([*parts, _TAG.sub("&lt;", line[position:])])


def _escape_target(link: re.Match[str]) -> str:
    """Return a link unchanged if it is relative or its scheme is http, https or mailto; otherwise escaped as text."""
    target = link[2]
    address = unescape(_ESCAPED.sub(r"\1", target))
    # Browsers ignore tabs and line breaks in a scheme, so `java\tscript:` runs code too.
    scheme = _SCHEME.match("".join(char for char in address if char > " ").lstrip("<"))
    if scheme is None:
        is_hidden = len(target) >= _MAX_SCHEME and address != target
        return f"]\\{link[1]}" if is_hidden else link[0]
    return link[0] if scheme[0].lower() in _SAFE_SCHEMES else f"]\\{link[1]}"
