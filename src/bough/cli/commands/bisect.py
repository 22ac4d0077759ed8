"""`bough bisect`: finds the step of a conversation that broke its files."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from bough.cli import options
from bough.cli.render import Report, renderer_for
from bough.cli.rule_options import NO_RULES
from bough.cli.target import Target, open_conversation, short
from bough.cli.text import Block, line, paragraph

if TYPE_CHECKING:
    from bough.conversation import AsyncConversation
    from bough.conversation.bisect import Bisection

_MAX_PATCH_LINES = 60


def bisect(
    id: options.Conversation,
    check: Annotated[
        str, typer.Option("--check", metavar="CMD", help="0 is good, 1 to 124 bad, 125 cannot be judged.")
    ],
    good: Annotated[
        int | None, typer.Option("--good", metavar="SEQ", min=0, help="The files are good here. Default: the start.")
    ] = None,
    bad: Annotated[
        int | None, typer.Option("--bad", metavar="SEQ", min=0, help="The files are bad here. Default: the end.")
    ] = None,
    check_timeout: options.CheckTimeout = 600.0,
    home: options.Home = None,
    store: options.Store = None,
    json: options.Json = False,
) -> Report:
    """Find the step that broke the files.

    Runs a check on the files after some of the steps, in a folder of its own.
    """
    target = Target.parse(id)
    settings = options.load_settings(home, store)
    renderer = renderer_for(json=json)

    async def main() -> Report:
        async with await open_conversation(target.name, settings, NO_RULES) as conversation:
            stop = target.at if bad is None else bad
            with renderer.busy("checking files"):
                bisection = await conversation.bisect(check, good=good, bad=stop, check_timeout=check_timeout)
            return _report(conversation, bisection)

    return asyncio.run(main())


def _report(conversation: AsyncConversation, bisection: Bisection) -> Report:
    data = {"conversation": str(conversation.id), **bisection.to_json()}
    checks = f"{bisection.checks} check{'s' * (bisection.checks != 1)}"
    if bisection.seq is None:
        blocks: list[Block] = [line(("nothing fails: ", "good"), "the check passes at the end", (f"  {checks}", "dim"))]
        return Report(command="bisect", data=data, blocks=blocks, exit_code=1)
    name = short(conversation.id)
    patch = bisection.changes.patch.splitlines()
    blocks = [
        line("first bad: event ", (str(bisection.seq), "id"), f"  {bisection.tool or ''}", (f"  {checks}", "dim")),
        *paragraph("\n".join(patch[:_MAX_PATCH_LINES]), indent=2, style="dim"),
    ]
    if len(patch) > _MAX_PATCH_LINES:
        blocks.append(line((f"  … {len(patch) - _MAX_PATCH_LINES} more lines", "dim")))
    if bisection.unjudged:
        events = ", ".join(map(str, bisection.unjudged))
        blocks.append(line(("cannot be judged: ", "warn"), f"events {events}; the first bad one may be among them"))
    before = min(bisection.seq, *bisection.unjudged) if bisection.unjudged else bisection.seq
    return Report(
        command="bisect",
        data=data,
        blocks=blocks,
        next=(f"bough fork {name}@{before} --files copy", f"bough conv show {name}@{bisection.seq + 1}"),
    )
