"""Starts and opens conversations. After an error, nothing is written and no resource remains open."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, Unpack, cast
from uuid import UUID

from bough.agents.build import AgentBuilder, Blueprint, BlueprintCache
from bough.agents.delegation_protocol import Delegation
from bough.agents.spec import AgentSpec
from bough.connect.mcp_pool import McpPool
from bough.conversation.agent import (
    AgentLike,
    convert_agent,
    make_agent_changes,
    make_blueprint,
    read_recorded_spec,
    require_prices,
    resolve_spec_model,
    settle_spec,
    workspace_folder,
)
from bough.conversation.fork.workspace import finish_workspace
from bough.conversation.log.journal import Journal, mask_events
from bough.conversation.log.state import Fold
from bough.conversation.message import make_hook_events
from bough.conversation.parts import Environment, Parts, require_delegation
from bough.conversation.quarantine import quarantine
from bough.conversation.rules import GivenRules, Rules, RulesInForce
from bough.conversation.skills import make_always_active_events
from bough.errors import Conflict, InvalidInput, Unavailable
from bough.events.draft import check_tags, check_title, parse_id
from bough.events.model import ConversationStarted, Event, StateChanged
from bough.events.record import ConversationRecord
from bough.events.store import EventStore
from bough.execution.base import CodeExecutor
from bough.guard import Secrets
from bough.guard.budget import record_budgets
from bough.settings import Settings
from bough.types import JsonObject, new_id


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A new conversation that was validated but not written: its record, first event, blueprint and rules."""

    record: ConversationRecord
    started: ConversationStarted
    blueprint: Blueprint
    rules: Rules

    async def make_first_events(self, executor: str, rules: Rules) -> list[Event]:
        """Run the `SessionStart` hooks, and return the first events of the conversation."""
        policies = {"executor": executor, **self.started.policies}
        started = self.started.model_copy(update={"policies": policies})
        verdict = await rules.guard(self.record.id, Path(started.workspace)).on_start()
        return [started, *make_always_active_events(self.blueprint.always_active), *make_hook_events(verdict)]


@dataclass(frozen=True, kw_only=True)
class Beginning:
    """The arguments of a new conversation; see `AsyncConversation.create`."""

    agent: AgentLike | None
    workspace: str | Path
    id: UUID | None
    title: str | None
    tags: dict[str, str] = field(default_factory=dict[str, str])

    async def start(
        self,
        store: EventStore | str | None,
        executor: CodeExecutor | None,
        settings: Settings,
        rules: Rules,
        delegation: Delegation | None = None,
    ) -> Parts:
        """Start the conversation. Raises: see `AsyncConversation.create`."""
        prepared = self.prepare(settings, rules, pool=None if delegation is None else delegation.pool)
        spec, rules = prepared.blueprint.spec, prepared.rules
        require_delegation(spec, delegation)
        environment = await Environment.of(settings, store, executor or spec.executor, settings.executor, delegation)
        async with environment.close_on_failure():
            await rules.secrets.resolve()
            await record_budgets(environment.store, rules.budgets)
            events = await prepared.make_first_events(environment.executor.name, rules)
            record = _mask_record(rules.secrets, prepared.record)
            record = await environment.store.create(record, events=mask_events(rules.secrets, events))
            journal = Journal(environment.store, record.id, secrets=rules.secrets)
            await journal.catch_up()
        agent, in_force = AgentBuilder.from_blueprint(prepared.blueprint), RulesInForce(journal.state, rules)
        return Parts(journal=journal, record=record, agent=agent, environment=environment, rules=in_force)

    def prepare(
        self,
        settings: Settings,
        rules: Rules,
        *,
        pool: McpPool | None = None,
        cache: BlueprintCache | None = None,
        changed_rules: Collection[str] = (),
        settle_model: bool = True,
    ) -> Prepared:
        """Validate the arguments and return the conversation. Writes nothing and runs no hook.

        Args:
            settle_model: Whether an agent without a model gets one now. Otherwise the process that runs it chooses.
            pool: See `make_blueprint`, like `cache` and `changed_rules`.

        Raises: see `AsyncConversation.create`.
        """
        check_title(self.title)
        check_tags(self.tags)
        folder = workspace_folder(self.workspace)
        spec = convert_agent(self.agent)
        if settle_model or spec is None or spec.model is not None or settings.model is not None:
            spec = settle_spec(spec, settings)
        rules = rules.narrow_by_agent(spec).with_default_bounds()
        is_cost_limited = rules.limits.cost_usd is not None or any(budget.usd is not None for budget in rules.budgets)
        if is_cost_limited and spec.model is not None:  # checked again by each run
            model = resolve_spec_model(spec, settings)[0]
            require_prices(model, rules.limits, settings.prices, rules.budgets)
        blueprint = make_blueprint(spec, folder, settings, pool=pool, cache=cache, changed_rules=changed_rules)
        event = ConversationStarted(
            agent=spec.snapshot(),
            workspace=str(folder),
            instructions=blueprint.instructions,
            policies=rules.to_json(),
            title=self.title,
            tags=self.tags,
        )
        cid = new_id() if self.id is None else parse_id(self.id)
        return Prepared(record=self._make_record(cid, event, spec), started=event, blueprint=blueprint, rules=rules)

    def _make_record(self, cid: UUID, event: ConversationStarted, spec: AgentSpec) -> ConversationRecord:
        return ConversationRecord(
            id=cid,
            root=cid,
            title=self.title,
            tags=self.tags,
            config={"agent": spec.name, "model": spec.model_name, "workspace": event.workspace},
            created=event.ts,
            updated=event.ts,
        )


