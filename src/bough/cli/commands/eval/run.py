"""`bough eval run`, `skill` and `data`: run each case of a set in its own conversation and score it from the log."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from bough.cli import agent_file, options
from bough.cli.commands.eval import options as eval_options
from bough.cli.commands.eval.options import NO_OPTIONS, EvalRunOptions, Runs
from bough.cli.render import Renderer, Report, renderer_for
from bough.cli.text import Block, line
from bough.errors import OUTCOMES, InvalidInput
from bough.types import JsonObject

if TYPE_CHECKING:
    from bough.evals.eval_set import EvalSet
    from bough.evals.loop import EvalOptions
    from bough.evals.run.plan import PlannedAttempt
    from bough.evals.run.result import EvalRun


def run(
    set: Annotated[
        Path, typer.Argument(metavar="SET", help="Skill folder, eval set (.json) or pydantic-evals file (.yaml).")
    ],
    model: options.Model = None,
    base_url: options.BaseUrl = None,
    skills: options.SkillRoots = None,
    agent: options.Agent = None,
    executor: options.Executor = None,
    run_options: EvalRunOptions = NO_OPTIONS,
    runs: Runs = None,
    home: options.Home = None,
    store: options.Store = None,
    json: options.Json = False,
) -> Report:
    """Run the cases of a set and score them. Exit code 1 below --threshold."""
    from bough.evals.formats.read import read_set

    settings = options.load_settings(home, store, model=model, base_url=base_url, executor=executor)
    renderer = renderer_for(json=json)
    eval_set = read_set(set)
    eval_options.show_faults(renderer, eval_set.faults)
    if run_options.dry_run:
        return dry_run_report("eval run", eval_set, run_options)
    if not eval_set.cases:
        raise InvalidInput(f"{set} has no cases to run", hint="fix the faults above")
    roots = options.parse_skill_roots(skills)
    spec = agent_file.resolve_agent(agent, settings, skill_roots=roots)
    skill_options = _make_skill_options(eval_set, roots)

    async def main() -> EvalRun:
        from bough.evals.loop import evaluate

        return await evaluate(
            eval_set,
            spec,
            settings=settings,
            folder=eval_options.runs_root(settings, runs),
            resume=run_options.resume,
            options=with_progress(run_options.to_options(**skill_options), renderer),
        )

    return run_report("eval run", asyncio.run(main()))


def skill(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a skill with evals.")],
    model: options.Model = None,
    base_url: options.BaseUrl = None,
    agent: options.Agent = None,
    executor: options.Executor = None,
    skills: Annotated[
        list[Path] | None, typer.Option("--skills", metavar="DIR", help="Folder of skills for both sides; repeatable.")
    ] = None,
    results: Annotated[
        Path | None, typer.Option("--results", metavar="DIR", help="Results folder. Default: <skill>-workspace.")
    ] = None,
    trigger_runs: Annotated[
        int, typer.Option("--trigger-runs", metavar="N", min=0, help="Runs per trigger query; 0 for none.")
    ] = 3,
    run_options: EvalRunOptions = NO_OPTIONS,
    runs: Runs = None,
    home: options.Home = None,
    store: options.Store = None,
    json: options.Json = False,
) -> Report:
    """Run a skill's cases with and without it, and its trigger queries. Exit code 1 below --threshold."""
    from bough.evals.formats.skill import read_skill_set, read_trigger_set
    from bough.evals.skill.evaluate import SkillEvalRun, evaluate_skill

    if not (directory / "SKILL.md").exists() and not (directory / "skill.md").exists():
        raise InvalidInput(f"{directory} is not a skill", hint="give the folder with its SKILL.md")
    settings = options.load_settings(home, store, model=model, base_url=base_url, executor=executor)
    renderer = renderer_for(json=json)
    eval_set = read_skill_set(directory)
    eval_options.show_faults(renderer, (*eval_set.faults, *read_trigger_set(directory).faults))
    if run_options.dry_run:
        return dry_run_report("eval skill", eval_set, run_options)
    spec = agent_file.resolve_agent(agent, settings)

    async def main() -> SkillEvalRun:
        return await evaluate_skill(
            directory,
            spec,
            skills=options.parse_skill_roots(skills),
            results=results,
            trigger_runs=trigger_runs,
            settings=settings,
            runs=eval_options.runs_root(settings, runs),
            resume=run_options.resume,
            options=with_progress(run_options.to_options(), renderer),
        )

    run = asyncio.run(main())
    return Report(
        command="eval skill",
        data=run.as_dict(),
        blocks=_render_skill_run(run.as_dict()),
        next=tuple(f"bough eval show {id}" for id in run.as_dict()["runs"][:1]),
        exit_code=0 if run.passed else 1,
    )


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
    run_options: EvalRunOptions = NO_OPTIONS,
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
    eval_options.show_faults(renderer, eval_set.faults)
    if run_options.dry_run:
        return dry_run_report("eval data", eval_set, run_options)
    if not eval_set.cases:
        raise InvalidInput(f"{set} has no cases to run", hint="fix the faults above")
    spec = agent_file.resolve_agent(agent, settings, skill_roots=options.parse_skill_roots(skills))
    run = evaluate_data(
        eval_set,
        spec,
        settings=settings,
        projects=_read_projects(project or []),
        write_mode=write_mode,  # pyright: ignore[reportArgumentType] - checked by `evaluate_data`
        folder=eval_options.runs_root(settings, runs),
        resume=run_options.resume,
        options=with_progress(run_options.to_options(), renderer),
    )
    return run_report("eval data", asyncio.run(run))


