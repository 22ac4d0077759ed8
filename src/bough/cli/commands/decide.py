"""`bough approve`, `bough reject`, `bough answer`: record a decision about waiting tool calls, and continue the run."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, TypeAlias, cast

import typer

from bough.cli import options
from bough.cli.commands.resume import continue_run
from bough.cli.render import Report, renderer_for
from bough.cli.rule_options import RuleOptions
from bough.cli.target import Target, open_conversation
from bough.cli.text import Line, line
from bough.cli.turns.confirm import call_lines, read_value
from bough.cli.turns.turn import shows_stream
from bough.errors import InvalidInput
from bough.types import Json, JsonObject

if TYPE_CHECKING:
    from bough.conversation import AsyncConversation

Calls: TypeAlias = Annotated[
    list[str] | None, typer.Option("--call", metavar="ID", help="Only this call; repeatable. Default: all.")
]
NoRun: TypeAlias = Annotated[bool, typer.Option("--no-run", help="Only record the decision; `bough resume` continues.")]
Decision: TypeAlias = Callable[["AsyncConversation"], Awaitable[None]]


@dataclass(frozen=True, kw_only=True)
class ContinueOptions:
    """Options of the commands that record a decision and continue."""

    no_run: NoRun = False
    secret: options.Secret = None
    timeout: options.Timeout = None
    script_timeout: options.ScriptTimeout = None
    no_stream: options.NoStream = False
    home: options.Home = None
    store: options.Store = None
    json: options.Json = False


NO_OPTIONS = ContinueOptions()


def approve(
    id: options.WholeConversation = "-",
    call: Calls = None,
    arguments: Annotated[
        str | None,
        typer.Option("--arguments", metavar="JSON", help="Run the call with these arguments; one call only."),
    ] = None,
    continuing: ContinueOptions = NO_OPTIONS,
) -> Report | int:
    """Approve pending tool calls and continue."""
    edited = None if arguments is None else _parse_object(arguments)

    async def decide(conversation: AsyncConversation) -> None:
        calls = call or (_find_only_call(conversation, "approval") if edited is not None else [])
        await conversation.approve(*calls, arguments=edited)

    return asyncio.run(_record_decision("approve", id, decide, continuing))


def reject(
    id: options.WholeConversation = "-",
    call: Calls = None,
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="Reason for the rejection, shown to the model.")
    ] = "",
    continuing: ContinueOptions = NO_OPTIONS,
) -> Report | int:
    """Reject pending tool calls and continue."""

    async def decide(conversation: AsyncConversation) -> None:
        await conversation.reject(*(call or ()), reason=reason)

    return asyncio.run(_record_decision("reject", id, decide, continuing))


def answer(
    id_or_value: Annotated[str, typer.Argument(metavar="[ID]", help="Conversation id; omit it for the latest.")],
    value: Annotated[
        str | None, typer.Argument(metavar="VALUE", help="Answer: text, or a JSON object or list.")
    ] = None,
    call: Annotated[
        str | None, typer.Option("--call", metavar="ID", help="Call to answer, if several are waiting.")
    ] = None,
    continuing: ContinueOptions = NO_OPTIONS,
) -> Report | int:
    """Answer a pending question or external call and continue."""
    name, text = ("-", id_or_value) if value is None else (id_or_value, value)

    async def decide(conversation: AsyncConversation) -> None:
        (call_id,) = [call] if call is not None else _find_only_call(conversation, "question", "external")
        await conversation.answer(call_id, read_value(text))

    return asyncio.run(_record_decision("answer", name, decide, continuing))


def _find_only_call(conversation: AsyncConversation, *kinds: str) -> list[str]:
    """Return a list with the id of the only call that waits for one of these kinds of decisions.

    Raises:
        InvalidInput: No call, or more than one, waits for such a decision.
    """
    waiting = conversation.state.waiting
    call_ids = [id for id, call in waiting.items() if (call.get("kind") or "approval") in kinds]
    if len(call_ids) == 1:
        return call_ids
    message = f"{len(call_ids)} calls wait" if call_ids else "no call is waiting for this"
    raise InvalidInput(message, hint=f"name one with --call: {', '.join(call_ids or waiting) or 'none waits'}")


def _parse_object(text: str) -> JsonObject:
    try:
        value: Json = json.loads(text)
    except ValueError as error:
        raise InvalidInput(f"--arguments is not JSON: {error}", hint="""for example '{"path": "a.txt"}'""") from error
    if not isinstance(value, dict):
        raise InvalidInput("--arguments is not a JSON object", hint="""for example '{"path": "a.txt"}'""")
    return cast("JsonObject", value)


async def _record_decision(command: str, id: str, decide: Decision, continuing: ContinueOptions) -> Report | int:
    """Record a decision about a conversation, and continue it unless calls are still waiting."""
    name = Target.parse_name(id)
    settings = options.load_settings(continuing.home, continuing.store, script_timeout=continuing.script_timeout)
    rules = RuleOptions(secret=continuing.secret)
    async with await open_conversation(name, settings, rules) as conversation:
        renderer = renderer_for(json=continuing.json)
        decided_calls = dict(conversation.state.waiting)  # copied, because the decision removes its calls
        await decide(conversation)
        still_waiting = conversation.state.waiting
        if continuing.no_run or still_waiting:
            return _report_recorded(command, conversation)
        for call_id, call in decided_calls.items():
            for output_line in call_lines(call_id, call):
                renderer.note(output_line)
        return await continue_run(
            conversation,
            renderer,
            rules,
            None,
            command=command,
            json=continuing.json,
            stream=shows_stream(continuing.no_stream),
            timeout_seconds=continuing.timeout,
        )


def _report_recorded(command: str, conversation: AsyncConversation) -> Report:
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
