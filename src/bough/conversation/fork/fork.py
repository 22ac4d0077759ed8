"""Writing a fork, from the recorded JSON of an open or unopened conversation.

This module builds no agent and does not import PydanticAI.

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
from bough.conversation.file_store import make_event, open_file_store, read_bounds
from bough.conversation.fork.files import KeptTree, PastFiles, find_tree
from bough.conversation.fork.model_key import keep_sealed
from bough.conversation.fork.request import CutPoint, ForkRequest, find_cut, make_carried_changes
from bough.conversation.fork.workspace import (
    NONCE_KEY,
    OWN_FOLDER,
    ForkedWorkspace,
    WorkspacePolicy,
    check_workspace,
    finish_workspace,
    fork_workspace,
    name_unfinished,
)
from bough.conversation.log.journal import Journal, mask_events
from bough.conversation.log.state import State, inherit_changed_rules
from bough.errors import Conflict, NotFound, StoreError, Unavailable
from bough.events.model import Event, Imported, StateChanged
from bough.events.record import ConversationRecord
from bough.events.store import EventStore
from bough.files import FileStore
from bough.settings import Settings
from bough.types import JsonObject, new_id

if TYPE_CHECKING:
    from bough.agents.build import Blueprint
    from bough.conversation.rules import Rules

_log = logging.getLogger(__name__)
_OBJECT = "object:"


@dataclass(frozen=True, kw_only=True)
class ForkContents:
    """The agent and the rules of a fork.

    Attributes:
        agent: The agent as recorded.
        policies: The rules as recorded.
        skill_events: Events of the always-active skills in the instructions, if the instructions are new.
        rules: The rules as an object, if one was built.
        blueprint: The blueprint of the agent, if one was built.
    """

    agent: JsonObject
    instructions: str
    policies: JsonObject
    skill_events: tuple[Event, ...] = ()
    rules: Rules | None = None
    blueprint: Blueprint | None = None


Decide: TypeAlias = Callable[[CutPoint, State], ForkContents | None]
"""Returns the contents of a fork, given its cut and the state there; None if `write_fork` cannot write this fork."""


@dataclass(frozen=True, kw_only=True)
class WrittenFork:
    """A fork that is in the store.

    Attributes:
        record: The row of the fork.
        journal: The journal of the fork's log.
        contents: None if an earlier identical request wrote the fork.
    """

    record: ConversationRecord
    journal: Journal
    workspace: ForkedWorkspace
    contents: ForkContents | None = None

    @property
    def state(self) -> State:
        """The state of the fork."""
        return self.journal.state


@dataclass(frozen=True, kw_only=True)
class ForkPlan:
    """A fork that could be written.

    Attributes:
        journal: The log of the source up to the cut.
        workspace: The folder of the fork's files; None if they would get a new folder.
        workspace_policy: The policy that the fork's files would have.
    """

    cut: CutPoint
    journal: Journal
    contents: ForkContents
    workspace: Path | None
    workspace_policy: WorkspacePolicy


async def plan_fork(source: Journal, request: ForkRequest, home: Path, decide: Decide) -> ForkPlan | None:
    """Return the fork that `write_fork` would write, after its checks. Writes nothing and makes no folder.

    Reads the size of a workspace that would be copied: O(its files).

    Returns:
        None if `decide` returns None.

    Raises:
        See `AsyncConversation.fork`. What only the writing can show, such as a full disk, is not checked.
    """
    # Raises if the id belongs to another conversation. A fork that the same request made is planned again.
    if request.id is not None:
        await _find_fork(source, request)
    cut, journal = await find_cut(source, request.at, pending=request.pending, snap=request.snap)
    contents = decide(cut, journal.state)
    if contents is None:
        return None
    # Raises if the files at the cut were not kept.
    await _find_past_tree(source, journal.state, request)
    folder = _name_folder(home, request.id or new_id())
    # The checks come in the order of `write_fork`, so that both refuse a request for the same reason.
    has_own_folder = request.workspace in OWN_FOLDER
    if has_own_folder:
        await _require_new_folder(folder)
    await asyncio.to_thread(check_workspace, request.workspace, source.state.workspace, folder)
    return ForkPlan(
        cut=cut,
        journal=journal,
        contents=contents,
        workspace=None if has_own_folder else source.state.workspace,
        workspace_policy=_choose_policy(request.workspace, source.state),
    )


async def write_fork(
    source: Journal,
    record: ConversationRecord,
    request: ForkRequest,
    settings: Settings,
    decide: Decide,
    *,
    file_store: FileStore | None,
) -> WrittenFork | None:
    """Write a fork, or return the fork that an earlier identical request with the same id wrote.

    Args:
        source: The conversation that is forked, caught up with its log. It is not changed.
        record: The row of `source`.
        settings: The home below which the fork's folder is made, and what is kept of files.
        file_store: The kept files of the store's workspaces, if it keeps any; only needed for `copy` and `worktree`.

    Returns:
        None, with nothing written, if `decide` returns None.

    Raises:
        See `AsyncConversation.fork`.
    """
    home = settings.home
    if request.id is not None:
        existing = await _find_fork(source, request)
        if existing is not None:
            return await _open_existing(source, existing, request, home)
    cut, journal = await find_cut(source, request.at, pending=request.pending, snap=request.snap)
    contents = decide(cut, journal.state)
    if contents is None:
        return None
    present, id = source.state, request.id or new_id()
    past_tree = await _find_past_tree(source, journal.state, request)
    past = None if past_tree is None else _open_past_files(past_tree, settings, file_store)
    workspace, nonce = await _make_workspace(request.workspace, present, home, id, past)
    try:
        if nonce is not None:
            _remove_with_store(source.store, _name_folder(home, id))
        import_events = _make_import_events(present, cut, record, workspace)
        changes = _describe_changes(
            source, request, cut, journal.state, contents, workspace, is_foreign=bool(import_events)
        )
        forked_from = request.describe(source.cid, cut, source_head=source.durable, workspace=workspace.policy)
        # The fork reads the present files, so it finds rule files that tools wrote after the cut.
        changed_rules = inherit_changed_rules(present.changed_rules - journal.state.changed_rules)
        events = [
            forked_from,
            *cut.closing,
            *import_events,
            *changed_rules,
            StateChanged(changes=changes),
            *contents.skill_events,
        ]
        events += _make_kept_events(workspace, file_store)
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
        await workspace.remove()  # no row refers to these files
        raise
    try:
        # A cancelled write may still succeed. Only when it has ended is it known whether a row refers to the files.
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
        if written.config.get(NONCE_KEY) != nonce:
            await workspace.remove()  # the copy of this call only: the row refers to the copy of another caller
            return await _open_existing(source, written, request, home)
        await finish_workspace(home, id, nonce)
        folder = _name_folder(home, id)
        workspace = replace(workspace, own_folder=folder)
        await _copy_grants(home, present.workspace, workspace.path, folder)
    # Given the id, another caller may have written the fork and appended to it.
    journal = await journal.make_fork(id, masked if request.id is None else None)
    return WrittenFork(record=written, journal=journal, workspace=workspace, contents=contents)


def _make_import_events(
    present: State, cut: CutPoint, record: ConversationRecord, workspace: ForkedWorkspace
) -> list[Event]:
    """Return the event that marks imported events, if the cut excludes the source's own one."""
    if present.import_seq is None or cut.at > present.import_seq:
        return []
    signer = record.config.get("signed_by")
    return [Imported(count=cut.at, signer=signer or None, workspace=str(workspace.path))]


