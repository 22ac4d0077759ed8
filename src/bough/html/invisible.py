"""Characters that a reader cannot see, as marks that can be seen. Every text of a page passes through here."""

from __future__ import annotations

import re
from typing import Final, Literal
from unicodedata import name as name_of

from markupsafe import Markup, escape

MAX_NAME_CHARS: Final = 200
"""How much of a name, title or path a row shows."""

MAX_LINE_CHARS: Final = 2000
"""After this many characters without a line break, a block gets one, with a mark."""

LINE_MARK: Final = "⏎"
"""Stands where a block's line was broken."""

# All controls but tab and line feed, formats that change direction or are blank, and lone surrogates. The two joiners
# U+200C and U+200D are left out, because Persian, Hindi and emoji need them.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f\u2028-\u202e"
    "\u2060-\u206f\u2800\u3164\ufeff\uffa0\ufff0-\ufffb\U000110bd\U000110cd\U0001bca0-\U0001bca3"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff\ud800-\udfff]"
)
_PICTURES: Final = 0x2400
_SPACE: Final = 0x20
_DELETE: Final = 0x7F
_SURROGATES: Final = range(0xD800, 0xE000)
_LONG_LINE = re.compile(rf"([^\n]{{{MAX_LINE_CHARS}}})(?=[^\n])")


def show_invisible(text: str) -> str:
    """Return a text in which each invisible character is a visible mark. O(length)."""
    return _INVISIBLE.sub(_mark, text)


def show_block(text: str) -> str:
    """Return a text of several lines for a `<pre>`: invisible characters are marks, and very long lines are broken."""
    # Line ends of Windows need no mark; a lone carriage return does, because it can hide text.
    lines = show_invisible(text.replace("\r\n", "\n"))
    return _LONG_LINE.sub(rf"\1{LINE_MARK}\n", lines)


def show_name(text: str, element: Literal["bdi", "b", "code"] = "bdi") -> Markup:
    """Return a name, title or path as one element whose direction is isolated, cut to `MAX_NAME_CHARS`.

    The `title` of a mark has its code.
    """
    # Cut before it is searched, so that a name of a megabyte costs no more than a short one.
    beginning = text[:MAX_NAME_CHARS] + ("…" if len(text) > MAX_NAME_CHARS else "")
    pieces: list[Markup | str] = []
    position = 0
    for match in _INVISIBLE.finditer(beginning):
        pieces += [escape(beginning[position : match.start()]), _mark_with_title(match)]
        position = match.end()
    pieces.append(escape(" ".join(beginning[position:].split("\n"))))
    direction = "" if element == "bdi" else ' dir="auto"'  # isolates the direction of the text, as `bdi` does
    return Markup(f"<{element}{direction}>{{}}</{element}>").format(Markup().join(pieces))  # noqa: S704 - ours


def _mark(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < _SPACE:
        return chr(_PICTURES + code)
    if code == _DELETE:
        return "\u2421"
    return "\ufffd" if code in _SURROGATES else f"⟦{code:04X}⟧"


def _mark_with_title(match: re.Match[str]) -> Markup:
    code = ord(match[0])
    title = f"U+{code:04X} {name_of(match[0], '')}".strip()
    return Markup('<span title="{}">{}</span>').format(title, _mark(match))
