"""`bough eval data`: evaluates an agent on questions about data, with the tools of a data warehouse."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Literal

import typer

from bough.cli import options
from bough.cli.agent_file import resolve_agent
from bough.cli.commands.eval.options import NO_OPTIONS, EvalRunOptions, Runs, runs_root, show_faults
from bough.cli.commands.eval.run import dry_run_report, run_report, with_progress
from bough.cli.render import Report, renderer_for
from bough.errors import InvalidInput


def data(
    set: Annotated[
        Path | None, typer.Argument(metavar="[SET]", help="Eval set (.json). [default: bigquerybench]")
    ] = None,
    project: Annotated[
        list[str] | None,
        typer.Option("--project", metavar="NAME=FILE", help="DuckDB file to query, or NAME=bigquery; repeatable."),
    ] = None,
    write_mode: Annotated[
        str, typer.Option("--write-mode", metavar="MODE", help="SQL that writes: blocked, protected or allowed.")
    ] = "blocked",
    model: options.Model = None,
    base_url: options.BaseUrl = None,
    skills: options.SkillRoots = None,
    agent: options.Agent = None,
    executor: options.Executor = None,
    how: EvalRunOptions = NO_OPTIONS,
    runs: Runs = None,
    home: options.Home = None,
    store: options.Store = None,
    json: options.Json = False,
) -> Report:
    """Ask questions about data, with tools of a data warehouse. Exit code 1 below --threshold."""
    from bough.evals.data.evaluate import BIGQUERYBENCH, evaluate_data, read_data_set

    settings = options.load_settings(home, store, model=model, base_url=base_url, executor=executor)
    renderer = renderer_for(json=json)
    eval_set = read_data_set(BIGQUERYBENCH if set is None else set)
    show_faults(renderer, eval_set.faults)
    if how.dry_run:
        return dry_run_report("eval data", eval_set, how)
    if not eval_set.cases:
        raise InvalidInput(f"{set} has no cases to run", hint="fix the faults above")
    spec = resolve_agent(agent, settings, skill_roots=options.parse_skill_roots(skills))
    run = evaluate_data(
        eval_set,
        spec,
        settings=settings,
        projects=_read_projects(project or []),
        write_mode=write_mode,  # pyright: ignore[reportArgumentType] - checked by `evaluate_data`
        folder=runs_root(settings, runs),
        resume=how.resume,
        options=with_progress(how.to_options(), renderer),
    )
    return run_report("eval data", asyncio.run(run))


def _read_projects(arguments: list[str]) -> dict[str, Path | Literal["bigquery"]]:
    projects: dict[str, Path | Literal["bigquery"]] = {}
    for argument in arguments:
        name, separator, file = argument.partition("=")
        if not separator or not name or not file:
            raise InvalidInput(
                f"--project {argument!r} is not NAME=FILE", hint="for example --project sales=sales.duckdb"
            )
        projects[name] = "bigquery" if file == "bigquery" else Path(file)
    return projects