def _make_kept_events(workspace: ForkedWorkspace, file_store: FileStore | None) -> list[Event]:
    """Return the event of the files that a fork's folder got, if they are those of the cut."""
    if file_store is None or workspace.looked is None:
        return []
    looked = replace(workspace.looked, before=None, added=0, changed=0, removed=0, paths=())
    return [make_event(looked, file_store, by="fork")]


async def _find_past_tree(source: Journal, state: State, request: ForkRequest) -> KeptTree | None:
    """Return the tree of the files that a fork's copy gets; None for the present files.

    Args:
        state: The state at the cut.

    Raises:
        NotFound: The files at the cut were not kept.
    """
    if request.workspace not in OWN_FOLDER or request.moment == "now" or state.head == source.durable:
        return None
    return await find_tree(source.store, source.cid, state, source.durable)


def _open_past_files(tree: KeptTree, settings: Settings, file_store: FileStore | None) -> PastFiles:
    if file_store is None:
        raise NotFound("this store keeps no files", hint="fork with moment=now for a copy of the present files")
    return PastFiles(file_store, read_bounds(settings), tree)


async def _make_workspace(
    policy: WorkspacePolicy, source: State, home: Path, id: UUID, past: PastFiles | None
) -> tuple[ForkedWorkspace, str | None]:
    """Return the workspace of a fork, and the nonce in the name of its folder until its row is written.

    The nonce is None if the fork shares its source's files. A fork of a read-only conversation that shares them is
    read-only too.

    Raises:
        Conflict: The folder of the fork exists.
    """
    if policy == "shared" or policy == "readonly":
        return ForkedWorkspace(source.workspace, _choose_policy(policy, source)), None
    folder, nonce = _name_folder(home, id), new_id().hex
    await _require_new_folder(folder)
    unfinished = name_unfinished(home, nonce)
    return await fork_workspace(policy, source.workspace, folder, unfinished=unfinished, past=past), nonce