def _mask_record(secrets: Secrets, record: ConversationRecord) -> ConversationRecord:
    """Return a record with secrets masked in title, tags and config."""
    if not secrets.names:
        return record
    masked = secrets.masker().json({"title": record.title, "tags": record.tags, "config": record.config})
    return replace(record, **cast("JsonObject", masked))


async def create_or_open(
    new: Beginning,
    store: EventStore | str | None,
    executor: CodeExecutor | None,
    settings: Settings,
    delegation: Delegation | None = None,
    **given_rules: Unpack[GivenRules],
) -> Parts:
    """Start the conversation, or open it if its id exists. Raises: see `AsyncConversation.create`."""
    if new.id is None:
        raise InvalidInput("exist_ok needs the id of the conversation", hint="give id=…, or omit exist_ok")
    spec = convert_agent(new.agent)
    try:
        rules = Rules.build(settings, **given_rules)
        return await new.start(store, executor, settings, rules, delegation)
    except Conflict:
        # With its model chosen, as in the record; otherwise every agent would seem to differ from the recorded one.
        agent = None if spec is None else settle_spec(spec, settings)
        rules = Rules.build(settings, **given_rules).narrow_by_agent(spec)
        return await reopen(new.id, store, agent, executor, settings, rules, delegation)


class FoldedLog(NamedTuple):
    """A log that was read to its head, and the record of its conversation."""

    record: ConversationRecord
    journal: Journal


async def read_log(store: EventStore, cid: UUID, *, is_run: bool = False) -> FoldedLog:
    """Read a log up to its head, starting at a kept state if it is long.

    Args:
        is_run: Whether the conversation will be run. If so, the view for the model is built in the same pass.

    Raises:
        NotFound: The conversation does not exist.
        CorruptLog: An event does not match its kind.
    """
    fold = Fold()
    if is_run:
        from bough.conversation.log.view import View  # imports PydanticAI

        fold.view = View()
    record = await store.get(cid)
    journal = Journal(store, cid, fold=fold)
    await journal.catch_up(record.head)
    return FoldedLog(record, journal)


