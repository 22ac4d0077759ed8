"""Writing a fork: one function over the recorded JSON, for conversations that are open and for those that are not.

No agent is built here, and nothing of PydanticAI is imported.

Source: OpenHands `Conversation.fork`; the fourteen rules are in docs/concepts/fork.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import UUID

from bough.cancellation import finish
from bough.conversation.fork.model_key import keep_sealed
from bough.conversation.fork.request import CutPoint, ForkRequest, find_cut, make_carried_changes
from bough.conversation.fork.workspace import (
    MADE,
    ForkedWorkspace,
    WorkspacePolicy,
    fork_workspace,
    name_making,
    settle_workspace,
)
from bough.conversation.log.journal import Journal, mask_events
from bough.conversation.log.state import State, inherit_changed_rules
from bough.errors import Conflict, NotFound, StoreError, Unavailable
from bough.events.model import Event, Imported, StateChanged
from bough.events.record import ConversationRecord
from bough.events.store import EventStore
from bough.settings import Settings
from bough.types import JsonObject, new_id

if TYPE_CHECKING:
    from bough.agents.build import Blueprint
    from bough.conversation.rules import Rules

_log = logging.getLogger(__name__)
_OBJECT = "object:"


@dataclass(frozen=True, kw_only=True)
class ForkContents:
    """Which agent and rules a fork has: as recorded, and in memory where they were made there.

    Attributes:
        standing: Events of the always-active skills that new instructions hold.
    """

    agent: JsonObject
    instructions: str
    policies: JsonObject
    standing: tuple[Event, ...] = ()
    rules: Rules | None = None
    blueprint: Blueprint | None = None


Decide: TypeAlias = Callable[[CutPoint, State], ForkContents | None]
"""Returns what a fork has that is cut there, given the state at the cut; None: it cannot be written like this."""


@dataclass(frozen=True, kw_only=True)
class WrittenFork:
    """A fork that is in the log.

    Attributes:
        journal: The fold of its log.
        contents: None where the same request wrote it before.
    """

    record: ConversationRecord
    journal: Journal
    workspace: ForkedWorkspace
    contents: ForkContents | None = None

    @property
    def state(self) -> State:
        """The fold of its log."""
        return self.journal.state


async def write_fork(
    source: Journal, record: ConversationRecord, request: ForkRequest, home: Path, decide: Decide
) -> WrittenFork | None:
    """Write a fork, or return the one that the same request with the same id wrote before.

    Args:
        source: The conversation that is forked, caught up; nothing here changes it.
        record: Its row.

    Returns:
        None where `decide` does: nothing was written then.

    Raises:
        See `AsyncConversation.fork`.
    """
    if request.id is not None and (existing := await _find_fork(source, request)) is not None:
        return await _open_existing(source, existing, request, home)
    cut, journal = await find_cut(source, request.at, pending=request.pending, snap=request.snap)
    contents = decide(cut, journal.state)
    if contents is None:
        return None
    present, id = source.state, request.id or new_id()
    workspace, nonce = await _make_workspace(request.workspace, present, home, id)
    try:
        import_events: list[Event] = []
        if present.imported is not None and cut.at <= present.imported:  # the cut leaves out that they are foreign
            signer = record.config.get("signed_by")
            import_events = [Imported(count=cut.at, signer=signer or None, workspace=str(workspace.path))]
        changes = _describe_changes(
            source, request, cut, journal.state, contents, workspace, is_foreign=bool(import_events)
        )
        forked = request.describe(source.cid, cut, source_head=source.durable, workspace=workspace.policy)
        # The fork works in the same folder, so it finds what tools wrote after the cut.
        inherited = inherit_changed_rules(present.changed_rules - journal.state.changed_rules)
        events = [forked, *cut.closing, *import_events, *inherited, StateChanged(changes=changes), *contents.standing]
        masked = mask_events(source.secrets, events)
        row = _mask(
            source,
            {
                "title": changes["title"],
                "tags": changes["tags"],
                "config": _describe_row(record, request, contents.agent, workspace, nonce),
                "lineage": request.lineage(),
            },
        )
    except BaseException:
        await workspace.remove()  # no row names these files
        raise
    try:
        # A write that is cancelled may land all the same: whether the files have a row is known only at its end.
        written = await finish(
            source.store.fork(
                source.cid,
                at=cut.at,
                id=id,
                events=masked,
                **row,
            )
        )
    except BaseException as error:
        existing = await _find_written(source, id, request, workspace, nonce, error)
        if existing is None:
            raise
        written = existing
    if nonce is not None:
        if written.config.get(MADE) != nonce:
            await workspace.remove()  # its own copy alone: the row names the one that another caller made
            return await _open_existing(source, written, request, home)
        await settle_workspace(home, id, nonce)
        place = home / "workspaces" / str(id)
        workspace = replace(workspace, made=place)
        await _copy_grants(home, present.workspace, workspace.path, place)
    # With an id that a caller chose, another one may have written the fork, and to it.
    journal = await journal.make_fork(id, masked if request.id is None else None)
    return WrittenFork(record=written, journal=journal, workspace=workspace, contents=contents)


async def _make_workspace(
    policy: WorkspacePolicy, source: State, home: Path, id: UUID
) -> tuple[ForkedWorkspace, str | None]:
    """Return the workspace of a fork, and the nonce in the name of its files until its row is written.

    A fork that shares its source's files has no nonce; that of a read-only conversation is read-only too.

    Raises:
        Conflict: The folder of the fork exists.
    """
    if policy == "shared" or policy == "readonly":
        is_readonly = policy == "readonly" or source.workspace_policy == "readonly"
        return ForkedWorkspace(source.workspace, "readonly" if is_readonly else "shared"), None
    place, nonce = home / "workspaces" / str(id), new_id().hex
    if await asyncio.to_thread(place.exists):
        # Files of another fork: a server has those of all its tenants below this folder.
        raise Conflict(f"there is a folder for {id} already", hint="fork with another id")
    making = name_making(home, nonce)
    return await fork_workspace(policy, source.workspace, place, making=making), nonce


async def fork_unopened(store: EventStore, cid: UUID, request: ForkRequest, settings: Settings) -> WrittenFork | None:
    """Read a log as far as `find_cut` needs it, and fork it with `fork_as_recorded`."""
    record = await store.get(cid)
    journal = Journal(store, cid)
    try:
        await journal.catch_up()
        return await fork_as_recorded(journal, record, request, settings)
    finally:
        await journal.aclose()


async def fork_as_recorded(
    source: Journal, record: ConversationRecord, request: ForkRequest, settings: Settings
) -> WrittenFork | None:
    """Write a fork that has the recorded agent, prompt and rules of its source. Builds no agent and no rules.

    What narrows the source's rules when it is opened narrows those of the fork when the fork is opened.

    Args:
        source: The log that is forked, read to its head. The values of secrets sealed for it are not known here.
        record: Its row.

    Returns:
        None if the request or the log needs `fork_opened`, and nothing was written: the fork differs from its source
        in agent, rules or secrets; calls are carried over; scripts may no longer write; agent or rules have changed
        between the cut and the head; or some events were imported.

    Raises:
        See `AsyncConversation.fork`.
    """
    is_plain = request.agent is None and not request.overrides and request.secrets == "reference"
    if not is_plain or request.pending == "carry" or request.workspace == "readonly":
        return None
    if (nonce := record.config.get(MADE)) is not None:
        await settle_workspace(settings.home, source.cid, nonce)
    present = source.state
    if present.imported is not None or await source.store.count_imported(source.cid):
        return None

    def decide(_: CutPoint, state: State) -> ForkContents | None:
        if (state.agent, state.policies) != (present.agent, present.policies):
            return None
        return ForkContents(agent=state.agent, instructions=state.instructions, policies=state.policies)

    return await write_fork(source, record, request, settings.home, decide)


async def _find_fork(source: Journal, request: ForkRequest) -> ConversationRecord | None:
    """Return the fork that this very request wrote before.

    Raises:
        Conflict: The id is another conversation's.
    """
    assert request.id is not None  # noqa: S101 - called with an id only
    try:
        record = await source.store.get(request.id)
    except NotFound:
        return None
    if record.forked_from != source.cid or record.lineage != _mask(source, request.lineage()):
        raise Conflict(f"{request.id} is another conversation", hint="fork with another id, or with the same arguments")
    return record


async def _open_existing(source: Journal, record: ConversationRecord, request: ForkRequest, home: Path) -> WrittenFork:
    journal = Journal(source.store, record.id, secrets=source.secrets)
    await journal.catch_up()
    if (nonce := record.config.get(MADE)) is not None:
        await settle_workspace(home, record.id, nonce)
    is_own = journal.state.workspace_policy in ("copy", "worktree")
    own_folder = home / "workspaces" / str(record.id) if is_own else None
    workspace = ForkedWorkspace(journal.state.workspace, request.workspace, own_folder)
    return WrittenFork(record=record, journal=journal, workspace=workspace)


async def _find_written(
    source: Journal,
    id: UUID,
    request: ForkRequest,
    workspace: ForkedWorkspace,
    nonce: str | None,
    error: BaseException,
) -> ConversationRecord | None:
    """Return the fork where an error did not keep it from being written; else remove the files made for it.

    Where the store cannot answer, the files stay: a row may name them.
    """
    try:
        record = await source.store.get(id)
    except NotFound:
        record = None
    except (StoreError, Unavailable):
        raise error from None
    if record is None or record.config.get(MADE) != nonce:
        await workspace.remove()
    if not isinstance(error, Exception) or record is None or request.id is None:
        return None
    return await _find_fork(source, request)


def _describe_changes(
    source: Journal,
    request: ForkRequest,
    cut: CutPoint,
    state: State,
    contents: ForkContents,
    workspace: ForkedWorkspace,
    *,
    is_foreign: bool,
) -> JsonObject:
    """Return what the fork's log says of itself: all of it, so that erasing the source leaves it what it is."""
    present, policies = source.state, contents.policies
    if state.policies.get("sealed") or present.policies.get("sealed"):
        # Before the import the log names whatever secrets its sender chose.
        states = (present,) if is_foreign else (state, present)
        sealed = keep_sealed(contents.agent, *((state.agent, state.policies) for state in states))
        policies = policies | {"sealed": sealed}
    return {
        "title": request.title if request.title is not None else present.title,
        "tags": (present.tags if request.inherit_tags else {}) | dict(request.tags or {}),
        "policies": policies,
        "agent": contents.agent,
        "instructions": contents.instructions,
        "workspace": str(workspace.path),
        "workspace_policy": workspace.policy,
        **make_carried_changes(state, cut.carried),
    }


