"""The operations behind the routes of conversations, through the same calls as a user of the library."""

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
from bough.conversation.open import FoundLog, reopen
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
"""Maximum age of the skills and their trust for a message, since discovery reads many folders. A run, and a
fork that renders its prompt, discover them again."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """A request to start a conversation, in any form of body.

    Attributes:
        task: The options of the task that runs it, as in `Runs.start`.
        secrets: Values by name, the model's key as `$model`; stored encrypted.
        about: Stored in its row: the form, the posted agent, the digest of the request.
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


async def existing(access: Access, id: UUID | None, digest: str) -> ConversationRecord | None:
    """Return the conversation that the same request created earlier.

    Raises:
        Conflict: The id belongs to something else.
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
    key = new.secrets.get(MODEL_KEY)
    with services.workspaces.making(new.workspace):
        conversation = await AsyncConversation.create(
            new.agent if key is None else new.agent.model_copy(update={"api_key": key}),
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
    """Send a message; with `run`, have it answered. In one transaction: if any part is refused, nothing is written.

    Args:
        submission: The options of the task that answers it, as in `Runs.start`.

    Raises:
        Stale: The head is not the expected one.
        LimitExceeded: The tenant has the maximum number of runs.
        PermissionDenied: A hook refused it.
        TooLarge: It is longer than a message may be.
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
        TooLarge: It is longer than a message may be.
    """
    bound = access.services.server.message_bytes
    if sum(len(part.model_dump_json()) for part in message.content) > bound:
        raise TooLarge(f"the message is longer than {bound} bytes", hint="upload it as a file and name that")


def stamp(access: Access, message: UserMessage) -> UserMessage:
    """Return a message with the current time: times in a log follow its order, and clients sort by them."""
    return message.model_copy(update={"ts": access.services.clock.now()})


@asynccontextmanager
async def open_conversation(
    access: Access, conversation: UUID | ConversationRecord
) -> AsyncGenerator[AsyncConversation]:
    """Yield the opened conversation, and close it after the block.

    Args:
        conversation: Its id, or its record if that was just read.

    Raises:
        NotFound: It is not there, or another tenant's.
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
        NotFound: It is not there, or another tenant's.
        LimitExceeded: The tenant or the key has used up the quota of the day.
        PermissionDenied: Its model needs a key of the operator, which the tenant may not use.
    """
    services = access.services
    await services.quotas.require(services.store, access.caller)
    owner = access.caller.owner
    async with open_conversation(_charge_caller(access), id) as conversation:
        # Not the agent's `api_key`: that of a registered agent is the operator's.
        posted = await services.sealed.values(owner, conversation.state.policies)
        services.rules.require_own_model_key(owner, conversation.agent.model_name, has_key=MODEL_KEY in posted)
        yield conversation


def _charge_caller(access: Access) -> Access:
    """Return an access that charges the caller's key for questions to the model, if keys have quotas."""
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
        agent: Replaces its agent, which is then not looked up. Not recorded in the log.
        skills_seconds: Maximum age of the skills and of their trust.

    Raises:
        Unavailable: A secret cannot be decrypted.
        PermissionDenied: Its workspace has become a link out of the tenant's folder.
    """
    settings, rules = services.settings, read_settings_rules(services.settings)
    services.rules.require_workspace(record.owner, state.workspace)
    values = await services.sealed.values(record.owner, state.policies)
    if values:
        rules["secrets"] = make_secrets(values)
    agent = agent or _agent_in_use(services, state, values)
    broker = services.runs.broker.delegation_for(store)
    return await reopen(
        record.id, store, agent, None, settings, Rules.build(settings, **rules), broker,
        cache=services.runs.broker.worker.blueprints.recheck_every(skills_seconds),
        found=FoundLog(record, Journal(store, record.id, fold=Fold(state.copy()))), record_agent=False,
    )  # fmt: skip


async def count_shown_chars(access: Access, record: ConversationRecord, state: State) -> int:
    """Return the maximum length of a result that a conversation's model sees, in characters.

    Raises:
        Unavailable: The key of its model cannot be decrypted.
    """
    services = access.services
    values = await services.sealed.values(record.owner, state.policies)
    agent = _agent_in_use(services, state, values)
    return result_chars(agent.result_tokens, resolve_spec_model(agent, services.settings)[0])


def _agent_in_use(services: Services, state: State, sealed: Mapping[str, str]) -> AgentSpec:
    """Return the agent of a conversation, with its decrypted model key."""
    agent, key = services.agents.read_recorded(state), sealed.get(MODEL_KEY)
    return agent if key is None else agent.model_copy(update={"api_key": key})


async def info(access: Access, id: UUID) -> ConversationInfo:
    """Return the document of a conversation.

    Raises:
        NotFound: It is not there, or another tenant's.
    """
    return await info_of_record(access, await access.store.get(id))


async def info_of_record(access: Access, record: ConversationRecord) -> ConversationInfo:
    """Return the document of a conversation whose row was read."""
    return await _make_info(access, record, await access.services.runs.latest(record.id))


async def info_of_new(access: Access, record: ConversationRecord, state: State) -> ConversationInfo:
    """Return the document of a conversation that was just written, with its fold. It has no run yet."""
    return build_info(record, state, await read_details(access.store, record, state), run=None)


async def _make_info(access: Access, record: ConversationRecord, run: RunInfo | None) -> ConversationInfo:
    states = access.services.states
    state = await states.state_of(record)
    details = await states.derive(record.id, state.head, lambda: read_details(access.store, record, state))
    return build_info(record, state, details, run=run)


class Snapshot(NamedTuple):
    """Everything that the document of a conversation is made of, read in one snapshot.

    Attributes:
        erased: The erasures in its log and in logs that it shares events with.
        run: Its latest run.
    """

    record: ConversationRecord
    erased: str
    run: RunInfo | None


async def read_snapshot(access: Access, id: UUID) -> Snapshot:
    """Read everything that the document of a conversation is made of, in one access to the store.

    Raises:
        NotFound: It is not there, or another tenant's.
    """

    def look(tables: Tables) -> Snapshot:
        record = tables.get(id)
        mark = tables.one("snapshot.log", id=id)
        return Snapshot(record, "" if mark is None else mark[1], read_latest_run(tables, record.number))

    try:
        snapshot = await access.services.store.transaction((SNAPSHOT, TASKS), look, read_only=True, small=True)
    except NotFound:
        raise make_missing(id) from None
    if snapshot.record.owner != access.store.owner:
        raise make_missing(id)
    return snapshot


async def make_document(access: Access, snapshot: Snapshot) -> bytes:
    """Return the document of a conversation as JSON, the cached one if nothing that it is made of has changed."""
    states, record = access.services.states, snapshot.record
    document = states.find_document(record.id, snapshot)
    if document is None:
        new_info = await _make_info(access, record, snapshot.run)
        document = new_info.__pydantic_serializer__.to_json(new_info)
        states.keep_document(record.id, snapshot, document)
    return document


_WAITING = "waiting_for_confirmation"


async def read_details(store: OwnedStore, record: ConversationRecord, state: State) -> InfoDetails:
    """Return the details of a conversation that are in events. No statement without skills, tasks and waiting calls."""
    triggered: dict[str, None] = {}
    invoked: dict[str, None] = {}
    children: dict[UUID, None] = {}
    kinds = (["SkillActivated"] if state.active_skills else []) + (["TaskLinked"] if _has_tasks(state) else [])
    if kinds:
        async for stored in store.read(record.id, kinds=kinds):
            event = stored.event
            if isinstance(event, SkillActivated) and event.trigger != "always":
                (invoked if event.trigger == "tool" else triggered)[event.name] = None
            # Tasks started before the fork are children of the source.
            if isinstance(event, TaskLinked) and event.conversation is not None and stored.seq >= state.base:
                children[event.conversation] = None
    return InfoDetails(
        triggered=tuple(sorted(triggered)),
        invoked=tuple(sorted(invoked)),
        children=tuple(children),
        waiting_since=await find_waiting_since(store, record) if state.waiting else None,
    )


async def find_waiting_since(store: OwnedStore, record: ConversationRecord) -> datetime:
    """Return when a waiting conversation started to wait. O(changes of state since)."""
    async for stored in store.read(record.id, kinds=("StateChanged",), reverse=True):
        if stored.as_json().get("changes", {}).get("status") == _WAITING:
            return stored.ts
    return record.updated


def _has_tasks(state: State) -> bool:
    return bool(state.tasks or state.delegated.requests)