def make_read_only_error() -> Unavailable:
    """Return the error for writing to, or running, a conversation that was opened read-only."""
    return Unavailable("the conversation was opened read-only", hint="open it without read_only=True")


async def open_to_read(id: UUID | str, store: EventStore | str | None, settings: Settings, unused: JsonObject) -> Parts:
    """Open an existing conversation without its agent. Writes nothing. Raises: see `AsyncConversation.open`.

    Args:
        unused: Arguments of `open` that have no effect here. Any that is not None raises `InvalidInput`.
    """
    for name, value in unused.items():
        if value is not None:
            raise InvalidInput(f"{name}= has no effect with read_only=True", hint="omit one of the two")
    environment = await Environment.of(settings, store, None, settings.executor)
    async with environment.close_on_failure():
        cid = id if isinstance(id, UUID) else await environment.store.resolve(id)
        record, journal = await read_log(environment.store, cid)

        def refuse(spec: AgentSpec) -> Blueprint:
            raise make_read_only_error()

        agent = AgentBuilder(AgentSpec(name=str(journal.state.agent.get("name"))), refuse)
        rules = RulesInForce(journal.state, Rules.build(settings))
    return Parts(journal=journal, record=record, agent=agent, environment=environment, rules=rules, is_read_only=True)


async def reopen(
    id: UUID | str,
    store: EventStore | str | None,
    agent: AgentLike | None,
    executor: CodeExecutor | None,
    settings: Settings,
    given_rules: Rules,
    delegation: Delegation | None = None,
    workspace: str | Path | None = None,
    cache: BlueprintCache | None = None,
    log_state: FoldedLog | None = None,
    record_agent: bool = True,
) -> Parts:
    """Open an existing conversation. Raises: see `AsyncConversation.open`.

    Args:
        given_rules: The rules that the caller passed.
        cache: Builds the blueprint from parts shared with other conversations; None shares no parts.
        log_state: The log, if the caller has already read it.
        record_agent: Whether to record `agent` if it differs from the recorded one. False for an agent that was rebuilt
            from the record of an imported log, because it lacks the addresses and paths of that record.
    """
    environment = await Environment.of(settings, store, executor, settings.executor, delegation)
    async with environment.close_on_failure():
        cid = id if isinstance(id, UUID) else await environment.store.resolve(id)
        record, journal = log_state or await read_log(environment.store, cid)
        if (nonce := record.config.get("made")) is not None:
            await finish_workspace(settings.home, cid, nonce)  # in case the forking process was killed
        await given_rules.secrets.resolve()
        journal.secrets = given_rules.secrets
        await quarantine(journal, record, settings, workspace)
        state = journal.state
        given_spec = convert_agent(agent)
        given_rules = given_rules.narrow_by_agent(given_spec)
        rules = RulesInForce(state, given_rules)
        await record_budgets(environment.store, given_rules.budgets)
        rules()  # raises if recorded hooks or a recorded analyzer were not passed in
        spec = given_spec or read_recorded_spec(state)
        recorded = str(state.policies.get("executor", ""))
        environment.narrow(recorded, executor or spec.executor, is_foreign=state.quarantined)
        if state.quarantined:
            environment.require_sandbox()  # after `narrow`: arguments must not replace an imported log's sandbox
        folder, pool = workspace_folder(state.workspace), environment.pool

        def build(spec: AgentSpec) -> Blueprint:
            # Read when the agent is built: tools may have changed rule files since the opening.
            changed_rules = state.changed_rules
            return make_blueprint(spec, folder, settings, pool=pool, cache=cache, changed_rules=changed_rules)

        builder = AgentBuilder(spec, build)
        if record_agent and given_spec is not None and given_spec.snapshot() != state.agent:
            await journal.append(StateChanged(changes=make_agent_changes(builder.blueprint)))
    return Parts(journal=journal, record=record, agent=builder, environment=environment, rules=rules)
