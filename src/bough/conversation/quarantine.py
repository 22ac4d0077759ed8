"""The quarantine of imported conversations, which lasts until a person adopts them.

An imported log must not start calls, widen rules or choose paths on this machine. Before it is used, an `Imported`
event is appended to it, as its first event in this store. From then on, open calls wait, earlier approvals are void,
and every call needs an approval.
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
from bough.guard.budget import budgets_to_json
from bough.guard.confirmation_policy import narrower
from bough.settings import Settings


async def quarantine(
    journal: Journal, record: ConversationRecord, settings: Settings, workspace: str | Path | None
) -> None:
    """Append the `Imported` event to an imported log that does not have it yet. Reads at most one row.

    Args:
        workspace: The workspace of the conversation here; None creates an empty folder in bough's home.

    Raises:
        Conflict: `workspace` is given, but the conversation already has a workspace here.
    """
    # The row tells only what was imported before it was read: with more events in the log, the store is asked again.
    has_no_imports = record.parent is None and record.imported is None and journal.state.head == record.head
    count = 0 if has_no_imports else await journal.store.count_imported(journal.cid)
    imported = journal.state.import_seq
    # The sender's log may have an `Imported` event too, but that is among the first `count` events.
    is_recorded = imported is not None and imported >= count
    if count == 0 or is_recorded:
        if workspace is not None:
            raise Conflict(
                f"the workspace of {journal.cid} is {journal.state.workspace}",
                hint="give workspace= only at the first opening after an import; fork it to work elsewhere",
            )
        return
    folder = choose_workspace(journal.cid, settings, workspace)
    await journal.append(*describe_import(count, record.config.get("signed_by"), folder, journal.state))


def choose_workspace(cid: UUID, settings: Settings, workspace: str | Path | None) -> Path:
    """Return the workspace of an imported conversation. It is never the one that the sender's log names."""
    if workspace is not None:
        return workspace_folder(workspace)
    folder = settings.home / "workspaces" / str(cid)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def describe_import(count: int, signer: Any, workspace: Path, state: State) -> list[Event]:
    """Return the events that begin the quarantine of a log.

    Args:
        count: The number of imported events.
        signer: Who signed the imported log, if anyone.
        workspace: The workspace of the conversation here.
        state: The state of the imported log.
    """
    imported = Imported(count=count, signer=signer or None, workspace=str(workspace))
    waiting = {call.id: describe_imported(call) for call in state.open_calls}
    status = "waiting_for_confirmation" if waiting else "idle"
    return [imported, StateChanged(changes={"status": status, "waiting": waiting})]


async def adopt(journal: Journal, local: Rules, *, by: str, policy: Policy | None) -> None:
    """End the quarantine. The log's rules apply, narrowed by `local` and `policy`. Open calls still wait.

    Raises:
        Conflict: The conversation is not in quarantine.
    """
    await journal.catch_up()
    state = journal.state
    if not state.quarantined:
        raise Conflict(f"{journal.cid} is not in quarantine", hint="only an imported conversation can be adopted")
    rules = Rules.from_json(state.policies, local, is_foreign=True)
    if policy is not None:
        rules = replace(rules, policy=narrower(rules.policy, policy))
    policies = rules.to_json()
    if "budgets" in state.policies:  # the budgets of the sender's store must not remain
        policies["budgets"] = budgets_to_json(rules.budgets)
    changes = {"adopted": {"by": by}, "policies": policies}
    await journal.append(StateChanged(changes=changes), expected_head=state.head)
