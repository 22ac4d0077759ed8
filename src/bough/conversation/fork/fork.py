"""Writes a fork from the recorded JSON of its source, which may be open or not.

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
    make_unfinished_path,
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
        skill_events: Events for the always-active skills in the instructions, if the instructions are new.
        rules: The rules as an object, if it was built.
        blueprint: The blueprint of the agent, if it was built.
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
    """A fork as it would be written.

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
        See `AsyncConversation.fork`. Errors that only occur during writing, such as a full disk, are not foreseen.
    """
    # Raises if the id belongs to another conversation. A fork that the same request wrote is planned again.
    if request.id is not None:
        await _find_fork(source, request)
    cut, journal = await find_cut(source, request.at, pending=request.pending, snap=request.snap)
    contents = decide(cut, journal.state)
    if contents is None:
        return None
    # Raises if the files at the cut were not kept.
    await _find_past_tree(source, journal.state, request)
    folder = _make_folder_path(home, request.id or new_id())
    # In the order of `write_fork`, so that both refuse a request for the same reason.
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
        settings: They give the home below which the fork's folder is made, and the bounds for kept files.
        file_store: The kept files of the store's workspaces; only needed for `copy` and `worktree`, and None if the
            store keeps none.

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
            _remove_with_store(source.store, _make_folder_path(home, id))
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
        # Waits even if cancelled: a cancelled write may still succeed, and then a row refers to the files.
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
            await workspace.remove()  # another caller wrote the row, which refers to the copy of that caller
            return await _open_existing(source, written, request, home)
        await finish_workspace(home, id, nonce)
        folder = _make_folder_path(home, id)
        workspace = replace(workspace, own_folder=folder)
        await _copy_grants(home, present.workspace, workspace.path, folder)
    # A caller that knows the id may have appended to the fork already, so its events are read from the store.
    journal = await journal.make_fork(id, masked if request.id is None else None)
    return WrittenFork(record=written, journal=journal, workspace=workspace, contents=contents)


def _make_import_events(
    present: State, cut: CutPoint, record: ConversationRecord, workspace: ForkedWorkspace
) -> list[Event]:
    """Return the event that marks the fork's events as imported, if the cut excludes that event of the source."""
    if present.import_seq is None or cut.at > present.import_seq:
        return []
    signer = record.config.get("signed_by")
    return [Imported(count=cut.at, signer=signer or None, workspace=str(workspace.path))]


def _make_kept_events(workspace: ForkedWorkspace, file_store: FileStore | None) -> list[Event]:
    """Return the event that names the files of a fork's folder, if the folder has the files at the cut."""
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
    """Return the workspace of a fork, and the nonce that is in the name of its folder until its row is written.

    The nonce is None if the fork shares the files of its source.

    Raises:
        Conflict: The folder of the fork exists.
    """
    if policy == "shared" or policy == "readonly":
        return ForkedWorkspace(source.workspace, _choose_policy(policy, source)), None
    folder, nonce = _make_folder_path(home, id), new_id().hex
    await _require_new_folder(folder)
    unfinished = make_unfinished_path(home, nonce)
    return await fork_workspace(policy, source.workspace, folder, unfinished=unfinished, past=past), nonce


def _remove_with_store(store: EventStore, folder: Path) -> None:
    """Have the folder of a fork removed with a temporary store, whose conversations nobody can open later."""
    add_folder: Callable[[Path], None] | None = getattr(store, "add_folder", None)
    if add_folder is not None:
        add_folder(folder)


def _choose_policy(policy: WorkspacePolicy, source: State) -> WorkspacePolicy:
    """Return the policy of a fork's files: a fork that shares read-only files is read-only too."""
    return "readonly" if policy == "shared" and source.workspace_policy == "readonly" else policy


def _make_folder_path(home: Path, id: UUID) -> Path:
    """Return the path of the folder that is made for a fork."""
    return home / "workspaces" / str(id)


async def _require_new_folder(folder: Path) -> None:
    """Check that the folder of a new fork does not exist.

    An existing folder has the files of another fork, perhaps of another tenant: a server keeps the folders of all
    tenants in one place.

    Raises:
        Conflict: The folder exists.
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

    Rules that were passed when the source was opened are not applied here, but when the fork is opened.

    Args:
        source: The log that is forked, read to its head. Its sealed secrets are not opened.
        record: The row of `source`.

    Returns:
        None, with nothing written, if `fork_opened` is needed: the fork changes agent, rules or secrets; calls are
        carried over; the workspace becomes read-only; agent or rules have changed between the cut and the head; or
        the source has imported events.

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
    """Return the function that takes a fork's contents from the log of its source; None if `fork_opened` is needed."""
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
    """Return a fork that an earlier call wrote. Moves the fork's folder to its final name if that call did not."""
    journal = Journal(source.store, record.id, secrets=source.secrets)
    await journal.catch_up()
    if (nonce := record.config.get(NONCE_KEY)) is not None:
        await finish_workspace(home, record.id, nonce)
    own_folder = None
    if journal.state.workspace_policy in OWN_FOLDER:
        own_folder = _make_folder_path(home, record.id)
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
    """Return the fork if it was written although `error` was raised. Removes its files if no row refers to them.

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
    """Return the changes of a fork's `StateChanged`: the whole state, so that the source may be erased later."""
    present, policies = source.state, contents.policies
    if state.policies.get("sealed") or present.policies.get("sealed"):
        # Not the state at a cut before an import: the sender of the log chose the secrets that it names.
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
    """Return a JSON value with the values of secrets masked, because whoever reads the log also reads the row."""
    return source.secrets.masker().json(value) if source.secrets.names else value


async def _copy_grants(home: Path, source: Path, workspace: Path, folder: Path) -> None:
    """Trust those skills of the fork's copy that are byte-identical to trusted skills of the source's folder."""
    from bough.skills import TrustStore

    try:
        await finish(asyncio.to_thread(TrustStore(home).copy_grants, source, workspace, within=folder))
    except (StoreError, OSError) as error:  # the fork is usable without them: it is written already
        _log.warning("the skills of %s are not trusted: %s", folder, error)
