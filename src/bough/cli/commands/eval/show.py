"""`bough eval list` and `bough eval show`: read eval runs.

Neither pydantic-evals nor a model is imported, and nothing is created.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from bough.cli import options
from bough.cli.commands.eval.options import Run, Runs, head_line, runs_root, side_lines
from bough.cli.describe import describe
from bough.cli.render import Report
from bough.cli.text import Block, Span, Style, Table, line, one_line
from bough.errors import NotFound
from bough.types import JsonObject

if TYPE_CHECKING:
    from bough.evals.run.folder import RunFolder

_SHOWN_EVENTS = 200
_STYLES: dict[str, Style] = {"passed": "good", "failed": "bad", "error": "bad", "skipped": "dim"}

Case = Annotated[str | None, typer.Argument(metavar="[CASE[@SIDE][#N]]", help="Case, or one side or attempt of it.")]


def list_(
    limit: Annotated[int, typer.Option("--limit", "-n", metavar="N", min=1, help="Show at most N runs.")] = 20,
    runs: Runs = None,
    home: options.Home = None,
    store: options.Store = None,
    json: options.Json = False,
) -> Report:
    """List eval runs, the newest first."""
    from bough.evals.run.folder import list_runs, summarize_run

    settings = options.load_settings(home, store)
    run_summaries = [summarize_run(folder) for folder in list_runs(runs_root(settings, runs))[:limit]]
    rows = tuple(_row(summary) for summary in run_summaries)
    head = ("run", "kind", "set", "model", "pass rate", "cases")
    blocks: list[Block] = [Table(head=head, rows=rows, flexible=(2,), drop=(1, 3))] if rows else [line("no runs yet")]
    return Report(command="eval list", data={"runs": run_summaries}, blocks=blocks, next=("bough eval show -",))


def show(
    run: Run = "-",
    case: Case = None,
    runs: Runs = None,
    home: options.Home = None,
    store: options.Store = None,
    json: options.Json = False,
) -> Report:
    """Show a run, or one case of it.

    For a case, prints the commands that show, fork and replay its conversation.
    """
    from bough.evals.run.folder import find_run, sort_notes

    settings = options.load_settings(home, store)
    folder = find_run(runs_root(settings, runs), run)
    record, report = folder.read_record(), folder.read_report()
    if report is None:
        raise NotFound(f"the run {folder.run} has no report yet", hint=f"`bough eval report {folder.run}` writes it")
    if case is not None:
        return _show_case(folder, str(record.get("store") or folder.store_url), report, case)
    rows = tuple(_case_row(case) for case in sort_notes(report["cases"], record.get("sides") or [""]))
    passed = bool(report["passed"])
    return Report(
        command="eval show",
        data={"record": record, **report},
        blocks=[
            line(("run ", "dim"), (folder.run, "id"), f"  {record['set']['name']}  model {record['model']}"),
            Table(head=("case", "status", "seconds", "reason"), rows=rows, flexible=(3,), right=frozenset({2})),
            *side_lines(report.get("sides") or {}),
            head_line(report["summary"], threshold=report["threshold"], passed=passed),
        ],
        next=(f"bough eval show {folder.run} CASE", f"bough eval report {folder.run}"),
    )


def _show_case(folder: RunFolder, store_url: str, report: JsonObject, name: str) -> Report:
    """Return the report of the attempts with a name: scores, verdicts, and the events of their conversations."""
    run = folder.run
    attempts = [attempt for attempt in report["cases"] if name in _list_attempt_names(attempt)]
    if not attempts:
        raise NotFound(f"the run {run} has no case {name!r}", hint=f"`bough eval show {run}` lists its cases")
    logs = asyncio.run(_read_logs(folder, [attempt["conversation"] for attempt in attempts if attempt["conversation"]]))
    blocks: list[Block] = []
    commands: list[str] = []
    for attempt in attempts:
        heading = f"{attempt['case']}{'@' + attempt['side'] if attempt['side'] else ''}#{attempt['attempt']}"
        blocks.append(
            line((heading, "strong"), "  ", (attempt["status"], _STYLES[attempt["status"]]), f"  {attempt['reason']}")
        )
        for metric, score in attempt["scores"].items():
            style = _choose_style(score["passed"])
            bound = "" if score["threshold"] is None else f" (bound {score['threshold']:g})"
            blocks.append(
                line(f"  {metric} ", (str(score["value"]), style), bound, (f"  {score['reason']}", "dim"), hang=4)
            )
        for verdict in attempt.get("verdicts", ()):
            verdict_text = (
                f"  {verdict['rubric_id']}: {verdict['verdict']} ({verdict['votes']})  {verdict['rationale']}"
            )
            blocks.append(line(verdict_text, hang=4))
        for replaced in attempt.get("replaced", ()):
            blocks.append(line(f"  attempt {replaced['attempt']} ended in an error: {replaced['reason']}", hang=4))
        trial: JsonObject = attempt.get("harbor") or {}
        for text in trial.get("log_end", ()):
            blocks.append(line(("  log  ", "dim"), text, hang=7))
        if attempt["conversation"]:
            commands = [
                f"bough --store {store_url} {verb} {attempt['conversation']}"
                for verb in ("conv show", "fork", "replay")
            ]
            events = logs[attempt["conversation"]]
            if len(events) > _SHOWN_EVENTS:
                blocks.append(line((f"… {len(events) - _SHOWN_EVENTS} earlier events", "dim")))
            blocks += [output_line for event in events[-_SHOWN_EVENTS:] for output_line in describe(event, full=False)]
            blocks += [line(("  " + command, "id")) for command in commands]
    return Report(command="eval show", data={"run": run, "cases": attempts}, blocks=blocks, next=tuple(commands[:1]))


def _list_attempt_names(case: JsonObject) -> set[str]:
    """Return the names of an attempt: its case, optionally with its side, its number, or both."""
    sides = {"", f"@{case['side']}"} if case["side"] else {""}
    return {f"{case['case']}{side}{number}" for side in sides for number in ("", f"#{case['attempt']}")}


async def _read_logs(folder: RunFolder, conversations: list[str]) -> dict[str, list[JsonObject]]:
    """Return the events of each conversation."""
    from bough.evals.run.read import RunReader

    async with RunReader.open(folder) as reader:
        return {id: [stored.as_json() for stored in await reader.read_events(UUID(id))] for id in conversations}


def _row(run: JsonObject) -> tuple[Span, ...]:
    rate = run["pass_rate"]
    style = _choose_style(None if rate is None else rate >= run["threshold"])
    return (
        (run["run"], "id"),
        (run["kind"], ""),
        (run["set"], ""),
        (str(run["model"]), "dim"),
        ("unfinished" if rate is None else f"{rate:.3f}", style),
        ("" if rate is None else f"{run['passed']} of {run['attempts']}", "dim"),
    )


def _case_row(case: JsonObject) -> tuple[Span, ...]:
    side = f"@{case['side']}" if case["side"] else ""
    return (
        (f"{case['case']}{side}#{case['attempt']}", ""),
        (case["status"], _STYLES[case["status"]]),
        (f"{case.get('seconds', 0.0):.1f}", "dim"),
        (one_line(case["reason"], 120), ""),
    )


def _choose_style(passed: bool | None) -> Style:
    if passed is None:
        return ""
    return "good" if passed else "bad"
