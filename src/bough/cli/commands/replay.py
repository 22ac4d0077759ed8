"""`bough replay`: runs a recorded conversation again and shows what differs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from bough.cli import agent_file, options
from bough.cli.render import Report
from bough.cli.rule_options import NO_RULES
from bough.cli.target import Target, open_conversation
from bough.cli.text import Line, Style, line
from bough.errors import InvalidInput
from bough.settings import Settings
from bough.types import JsonObject

if TYPE_CHECKING:
    from bough.agents.spec import AgentSpec
    from bough.conversation.replay.replay import Difference, ReplayReport

_STYLES: dict[str, Style] = {"+": "good", "-": "bad", "@": "dim"}
"""The style of a line in a unified diff, by its first character."""


def replay(
    id: options.Conversation = "-",
    until: Annotated[
        int | None, typer.Option("--until", metavar="SEQ", min=0, help="Replay only the events before this one.")
    ] = None,
    agent: options.Agent = None,
    model: options.Model = None,
    base_url: options.BaseUrl = None,
    script_timeout: options.ScriptTimeout = None,
    home: options.Home = None,
    store: options.Store = None,
    json: options.Json = False,
) -> Report:
    """Run a conversation again and show what differs.

    Model responses come from the log. Tools and scripts run for real, in the same workspace. Exit code 1 if anything
    differs.
    """
    target = Target.parse(id)
    if until is not None and target.at is not None:
        raise InvalidInput("both ID@SEQ and --until were given", hint="pass only one")
    settings = options.load_settings(home, store, base_url=base_url, script_timeout=script_timeout)
    spec = None if agent is None else agent_file.load_agent(agent, base_url=base_url)
    end = until if until is not None else target.at
    name, report = asyncio.run(_replay(settings, target.name, end, spec, model))
    return Report(
        command="replay",
        data=_report_json(name, report),
        blocks=list(_render_report(report)),
        next=() if report.same else (f"bough conv show {name} --full",),
        exit_code=0 if report.same else 1,
    )


async def _replay(
    settings: Settings, name: str, until: int | None, agent: AgentSpec | None, model: str | None
) -> tuple[str, ReplayReport]:
    """Return the short id of the conversation and the report of its replay."""
    from bough.conversation.replay.replay import replay

    async with await open_conversation(name, settings, NO_RULES) as conversation:
        if until is not None and until > conversation.state.head:
            head = conversation.state.head
            raise InvalidInput(
                f"{conversation.short_id} has {head} events, not {until}", hint=f"give a number from 0 to {head}"
            )
        return conversation.short_id, await replay(conversation, until=until, agent=agent, model=model)


def _report_json(name: str, report: ReplayReport) -> JsonObject:
    return {
        "conversation": name,
        "same": report.same,
        "events": report.events,
        "differences": [_difference_json(difference) for difference in report.differences],
        "output": report.output,
        "error": None if report.error is None else report.error.as_dict(),
    }


def _difference_json(difference: Difference) -> JsonObject:
    return {"seq": difference.seq, "recorded": difference.recorded, "replayed": difference.replayed}


def _render_report(report: ReplayReport) -> Iterator[Line]:
    """Yield the differences as diffs, and a summary."""
    for difference in report.differences:
        kind = (difference.recorded or difference.replayed or {}).get("kind", "")
        yield line((f"event {difference.seq}  {kind}", "strong"))
        for text in difference.render().splitlines():
            yield line((text, _STYLES.get(text[:1], "")))
    if report.error is not None:
        yield line(("the replay ended early: ", "bad"), report.error.message, hang=2)
    if report.same:
        yield line(("same  ", "good"), f"{report.events} events compared")
    else:
        yield line(("different  ", "bad"), f"{len(report.differences)} of {report.events} events")
