"""Find, open and change conversations for the routes; recognise a create or fork sent before (`find_existing`)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

from bough.agents.spec import AgentSpec
from bough.conversation import AsyncConversation, State
from bough.conversation.agent import resolve_spec_model
from bough.conversation.log.journal import Journal
from bough.conversation.log.kept_states import SNAPSHOT
from bough.conversation.log.state import Fold
from bough.conversation.log.tool_result import result_chars
from bough.conversation.open import FoldedLog, reopen
from bough.conversation.parts import Parts
from bough.conversation.rules import GivenRules, Rules, read_settings_rules
from bough.errors import Conflict, NotFound, TooLarge
from bough.events.model import SkillActivated, TaskLinked, UserMessage
from bough.events.record import ConversationRecord
from bough.events.side_tables import Tables
from bough.events.store import EventStore
from bough.server.access import Access
from bough.server.auth.owned import OwnedStore, make_missing, make_taken
from bough.server.auth.sealed import MODEL_KEY, check_values, make_secrets
from bough.server.bodies.info import ConversationInfo, InfoDetails, RunInfo, build_info
from bough.server.bounds.etag import stale
from bough.server.runs import read_latest_run
from bough.server.services import Services
from bough.tasks.stores.relational import TASKS
from bough.types import JsonObject

_SKILLS_SECONDS = 1.0
"""Maximum age of the cached skills and of their trust when a message is sent, because discovery reads many folders.
A run always discovers them again, and so does a fork that renders its prompt."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """A request to start a conversation, in any form of body.

    Attributes:
        task: Options of the task that runs the conversation, as in `Runs.start`.
        secrets: Values by name, with the model's key under `$model`; stored encrypted.
        about: Metadata stored in the conversation's row: the form, the posted agent, the digest of the request.
    """

    id: UUID
    agent: AgentSpec
    workspace: Path
    title: str | None = None
    tags: dict[str, str] = field(default_factory=dict[str, str])
    rules: GivenRules = field(default_factory=GivenRules)
    message: UserMessage | None = None
    run: bool = False
    task: JsonObject = field(default_factory=dict[str, Any])
    secrets: dict[str, str] = field(default_factory=dict[str, str], repr=False)
    about: JsonObject = field(default_factory=dict[str, Any])


async def find_existing(access: Access, id: UUID | None, digest: str) -> ConversationRecord | None:
    """Return the conversation with this id if the same request created it earlier; None if the id is new.

    Args:
        digest: The digest of the request's body.

    Raises:
        Conflict: Another request used the id.
    """
    if id is None:
        return None
    try:
        record = await access.store.get(id)
    except NotFound:
        return None
    if record.config.get("request") != digest:
        raise make_taken()
    return record


async def start(access: Access, new: Start) -> ConversationRecord:
    """Start a conversation and send its first message; durable on return.

    Raises:
        Conflict: The id is taken.
    """
    services = access.services
    check_values(new.secrets)
    await services.agents.require_address(access.caller, new.agent.base_url, has_key=MODEL_KEY in new.secrets)
    rules: GivenRules = {**read_settings_rules(services.settings), **new.rules, "secrets": make_secrets(new.secrets)}
    store = access.store.with_metadata(new.about)
    model_key = new.secrets.get(MODEL_KEY)
    with services.workspaces.creating(new.workspace):
        conversation = await AsyncConversation.create(
            new.agent if model_key is None else new.agent.model_copy(update={"api_key": model_key}),
            workspace=new.workspace,
            store=store,
            id=new.id,
            title=new.title,
            tags=new.tags,
            settings=services.settings,
            broker=services.runs.broker.delegation_for(store),
            **rules,
        )
    async with conversation:
        await services.states.add(new.id, conversation.state)
        if new.secrets:
            await services.sealed.put(await access.store.get(new.id), conversation.state.policies, new.secrets)
        if new.message is not None:
            await say(access, conversation, new.message, run=new.run, **new.task)
        elif new.run:
            await services.runs.start(access.caller, new.id)
    return await access.store.get(new.id)


async def say(
    access: Access,
    conversation: AsyncConversation,
    message: UserMessage,
    *,
    run: bool,
    expected_head: int | None = None,
    **submission: Any,
) -> None:
    """Send a message and, with `run`, submit a task that answers it, in one transaction.

    If the message or the task is refused, nothing is written.

    Args:
        expected_head: The head that the log must have; None accepts any.
        submission: Options of the task, as in `Runs.start`.

    Raises:
        Stale: The head is not the expected one.
        LimitExceeded: The tenant has the maximum number of runs.
        PermissionDenied: A hook refused the message.
        TooLarge: The message is longer than `server.message_bytes`.
    """
    require_short(access, message)
    events = await conversation.prepare_message(stamp(access, message))
    try:
        await access.services.runs.say(
            conversation.id,
            events,
            caller=access.caller,
            run=run,
            expected_head=expected_head,
            state=conversation.state,
            **submission,
        )
    except Conflict:
        head = (await access.store.get(conversation.id)).head
        if expected_head is not None and head != expected_head:
            raise stale(head) from None
        raise


def require_short(access: Access, message: UserMessage) -> None:
    """Check the length of a message.

    Raises:
        TooLarge: The message is longer than `server.message_bytes`.
    """
    max_bytes = access.services.server.message_bytes
    if sum(len(part.model_dump_json()) for part in message.content) > max_bytes:
        raise TooLarge(f"the message is longer than {max_bytes} bytes", hint="upload it as a file and name the file")


def stamp(access: Access, message: UserMessage) -> UserMessage:
    """Return the message with the current time: clients sort by times, so those of a log must follow its order."""
    return message.model_copy(update={"ts": access.services.clock.now()})


@asynccontextmanager
async def open_conversation(
    access: Access, conversation: UUID | ConversationRecord
) -> AsyncGenerator[AsyncConversation]:
    """Yield the opened conversation, and close it after the block.

    Args:
        conversation: The id, or the record if the caller has just read it.

    Raises:
        NotFound: The conversation does not exist, or belongs to another tenant.
    """
    record = conversation if isinstance(conversation, ConversationRecord) else await access.store.get(conversation)
    state = await access.services.states.state_of(record)
    parts = await reopen_parts(access.services, access.store, record, state)
    async with AsyncConversation(parts) as opened:
        yield opened


@asynccontextmanager
async def open_to_ask(access: Access, id: UUID) -> AsyncGenerator[AsyncConversation]:
    """Yield the opened conversation for a request that asks its model outside of a run.

    Raises:
        NotFound: The conversation does not exist, or belongs to another tenant.
        LimitExceeded: The tenant or the key has used up its daily quota.
        PermissionDenied: The model needs the operator's key, which the tenant may not use.
    """
    services = access.services
    await services.quotas.require(services.store, access.caller)
    owner = access.caller.owner
    async with open_conversation(_charge_caller(access), id) as conversation:
        # The agent's `api_key` does not count: for a registered agent it is the operator's.
        secrets = await services.sealed.values(owner, conversation.state.policies)
        services.rules.require_own_model_key(owner, conversation.agent.model_name, has_key=MODEL_KEY in secrets)
        yield conversation


def _charge_caller(access: Access) -> Access:
    """Return an access that charges model requests to the caller's key, if the tenant's keys have quotas."""
    key, quotas = access.caller.key, access.services.quotas
    if key is None or not quotas.bounds_keys(access.caller.owner):
        return access
    return replace(access, store=access.store.with_charge(partial(quotas.charge_key, key)))


async def reopen_parts(
    services: Services,
    store: EventStore,
    record: ConversationRecord,
    state: State,
    *,
    agent: AgentSpec | None = None,
    skills_seconds: float = _SKILLS_SECONDS,
) -> Parts:
    """Return the parts of a conversation, with its decrypted secrets and model key.

    Args:
        agent: Used instead of the recorded agent. The replacement is not recorded in the log.
        skills_seconds: Maximum age of the cached skills and of their trust.

    Raises:
        Unavailable: A secret cannot be decrypted.
        PermissionDenied: The workspace has become a link that leaves the tenant's folder.
    """
    settings, rules = services.settings, read_settings_rules(services.settings)
    services.rules.require_workspace(record.owner, state.workspace)
    secrets = await services.sealed.values(record.owner, state.policies)
    if secrets:
        rules["secrets"] = make_secrets(secrets)
    agent = agent or _read_agent(services, state, secrets)
    broker = services.runs.broker.delegation_for(store)
    return await reopen(
        record.id, store, agent, executor=None, settings=settings, given_rules=Rules.build(settings, **rules),
        delegation=broker, cache=services.runs.broker.worker.blueprints.recheck_every(skills_seconds),
        log_state=FoldedLog(record, Journal(store, record.id, fold=Fold(state.copy()))), record_agent=False,
    )  # fmt: skip


async def find_max_result_chars(access: Access, record: ConversationRecord, state: State) -> int:
    """Return the maximum number of characters of a tool result that the conversation's model sees.

    Raises:
        Unavailable: The key of the model cannot be decrypted.
    """
    services = access.services
    secrets = await services.sealed.values(record.owner, state.policies)
    agent = _read_agent(services, state, secrets)
    return result_chars(agent.result_tokens, resolve_spec_model(agent, services.settings)[0])


def _read_agent(services: Services, state: State, secrets: Mapping[str, str]) -> AgentSpec:
    """Return the recorded agent of a conversation, with the model key from its decrypted secrets."""
    agent = services.agents.read_recorded(state)
    model_key = secrets.get(MODEL_KEY)
    return agent if model_key is None else agent.model_copy(update={"api_key": model_key})


async def info(access: Access, id: UUID) -> ConversationInfo:
    """Return the document of a conversation.

    Raises:
        NotFound: The conversation does not exist, or belongs to another tenant.
    """
    return await info_of_record(access, await access.store.get(id))


async def info_of_record(access: Access, record: ConversationRecord) -> ConversationInfo:
    """Return the document of a conversation whose row the caller has read."""
    return await _make_info(access, record, await access.services.runs.latest(record.id))


async def info_of_new(access: Access, record: ConversationRecord, state: State) -> ConversationInfo:
    """Return the document of a conversation that was just written and has no run yet; `state` is its fold."""
    return build_info(record, state, await read_details(access.store, record, state), run=None)


async def _make_info(access: Access, record: ConversationRecord, run: RunInfo | None) -> ConversationInfo:
    states = access.services.states
    state = await states.state_of(record)
    details = await states.derive(record.id, state.head, lambda: read_details(access.store, record, state))
    return build_info(record, state, details, run=run)


class Snapshot(NamedTuple):
    """The inputs of a conversation's document, read in one transaction.

    Attributes:
        erased: Changes with each erasure in the log, or in a log that shares events with it.
        run: The latest run.
    """

    record: ConversationRecord
    erased: str
    run: RunInfo | None


async def read_snapshot(access: Access, id: UUID) -> Snapshot:
    """Read the inputs of a conversation's document in one transaction.

    Raises:
        NotFound: The conversation does not exist, or belongs to another tenant.
    """

    def read(tables: Tables) -> Snapshot:
        record = tables.get(id)
        _, erased = tables.one("snapshot.log", id=id) or (None, "")
        return Snapshot(record, erased, read_latest_run(tables, record.number))

    try:
        snapshot = await access.services.store.transaction((SNAPSHOT, TASKS), read, read_only=True, small=True)
    except NotFound:
        raise make_missing(id) from None
    if snapshot.record.owner != access.store.owner:
        raise make_missing(id)
    return snapshot


async def make_document(access: Access, snapshot: Snapshot) -> bytes:
    """Return the document of a conversation as JSON. It is cached until one of its inputs changes."""
    states, record = access.services.states, snapshot.record
    document = states.find_document(record.id, snapshot)
    if document is None:
        new_info = await _make_info(access, record, snapshot.run)
        document = new_info.__pydantic_serializer__.to_json(new_info)
        states.keep_document(record.id, snapshot, document)
    return document


_WAITING = "waiting_for_confirmation"


async def read_details(store: OwnedStore, record: ConversationRecord, state: State) -> InfoDetails:
    """Return the details of a conversation that only its events contain.

    Without active skills, tasks and waiting calls, no SQL statement is run.
    """
    triggered: set[str] = set()
    invoked: set[str] = set()
    children: dict[UUID, None] = {}  # in the order of the log
    kinds: list[str] = []
    if state.active_skills:
        kinds.append("SkillActivated")
    if state.tasks or state.delegated.requests:
        kinds.append("TaskLinked")
    if kinds:
        async for stored in store.read(record.id, kinds=kinds):
            event = stored.event
            if isinstance(event, SkillActivated) and event.trigger != "always":
                names = invoked if event.trigger == "tool" else triggered
                names.add(event.name)
            # Tasks that were started before the fork are children of the source.
            if isinstance(event, TaskLinked) and event.conversation is not None and stored.seq >= state.base:
                children[event.conversation] = None
    return InfoDetails(
        triggered=tuple(sorted(triggered)),
        invoked=tuple(sorted(invoked)),
        children=tuple(children),
        waiting_since=await find_waiting_since(store, record) if state.waiting else None,
    )


async def find_waiting_since(store: OwnedStore, record: ConversationRecord) -> datetime:
    """Return when a waiting conversation started to wait. O(state changes since then)."""
    async for stored in store.read(record.id, kinds=("StateChanged",), reverse=True):
        if stored.as_json().get("changes", {}).get("status") == _WAITING:
            return stored.ts
    return record.updated
