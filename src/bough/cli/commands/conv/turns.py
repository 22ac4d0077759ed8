"""`bough conv turns`: what was said, called and answered, one line a turn."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

from bough.cli import options
from bough.cli.commands.conv.look import record_json
from bough.cli.render import Report
from bough.cli.target import Target, resolve, short
from bough.cli.text import Block, Span, Table, line, one_line
from bough.events.record import ConversationRecord
from bough.settings import Settings

if TYPE_CHECKING:
    from bough.conversation.log.turns import TurnRecord
    from bough.events.model import Usage

_MAX_PATHS = 3
"""Maximum number of written files that the table names."""


def turns(
    id: options.Conversation = "-",
    home: options.Home = None,
    store: options.Store = None,
    json: options.Json = False,
) -> Report:
    """Show the turns of a conversation, one line each."""
    record, records = asyncio.run(_read_turns(options.load_settings(home, store), Target.parse(id)))
    name = short(record.id)
    return Report(
        command="conv turns",
        data={"conversation": record_json(record), "turns": [turn.as_json() for turn in records]},
        blocks=list(_render_turns(records)),
        next=(f"bough fork {name} --turn {records[-1].number} --repeat",) if records else (f"bough conv show {name}",),
    )


async def _read_turns(settings: Settings, target: Target) -> tuple[ConversationRecord, list[TurnRecord]]:
    """Return a conversation and its turns, up to the position of the target."""
    from bough.conversation.log.turns import read_turns

    async with options.open_settings_store(settings, create=False) as store:
        record = await store.get(await resolve(store, target.name))
        return record, await read_turns(record.id, store.read(record.id, 0, target.end(record)))


def _render_turns(records: list[TurnRecord]) -> Iterator[Block]:
    if not records:
        yield line(("nothing was said yet", "dim"))
        return
    yield Table(
        head=("turn", "message", "calls", "answer", "usage", "files"),
        rows=tuple(_row(turn) for turn in records),
        flexible=(1, 3, 5),
        right=frozenset({0, 2}),
    )


def _row(turn: TurnRecord) -> tuple[Span, ...]:
    sender = "" if turn.message.sender == "user" else f"({turn.message.sender}) "
    has_answer = bool(turn.output.strip())
    paths = ", ".join(turn.files[:_MAX_PATHS])
    more = f" and {len(turn.files) - _MAX_PATHS} more" if len(turn.files) > _MAX_PATHS else ""
    return (
        (str(turn.number), "id"),
        (one_line(sender + turn.message.plain), ""),
        (str(len(turn.calls)), ""),
        (one_line(turn.output), "") if has_answer else (turn.reason or turn.status, "warn"),
        (_describe_usage(turn.usage), "dim"),
        (paths + more, ""),
    )


def _describe_usage(usage: Usage) -> str:
    cost = "" if usage.cost_usd is None else f", {usage.cost_usd:.4f} USD"
    return f"{usage.input_tokens + usage.output_tokens} tokens{cost}"