def _make_skill_options(eval_set: EvalSet, roots: tuple[Path, ...]) -> dict[str, Any]:
    """Return the options for the cases of a skill: the agent gets the skill without its evals; empty for other sets."""
    if eval_set.format != "skill" or eval_set.path is None:
        return {}
    from bough.evals.skill.benchmark import SkillSides

    sides = SkillSides(eval_set.path, roots)
    return {"agent_for": sides.agent_for, "begin": sides.begin, "skill_folder": eval_set.path.absolute()}


def with_progress(chosen: EvalOptions, renderer: Renderer) -> EvalOptions:
    """Return the options with a progress line on stderr for each finished attempt."""
    from dataclasses import replace

    from bough.evals.run.summary import AttemptResult

    async def show_result(planned: PlannedAttempt, result: AttemptResult) -> None:
        renderer.note(eval_options.progress_line(planned, result))

    return replace(chosen, on_result=show_result)


def run_report(command: str, run: EvalRun) -> Report:
    """Return the report of a finished run. Exit code 1 below the threshold, or that of `limit_exceeded`."""
    exit_code = 0
    if not run.passed:
        exit_code = OUTCOMES["limit_exceeded"].exit_code if run.is_over_budget else 1
    failed_case = next((result.case for result in run.cases if not result.passed), "")
    return Report(
        command=command,
        data=run.folder_report(),
        blocks=eval_options.run_blocks(run),
        next=(f"bough eval show {run.run} {failed_case}".rstrip(),),
        exit_code=exit_code,
    )


def dry_run_report(command: str, eval_set: EvalSet, run_options: EvalRunOptions) -> Report:
    """Return the plan of a set without running it. Exit code 1 if the set has errors.

    Raises:
        InvalidInput: No case remains to run.
    """
    from bough.evals.metrics.thresholds import count_judge_statements, thresholds_for
    from bough.evals.run.plan import choose_cases

    metrics = eval_options.parse_metrics(run_options.metric or ())
    cases = choose_cases(eval_set.cases, filter=run_options.filter, limit=run_options.limit)
    if not cases:
        raise InvalidInput(f"{eval_set.name} has no cases to run", hint="fix the faults above, or see --filter")
    plan: list[JsonObject] = [
        {
            "case": case.id,
            "attempts": run_options.repeat,
            "turns": len(case.input.turns),
            "metrics": thresholds_for(case.input, metrics),
            "needs_judge": count_judge_statements(case.input, metrics),
        }
        for case in cases
    ]
    statement_count = sum(planned["needs_judge"] for planned in plan)
    head = f"{len(cases)} cases, {run_options.repeat} attempts each, {statement_count} statements for a judge, "
    return Report(
        command=command,
        data={"set": eval_set.name, "plan": plan, "faults": [fault.as_dict() for fault in eval_set.faults]},
        blocks=[
            *(line((planned["case"], "strong"), f"  {', '.join(planned['metrics'])}", hang=2) for planned in plan),
            line(head, f"{sum(fault.severity == 'error' for fault in eval_set.faults)} errors in the set"),
        ],
        exit_code=1 if eval_set.has_errors else 0,
    )


def _render_skill_run(run: JsonObject) -> list[Block]:
    """Return the output of `bough eval skill`: sides, notes, trigger queries, and where the results are."""
    blocks: list[Block] = []
    summary: JsonObject = run["benchmark"]["run_summary"]
    if run["iteration"] is not None:
        blocks += eval_options.side_lines(summary)
    blocks += [line((note, "warn"), hang=2) for note in run["benchmark"]["notes"]]
    for split, figures in run["triggers"].items():
        if figures["queries"]:
            text = (
                f"{figures['passed']} of {figures['queries']} queries, precision {_format_share(figures['precision'])}"
            )
            blocks.append(line(f"triggers, {split}: {text}, recall {_format_share(figures['recall'])}"))
        for failure in figures.get("failures", ()):
            expectation = "should" if failure["should_trigger"] else "should not"
            blocks.append(line(f"  {expectation} trigger: {failure['query']}", hang=4))
    if run["not_judged"]:
        blocks.append(line(f"not judged: {run['not_judged']} statements"))
    if run["folder"] is not None:
        blocks.append(line(("results ", "dim"), run["folder"]))
    for id, kind in zip(run["runs"], ("cases", "triggers") if len(run["runs"]) > 1 else ("",), strict=True):
        blocks.append(line(("run ", "dim"), (id, "id"), f"  {kind}" if kind else ""))
    return blocks


def _format_share(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _read_projects(arguments: list[str]) -> dict[str, Path | Literal["bigquery"]]:
    """Return the values of `--project` by name.

    Raises:
        InvalidInput: A value is not NAME=FILE.
    """
    projects: dict[str, Path | Literal["bigquery"]] = {}
    for argument in arguments:
        name, separator, file = argument.partition("=")
        if not separator or not name or not file:
            raise InvalidInput(
                f"--project {argument!r} is not NAME=FILE", hint="for example --project sales=sales.duckdb"
            )
        projects[name] = "bigquery" if file == "bigquery" else Path(file)
    return projects