def _remove_with_store(store: EventStore, folder: Path) -> None:
    """Have the folder of a fork removed with a temporary store, whose conversations nobody can open later."""
    add_folder: Callable[[Path], None] | None = getattr(store, "add_folder", None)
    if add_folder is not None:
        add_folder(folder)


def _choose_policy(policy: WorkspacePolicy, source: State) -> WorkspacePolicy:
    """Return the policy of a fork's files: a fork that shares read-only files is read-only too."""
    return "readonly" if policy == "shared" and source.workspace_policy == "readonly" else policy


def _name_folder(home: Path, id: UUID) -> Path:
    """Return the folder of a fork that has files of its own."""
    return home / "workspaces" / str(id)


async def _require_new_folder(folder: Path) -> None:
    """Check that the folder of a new fork does not exist.

    It would have the files of another fork, perhaps another tenant's: a server has those of all tenants in one place.

    Raises:
        Conflict: It exists.
    """
    if await asyncio.to_thread(folder.exists):
        raise Conflict(f"a folder for {folder.name} already exists", hint="fork with another id")


async def fork_unopened(store: EventStore, cid: UUID, request: ForkRequest, settings: Settings) -> WrittenFork | None:
    """Catch up with the log of an unopened conversation and fork it; see `fork_as_recorded`."""
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

    Rules given at the opening of the source are not applied here. They are applied when the fork is opened.

    Args:
        source: The log that is forked, read to its head. The values of secrets sealed for it are not known here.
        record: The row of `source`.

    Returns:
        None, with nothing written, if `fork_opened` is needed: the fork changes agent, rules or secrets; calls are
        carried over; the workspace becomes read-only; agent or rules have changed between the cut and the head; or
        some events were imported.

    Raises:
        See `AsyncConversation.fork`.
    """
    decide = await _decide_as_recorded(source, request)
    if decide is None:
        return None
    if (nonce := record.config.get(NONCE_KEY)) is not None:
        await finish_workspace(settings.home, source.cid, nonce)
    file_store = open_file_store(source.store, settings) if request.workspace in OWN_FOLDER else None
    try:
        return await write_fork(source, record, request, settings, decide, file_store=file_store)
    finally:
        if file_store is not None:
            await finish(asyncio.to_thread(file_store.close))


async def plan_as_recorded(source: Journal, request: ForkRequest, settings: Settings) -> ForkPlan | None:
    """Return the fork that `fork_as_recorded` would write; None where that returns None. Writes nothing.

    Raises:
        See `plan_fork`.
    """
    decide = await _decide_as_recorded(source, request)
    return None if decide is None else await plan_fork(source, request, settings.home, decide)


async def _decide_as_recorded(source: Journal, request: ForkRequest) -> Decide | None:
    """Return what decides the contents of a fork from the records of its source; None if `fork_opened` is needed."""
    is_plain = request.agent is None and not request.overrides and request.secrets == "reference"
    if not is_plain or request.pending == "carry" or request.workspace == "readonly":
        return None
    present = source.state
    if present.import_seq is not None or await source.store.count_imported(source.cid):
        return None

    def decide(_: CutPoint, state: State) -> ForkContents | None:
        if (state.agent, state.policies) != (present.agent, present.policies):
            return None
        return ForkContents(agent=state.agent, instructions=state.instructions, policies=state.policies)

    return decide


async def _find_fork(source: Journal, request: ForkRequest) -> ConversationRecord | None:
    """Return the fork that an earlier identical request wrote; None if the id is not in use.

    Raises:
        Conflict: The id belongs to another conversation, or to a fork of a different request.
    """
    assert request.id is not None  # noqa: S101 - only called with an id
    try:
        record = await source.store.get(request.id)
    except NotFound:
        return None
    if record.forked_from != source.cid or record.lineage != _mask(source, request.lineage()):
        raise Conflict(
            f"{request.id} belongs to another conversation", hint="fork with another id, or with the same arguments"
        )
    return record


async def _open_existing(source: Journal, record: ConversationRecord, request: ForkRequest, home: Path) -> WrittenFork:
    """Return a fork that an earlier call wrote, after it has moved the fork's folder to its final name."""
    journal = Journal(source.store, record.id, secrets=source.secrets)
    await journal.catch_up()
    if (nonce := record.config.get(NONCE_KEY)) is not None:
        await finish_workspace(home, record.id, nonce)
    own_folder = None
    if journal.state.workspace_policy in OWN_FOLDER:
        own_folder = _name_folder(home, record.id)
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
    """Return the fork if it was written in spite of an error. Removes the files made for it if no row refers to them.

    If the store cannot be read, the files remain, because a row may refer to them, and `error` is raised.
    """
    try:
        record = await source.store.get(id)
    except NotFound:
        record = None
    except (StoreError, Unavailable):
        raise error from None
    if record is None or record.config.get(NONCE_KEY) != nonce:
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
    """Return the `StateChanged` of a fork. It is complete, so that the fork does not change if its source is erased."""
    present, policies = source.state, contents.policies
    if state.policies.get("sealed") or present.policies.get("sealed"):
        # The part of the log before an import names secrets that its sender chose.
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
    config = {key: value for key, value in record.config.items() if key != NONCE_KEY}
    config["workspace"] = str(workspace.path)
    if agent:  # the logs of adapters have no agent
        config["agent"] = agent.get("name")
        config["model"] = None if model is None else model.removeprefix(_OBJECT)
    if nonce is not None:
        config[NONCE_KEY] = nonce
    if request.ephemeral:
        config["ephemeral"] = True
    return config


def _mask(source: Journal, value: Any) -> Any:
    """Return the JSON value with the values of secrets masked: the row is as public as the log."""
    return source.secrets.masker().json(value) if source.secrets.names else value


async def _copy_grants(home: Path, source: Path, workspace: Path, folder: Path) -> None:
    """Trust those skills of the fork's copy that are byte-identical to trusted skills of the source's folder."""
    from bough.skills import TrustStore

    try:
        await finish(asyncio.to_thread(TrustStore(home).copy_grants, source, workspace, within=folder))
    except (StoreError, OSError) as error:  # the fork is written: only its skills are not trusted
        _log.warning("the skills of %s are not trusted: %s", folder, error)
