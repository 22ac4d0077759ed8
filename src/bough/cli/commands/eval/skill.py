"""`bough eval skill`: runs each case of a skill with and without it, and tests when the skill triggers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from bough.cli import options
from bough.cli.agent_file import resolve_agent
from bough.cli.commands.eval.options import NO_OPTIONS, EvalRunOptions, Runs, runs_root, show_faults, side_lines
from bough.cli.commands.eval.run import dry_run_report, with_progress
from bough.cli.render import Report, renderer_for
from bough.cli.text import Block, line
from bough.errors import InvalidInput
from bough.types import JsonObject


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
    how: EvalRunOptions = NO_OPTIONS,
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
    show_faults(renderer, (*eval_set.faults, *read_trigger_set(directory).faults))
    if how.dry_run:
        return dry_run_report("eval skill", eval_set, how)
    spec = resolve_agent(agent, settings)

    async def main() -> SkillEvalRun:
        return await evaluate_skill(
            directory,
            spec,
            skills=options.parse_skill_roots(skills),
            results=results,
            trigger_runs=trigger_runs,
            settings=settings,
            runs=runs_root(settings, runs),
            resume=how.resume,
            options=with_progress(how.to_options(), renderer),
        )

    run = asyncio.run(main())
    return Report(
        command="eval skill",
        data=run.as_dict(),
        blocks=_blocks(run.as_dict()),
        next=tuple(f"bough eval show {id}" for id in run.as_dict()["runs"][:1]),
        exit_code=0 if run.passed else 1,
    )


def _blocks(run: JsonObject) -> list[Block]:
    blocks: list[Block] = []
    summary: JsonObject = run["benchmark"]["run_summary"]
    if run["iteration"] is not None:
        blocks += side_lines(summary)
    blocks += [line((note, "warn"), hang=2) for note in run["benchmark"]["notes"]]
    for split, figures in run["triggers"].items():
        if figures["queries"]:
            text = f"{figures['passed']} of {figures['queries']} queries, precision {_share(figures['precision'])}"
            blocks.append(line(f"triggers, {split}: {text}, recall {_share(figures['recall'])}"))
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


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
