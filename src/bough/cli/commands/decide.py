"""`bough approve`, `bough reject`: what a person says to tool calls that wait, and what follows from it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from bough.cli import options
from bough.cli.commands.run import go_on, streams
from bough.cli.confirm import call_lines
from bough.cli.opening import opened_conversation
from bough.cli.render import Report, renderer_for
from bough.cli.rules import RuleOptions
from bough.cli.target import Target
from bough.cli.text import Line, line
from bough.errors import InvalidInput

if TYPE_CHECKING:
    from bough.conversation import AsyncConversation

Calls: TypeAlias = Annotated[
    list[str] | None, typer.Option("--call", metavar="ID", help="Only this call; may be repeated. Default: all.")
]
NoRun: TypeAlias = Annotated[bool, typer.Option("--no-run", help="Only record it; bough resume goes on.")]
Decision: TypeAlias = Callable[["AsyncConversation"], Awaitable[None]]


@dataclass(frozen=True, kw_only=True)
class Deciding:
    """What both commands take."""

    call: Calls = None
    no_run: NoRun = False
    secret: options.Secret = None
    timeout: options.Timeout = None
    script_timeout: options.ScriptTimeout = None
    no_stream: options.NoStream = False
    home: options.Home = None
    store: options.Store = None
    json: options.Json = False


ALL = Deciding()


def approve(id: options.Conversation = "-", given: Deciding = ALL) -> Report | int:
    """Let tool calls run that wait for you, and go on."""

    async def decide(conversation: AsyncConversation) -> None:
        await conversation.approve(*(given.call or ()))

    return asyncio.run(_decided("approve", id, decide, given))


def reject(
    id: options.Conversation = "-",
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; the model is told.")] = "",
    given: Deciding = ALL,
) -> Report | int:
    """Refuse tool calls that wait for you, and go on."""

    async def decide(conversation: AsyncConversation) -> None:
        await conversation.reject(reason, *(given.call or ()))

    return asyncio.run(_decided("reject", id, decide, given))


async def _decided(command: str, id: str, decide: Decision, given: Deciding) -> Report | int:
    """Record a decision about one conversation, and run on unless calls still wait."""
    target = Target.parse(id)
    if target.at is not None:
        raise InvalidInput("calls wait at the end of a conversation", hint=f"leave @{target.at} out")
    settings = options.settings_of(given.home, given.store, script_timeout=given.script_timeout)
    rules = RuleOptions(secret=given.secret)
    async with await opened_conversation(target.name, settings, rules) as conversation:
        await decide(conversation)
        if given.no_run or conversation.state.waiting:
            return _recorded(command, conversation)
        return await go_on(
            conversation,
            renderer_for(json=given.json),
            rules,
            None,
            command=command,
            json=given.json,
            stream=streams(given.no_stream),
            timeout_seconds=given.timeout,
        )


def _recorded(command: str, conversation: AsyncConversation) -> Report:
    waiting, name = conversation.state.waiting, conversation.short_id
    blocks: list[Line] = [line((name, "id"), f"  recorded, {len(waiting)} still waiting")]
    for id, call in waiting.items():
        blocks += call_lines(id, call)
    return Report(
        command=command,
        data={"conversation": str(conversation.id), "status": conversation.status, "waiting": waiting},
        blocks=blocks,
        next=(f"bough approve {name}",) if waiting else (f"bough resume {name}",),
    )
