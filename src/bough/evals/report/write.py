"""Writes the reports of a run into its folder, and renders single reports from the logs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias, get_args
from xml.sax.saxutils import escape, quoteattr

from pydantic_core import to_json

from bough.errors import InvalidInput
from bough.evals.document import write_atomically
from bough.evals.report.view import escape_controls, view_cases
from bough.evals.run.folder import RunFolder
from bough.evals.run.note import result_from_note
from bough.evals.run.read import RunReader, read_run
from bough.evals.run.result import EvalRun
from bough.evals.run.summary import SIDE_FIGURES, rate_query
from bough.events.store import EventStore
from bough.types import Json, JsonObject

SCHEMA_VERSION = 1

ReportFormat: TypeAlias = Literal["html", "json", "junit", "md"]

REPORT_FILES: dict[ReportFormat, str] = {
    "json": "report.json",
    "md": "report.md",
    "junit": "junit.xml",
    "html": "report.html",
}


async def write_reports(
    folder: RunFolder, run: EvalRun, notes: Sequence[JsonObject], store: EventStore | None = None
) -> None:
    """Write all reports of a run. Each log is read once.

    Raises:
        StoreError: A report cannot be written.
    """
    for format, name in REPORT_FILES.items():
        write_atomically(folder.path / name, await render_report(folder, run, notes, format, store))


async def write_junit(folder: RunFolder) -> None:
    """Write only the JUnit report of a run, from its logs.

    Raises:
        StoreError: The report cannot be written.
    """
    run, notes = await read_run(folder)
    write_atomically(folder.path / REPORT_FILES["junit"], await render_report(folder, run, notes, "junit"))


async def render_report(
    folder: RunFolder, run: EvalRun, notes: Sequence[JsonObject], format: str, store: EventStore | None = None
) -> str:
    """Return the report of a run in a format.

    Raises:
        InvalidInput: The format is unknown.
    """
    record = folder.read_record()
    report: JsonObject = {"schema_version": SCHEMA_VERSION, **run.as_dict(notes)}
    match format:
        case "json":
            # Not json.dumps, which indents in pure Python and dominates the time for a report of 1,000 cases.
            return to_json(report, indent=1).decode() + "\n"
        case "junit":
            suites = [(record, run, notes)]
            queries = folder.find_queries() if record["kind"] == "skill" else None
            if queries is not None:
                suites.append((queries.read_record(), *await read_run(queries)))
            return render_junit(suites)
        case "md":
            return render_markdown(record, report, notes)
        case "html":
            from bough.evals.report.html import render_html

            async with RunReader.open(folder, store) as reader:
                cases = await view_cases(reader, notes)
            return render_html(record, report, cases, folder.store_url)
        case _:
            raise InvalidInput(f"invalid report format {format!r}", hint=f"one of: {', '.join(get_args(ReportFormat))}")


_INVALID_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ELEMENTS = {"failed": "failure", "error": "error", "skipped": "skipped"}
"""JUnit's elements by the status of an attempt."""


def render_junit(runs: Sequence[tuple[JsonObject, EvalRun, Sequence[JsonObject]]]) -> str:
    """Return JUnit XML with one test suite for each (record, run, notes).

    If a run compares sides, the attempts of the first side are the test cases, and the figures of all sides are
    properties. All attempts at a trigger query are one test case.
    """
    lines = ['<?xml version="1.0" encoding="UTF-8"?>', "<testsuites>"]
    for run in runs:
        lines += _render_suite(*run)
    return "\n".join([*lines, "</testsuites>", ""])


def _render_suite(record: JsonObject, run: EvalRun, notes: Sequence[JsonObject]) -> Iterator[str]:
    """Yield the lines of the test suite of a run."""
    suite = str(record["set"]["name"])
    sides: list[str] = record.get("sides") or [""]
    cases = [note for note in notes if note.get("side", "") == sides[0]]
    if record.get("kind") == "triggers":
        cases = list(_merge_queries(cases))
    statuses = [str(note["status"]) for note in cases]
    counts = " ".join(
        f'{name}="{number}"'
        for name, number in (
            ("tests", len(cases)),
            ("failures", statuses.count("failed")),
            ("errors", statuses.count("error")),
            ("skipped", statuses.count("skipped")),
        )
    )
    yield f'<testsuite name={_attribute(suite)} {counts} time="{run.summary.seconds}">'
    if run.sides:
        yield "<properties>"
        for side, figures in run.sides.items():
            for figure in SIDE_FIGURES:
                value = figures[figure] if side == "delta" else figures[figure]["mean"]
                yield f'<property name={_attribute(f"{side}.{figure}")} value="{value}"/>'
        yield "</properties>"
    yield from (_render_case(suite, note) for note in cases)
    yield "</testsuite>"


def _merge_queries(notes: Sequence[JsonObject]) -> Iterator[JsonObject]:
    """Yield one note for each trigger query: passed if more than half of its attempts were right."""
    by_case: dict[str, list[JsonObject]] = {}
    for note in notes:
        by_case.setdefault(str(note["case"]), []).append(note)
    for group in by_case.values():
        rate = rate_query([result_from_note(note) for note in group])
        statuses = {str(note["status"]) for note in group}
        merged = group[0] | {"seconds": sum(float(note.get("seconds") or 0.0) for note in group)}
        if rate > 0.5:
            yield merged | {"status": "passed"}
        elif len(statuses) == 1 and "failed" not in statuses:
            yield merged
        else:
            reason = f"right in {rate:.2f} of {len(group)} attempts, more than 0.50 is needed"
            yield merged | {"status": "failed", "reason": reason}


def _render_case(suite: str, note: JsonObject) -> str:
    """Return the test case of an attempt."""
    side = f"@{note['side']}" if note.get("side") else ""
    name = _attribute(f"{note['case']}{side}#{note['attempt']}")
    start = f'<testcase classname={_attribute(suite)} name={name} time="{note.get("seconds", 0.0)}"'
    element = _ELEMENTS.get(str(note["status"]))
    if element is None:
        return f"{start}/>"
    reason = str(note.get("reason", ""))
    message, text = _attribute(reason[:500]), escape(_INVALID_XML.sub("", reason))
    return f"{start}><{element} message={message}>{text}</{element}></testcase>"


def _attribute(text: str) -> str:
    """Return a text as a quoted XML attribute."""
    return quoteattr(_INVALID_XML.sub("", text))


_MAX_FAILURES = 200


def render_markdown(record: JsonObject, report: JsonObject, notes: Sequence[JsonObject]) -> str:
    """Return the report of a run as Markdown; lists the first 200 attempts that did not pass."""
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
    first_side = (record.get("sides") or [""])[0]
    failures = [note for note in notes if note["status"] != "passed" and note.get("side", "") == first_side]
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
    """Return a value as an escaped cell of a Markdown table, at most 400 characters before escaping."""
    text = " ".join(escape_controls("-" if value is None else value).split())[:400]
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("`", "\\`")
