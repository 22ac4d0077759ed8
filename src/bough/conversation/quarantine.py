"""The quarantine of imported conversations, which lasts until a person adopts them.

Nothing in an imported log runs, widens rules or chooses paths here. It gets an `Imported` event as its first event in
this store, before it is used. The fold derives the rest: calls wait, approvals are void, and every call asks.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

from bough.conversation.agent import workspace_folder
from bough.conversation.log.journal import Journal
from bough.conversation.log.state import State, describe_imported
from bough.conversation.rules import Rules
from bough.errors import Conflict
from bough.events.model import Event, Imported, StateChanged
from bough.events.record import ConversationRecord
from bough.guard import Policy
from bough.guard.confirmation_policy import narrower
from bough.settings import Settings


async def quarantine(
    journal: Journal, record: ConversationRecord, settings: Settings, workspace: str | Path | None
) -> None:
    """Record that a log was imported, if that was not done yet. Reads one row.

    Args:
        workspace: The workspace of the conversation here; None creates an empty folder in bough's home.

    Raises:
        Conflict: A workspace is given, and the conversation already has one here.
    """
    count = await journal.store.count_imported(journal.cid)
    imported = journal.state.imported
    # An `Imported` of the sender's log does not count: that of this store comes after all imported events.
    if count == 0 or (imported is not None and imported >= count):
        if workspace is not None:
            raise Conflict(
                f"the workspace of {journal.cid} is {journal.state.workspace}",
                hint="only what was imported, and not used yet, is given one; fork it to work elsewhere",
            )
        return
    folder = choose_workspace(journal.cid, settings, workspace)
    await journal.append(*describe_import(count, record.config.get("signed_by"), folder, journal.state))


def choose_workspace(cid: UUID, settings: Settings, workspace: str | Path | None) -> Path:
    """Return the workspace of an imported conversation: never the one that the sender's log names."""
    if workspace is not None:
        return workspace_folder(workspace)
    folder = settings.home / "workspaces" / str(cid)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def describe_import(count: int, signer: Any, workspace: Path, state: State) -> list[Event]:
    """Return the events that begin the quarantine of a log with this state."""
    imported = Imported(count=count, signer=signer or None, workspace=str(workspace))
    waiting = {call.id: describe_imported(call) for call in state.open_calls}
    status = "waiting_for_confirmation" if waiting else "idle"
    return [imported, StateChanged(changes={"status": status, "waiting": waiting})]


async def adopt(journal: Journal, given: Rules, *, by: str, policy: Policy | None) -> None:
    """End the quarantine. The log's rules apply, narrowed by `given` and `policy`. Open calls still wait.

    Raises:
        Conflict: It is not in quarantine.
    """
    await journal.catch_up()
    state = journal.state
    if not state.quarantined:
        raise Conflict(f"{journal.cid} is not in quarantine", hint="only an imported conversation is adopted")
    rules = Rules.from_json(state.policies, given, is_foreign=True)
    if policy is not None:
        rules = replace(rules, policy=narrower(rules.policy, policy))
    changes = {"adopted": {"by": by}, "policies": rules.to_json()}
    await journal.append(StateChanged(changes=changes), expected_head=state.head)
