"""Renders a run as one HTML file that loads nothing, runs only its own script, and escapes all text of the run."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from importlib.resources import files

from bough.errors import Unavailable
from bough.evals.report.view import CaseView, escape_controls
from bough.evals.statistics import mean, wilson
from bough.types import Json, JsonObject

MAX_BYTES = 20 << 20
_MAX_TRACE_CHARS = MAX_BYTES * 3 // 4
"""Size limit for traces; the remainder of the page is for other content and for escapes."""


def render_html(record: JsonObject, report: JsonObject, cases: Sequence[CaseView], store: str) -> str:
    """Return the page. Above 20 MB, the traces of the last cases are omitted, and the page says so.

    Raises:
        Unavailable: jinja2 is not installed.
    """
    try:
        from jinja2 import Environment
        from markupsafe import Markup
    except ImportError as error:
        raise Unavailable("an HTML report needs jinja2", hint="pip install 'bough[evals]'") from error
    shown_cases, left_out = _limit_traces(cases)
    style = _read_resource("report.css")
    script = _read_resource("report.js")
    environment = Environment(autoescape=True, trim_blocks=False)
    environment.filters["plain"] = escape_controls
    environment.filters["number"] = _format_number
    metrics = [
        {"name": name, **metric, "plot": Markup(_plot_metric(metric))}  # noqa: S704 - contains only numbers
        for name, metric in report["metrics"].items()
    ]
    strips = [
        {"name": name, "mean": mean(values), "max": max(values, default=0.0), "plot": Markup(plot_strip(values))}  # noqa: S704
        for name, values in _collect_strip_values(report, (record.get("sides") or [""])[0])
    ]
    return environment.from_string(_read_resource("report.html.j2")).render(
        record=record,
        report=report,
        summary=report["summary"],
        metrics=metrics,
        strips=strips,
        cases=shown_cases,
        left_out=left_out,
        max_megabytes=MAX_BYTES >> 20,
        store=store,
        provenance=json.dumps(record, indent=1, ensure_ascii=False)[:200_000],
        style=Markup(style),  # noqa: S704 - our own file
        script=Markup(script),  # noqa: S704 - our own file
        style_hash=_csp_hash(style),
        script_hash=_csp_hash(script),
    )


def _limit_traces(cases: Sequence[CaseView]) -> tuple[list[CaseView], int]:
    """Return (cases, number of omitted traces): above the limit, the last cases are without their traces."""
    shown_cases: list[CaseView] = []
    used_chars = left_out = 0
    for case in cases:
        used_chars += case.size
        if used_chars > _MAX_TRACE_CHARS and case.requests:
            left_out += 1
            case = replace(case, requests=(), calls=(), answer="", more_calls=0)
        shown_cases.append(case)
    return shown_cases, left_out


def _plot_metric(metric: JsonObject) -> str:
    """Return the SVG of the share of attempts that passed a metric; empty for a metric without a threshold."""
    if metric["passed"] is None or not metric["of"]:
        return ""
    interval = wilson(metric["passed"], metric["of"])
    return plot_share(metric["passed"] / metric["of"], interval.low, interval.high)


def _collect_strip_values(report: JsonObject, side: str) -> list[tuple[str, list[float]]]:
    """Return the seconds and, if any is known, the costs of the attempts of a side, by name."""
    cases: list[JsonObject] = [note for note in report["cases"] if note.get("side", "") == side]
    usages: list[JsonObject] = [case.get("usage") or {} for case in cases]
    costs = [float(usage["cost_usd"]) for usage in usages if usage.get("cost_usd") is not None]
    strips = [("seconds", [float(case.get("seconds") or 0.0) for case in cases])]
    return [*strips, ("USD", costs)] if costs else strips  # an unknown price is not 0


def _format_number(value: Json) -> str:
    if value is None:
        return "-"
    return str(value) if isinstance(value, int) else f"{value:.4g}"


def _read_resource(name: str) -> str:
    return (files("bough.evals.report") / name).read_text("utf-8")


def _csp_hash(text: str) -> str:
    """Return the SHA-256 of a text as the page's content security policy states it."""
    return b64encode(sha256(text.encode()).digest()).decode()


_WIDTH = 240
_HEIGHT = 18
_SCALE = 220


def plot_share(share: float, low: float, high: float) -> str:
    """Return an SVG bar of a share from 0 to 1 with its interval."""
    middle = _HEIGHT / 2
    return (
        f'<svg width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}" aria-hidden="true">'
        f'<rect class="rail" x="10" y="4" width="{_SCALE}" height="10"/>'
        f'<rect class="bar" x="10" y="4" width="{_clamp(share) * _SCALE:.1f}" height="10"/>'
        f'<line class="range" x1="{_x_position(low)}" x2="{_x_position(high)}" y1="{middle}" y2="{middle}"/></svg>'
    )


def plot_strip(values: Sequence[float]) -> str:
    """Return an SVG strip with a tick for each value, scaled to the largest value; at most 1,000 ticks."""
    largest = max(values, default=0.0) or 1.0
    ticks = "".join(
        f'<line class="tick" x1="{_x_position(value / largest)}" x2="{_x_position(value / largest)}" y1="3" y2="15"/>'
        for value in sorted(values)[:1000]
    )
    return (
        f'<svg width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}" aria-hidden="true">'
        f'<rect class="rail" x="10" y="8" width="{_SCALE}" height="2"/>{ticks}</svg>'
    )


def _x_position(share: float) -> str:
    """Return the horizontal coordinate of a share from 0 to 1."""
    return f"{10 + _clamp(share) * _SCALE:.1f}"


def _clamp(share: float) -> float:
    return min(1.0, max(0.0, share))