def _describe_row(
    record: ConversationRecord, request: ForkRequest, agent: JsonObject, workspace: ForkedWorkspace, nonce: str | None
) -> JsonObject:
    """Return the config of the fork's row."""
    model: str | None = agent.get("model")
    config = {key: value for key, value in record.config.items() if key != MADE}
    config["workspace"] = str(workspace.path)
    if agent:  # logs of adapters have none
        config["agent"] = agent.get("name")
        config["model"] = None if model is None else model.removeprefix(_OBJECT)
    config |= {} if nonce is None else {MADE: nonce}
    return config | ({"ephemeral": True} if request.ephemeral else {})


def _mask(source: Journal, value: Any) -> Any:
    """Return JSON without values of secrets: what is in the row is as public as what is in the log."""
    return source.secrets.masker().json(value) if source.secrets.names else value


async def _copy_grants(home: Path, source: Path, workspace: Path, place: Path) -> None:
    """Trust the skills of the fork's copy that are, to the byte, those trusted in the source's folder."""
    from bough.skills import TrustStore

    try:
        await finish(asyncio.to_thread(TrustStore(home).copy_grants, source, workspace, within=place))
    except (StoreError, OSError) as error:  # the fork is written by now: its skills are merely not trusted
        _log.warning("the skills of %s are not trusted: %s", place, error)
