"""`bough approve`, `bough reject`: what a person says to tool calls that wait, and what follows from it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
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
from bough.config import Settings
from bough.errors import InvalidInput

if TYPE_CHECKING:
    from bough.conversation import AsyncConversation

Calls: TypeAlias = Annotated[
    list[str] | None, typer.Option("--call", metavar="ID", help="Only this call; may be repeated. Default: all.")
]
NoRun: TypeAlias = Annotated[bool, typer.Option("--no-run", help="Only record it; bough resume goes on.")]
Decision: TypeAlias = Callable[["AsyncConversation"], Awaitable[None]]


def approve(
    id: options.Conversation = "-",
    call: Calls = None,
    no_run: NoRun = False,
    secret: options.Secret = None,
    timeout: options.Timeout = None,
    script_timeout: options.ScriptTimeout = None,
    no_stream: options.NoStream = False,
    home: options.Home = None,
    store: options.Store = None,
    json: options.Json = False,
) -> Report | int:
    """Let tool calls run that wait for you, and go on."""

    async def decide(conversation: AsyncConversation) -> None:
        await conversation.approve(*(call or ()))

    settings = options.settings_of(home, store, script_timeout=script_timeout)
    deciding = _Deciding("approve", id, settings, RuleOptions(secret=secret))
    return asyncio.run(deciding.run(decide, then_run=not no_run, json=json, no_stream=no_stream, timeout=timeout))


def reject(
    id: options.Conversation = "-",
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; the model is told.")] = "",
    call: Calls = None,
    no_run: NoRun = False,
    secret: options.Secret = None,
    timeout: options.Timeout = None,
    script_timeout: options.ScriptTimeout = None,
    no_stream: options.NoStream = False,
    home: options.Home = None,
    store: options.Store = None,
    json: options.Json = False,
) -> Report | int:
    """Refuse tool calls that wait for you, and go on."""

    async def decide(conversation: AsyncConversation) -> None:
        await conversation.reject(reason, *(call or ()))

    settings = options.settings_of(home, store, script_timeout=script_timeout)
    deciding = _Deciding("reject", id, settings, RuleOptions(secret=secret))
    return asyncio.run(deciding.run(decide, then_run=not no_run, json=json, no_stream=no_stream, timeout=timeout))


class _Deciding:
    """One decision about one conversation."""

    def __init__(self, command: str, id: str, settings: Settings, rules: RuleOptions) -> None:
        target = Target.parse(id)
        if target.at is not None:
            raise InvalidInput("calls wait at the end of a conversation", hint=f"leave @{target.at} out")
        self._command = command
        self._name = target.name
        self._settings = settings
        self._rules = rules

    async def run(
        self, decide: Decision, *, then_run: bool, json: bool, no_stream: bool, timeout: float | None
    ) -> Report | int:
        """Record the decision, and run on unless calls still wait."""
        async with await opened_conversation(self._name, self._settings, self._rules) as conversation:
            await decide(conversation)
            if not then_run or conversation.state.waiting:
                return self._recorded(conversation)
            return await go_on(
                conversation,
                renderer_for(json=json),
                self._rules,
                None,
                command=self._command,
                json=json,
                stream=streams(no_stream),
                timeout_seconds=timeout,
            )

    def _recorded(self, conversation: AsyncConversation) -> Report:
        waiting, name = conversation.state.waiting, conversation.short_id
        blocks: list[Line] = [line((name, "id"), f"  recorded, {len(waiting)} still waiting")]
        for id, call in waiting.items():
            blocks += call_lines(id, call)
        return Report(
            command=self._command,
            data={"conversation": str(conversation.id), "status": conversation.status, "waiting": waiting},
            blocks=blocks,
            next=(f"bough approve {name}",) if waiting else (f"bough resume {name}",),
        )
