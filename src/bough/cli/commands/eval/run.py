"""`bough eval run`: runs each case of a set in its own conversation and scores it from the log."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bough.cli import options
from bough.cli.agent_file import resolve_agent
from bough.cli.commands.eval import options as eval_options
from bough.cli.commands.eval.options import NO_OPTIONS, EvalRunOptions, Runs
from bough.cli.render import Renderer, Report, renderer_for
from bough.cli.text import line
from bough.errors import OUTCOMES, InvalidInput
from bough.types import JsonObject

if TYPE_CHECKING:
    from bough.evals.eval_set import EvalSet
    from bough.evals.loop import EvalOptions
    from bough.evals.run.plan import PlannedAttempt
    from bough.evals.run.result import EvalRun

EvalSetPath = Annotated[
    Path,
    typer.Argument(metavar="SET", help="Skill folder, eval set (.json) or pydantic-evals file (.yaml)."),
]


def run(
    set: EvalSetPath,
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
    """Run the cases of a set and score them. Exit code 1 below --threshold."""
    from bough.evals.formats.read import read_set

    settings = options.load_settings(home, store, model=model, base_url=base_url, executor=executor)
    renderer = renderer_for(json=json)
    eval_set = read_set(set)
    eval_options.show_faults(renderer, eval_set.faults)
    if how.dry_run:
        return dry_run_report("eval run", eval_set, how)
    if not eval_set.cases:
        raise InvalidInput(f"{set} has no cases to run", hint="fix the faults above")
    roots = options.parse_skill_roots(skills)
    spec = resolve_agent(agent, settings, skill_roots=roots)
    skill_options = _make_skill_options(eval_set, roots)

    async def main() -> EvalRun:
        from bough.evals.loop import evaluate

        return await evaluate(
            eval_set,
            spec,
            settings=settings,
            folder=eval_options.runs_root(settings, runs),
            resume=how.resume,
            options=with_progress(how.to_options(**skill_options), renderer),
        )

    return run_report("eval run", asyncio.run(main()))


def _make_skill_options(eval_set: EvalSet, roots: tuple[Path, ...]) -> dict[str, Any]:
    """Return the options for the cases of a skill: the skill is offered to the agent, its evals are hidden from it."""
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
    data: JsonObject = run.folder_report()
    failure = OUTCOMES["limit_exceeded"].exit_code if run.is_over_budget else 1
    code = 0 if run.passed else failure
    failed = next((case.case for case in run.cases if not case.passed), None)
    following = (f"bough eval show {run.run}" + (f" {failed}" if failed else ""),)
    return Report(command=command, data=data, blocks=eval_options.run_blocks(run), next=following, exit_code=code)


def dry_run_report(command: str, eval_set: EvalSet, how: EvalRunOptions) -> Report:
    """Return the plan of a set without running it. Exit code 1 if the set has errors.

    Raises:
        InvalidInput: No case remains to run.
    """
    from bough.evals.metrics.thresholds import needs_judge, thresholds_for
    from bough.evals.run.plan import choose_cases

    metrics = eval_options.parse_metrics(how.metric or ())
    cases = choose_cases(eval_set.cases, filter=how.filter, limit=how.limit)
    if not cases:
        raise InvalidInput(f"{eval_set.name} has no cases to run", hint="fix the faults above, or see --filter")
    plan: list[JsonObject] = [
        {
            "case": case.id,
            "attempts": how.repeat,
            "turns": len(case.input.turns),
            "metrics": thresholds_for(case.input, metrics),
            "needs_judge": needs_judge(case.input, metrics),
        }
        for case in cases
    ]
    judged = sum(planned["needs_judge"] for planned in plan)
    head = f"{len(cases)} cases, {how.repeat} attempts each, {judged} statements for a judge, "
    return Report(
        command=command,
        data={"set": eval_set.name, "plan": plan, "faults": [fault.as_dict() for fault in eval_set.faults]},
        blocks=[
            *(line((planned["case"], "strong"), f"  {', '.join(planned['metrics'])}", hang=2) for planned in plan),
            line(head, f"{sum(fault.severity == 'error' for fault in eval_set.faults)} errors in the set"),
        ],
        exit_code=1 if eval_set.has_errors else 0,
    )
