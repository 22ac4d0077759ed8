"""`bough eval harbor`: runs Harbor tasks, which have an image and a test script."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bough.cli import agent_file, options
from bough.cli.commands.eval.options import Runs, runs_root, show_faults
from bough.cli.commands.eval.run import with_progress
from bough.cli.render import Report, renderer_for
from bough.cli.text import Block, Span, Style, Table, line, one_line
from bough.errors import OUTCOMES, InvalidInput

if TYPE_CHECKING:
    from bough.agents.spec import AgentSpec
    from bough.evals.harbor.evaluate import HarborRun, TaskScore
    from bough.evals.harbor.place import ReferenceAgent
    from bough.settings import Settings

Timeout = Annotated[
    float | None, typer.Option("--timeout", metavar="SECONDS", help="Time limit of the agent, instead of the task's.")
]


_BUILD_LOG_LINES = 12
"""Number of lines shown of the log of a failed build, from its end."""


def harbor(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a task, or a folder of tasks.")],
    agent: Annotated[
        str | None,
        typer.Option("--agent", metavar="NAME|oracle|nop", help="Agent; oracle: the tasks' solutions, nop: nothing."),
    ] = None,
    model: options.Model = None,
    base_url: options.BaseUrl = None,
    filter: Annotated[str, typer.Option("--filter", metavar="GLOB", help="Only tasks whose name matches.")] = "*",
    sandbox: Annotated[
        bool, typer.Option("--sandbox", help="Run in the sandbox, only tasks that need no image.")
    ] = False,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Rebuild existing images.")] = False,
    build_only: Annotated[bool, typer.Option("--build-only", help="Only build the images.")] = False,
    skip_tests: Annotated[
        bool, typer.Option("--skip-tests", help="Skip the tests and score by the trace alone.")
    ] = False,
    prune_interval: Annotated[
        int,
        typer.Option(
            "--prune-interval", metavar="N", min=0, help="Prune after every N builds; 0: only between retries."
        ),
    ] = 0,
    allow_network: Annotated[
        bool, typer.Option("--allow-network", help="Give a network to builds and tasks that ask for it.")
    ] = False,
    jobs: Annotated[int, typer.Option("--jobs", metavar="N", min=1, help="Number of tasks to run at once.")] = 1,
    repeat: Annotated[int, typer.Option("--repeat", metavar="N", min=1, help="Attempts per task.")] = 1,
    timeout: Timeout = None,
    threshold: Annotated[
        float, typer.Option("--threshold", metavar="T", help="Exit code 1 below this mean reward.")
    ] = 1.0,
    max_cost_usd: options.MaxCost = None,
    secret: options.Secret = None,
    resume: Annotated[str | None, typer.Option("--resume", metavar="RUN", help="Resume this run.")] = None,
    retry_errors: Annotated[
        bool, typer.Option("--retry-errors", help="With --resume: also retry tasks that ended in an error.")
    ] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the folders of solved tasks.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check the tasks; build and run nothing.")] = False,
    runs: Runs = None,
    home: options.Home = None,
    store: options.Store = None,
    json: options.Json = False,
) -> Report:
    """Run Harbor tasks: each has an image and a test script. Exit code 1 below --threshold."""
    from bough.cli.rule_options import secrets_named
    from bough.evals.harbor.evaluate import run_harbor
    from bough.evals.harbor.task import list_tasks
    from bough.evals.loop import EvalOptions

    if timeout is not None and not timeout > 0:  # `not … > 0` also refuses nan
        raise InvalidInput(f"--timeout {timeout} is not a duration", hint="give a number of seconds above 0")
    settings = options.load_settings(home, store, model=model, base_url=base_url)
    renderer = renderer_for(json=json)
    listing = list_tasks(directory, filter)
    show_faults(renderer, listing.faults)
    if dry_run:
        return Report(
            command="eval harbor",
            data={
                "tasks": [task.name for task in listing.tasks],
                "faults": [fault.as_dict() for fault in listing.faults],
            },
            blocks=[line((task.name, "strong"), f"  {one_line(task.instruction, 100)}") for task in listing.tasks],
            exit_code=1 if listing.faults else 0,
        )
    eval_options = EvalOptions(
        threshold=threshold,
        max_cost_usd=max_cost_usd,
        secrets=secrets_named(secret) if secret else None,
        retry_errors=retry_errors,
        keep=keep,
        argv=sys.argv[1:],
    )
    run = asyncio.run(
        run_harbor(
            directory,
            _choose_agent(agent, settings),
            filter=filter,
            sandbox=sandbox,
            jobs=jobs,
            rebuild=rebuild,
            build_only=build_only,
            skip_tests=skip_tests,
            prune_interval=prune_interval,
            timeout=timeout,
            allow_network=allow_network,
            repeat=repeat,
            folder_of_runs=runs_root(settings, runs),
            settings=settings,
            resume=resume,
            options=with_progress(eval_options, renderer),
        )
    )
    failed_task = next((task.task for task in run.tasks if task.status != "passed"), "")
    return Report(
        command="eval harbor",
        data=run.as_dict(),
        blocks=_render_run(run),
        next=() if run.run is None else (f"bough eval show {run.run} {failed_task}".rstrip(),),
        exit_code=_exit_code(run),
    )


def _exit_code(run: HarborRun) -> int:
    """Return 0 if the run passed, the code of `limit_exceeded` if the cost limit was reached, else 1."""
    if run.passed:
        return 0
    is_over_budget = run.cases is not None and run.cases.is_over_budget
    return OUTCOMES["limit_exceeded"].exit_code if is_over_budget else 1


def _choose_agent(name: str | None, settings: Settings) -> AgentSpec | ReferenceAgent:
    match name:
        case "oracle":
            return "oracle"
        case "nop":
            return "nop"
        case _:
            return agent_file.resolve_agent(None if name is None else Path(name), settings)


def _render_run(run: HarborRun) -> list[Block]:
    """Return the output of a run: failed builds, left-out tasks, results, logs of failures, and the summary."""
    blocks: list[Block] = []
    for image in run.builds.images:
        if image.status == "failed":
            reason, *log = image.reason.splitlines() or [""]
            blocks.append(line(("no image ", "bad"), (image.task, "strong"), f"  {one_line(reason, 300)}", hang=9))
            blocks += [line(("    " + one_line(text, 300), "dim"), hang=6) for text in log[-_BUILD_LOG_LINES:]]
    blocks += [line(("skipped  ", "warn"), (task, "strong"), f"  {reason}", hang=9) for task, reason in run.left_out]
    if run.tasks:
        rows = tuple(_task_row(task) for task in run.tasks)
        head = ("task", "reward", "status", "seconds", "reason")
        blocks.append(Table(head=head, rows=rows, flexible=(4,), right=frozenset({1, 3})))
    for task in run.tasks:
        if task.log is not None and task.status != "passed":
            blocks.append(line(("log ", "dim"), (task.task, "strong"), f"  {task.log}", hang=4))
            blocks += [line(("    " + text, "dim"), hang=6) for text in task.log_end]
    if run.engine == "container":
        built = run.builds.as_dict()
        counts = f"{built['built']} built, {built['cached']} cached, {built['failed']} failed"
        blocks.append(line(("images ", "dim"), f"{counts} in {built['seconds']:.1f} s"))
    if run.run is not None:
        score_note = "" if run.verified else "  tests skipped: scored by the trace"
        style: Style = "good" if run.passed else "bad"
        summary = f" solved {run.solved} of {len(run.tasks)}, isolation {run.isolation}{score_note}"
        blocks.append(line((f"{run.mean_reward:.3f}", style), " mean reward:", summary, hang=2))
        blocks.append(line(("run ", "dim"), (run.run, "id")))
        blocks.append(line(("report ", "dim"), f"{run.folder}/report.html"))
    return blocks


def _task_row(task: TaskScore) -> tuple[Span, ...]:
    style: Style = "good" if task.status == "passed" else "bad"
    return (
        (task.task, ""),
        ("-" if task.reward is None else f"{task.reward:.3f}", ""),
        (task.status, style),
        (f"{task.seconds:.1f}", "dim"),
        (one_line(task.reason, 200), ""),
    )
