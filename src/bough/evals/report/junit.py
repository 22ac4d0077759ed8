"""A run as JUnit XML, for continuous integration."""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.sax.saxutils import escape, quoteattr

from bough.types import JsonObject

_INVALID = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render_junit(record: JsonObject, summary: JsonObject, notes: Sequence[JsonObject]) -> str:
    """Return one test suite: a failure by its first failing metric, an error, or what was skipped."""
    name = _attribute(record["set"]["name"])
    counts = f'tests="{summary["attempts"]}" failures="{summary["failed"]}" errors="{summary["errors"]}"'
    lines = ['<?xml version="1.0" encoding="UTF-8"?>', "<testsuites>"]
    lines.append(f'<testsuite name={name} {counts} skipped="{summary["skipped"]}" time="{summary["seconds"]}">')
    lines += [_case(record["set"]["name"], note) for note in notes]
    return "\n".join([*lines, "</testsuite>", "</testsuites>", ""])


def _case(suite: str, note: JsonObject) -> str:
    side = f"@{note['side']}" if note.get("side") else ""
    name = _attribute(f"{note['case']}{side}#{note['attempt']}")
    head = f'<testcase classname={_attribute(suite)} name={name} time="{note.get("seconds", 0.0)}"'
    kind = {"failed": "failure", "error": "error", "skipped": "skipped"}.get(str(note["status"]))
    if kind is None:
        return f"{head}/>"
    reason = str(note.get("reason", ""))
    return f"{head}><{kind} message={_attribute(reason[:500])}>{escape(_INVALID.sub('', reason))}</{kind}></testcase>"


def _attribute(text: str) -> str:
    return quoteattr(_INVALID.sub("", text))
