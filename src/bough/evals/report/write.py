"""Writes the reports of a run into its folder, and renders single reports from the logs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias, get_args

from pydantic_core import to_json

from bough.errors import InvalidInput
from bough.evals.document import write_whole
from bough.evals.report.view import view_cases
from bough.evals.run.folder import RunFolder
from bough.evals.run.read import RunReader, read_run
from bough.evals.run.result import EvalRun
from bough.events.store import EventStore
from bough.types import JsonObject

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
        write_whole(folder.path / name, await render_report(folder, run, notes, format, store))


async def write_junit(folder: RunFolder) -> None:
    """Write the JUnit report of a run again.

    Raises:
        StoreError: The report cannot be written.
    """
    run, notes = await read_run(folder)
    write_whole(folder.path / REPORT_FILES["junit"], await render_report(folder, run, notes, "junit"))


async def render_report(
    folder: RunFolder, run: EvalRun, notes: Sequence[JsonObject], format: str, store: EventStore | None = None
) -> str:
    """Render a run in one of the formats.

    Raises:
        InvalidInput: The format is unknown.
    """
    record = folder.read_record()
    report: JsonObject = {"schema_version": SCHEMA_VERSION, **run.as_dict(notes)}
    match format:
        case "json":
            # Not json.dumps, which indents in pure Python: half of all calls of a report of 1,000 cases.
            return to_json(report, indent=1).decode() + "\n"
        case "junit":
            from bough.evals.report.junit import render_junit

            suites = [(record, run, notes)]
            if record["kind"] == "skill" and (queries := folder.find_queries()) is not None:
                suites.append((queries.read_record(), *await read_run(queries)))
            return render_junit(suites)
        case "md":
            from bough.evals.report.markdown import render_markdown

            return render_markdown(record, report, notes)
        case "html":
            from bough.evals.report.html import render_html

            async with RunReader.open(folder, store) as reader:
                cases = await view_cases(reader, notes)
            return render_html(record, report, cases, folder.store_url)
        case _:
            raise InvalidInput(f"invalid report format {format!r}", hint=f"one of: {', '.join(get_args(ReportFormat))}")
