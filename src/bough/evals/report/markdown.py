"""Renders a run as Markdown: summary, metrics, and attempts that did not pass."""

from __future__ import annotations

from collections.abc import Sequence

from bough.evals.report.view import escape_controls
from bough.types import Json, JsonObject

_MAX_FAILURES = 200


def render_markdown(record: JsonObject, report: JsonObject, notes: Sequence[JsonObject]) -> str:
    """Return the report as Markdown."""
    summary: JsonObject = report["summary"]
    rate = f"{summary['pass_rate']:.3f} ({summary['low']:.3f} to {summary['high']:.3f})"
    cost = "unknown" if summary["cost_usd"] is None else f"{summary['cost_usd']:.4f} USD"
    lines = [
        f"# {_cell(record['set']['name'])}",
        "",
        "| pass rate | passed | failed | errors | skipped | cost | seconds | model |",
        "|---|---|---|---|---|---|---|---|",
        f"| {rate} | {summary['passed']} | {summary['failed']} | {summary['errors']} | {summary['skipped']} | {cost} "
        f"| {summary['seconds']:.1f} | {_cell(record['model'])} |",
        "",
        *_render_sides(report.get("sides") or {}),
        "| metric | mean | scored | passed |",
        "|---|---|---|---|",
    ]
    for name, metric in report["metrics"].items():
        passed = "" if metric["passed"] is None else f"{metric['passed']} of {metric['of']}"
        lines.append(f"| {_cell(name)} | {_cell(metric['mean'])} | {metric['n']} of {metric['of']} | {passed} |")
    decisive = (record.get("sides") or [""])[0]
    failures = [note for note in notes if note["status"] != "passed" and note.get("side", "") == decisive]
    if failures:
        lines += ["", "## Not passed", "", "| case | status | reason |", "|---|---|---|"]
    lines += [
        f"| {_cell(note['case'])}#{note['attempt']} | {note['status']} | {_cell(note.get('reason', ''))} |"
        for note in failures[:_MAX_FAILURES]
    ]
    if len(failures) > _MAX_FAILURES:
        lines += ["", f"{len(failures) - _MAX_FAILURES} more are in the run."]
    return "\n".join([*lines, ""])


def _render_sides(sides: JsonObject) -> list[str]:
    """Return the table of the compared sides; empty without sides."""
    if not sides:
        return []
    lines = ["| side | pass rate | seconds | tokens |", "|---|---|---|---|"]
    for side, figures in sides.items():
        values = figures if side == "delta" else {name: figure["mean"] for name, figure in figures.items()}
        sign = "+" if side == "delta" else ""
        rate, seconds, tokens = values["pass_rate"], values["time_seconds"], values["tokens"]
        name = "difference" if side == "delta" else side
        lines.append(f"| {_cell(name)} | {rate:{sign}.3f} | {seconds:{sign}.2f} | {tokens:{sign}.0f} |")
    return [*lines, ""]


def _cell(value: Json) -> str:
    text = " ".join(escape_controls("-" if value is None else value).split())[:400]
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("`", "\\`")
