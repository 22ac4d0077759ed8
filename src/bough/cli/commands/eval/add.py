"""`bough eval add`: adds a conversation to an eval set as a case."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from bough.cli import options
from bough.cli.render import Report
from bough.cli.target import Target
from bough.cli.text import line
from bough.errors import InvalidInput
from bough.events.record import StoredEvent


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
            cid = await opened.resolve(target.name)
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
