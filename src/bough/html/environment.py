"""The Jinja2 environment of all HTML, and its filters: everything is escaped, and an unknown name is an error."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from jinja2 import BaseLoader, ChoiceLoader, Environment, PackageLoader, PrefixLoader, StrictUndefined
from markupsafe import Markup

from bough.html import markup
from bough.html.fields import first_line, read_text
from bough.html.invisible import show_invisible, show_name
from bough.html.numbers import count_of, format_bytes, format_count, format_duration, format_time, format_usd
from bough.html.rows import Setting
from bough.html.timeline import TurnTotals
from bough.types import Json, JsonObject

_BEGINNING_LINES: Final = 16
_TOLERATED_LINES: Final = 4
"""A text is folded after 16 lines if more than four others follow."""


def _finalize(value: Any) -> Any:
    """Return what a template prints for a value: a text that is not HTML of ours has no invisible character."""
    # Every expression of every template passes here, so that a text that no filter handled is safe too.
    return show_invisible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _cut(text: str, setting: Setting) -> str:
    """Return the part of a text that a row shows, if the event has a page that shows all of it."""
    limit = setting.max_field_chars
    return text if limit is None or len(text) <= limit else text[:limit]


def _split_lines(text: str) -> tuple[str, str, int]:
    """Return the first lines of a text, the others, and the number of all."""
    lines = text.replace("\r\n", "\n").removesuffix("\n").split("\n")
    if len(lines) <= _BEGINNING_LINES + _TOLERATED_LINES:
        return "\n".join(lines), "", len(lines)
    return "\n".join(lines[:_BEGINNING_LINES]), "\n".join(lines[_BEGINNING_LINES:]), len(lines)


def _split_first(text: str) -> tuple[str, str]:
    """Return the first line of a text and the others. A long first line stays among the others."""
    first = first_line(text)
    others = text.strip().removeprefix(first)
    return (first, others.strip("\n")) if not first.endswith("…") else (first, text)


def _diff_edit(arguments: JsonObject) -> Markup:
    return markup.diff(read_text(arguments, "old"), read_text(arguments, "new"), read_text(arguments, "path"))


def _weigh(value: Json) -> int:
    return len(json.dumps(value, ensure_ascii=False))


def _measure(text: str) -> str:
    return format_bytes(len(text.encode("utf-8", "replace")))


def _omit(values: Mapping[str, Json], names: Collection[str]) -> JsonObject:
    return {
        name: value for name, value in values.items() if name not in names and value not in (None, "", [], {}, False)
    }


def _summarize(totals: TurnTotals) -> str:
    facts = [count_of(totals.steps, "step"), f"{format_count(totals.tokens)} tokens"]
    if totals.cost_usd is not None:
        facts.append(format_usd(totals.cost_usd))
    if totals.seconds is not None:
        facts.append(format_duration(totals.seconds))
    return " · ".join(facts)


_FILTERS: Mapping[str, Callable[..., Any]] = {
    "clock": format_time,
    "code": markup.code,
    "csv_table": markup.csv_table,
    "cut": _cut,
    "dump": markup.dump,
    "edit_diff": _diff_edit,
    "first_line": first_line,
    "json_tree": markup.json_tree,
    "markdown": markup.markdown,
    "name": show_name,
    "pre": markup.pre,
    "records_table": markup.records_table,
    "size": _measure,
    "split_first": _split_first,
    "split_lines": _split_lines,
    "summary": _summarize,
    "count": format_count,
    "usd": format_usd,
    "duration": format_duration,
    "bytes": format_bytes,
    "weight": _weigh,
    "without": _omit,
}


def make_environment(*loaders: BaseLoader) -> Environment:
    """Return an environment with the macros of this package below `html/`, and the templates of `loaders`."""
    macros = PrefixLoader({"html": PackageLoader("bough.html", "macros")})
    environment = Environment(
        loader=ChoiceLoader([macros, *loaders]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalize,
    )
    environment.filters.update(_FILTERS)
    return environment
