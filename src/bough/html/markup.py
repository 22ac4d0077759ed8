"""Texts of people, models and programs as safe HTML: Markdown, JSON, diffs and tables.

Everything is escaped. No class, id, style or address of an image comes from the contents, and sizes are bounded.
"""

from __future__ import annotations

import csv
import difflib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any, Final, cast
from urllib.parse import urlsplit

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup, escape

from bough.html.highlight import find_language, highlight, highlight_lines
from bough.html.invisible import show_block, show_invisible
from bough.types import Json, JsonObject

MAX_MARKDOWN_BYTES: Final = 256 << 10
MAX_NESTING: Final = 20
MAX_TOKENS: Final = 2000
"""Limits of a text that is read as Markdown; beyond them it is shown as it is."""

MAX_JSON_LEVELS: Final = 5
MAX_JSON_KEYS: Final = 500
MAX_ROWS: Final = 200
MAX_COLUMNS: Final = 20
"""Limits of a JSON tree and of a table; the rest is counted."""

_OPEN_LEVELS: Final = 3
_MAX_DIFF_LINES: Final = 1000
_DIFF_CONTEXT: Final = 3
_SCHEMES: Final = frozenset({"http", "https", "mailto"})
_RULES: Final = (
    "blockquote", "code", "fence", "heading", "hr", "lheading", "list", "paragraph", "reference", "table", "backticks",
    "emphasis", "balance_pairs", "entity", "escape", "fragments_join", "image", "link", "newline", "autolink",
)  # fmt: skip


def markdown(text: str) -> Markup:
    """Return Markdown as HTML, without HTML of the text and without images; a text beyond the limits is not parsed."""
    text = show_invisible(text.replace("\r\n", "\n"))
    if len(text.encode()) > MAX_MARKDOWN_BYTES:
        return _plain_text(text)
    parser = _parser()
    tokens = parser.parse(text)
    # Counted before rendering: the parser is linear in the text, but a page of a million elements stops a browser.
    if sum(1 + len(token.children or ()) for token in tokens) > MAX_TOKENS:
        return _plain_text(text)
    return Markup(parser.renderer.render(tokens, parser.options, {}))  # noqa: S704 - the renderer escapes every text


def is_safe_link(url: str) -> bool:
    """Whether an address may be a link: http or https without credentials, or mailto."""
    try:
        parts = urlsplit(url.strip())
        return parts.scheme.lower() in _SCHEMES and parts.username is None and parts.password is None
    except ValueError:
        return False


def pre(text: str) -> Markup:
    """Return a text as it is, in a `<pre>`."""
    return Markup("<pre>{}</pre>").format(show_block(text))


def code(text: str, language: str = "") -> Markup:
    """Return code in a `<pre>`, highlighted if its language is known.

    Args:
        language: The name of a language, or a path, whose extension tells it.
    """
    return Markup("<pre>{}</pre>").format(highlight(text, find_language(language)))


def json_tree(value: Json) -> Markup:
    """Return JSON as a list of names and values; values within values can be folded, and three levels are open."""
    return _JsonWriter().write(value, 0)


def diff(old: str, new: str, path: str = "") -> Markup:
    """Return the difference of two texts, a line a row, with three lines around each change."""
    # Highlighted as a whole and then split, because a string or comment may go over several lines.
    language = find_language(path)
    old_lines, new_lines = highlight_lines(old, language), highlight_lines(new, language)
    matcher = difflib.SequenceMatcher(None, old.split("\n"), new.split("\n"), autojunk=len(old_lines) > _MAX_DIFF_LINES)
    rows: list[Markup] = []
    for group in matcher.get_grouped_opcodes(_DIFF_CONTEXT):
        if rows:
            rows.append(Markup("<span>⋯</span>"))
        for tag, old_start, old_stop, new_start, new_stop in group:
            if tag == "equal":
                rows += _number_lines("span", new_lines, new_start, new_stop)
                continue
            rows += _number_lines("del", old_lines, old_start, old_stop)
            rows += _number_lines("ins", new_lines, new_start, new_stop)
    left_out = len(rows) - _MAX_DIFF_LINES
    if left_out > 0:
        rows = [*rows[:_MAX_DIFF_LINES], Markup("<span>… {} more lines</span>").format(left_out)]
    return Markup('<pre class="diff">{}</pre>').format(Markup("\n").join(rows))


