"""A conversation as a document: Markdown, or one self-contained HTML file without scripts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape
from typing import NamedTuple

from bough.cli.describe import describe_event
from bough.cli.markdown import escape_html, escape_line, fence, longest_run
from bough.cli.target import short
from bough.cli.text import Span, escape_controls
from bough.events.record import ConversationRecord
from bough.types import JsonObject

_SPOKEN = ("user", "model")
_CSS = """
:root { color-scheme: light dark; --line: #8885; --soft: #8882; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h2 { font-size: 1rem; margin: 0; } h2 a { color: inherit; opacity: .6; text-decoration: none; }
article { border-left: 3px solid var(--line); padding: .25rem 0 .25rem 1rem; margin: 1rem 0; }
.user { border-color: #2a7; } .model { border-color: #27a; } .failed, .error, .rejected { border-color: #b33; }
.summary { font-weight: normal; opacity: .8; overflow-wrap: anywhere; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: .5rem 0 0; padding: .5rem; background: var(--soft); }
.user pre, .model pre { background: none; padding: 0; font: inherit; }
"""


class Transcript(NamedTuple):
    """A document that is written one event at a time.

    Attributes:
        head: The text before the first event.
        write: Returns the text of an event.
        tail: The text after the last event.
    """

    head: str
    write: Callable[[JsonObject], str]
    tail: str = ""


def markdown_document(record: ConversationRecord) -> Transcript:
    """Return a Markdown document: messages as Markdown without HTML, output of tools in fences."""
    title, about = (_escape_controls(text) for text in (_one_line(record.title or "untitled"), _about(record)))
    return Transcript(f"# {escape_line(title)}\n\n{escape_line(about)}\n", _write_section)


def as_markdown(record: ConversationRecord, events: Iterable[JsonObject]) -> Iterator[str]:
    """Yield the pieces of a conversation's Markdown document."""
    document = markdown_document(record)
    yield document.head
    yield from map(document.write, events)


def _write_section(event: JsonObject) -> str:
    word, summary, text = describe_event(event)
    text, summary_text = _escape_controls(text), _escape_controls(_join_lines(summary))
    heading = f"\n## {event['seq']} {escape_line(_escape_controls(word))}\n"
    if word == "user":
        content = summary_text + (f"\n{text}" if text else "")
        return f"{heading}\n{escape_html(content)}\n"
    if summary_text:
        heading += f"\n{_code(summary_text)}\n"
    body = f"\n{escape_html(text) if word in _SPOKEN else fence(text)}\n" if text else ""
    return heading + body


def html_document(record: ConversationRecord) -> Transcript:
    """Return an HTML document. Every text is escaped, and a content security policy forbids loading and scripts."""
    title = escape(_one_line(record.title or "untitled"))
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    head = (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f'<meta name="viewport" content="width=device-width"><title>{title}</title><style>{_CSS}</style></head>\n'
        f"<body><header><h1>{title}</h1><p>{escape(_about(record))}</p></header><main>\n"
    )
    tail = "</main></body></html>\n"
    return Transcript(_escape_controls(head), _article, tail)


def _article(event: JsonObject) -> str:
    word, summary, text = describe_event(event)
    seq, summary_text = event["seq"], _join_lines(summary)
    if word == "user":
        text, summary_text = "\n".join(filter(None, (summary_text, text))), ""
    body = f"<pre>{escape(text)}</pre>" if text else ""
    return _escape_controls(
        f'<article class="{escape(word)}" id="e{seq}"><h2><a href="#e{seq}">{seq}</a> {escape(word)} '
        f'<span class="summary">{escape(summary_text)}</span></h2>{body}</article>\n'
    )


def _about(record: ConversationRecord) -> str:
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
    """Return text without control characters, since a document may be shown on a terminal, and with Unix line ends."""
    return escape_controls(text.replace("\r\n", "\n"))


def _join_lines(summary: Sequence[Span]) -> str:
    return "".join(text for text, _ in summary).strip()


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _code(text: str) -> str:
    ticks = "`" * (longest_run(text) + 1)
    # Without the blank, a backtick at the edge would join the ones around it and end the span elsewhere.
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{ticks}{pad}{_one_line(text)}{pad}{ticks}"
