"""`bough conv adopt`: a person reviews an imported conversation and releases it from quarantine."""

from __future__ import annotations

import asyncio
import json as json_module
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bough.cli import options
from bough.cli.commands.conv.look import record_json
from bough.cli.render import Report, renderer_for
from bough.cli.target import Target, short
from bough.cli.text import Line, line
from bough.cli.turns.confirm import call_lines, can_ask
from bough.errors import Conflict, InvalidInput, PermissionDenied
from bough.events.record import ConversationRecord
from bough.settings import Settings
from bough.types import JsonObject

if TYPE_CHECKING:
    from bough.conversation import AsyncConversation

_RULES = ("policy", "allow_list", "limits", "executor")


def adopt(
    id: options.WholeConversation,
    workspace: Annotated[
        Path | None, typer.Option("--workspace", "-w", metavar="DIR", help="Working folder, if it has none yet.")
    ] = None,
    policy: Annotated[
        str | None, typer.Option("--policy", metavar="NAME", help="Approval policy to add to its rules.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    home: options.Home = None,
    store: options.Store = None,
    json: options.Json = False,
) -> Report:
    """Release an imported conversation from quarantine.

    Until then, every tool call needs approval and scripts run only in the sandbox.
    """
    name = Target.parse_whole(id)
    settings = options.load_settings(home, store)
    return asyncio.run(_adopt(name, settings, workspace, policy, yes=yes, json=json))


async def _adopt(
    name: str, settings: Settings, workspace: Path | None, policy: str | None, *, yes: bool, json: bool
) -> Report:
    from bough.conversation import AsyncConversation
    from bough.guard import policy_named

    chosen = None if policy is None else policy_named(policy)
    async with await AsyncConversation.open(name, settings=settings, workspace=workspace) as conversation:
        record = await conversation.store.get(conversation.id)
        if not conversation.state.quarantined:
            raise Conflict(f"{short(record.id)} is not in quarantine", hint="only imported conversations are adopted")
        if not yes:
            _confirm(list(_describe(conversation, record)), json=json)
        await conversation.adopt(policy=chosen)
        waiting = conversation.state.waiting
    return Report(
        command="conv adopt",
        data={"conversation": record_json(record), "signed_by": record.config.get("signed_by")},
        blocks=[line((short(record.id), "id"), f"  adopted, {len(waiting)} calls waiting")],
        next=(f"bough approve {short(record.id)}" if waiting else f"bough resume {short(record.id)}",),
    )


def _describe(conversation: AsyncConversation, record: ConversationRecord) -> Iterator[Line]:
    """Yield the facts to review: the signer, the agent, the rules, the workspace and every waiting call."""
    state = conversation.state
    yield line(("signed by  ", "dim"), str(record.config.get("signed_by") or "nobody"))
    agent: JsonObject = {key: state.agent.get(key) for key in ("name", "model", "base_url", "workspace_access")}
    yield line(("agent      ", "dim"), json_module.dumps(agent, ensure_ascii=False), hang=11)
    rules = {key: state.policies.get(key) for key in _RULES}
    yield line(("rules      ", "dim"), json_module.dumps(rules, ensure_ascii=False), hang=11)
    yield line(("workspace  ", "dim"), str(state.workspace), hang=11)
    for id, call in state.waiting.items():
        yield from call_lines(id, call)


def _confirm(described: list[Line], *, json: bool) -> None:
    if json or not can_ask():
        raise InvalidInput("no terminal to ask on: nothing was adopted", hint="pass --yes")
    renderer = renderer_for(json=False)
    for output_line in described:
        renderer.note(output_line)
    if input("adopt it? y, n: ").strip().lower() not in ("y", "yes"):
        raise PermissionDenied("nothing was adopted", hint="inspect it with `bough conv show`")
