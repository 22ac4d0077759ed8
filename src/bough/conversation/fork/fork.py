"""Making a fork: what the source and the cut demand, and what is written.

Source: seed 001, `Conversation.fork()`; the fourteen rules are in docs/concepts/fork.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import UUID

from bough.agents.build import Blueprint
from bough.agents.spec import AgentSpec
from bough.cancellation import finish
from bough.conversation.agent import PLACES, agent_changes, blueprint_of, make_carried_changes
from bough.conversation.fork.cut import CutPoint, find_cut
from bough.conversation.fork.inherited_rules import inherit_changed_rules
from bough.conversation.fork.model_key import keep_sealed
from bough.conversation.fork.request import ForkRequest
from bough.conversation.fork.workspace import (
    MADE,
    ForkedWorkspace,
    WorkspacePolicy,
    fork_workspace,
    name_making,
    settle_workspace,
)
from bough.conversation.log.journal import Journal, mask_events
from bough.conversation.log.state import State
from bough.conversation.parts import Parts
from bough.conversation.rules import Rules, limits_by_count
from bough.conversation.skills import standing_events
from bough.errors import Conflict, InvalidInput, NotFound, StoreError, Unavailable
from bough.events.model import Event, Imported, StateChanged
from bough.events.record import ConversationRecord
from bough.execution.base import Isolation
from bough.guard import Secrets
from bough.guard.confirmation_policy import allows_change as allows_policy
from bough.guard.limits import allows_change as allows_limits
from bough.skills import TrustStore
from bough.types import JsonObject, new_id

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Branch:
    """A fork that has been made, and the files that were made for it."""

    parts: Parts
    workspace: ForkedWorkspace


@dataclass(frozen=True, kw_only=True)
class Source:
    """The conversation that is forked; nothing here changes it."""

    parts: Parts

    async def branch(self, request: ForkRequest) -> Branch:
        """Make the fork, or return the one that the same request with the same id made before.

        Raises: see `AsyncConversation.fork`.
        """
        if request.id is not None and (there := await self._existing(request)) is not None:
            return await self._reopen(there, request)
        plan = await self._plan(request)
        home, nonce = self.parts.environment.settings.home, new_id().hex
        place, making = home / "workspaces" / str(plan.id), name_making(home, nonce)
        if plan.workspace in ("copy", "worktree") and await asyncio.to_thread(place.exists):
            # Files of somebody else: below the same folder a server has those of its tenants.
            raise Conflict(f"there is a folder for {plan.id} already", hint="fork with another id")
        workspace = await fork_workspace(plan.workspace, self.parts.journal.state.workspace, place, making=making)
        plan = replace(plan, nonce=nonce if workspace.made is not None else None)
        try:
            # A write that is cancelled may land all the same: whether the files have a row is known only at its end.
            record = await finish(self._write(plan, workspace))
        except BaseException as error:
            there = await self._find_written(plan, workspace, error)
            if there is None:
                raise
            record = there
        if plan.nonce is not None:
            if record.config.get(MADE) != nonce:
                await workspace.remove()  # its own copy alone: the row names the one that another caller made
                return await self._reopen(record, request)
            await settle_workspace(home, record.id, nonce)
            workspace = replace(workspace, made=place)
            await self._copy_grants(workspace.path, place)
            # Only now is there a copy to read skills from; the source's own may change from here on.
            plan = replace(plan, blueprint=self._blueprint(request, workspace.path))
        journal = await plan.journal.make_fork(record.id)
        parts = replace(self.parts, journal=journal, record=record, blueprint=plan.blueprint, rules=plan.rules)
        return Branch(parts=parts, workspace=workspace)

    async def _find_written(
        self, plan: _ForkPlan, workspace: ForkedWorkspace, error: BaseException
    ) -> ConversationRecord | None:
        """Return the fork where an error did not keep it from being written; else remove what was made for it.

        Where nobody can say, what was made stays: a row may name it.
        """
        try:
            there = await self.parts.journal.store.get(plan.id)
        except NotFound:
            there = None
        except (StoreError, Unavailable):
            raise error from None
        if there is None or there.config.get(MADE) != plan.nonce:
            await workspace.remove()
        if not isinstance(error, Exception) or there is None or plan.request.id is None:
            return None
        return await self._existing(plan.request)

    async def _existing(self, request: ForkRequest) -> ConversationRecord | None:
        """Return the fork that this very request made before.

        Raises:
            Conflict: The id is something else's.
        """
        assert request.id is not None  # noqa: S101 - asked with an id only
        try:
            there = await self.parts.journal.store.get(request.id)
        except NotFound:
            return None
        if there.forked_from != self.parts.journal.cid or there.lineage != self._mask(request.lineage()):
            raise Conflict(
                f"{request.id} is another conversation", hint="fork with another id, or with the same arguments"
            )
        return there

    async def _reopen(self, record: ConversationRecord, request: ForkRequest) -> Branch:
        journal = Journal(self.parts.journal.store, record.id, secrets=self.parts.journal.secrets)
        await journal.catch_up()
        home = self.parts.environment.settings.home
        if (nonce := record.config.get(MADE)) is not None:
            await settle_workspace(home, record.id, nonce)
        made = home / "workspaces" / str(record.id)
        own = journal.state.workspace_policy in ("copy", "worktree")
        workspace = ForkedWorkspace(journal.state.workspace, request.workspace, made if own else None)
        blueprint = self._blueprint(request, workspace.path if own else None, journal.state.changed_rules)
        rules = Rules.of_state(journal.state, self._rules(request, journal.state))
        parts = replace(self.parts, journal=journal, record=record, blueprint=blueprint, rules=rules)
        return Branch(parts=parts, workspace=workspace)

    async def _plan(self, request: ForkRequest) -> _ForkPlan:
        source = self.parts.journal
        cut, journal = await find_cut(source, request.at, pending=request.pending, snap=request.snap)
        blueprint = self._blueprint(request)
        blueprint.require_tools(journal.state.calls[id].tool for id in cut.carried)
        self._check_readonly(request)
        readonly = self.parts.journal.state.workspace_policy == "readonly" and request.workspace == "shared"
        return _ForkPlan(
            id=request.id or new_id(),
            request=request,
            head=source.durable,
            cut=cut,
            journal=journal,
            blueprint=blueprint,
            agent=self._snapshot(request, blueprint.spec),
            rules=self._rules(request, journal.state),
            workspace="readonly" if readonly else request.workspace,
            changed_rules=self.parts.journal.state.changed_rules - journal.state.changed_rules,
        )

    def _blueprint(
        self, request: ForkRequest, copy: Path | None = None, changed_rules: Collection[str] = ()
    ) -> Blueprint:
        """Return the blueprint of the fork's agent.

        Args:
            copy: The fork's own working folder, once there is one: it finds its skills there.
            changed_rules: Digests of rule files that the fork's own tools wrote.
        """
        changed = {name: value for name, value in request.overrides.items() if name in ("model", "system_prompt")}
        environment, blueprint = self.parts.environment, self.parts.blueprint
        spec = (request.agent or blueprint.spec).model_copy(update=changed)
        has_own_skills = copy is not None and spec.skills is None and spec.discover_skills
        if request.agent is None and not has_own_skills:
            # No file of a skill is looked at again, nor the catalogue rendered: there may be thousands.
            return blueprint.for_conversation(
                spec, pool=environment.pool, has_new_prompt="system_prompt" in request.overrides
            )
        state = self.parts.journal.state
        return blueprint_of(
            spec,
            copy or state.workspace,
            environment.settings,
            pool=environment.pool,
            changed_rules={*state.changed_rules, *changed_rules},
        )

    async def _copy_grants(self, workspace: Path, place: Path) -> None:
        """Trust the skills of the fork's copy that are, to the byte, those trusted in the source's folder."""
        trust, source = TrustStore(self.parts.environment.settings.home), self.parts.journal.state.workspace
        try:
            await finish(asyncio.to_thread(trust.copy_grants, source, workspace, within=place))
        except (StoreError, OSError) as error:  # the fork is written by now: its skills are merely not trusted
            _log.warning("the skills of %s are not trusted: %s", place, error)

    def _snapshot(self, request: ForkRequest, spec: AgentSpec) -> JsonObject:
        """Return the record of the fork's agent.

        What an imported record says of addresses and paths stays recorded and unused: without its address, the model
        would be asked at the provider of that name.
        """
        snapshot, present = spec.snapshot(), self.parts.journal.state
        if not present.quarantined or request.agent is not None:
            return snapshot
        replaced = {"base_url"} if "model" in request.overrides else set[str]()
        replaced |= {"system_prompt_path"} if "system_prompt" in request.overrides else set()
        return snapshot | {
            name: present.agent[name] for name in PLACES if name not in replaced and present.agent.get(name)
        }

    def _check_readonly(self, request: ForkRequest) -> None:
        if request.workspace == "readonly" and self.parts.environment.executor.isolation == Isolation.NONE:
            raise InvalidInput(
                "scripts that run without a sandbox cannot be kept from writing",
                hint="run them in the sandbox, or fork with workspace=copy",
            )

    def _rules(self, request: ForkRequest, at: State) -> Rules:
        """Return the rules of the cut and of the present, narrowed by what the fork asks for besides."""
        rules = Rules.of_state(at, self.parts.rules)
        asked = request.overrides
        if "confirmation_policy" in asked and not allows_policy(rules.policy, asked["confirmation_policy"]):
            raise _wider("confirmation policy")
        limits = limits_by_count(asked.get("limits"))
        run, total = limits.get("run", rules.limits), limits.get("conversation", rules.total)
        if not (allows_limits(rules.limits, run) and allows_limits(rules.total, total)):
            raise _wider("limits")
        stricter = Rules(
            policy=asked.get("confirmation_policy", rules.policy),
            analyzer=asked.get("security_analyzer", rules.analyzer),
            hooks=asked.get("hooks", rules.hooks),
            allow_list=asked.get("allow_list", rules.allow_list),
            limits=run,
            total=total,
        )
        secrets = rules.secrets if request.secrets == "reference" else Secrets()
        return replace(rules.narrow(stricter), secrets=secrets)

    async def _write(self, plan: _ForkPlan, workspace: ForkedWorkspace) -> ConversationRecord:
        request, state = plan.request, self.parts.journal.state
        if state.imported is not None and plan.cut.at <= state.imported:  # the cut leaves out that they are foreign
            signer = self.parts.record.config.get("signed_by")
            apart = Imported(count=plan.cut.at, signer=signer or None, workspace=str(workspace.path))
            plan = replace(plan, apart=(apart,))
        title = request.title if request.title is not None else state.title
        tags = (state.tags if request.inherit_tags else {}) | dict(request.tags or {})
        spec = plan.blueprint.spec
        config = {"agent": spec.name, "model": spec.model_name, "workspace": str(workspace.path)}
        config |= {} if plan.nonce is None else {MADE: plan.nonce}
        inherited = {key: value for key, value in self.parts.record.config.items() if key != MADE}
        mask = self._mask
        events = plan.events(self.parts.journal.cid, self._changes(plan, workspace, title, tags))
        return await self.parts.journal.store.fork(
            self.parts.journal.cid,
            at=plan.cut.at,
            id=plan.id,
            events=mask_events(self.parts.journal.secrets, events),
            title=mask(title),
            tags=mask(tags),
            config=mask(inherited | config | ({"ephemeral": True} if request.ephemeral else {})),
            lineage=mask(request.lineage()),
        )

    def _mask(self, value: Any) -> Any:
        """Return JSON without values of secrets: what is in the row is as public as what is in the log."""
        secrets = self.parts.journal.secrets
        return secrets.masker().json(value) if secrets.names else value

    def _changes(
        self, plan: _ForkPlan, workspace: ForkedWorkspace, title: str | None, tags: dict[str, str]
    ) -> JsonObject:
        """Return what the fork's log says of itself: all of it, so that erasing the source leaves it what it is."""
        policies = {"executor": self.parts.environment.executor.name, **plan.rules.to_json()}
        state, present = plan.journal.state, self.parts.journal.state
        if state.policies.get("sealed") or present.policies.get("sealed"):
            # Before the import the log names whatever secrets its sender chose.
            states = (present,) if plan.apart else (state, present)
            known = ((each.agent, each.policies) for each in states)
            policies["sealed"] = keep_sealed(plan.blueprint.spec, *known)
        changes: JsonObject = {"title": title, "tags": tags, "policies": policies}
        same = plan.agent == state.agent  # then the prompt stays as it was, to the byte
        recorded = {"agent": state.agent, "instructions": state.instructions}
        changes |= recorded if same else {**agent_changes(plan.blueprint), "agent": plan.agent}
        changes |= {"workspace": str(workspace.path), "workspace_policy": workspace.policy}
        return changes | make_carried_changes(state, plan.cut.carried)


@dataclass(frozen=True, kw_only=True)
class _ForkPlan:
    """A fork about to be written.

    Attributes:
        agent: The record of its agent.
        changed_rules: Digests of rule files that tools of its source wrote after the cut.
    """

    id: UUID
    request: ForkRequest
    head: int
    cut: CutPoint
    journal: Journal
    blueprint: Blueprint
    agent: JsonObject
    rules: Rules
    workspace: WorkspacePolicy
    changed_rules: frozenset[str] = frozenset()
    apart: tuple[Event, ...] = ()
    nonce: str | None = None

    def events(self, source: UUID, changes: JsonObject) -> list[Event]:
        """Return the fork's first own events."""
        forked = self.request.describe(source, self.cut, source_head=self.head, workspace=self.workspace)
        is_new = self.agent != self.journal.state.agent
        always = standing_events(self.blueprint.standing) if is_new else []
        # The fork works in the same folder, so it finds what tools wrote after the cut.
        inherited = inherit_changed_rules(self.changed_rules)
        return [forked, *self.cut.closing, *self.apart, *inherited, StateChanged(changes=changes), *always]


def _wider(what: str) -> InvalidInput:
    return InvalidInput(f"the {what} of a fork can only be stricter than its source's", hint="start a new conversation")
