"""`bough eval add` and `score`: existing conversations become cases of a set, or are scored from their logs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bough.cli import options
from bough.cli.commands.eval.options import Runs, parse_metrics, runs_root
from bough.cli.commands.eval.run import run_report
from bough.cli.render import Report
from bough.cli.target import Target, resolve
from bough.cli.text import line
from bough.errors import InvalidInput
from bough.events.record import StoredEvent

if TYPE_CHECKING:
    from bough.evals.case import SetCase
    from bough.evals.run.result import EvalRun


def add(
    id: options.Conversation,
    set: Annotated[Path, typer.Argument(metavar="SET", help="pydantic-evals file; created if missing.")],
    name: Annotated[
        str | None, typer.Option("--name", metavar="TEXT", help="Name of the case. Default: the title.")
    ] = None,
    home: options.Home = None,
    store: options.Store = None,
    json: options.Json = False,
) -> Report:
    """Add a conversation to an eval set.

    Its messages, tool calls and answers become a case. Files are not copied.
    """
    from bough.evals.eval_set import add_case, case_from_log
    from bough.evals.formats.read import read_set

    if set.suffix not in (".yaml", ".yml", ".json"):
        raise InvalidInput(f"{set} is not a name of an eval set", hint="give a .yaml or .json file")
    target = Target.parse(id)
    settings = options.load_settings(home, store)

    async def main() -> tuple[str, list[StoredEvent]]:
        async with options.open_settings_store(settings) as opened:
            cid = await resolve(opened, target.name)
            record = await opened.get(cid)
            events = [stored async for stored in opened.read(cid, 0, target.at)]
            return name or record.title or str(cid), events

    title, events = asyncio.run(main())
    case = case_from_log(events, title)
    eval_set = add_case(read_set(set) if set.exists() else None, set, case)
    return Report(
        command="eval add",
        data={"set": str(set), "case": case.id, "cases": len(eval_set.cases)},
        blocks=[
            line((case.id, "strong"), f"  {set}, {len(eval_set.cases)} cases; files of its workspace are not copied")
        ],
        next=(f"bough eval run {set}",),
    )


def score(
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Conversation ids; - for the latest.")],
    case: Annotated[str | None, typer.Option("--case", metavar="SET#NAME", help="Case to score against.")] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option("--metric", metavar="NAME[=T]", help="Add a metric, or set its threshold; repeatable."),
    ] = None,
    judge: Annotated[
        str | None, typer.Option("--judge", metavar="MODEL|none", help="Model that judges rubrics; none skips them.")
    ] = None,
    votes: Annotated[int, typer.Option("--votes", metavar="N", help="Judge calls per judgement; an odd number.")] = 1,
    threshold: Annotated[float, typer.Option("--threshold", metavar="T", help="Exit code 1 below this pass rate.")] = (
        1.0
    ),
    base_url: options.BaseUrl = None,
    runs: Runs = None,
    home: options.Home = None,
    store: options.Store = None,
    json: options.Json = False,
) -> Report:
    """Score existing conversations. Only the judge calls a model, and no tool runs."""
    from bough.evals.log_scoring import score_logs

    settings = options.load_settings(home, store, base_url=base_url)
    expected = None if case is None else _find_case(case)

    async def main() -> EvalRun:
        async with options.open_settings_store(settings) as opened:
            return await score_logs(
                [await resolve(opened, id) for id in ids],
                case=expected,
                metrics=parse_metrics(metric or ()),
                judge=judge,
                votes=votes,
                threshold=threshold,
                store=opened,
                settings=settings,
                folder=runs_root(settings, runs),
            )

    return run_report("eval score", asyncio.run(main()))


def _find_case(argument: str) -> SetCase:
    from bough.evals.formats.read import read_set

    path, separator, name = argument.rpartition("#")
    if not separator or not path or not name:
        raise InvalidInput(f"--case {argument!r} is not SET#NAME", hint="for example --case evals.yaml#first")
    case = read_set(Path(path)).case(name)
    if case is None:
        raise InvalidInput(f"{path} has no case {name!r}", hint=f"`bough eval run {path} --dry-run` lists its cases")
    return case