def count_changed_lines(old: str, new: str) -> tuple[int, int]:
    """Return how many lines a change adds and removes. Texts of more than 1,000 lines count as replaced."""
    old_lines, new_lines = old.splitlines(), new.splitlines()
    if max(len(old_lines), len(new_lines)) > _MAX_DIFF_LINES:
        return len(new_lines), len(old_lines)
    added = removed = 0
    for tag, old_start, old_stop, new_start, new_stop in difflib.SequenceMatcher(
        None, old_lines, new_lines
    ).get_opcodes():
        if tag != "equal":
            added, removed = added + new_stop - new_start, removed + old_stop - old_start
    return added, removed


def table(head: Sequence[str], rows: Iterable[Sequence[Json]], label: str) -> Markup:
    """Return a table that scrolls within a named region; at most 200 rows and 20 columns.

    Args:
        label: Name of the region, for screen readers.
    """
    all_rows = iter(rows)
    cells = Markup().join(Markup('<th scope="col">{}</th>').format(_cell(name)) for name in head[:MAX_COLUMNS])
    body = Markup().join(
        Markup("<tr>{}</tr>").format(Markup().join(Markup("<td>{}</td>").format(_cell(v)) for v in row[:MAX_COLUMNS]))
        for row in islice(all_rows, MAX_ROWS)
    )
    # Counted after the shown rows were taken from the same iterator.
    left_out = sum(1 for _ in all_rows)
    note = Markup("<p>{} more rows</p>").format(left_out) if left_out else Markup()
    return Markup(
        '<div class="data" tabindex="0" role="region" aria-label="{}"><table><thead><tr>{}</tr></thead>'
        "<tbody>{}</tbody></table></div>{}"
    ).format(show_invisible(label), cells, body, note)


def csv_table(text: str, label: str, delimiter: str = ",") -> Markup | None:
    """Return the table in a text; None if its lines do not have the same number of cells, at least two."""
    if len(text) > MAX_MARKDOWN_BYTES:
        return None
    try:
        rows = [row for row in csv.reader(text.splitlines(), delimiter=delimiter, strict=True) if row]
    except csv.Error:
        return None
    if len(rows) < 2 or len(rows[0]) < 2 or any(len(row) != len(rows[0]) for row in rows):
        return None
    return table(rows[0], rows[1:], label)


def records_table(value: Json, label: str) -> Markup | None:
    """Return a table of a list of flat objects with the same names; None for any other value."""
    items = cast("list[Any]", value) if isinstance(value, list) else []
    rows: list[Mapping[str, Json]] = [item for item in items if isinstance(item, dict) and item]
    if not rows or len(rows) != len(items) or any(row.keys() != rows[0].keys() for row in rows):
        return None
    if any(isinstance(cell, dict | list) for row in rows for cell in row.values()):
        return None
    return table(list(rows[0]), (list(row.values()) for row in rows), label)


def dump(value: Json) -> str:
    """Return a value as indented JSON."""
    return json.dumps(value, ensure_ascii=False, indent=2)


class _JsonWriter:
    """Writes one JSON value, and counts the names that it has shown."""

    def __init__(self) -> None:
        self._keys = 0

    def write(self, value: Json, level: int) -> Markup:
        """Return a value at a level of the tree, from 0."""
        match value:
            case dict() if value:
                fields = cast("JsonObject", value)
                return self._fold(fields.items(), level, f"{{…}} {len(fields)}")
            case list() if _is_nested(items := cast("list[Json]", value)):
                return self._fold(((str(place), item) for place, item in enumerate(items)), level, f"[…] {len(items)}")
            case str() if "\n" in value:
                return pre(value)
            case str():
                return escape(f'"{show_block(value)}"')
            case _:
                return escape(show_block(json.dumps(value, ensure_ascii=False)))

    def _fold(self, items: Iterable[tuple[str, Json]], level: int, summary: str) -> Markup:
        if level >= MAX_JSON_LEVELS:
            return escape(show_block(json.dumps(dict(items), ensure_ascii=False)))
        rows: list[Markup] = []
        left_out = 0
        for name, item in items:
            if self._keys >= MAX_JSON_KEYS:
                left_out += 1
                continue
            self._keys += 1
            rows.append(Markup("<dt>{}</dt><dd>{}</dd>").format(show_block(name), self.write(item, level + 1)))
        if left_out:
            rows.append(Markup("<dt>…</dt><dd>{} more</dd>").format(left_out))
        names = Markup("<dl>{}</dl>").format(Markup().join(rows))
        if level == 0:
            return names
        is_open = Markup(" open") if level < _OPEN_LEVELS else Markup()
        return Markup("<details{}><summary>{}</summary>{}</details>").format(is_open, summary, names)


