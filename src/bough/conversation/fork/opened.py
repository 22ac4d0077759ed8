"""The fork of an open conversation: which agent and rules it has, and what its own object is made of."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, cast

from bough.agents.build import AgentBuilder, Blueprint
from bough.agents.spec import AgentSpec
from bough.conversation.agent import PLACES, blueprint_of
from bough.conversation.fork.fork import ForkContents, WrittenFork, write_fork
from bough.conversation.fork.request import CutPoint, ForkRequest
from bough.conversation.log.state import State
from bough.conversation.parts import Parts
from bough.conversation.rules import Rules, RulesInForce
from bough.conversation.skills import standing_events
from bough.errors import InvalidInput
from bough.execution.base import Isolation
from bough.guard import Secrets
from bough.guard.confirmation_policy import allows_change as allows_policy
from bough.guard.limits import allows_change as allows_limits
from bough.types import JsonObject


async def fork_opened(parts: Parts, request: ForkRequest) -> tuple[Parts, WrittenFork]:
    """Write the fork of an open conversation that has caught up. Returns its parts and what was written.

    Raises:
        See `AsyncConversation.fork`.
    """
    home = parts.environment.settings.home
    written = await write_fork(parts.journal, parts.record, request, home, partial(_decide, parts, request))
    fork = cast("WrittenFork", written)  # `_decide` refuses or decides
    rules = None if fork.contents is None else fork.contents.rules
    if rules is None:
        rules = _narrow_rules(parts, request, fork.journal.state)
    agent = _make_builder(parts, request, fork)
    in_force = RulesInForce(fork.journal.state, rules)
    fork_parts = replace(parts, journal=fork.journal, record=fork.record, agent=agent, rules=in_force)
    return fork_parts, fork


def _decide(parts: Parts, request: ForkRequest, cut: CutPoint, state: State) -> ForkContents:
    if request.workspace == "readonly" and parts.environment.executor.isolation == Isolation.NONE:
        raise InvalidInput(
            "scripts that run without a sandbox cannot be kept from writing",
            hint="run them in the sandbox, or fork with workspace=copy",
        )
    rules, present = _narrow_rules(parts, request, state), parts.journal.state
    policies = {"executor": parts.environment.executor.name, **rules.to_json()}
    agent, blueprint = present.agent, None
    is_new = request.agent is not None or not {"model", "system_prompt"}.isdisjoint(request.overrides)
    if is_new or cut.carried or agent != state.agent:
        blueprint = _build_blueprint(parts, request)
        blueprint.require_tools(state.calls[id].tool for id in cut.carried)
        agent = _describe_agent(parts, request, blueprint.spec)
    if blueprint is None or agent == state.agent:  # then the prompt stays as it was, to the byte
        instructions, standing = state.instructions, ()
    else:
        instructions, standing = blueprint.instructions, tuple(standing_events(blueprint.always_active))
    return ForkContents(
        agent=agent,
        instructions=instructions,
        policies=policies,
        standing=standing,
        rules=rules,
        blueprint=blueprint,
    )


def _narrow_rules(parts: Parts, request: ForkRequest, state: State) -> Rules:
    """Return the rules of a state and of the present, narrowed by what the fork asks for besides."""
    rules, present = parts.rules(), parts.journal.state
    if (state.policies, state.quarantined) != (present.policies, present.quarantined):
        rules = Rules.from_state(state, rules)
    if request.secrets == "none":
        rules = replace(rules, secrets=Secrets())
    if not (request.overrides and request.stricter_rules):
        return rules
    stricter = rules.override(request.stricter_rules)
    if not allows_policy(rules.policy, stricter.policy):
        raise _wider("confirmation policy")
    if not (allows_limits(rules.limits, stricter.limits) and allows_limits(rules.total, stricter.total)):
        raise _wider("limits")
    # `narrow`, although both checks passed: hooks, the analyzer and the allow-list of the source must stay as well.
    return replace(rules.narrow(stricter), secrets=rules.secrets)


def _find_spec(parts: Parts, request: ForkRequest) -> AgentSpec:
    changed = {name: value for name, value in request.overrides.items() if name in ("model", "system_prompt")}
    spec = request.agent or parts.agent.spec
    return spec.model_copy(update=changed) if changed else spec


def _build_blueprint(parts: Parts, request: ForkRequest) -> Blueprint:
    """Return the blueprint of a fork whose agent is another one than at the cut, or has to have certain tools."""
    spec, pool = _find_spec(parts, request), parts.environment.pool
    if request.agent is None:
        # No file of a skill is looked at again, nor the catalogue rendered: there may be thousands.
        return parts.agent.blueprint.for_conversation(
            spec, pool=pool, has_new_prompt="system_prompt" in request.overrides
        )
    state = parts.journal.state
    return blueprint_of(spec, state.workspace, parts.environment.settings, pool=pool, changed_rules=state.changed_rules)


def _make_builder(parts: Parts, request: ForkRequest, fork: WrittenFork) -> AgentBuilder:
    """Return the builder of the fork's agent, which shares what the source has built and builds nothing now."""
    spec, state = _find_spec(parts, request), fork.journal.state
    has_own_skills = fork.workspace.made is not None and spec.skills is None and spec.discover_skills
    if not has_own_skills and fork.contents is not None and fork.contents.blueprint is not None:
        return AgentBuilder.from_blueprint(fork.contents.blueprint)
    settings, pool = parts.environment.settings, parts.environment.pool
    if not has_own_skills and request.agent is None and parts.agent.is_built:
        shared = parts.agent.blueprint
        has_new_prompt = "system_prompt" in request.overrides
        return AgentBuilder(spec, lambda spec: shared.for_conversation(spec, pool=pool, has_new_prompt=has_new_prompt))

    # A shared folder has what tools of the source wrote since an earlier request made this fork.
    changed_rules = state.changed_rules | parts.journal.state.changed_rules

    def build(spec: AgentSpec) -> Blueprint:
        return blueprint_of(spec, state.workspace, settings, pool=pool, changed_rules=changed_rules)

    return AgentBuilder(spec, build)


def _describe_agent(parts: Parts, request: ForkRequest, spec: AgentSpec) -> JsonObject:
    """Return the record of the fork's agent.

    What an imported record says of addresses and paths stays recorded and unused: without its address, the model
    would be asked at the provider of that name.
    """
    snapshot, present = spec.snapshot(), parts.journal.state
    if not present.quarantined or request.agent is not None:
        return snapshot
    replaced = {"base_url"} if "model" in request.overrides else set[str]()
    replaced |= {"system_prompt_path"} if "system_prompt" in request.overrides else set()
    places: dict[str, Any] = {name: present.agent.get(name) for name in PLACES if name not in replaced}
    return snapshot | {name: value for name, value in places.items() if value}


def _wider(rule: str) -> InvalidInput:
    return InvalidInput(f"the {rule} of a fork can only be stricter than its source's", hint="start a new conversation")
