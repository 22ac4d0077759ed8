"""A conversation as one HTML file with the look of the web page: the same rows, the same sheet, the same escaping."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from importlib.resources import files
from typing import Any

from markupsafe import Markup

from bough.html.environment import make_environment
from bough.html.rows import Setting
from bough.html.timeline import add_up, build_rows, group_turns
from bough.types import JsonObject, utc_now

_DOCUMENT = """\
<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'sha256-{{ hash }}'">
<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">
<title>{{ title }}</title><style>{{ style }}</style></head>
<body>
{{ symbols }}
<main class="page"><header class="head"><h1>{{ title | name }}</h1><p class="meta">{{ summary }}</p></header>
<div class="log">
"""
_PART = "{% import 'html/rows.html' as rows %}{% for part in parts %}{{ rows.part(part, setting) }}{% endfor %}"
_ROOT = re.compile(r"<svg [^>]*>")
_MAX_GROUP_EVENTS = 2000
"""A group of more events is written before its turn ends; calls that are open then are shown without an outcome."""


class HtmlFile:
    """Writes the events of a conversation turn by turn.

    Attributes:
        head: The text before the first event.
        tail: The text after the last event.
    """

    def __init__(self, title: str, summary: str) -> None:
        self._environment = make_environment()
        static = files("bough.web") / "static"
        style = (static / "style.css").read_text("utf-8")
        # The symbols stand in the file itself, so that it needs no other one; nothing else of the drawing is shown.
        symbols = _ROOT.sub("<svg hidden>", (static / "icons.svg").read_text("utf-8"), count=1)
        self.head = self._render(
            _DOCUMENT,
            {
                "title": title,
                "summary": summary,
                "style": Markup(style),  # noqa: S704 - a file of this package
                "symbols": Markup(symbols),  # noqa: S704
                "hash": b64encode(sha256(style.encode()).digest()).decode(),
            },
        )
        self.tail = "</div></main></body></html>\n"
        self._events: list[JsonObject] = []
        self._turn = 0
        self._setting = Setting(now=utc_now())

    def write(self, event: JsonObject) -> str:
        """Take the next event, and return the text of the turn before it, if it begins one."""
        is_full = len(self._events) >= _MAX_GROUP_EVENTS
        text = self.finish() if event.get("kind") == "UserMessage" or is_full else ""
        self._events.append(event)
        return text

    def finish(self) -> str:
        """Return the text of the events that were taken since the last message."""
        events, self._events = self._events, []
        if not events:
            return ""
        start, stop = events[0]["seq"], events[-1]["seq"] + 1
        begins = events[0].get("kind") == "UserMessage"
        self._turn += begins
        rows = build_rows(events, start, stop, {start: self._turn} if begins else {}, self._setting)
        parts = group_turns(rows, self._turn)
        if begins:
            parts = [replace(part, totals=add_up(events)) for part in parts]
        return self._render(_PART, {"parts": parts, "setting": self._setting})

    def _render(self, template: str, context: Mapping[str, Any]) -> str:
        return self._environment.from_string(template, globals={"icons": ""}).render(context)
