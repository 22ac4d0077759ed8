"""A fork made of rows and state alone: no agent is built, and nothing of PydanticAI is imported."""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from bough.conversation.fork.cut import CutPoint, find_cut
from bough.conversation.fork.inherited_rules import inherit_changed_rules
from bough.conversation.fork.request import ForkRequest
from bough.conversation.fork.workspace import MADE, WorkspacePolicy, settle_workspace
from bough.conversation.log.journal import Journal
from bough.conversation.log.state import State
from bough.events.model import Event, StateChanged
from bough.events.record import ConversationRecord
from bough.events.store import EventStore
from bough.settings import Settings
from bough.types import JsonObject, new_id


class UnopenedFork(NamedTuple):
    """A fork that nobody has open, and the fold of its log."""

    record: ConversationRecord
    state: State


async def fork_unopened(store: EventStore, cid: UUID, request: ForkRequest, settings: Settings) -> UnopenedFork | None:
    """Fork a conversation as it is: the fork has its recorded agent, prompt and rules. Reads what `find_cut` reads.

    Args:
        request: With `pending` `close` or `drop`, and with nothing that a fork does otherwise than its source.

    Returns:
        None where rules or agent have changed between the cut and the head, or where some of it came from elsewhere:
        what then holds in the fork is for `AsyncConversation.fork` to say. Nothing was written.

    Raises: see `AsyncConversation.fork`.
    """
    record = await store.get(cid)
    if (nonce := record.config.get(MADE)) is not None:
        await settle_workspace(settings.home, cid, nonce)
    if await store.count_imported(cid):
        return None
    journal = Journal(store, cid)
    try:
        await journal.catch_up()
        if journal.state.imported is not None:
            return None
        cut, there = await find_cut(journal, request.at, pending=request.pending, snap=request.snap)
        state, present = there.state, journal.state
        if (state.agent, state.policies) != (present.agent, present.policies):
            return None
        return await _write(journal, record, request, cut, state.copy())
    finally:
        await journal.aclose()


async def _write(
    source: Journal, record: ConversationRecord, request: ForkRequest, cut: CutPoint, state: State
) -> UnopenedFork:
    """Write the fork, and fold its own events into `state`, the one at the cut."""
    present = source.state
    workspace: WorkspacePolicy = "readonly" if present.workspace_policy == "readonly" else "shared"
    title = request.title if request.title is not None else present.title
    tags = (present.tags if request.inherit_tags else {}) | dict(request.tags or {})
    # All of it is said, so that erasing the source leaves the fork what it is.
    changes: JsonObject = {"title": title, "tags": tags, "policies": state.policies, "agent": state.agent}
    changes |= {"instructions": state.instructions, "workspace": str(present.workspace), "workspace_policy": workspace}
    forked = request.describe(source.cid, cut, source_head=source.durable, workspace=workspace)
    inherited = inherit_changed_rules(present.changed_rules - state.changed_rules)
    events: list[Event] = [forked, *cut.closing, *inherited, StateChanged(changes=changes)]
    config = {key: value for key, value in record.config.items() if key != MADE}
    made = await source.store.fork(
        source.cid,
        at=cut.at,
        id=request.id or new_id(),
        events=events,
        title=title,
        tags=tags,
        config=config | {"workspace": str(present.workspace)},
        lineage=request.lineage(),
    )
    for seq, event in enumerate(events, cut.at):
        state.apply(seq, event)
    return UnopenedFork(made, state)