def _is_nested(items: list[Json]) -> bool:
    return any(isinstance(item, dict | list) for item in items)


def _number_lines(element: str, lines: Sequence[Markup], start: int, stop: int) -> list[Markup]:
    row = Markup(f'<{element} data-n="{{}}">{{}}</{element}>')  # noqa: S704 - the name of an element of ours
    return [row.format(number + 1, lines[number]) for number in range(start, min(stop, start + _MAX_DIFF_LINES))]


def _cell(value: Json) -> str:
    return show_block(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _plain_text(text: str) -> Markup:
    return Markup("<pre>{}</pre>").format(show_block(text))


# The renderer's rules. The library calls them with itself, the tokens, the place of one, the options and a mapping.


def _write_code(_: object, tokens: Sequence[Token], place: int, *__: object) -> str:
    token = tokens[place]
    return str(code(token.content.removesuffix("\n"), token.info.split()[0] if token.info.strip() else ""))


def _write_image(_: object, tokens: Sequence[Token], place: int, *__: object) -> str:
    """Write an image as a link, so that opening a page requests nothing."""
    token = tokens[place]
    address = str(token.attrs.get("src", ""))
    label = f"image: {token.content or 'without a description'} ({_host(address)})"
    return str(_link(address) + escape(label) + Markup("</a>"))


def _open_link(_: object, tokens: Sequence[Token], place: int, *__: object) -> str:
    """Write the start of a link, with its host if the text begins like another address."""
    address = str(tokens[place].attrs.get("href", ""))
    text = tokens[place + 1].content.strip() if place + 1 < len(tokens) else ""
    names_other = "." in text.split("/", 3)[0] or "://" in text
    host_hint = f"[{_host(address)}] " if names_other and _host(address) not in text else ""
    return str(_link(address) + escape(host_hint))


def _write_heading_tag(_: object, tokens: Sequence[Token], place: int, *__: object) -> str:
    """Write a heading from the fourth level down, below those of the page."""
    token = tokens[place]
    level = min(int(token.tag[1]) + 3, 6)
    return f"<h{level}>" if token.nesting > 0 else f"</h{level}>\n"


def _open_table(*_: object) -> str:
    return '<div class="data" tabindex="0" role="region" aria-label="Table"><table>'


def _close_table(*_: object) -> str:
    return "</table></div>"


def _open_cell(_: object, tokens: Sequence[Token], place: int, *__: object) -> str:
    """Write the start of a cell, with a class in place of the attribute `style`, which the page forbids."""
    token = tokens[place]
    scope = ' scope="col"' if token.tag == "th" else ""
    return f"<{token.tag}{scope}{_align(token)}>"


def _break_line(*_: object) -> str:
    """Write a line break where the text has one, as chats do."""
    return "<br>\n"


_RENDER_RULES: Final[Mapping[str, Callable[..., str]]] = {
    "code_block": _write_code,
    "fence": _write_code,
    "heading_close": _write_heading_tag,
    "heading_open": _write_heading_tag,
    "image": _write_image,
    "link_open": _open_link,
    "softbreak": _break_line,
    "table_close": _close_table,
    "table_open": _open_table,
    "td_open": _open_cell,
    "th_open": _open_cell,
}


@lru_cache(maxsize=1)
def _parser() -> MarkdownIt:
    """Return the Markdown parser. It is made once, which costs some milliseconds, and keeps nothing of a text."""
    # `zero` and a list: a rule that a later release of the library adds stays off until it was looked at.
    parser = MarkdownIt("zero", {"html": False, "linkify": False, "maxNesting": MAX_NESTING}).enable(_RULES)
    # The library asks this for links and for images; what it refuses stays text.
    parser.validateLink = is_safe_link
    for name, write in _RENDER_RULES.items():
        parser.add_render_rule(name, write)
    return parser


def _align(token: Token) -> str:
    return ' class="num"' if "right" in str(token.attrs.get("style")) else ""


def _link(address: str) -> Markup:
    return Markup('<a href="{}" rel="noopener noreferrer nofollow">').format(address)


def _host(address: str) -> str:
    parts = urlsplit(address)
    return parts.hostname or parts.path.rpartition("@")[2]
