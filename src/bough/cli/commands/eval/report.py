"""`bough eval report` and `bough eval compare`: writes the reports of a run again, and compares two runs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from bough.cli import options
from bough.cli.commands.eval.options import Run, Runs, runs_root
from bough.cli.render import Report
from bough.cli.text import Block, Span, Table, escape_controls, line
from bough.errors import StoreError
from bough.types import JsonObject, escape_json_controls


def report(
    run: Run = "-",
    format: Annotated[
        str | None, typer.Option("--format", metavar="html|json|junit|md", help="Only this format, to stdout or -o.")
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Output file.")] = None,
    rescore: Annotated[bool, typer.Option("--rescore", help="Compute the metrics again; keep the verdicts.")] = False,
    runs: Runs = None,
    home: options.Home = None,
    store: options.Store = None,
    json: options.Json = False,
) -> Report | int:
    """Write the reports of a run again from its logs."""
    from bough.evals.report.write import REPORT_FILES, render_report, write_reports
    from bough.evals.run.folder import find_run
    from bough.evals.run.read import read_run

    folder = find_run(runs_root(options.load_settings(home, store), runs), run)

    rescored: JsonObject | None = None

    async def main() -> str:
        nonlocal rescored
        if rescore:
            from bough.evals.rescore import rescore_run

            rescored = (await rescore_run(folder)).as_dict()
        run_summary, notes = await read_run(folder)
        if format is not None:
            return await render_report(folder, run_summary, notes, format)
        await write_reports(folder, run_summary, notes)
        return ""

    text = asyncio.run(main())
    if format is not None and output is None:
        typer.echo(escape_json_controls(text) if format == "json" else escape_controls(text), nl=False)
        return 0
    if output is not None:
        try:
            output.write_text(text or (folder.path / "report.html").read_text("utf-8"), encoding="utf-8")
        except OSError as error:
            raise StoreError(f"cannot write {output}: {error.strerror}", hint="name another file") from error
    files = [output] if output is not None else [folder.path / name for name in REPORT_FILES.values()]
    return Report(
        command="eval report",
        data={"run": folder.run, "files": [str(file) for file in files], "rescored": rescored},
        blocks=[*_describe_rescoring(rescored), *(line(str(file)) for file in files)],
    )


def _describe_rescoring(rescored: JsonObject | None) -> list[Block]:
    """Return the output about scores that were computed again; empty without `--rescore`."""
    if rescored is None:
        return []
    blocks: list[Block] = [line(f"{rescored['attempts']} attempts scored again, {rescored['changed']} changed")]
    left_out = rescored["left_out"]
    if left_out:
        names = ", ".join(left_out[:10]) + (" …" if len(left_out) > 10 else "")
        blocks.append(line(("changed since the run, scores kept: ", "warn"), names, hang=2))
    return blocks


def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="Run id, or a unique part of it.")],
    b: Annotated[str, typer.Argument(metavar="B", help="Run to compare it with.")] = "-",
    runs: Runs = None,
    home: options.Home = None,
    store: options.Store = None,
    json: options.Json = False,
) -> Report:
    """Compare two runs on their common cases. What got worse comes first."""
    from bough.evals.report.compare import compare_runs
    from bough.evals.run.folder import find_run

    root = runs_root(options.load_settings(home, store), runs)
    comparison = asyncio.run(compare_runs(find_run(root, a), find_run(root, b)))
    blocks: list[Block] = [line(f"{comparison.cases} cases in both, {comparison.left_out} omitted")]
    if comparison.differs_in:
        blocks.append(line(("differs in: ", "warn"), ", ".join(comparison.differs_in), hang=2))
    for kind, changed in (("worse ", comparison.worse), ("better", comparison.better)):
        style = "bad" if kind == "worse " else "good"
        blocks += [
            line((kind, style), f" {case.case}  {case.a:.2f} to {case.b:.2f}  {case.reason}", hang=7)
            for case in changed
        ]
    rows = tuple(_figure_row(figure.as_dict() | {"name": figure.name}) for figure in comparison.figures)
    blocks.append(Table(head=("figure", "A", "B", "difference", "95 %", "p", "n"), rows=rows, flexible=(0,)))
    return Report(command="eval compare", data=comparison.as_dict(), blocks=blocks)


def _figure_row(figure: JsonObject) -> tuple[Span, ...]:
    interval = f"{figure['low']:+.4g} to {figure['high']:+.4g}"
    texts = (figure["name"], f"{figure['a']:.4g}", f"{figure['b']:.4g}", f"{figure['difference']:+.4g}", interval)
    return tuple((text, "") for text in (*texts, f"{figure['p']:.3g}", str(figure["n"])))
