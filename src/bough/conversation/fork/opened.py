"""Forking an open conversation: the agent, the rules and the parts of the fork."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, cast

from bough.agents.build import AgentBuilder, Blueprint
from bough.agents.spec import AgentSpec
from bough.conversation.agent import LOCATION_FIELDS, make_blueprint
from bough.conversation.fork.fork import ForkContents, ForkPlan, WrittenFork, plan_fork, write_fork
from bough.conversation.fork.request import CutPoint, ForkRequest
from bough.conversation.fork.workspace import OWN_FOLDER
from bough.conversation.log.recorded_tools import POLICY, RecordedTools
from bough.conversation.log.state import State
from bough.conversation.parts import Parts
from bough.conversation.rules import Rules, RulesInForce
from bough.conversation.skills import make_always_active_events
from bough.errors import Conflict, InvalidInput
from bough.execution.base import Isolation
from bough.guard import Secrets
from bough.guard.budget import budgets_to_json, check_budgets, parse_budgets, record_budgets
from bough.guard.confirmation_policy import allows_change as allows_policy
from bough.guard.limits import allows_change as allows_limits
from bough.types import JsonObject


async def fork_opened(parts: Parts, request: ForkRequest) -> tuple[Parts, WrittenFork]:
    """Write the fork of an open conversation that has caught up. Returns the fork's parts and the written fork.

    Raises:
        See `AsyncConversation.fork`.
    """
    if "budget" in request.overrides:
        await record_budgets(parts.journal.store, parse_budgets(request.overrides["budget"]))
    environment, decide = parts.environment, partial(_decide_contents, parts, request)
    file_store = environment.file_store if request.workspace in OWN_FOLDER else None
    written = await write_fork(
        parts.journal, parts.record, request, environment.settings, decide, file_store=file_store
    )
    fork = cast("WrittenFork", written)  # `_decide_contents` never returns None
    rules = None if fork.contents is None else fork.contents.rules
    if rules is None:
        rules = _narrow_rules(parts, request, fork.journal.state)
    agent = _make_builder(parts, request, fork)
    in_force = RulesInForce(fork.journal.state, rules)
    fork_parts = replace(parts, journal=fork.journal, record=fork.record, agent=agent, rules=in_force)
    return fork_parts, fork


async def plan_opened(parts: Parts, request: ForkRequest) -> ForkPlan:
    """Return what `fork_opened` would write for an open source. Writes nothing.

    Raises:
        See `AsyncConversation.fork`.
    """
    home = parts.environment.settings.home
    if "budget" in request.overrides:
        await check_budgets(parts.journal.store, parse_budgets(request.overrides["budget"]))
    plan = await plan_fork(parts.journal, request, home, partial(_decide_contents, parts, request))
    return cast("ForkPlan", plan)  # `_decide_contents` never returns None


def _decide_contents(parts: Parts, request: ForkRequest, cut: CutPoint, state: State) -> ForkContents:
    """Return the agent and the rules of a fork.

    Args:
        state: The state at the cut.

    Raises:
        Conflict: A budget is added to an imported log that nobody has adopted.
        InvalidInput: Scripts could write to a read-only workspace, the agent lacks a tool that a carried call needs, or
            an override would widen a rule.
    """
    if request.workspace == "readonly" and parts.environment.executor.isolation == Isolation.NONE:
        raise InvalidInput(
            "scripts without a sandbox cannot be prevented from writing to the workspace",
            hint="run them in the sandbox, or fork with workspace=copy",
        )
    rules, present = _narrow_rules(parts, request, state), parts.journal.state
    has_foreign_log = present.quarantined or (present.import_seq is not None and cut.at <= present.import_seq)
    if request.overrides.get("budget") and has_foreign_log:
        # Budgets that a foreign log names are not in force, so the new budget would not be in force either.
        raise Conflict("a budget cannot be added before an imported conversation is adopted", hint="adopt it first")
    policies: JsonObject = {"executor": parts.environment.executor.name, **rules.to_json()}
    if "tools" in request.overrides or POLICY in state.policies or POLICY in present.policies:
        recorded_tools = _choose_recorded_tools(parts, request, cut, state)
        policies |= {} if recorded_tools is None else {POLICY: recorded_tools.to_json()}
    if "budgets" in state.policies:
        policies["budgets"] = budgets_to_json(rules.budgets)
    agent, blueprint = present.agent, None
    changes_agent = request.agent is not None or not {"model", "system_prompt"}.isdisjoint(request.overrides)
    if changes_agent or cut.carried or agent != state.agent:
        blueprint = _build_blueprint(parts, request)
        blueprint.require_tools(state.calls[id].tool for id in cut.carried)
        agent = _describe_agent(parts, request, blueprint.spec)
    if blueprint is None or agent == state.agent:  # the prompt remains byte-identical
        instructions, skill_events = state.instructions, ()
    else:
        instructions, skill_events = blueprint.instructions, tuple(make_always_active_events(blueprint.always_active))
    return ForkContents(
        agent=agent,
        instructions=instructions,
        policies=policies,
        skill_events=skill_events,
        rules=rules,
        blueprint=blueprint,
    )


def _narrow_rules(parts: Parts, request: ForkRequest, state: State) -> Rules:
    """Return the rules at the cut combined with the present ones, narrowed by the request.

    Args:
        state: The state at the cut.

    Raises:
        InvalidInput: An override would widen a rule.
    """
    rules, present = parts.rules(), parts.journal.state
    if (state.policies, state.quarantined) != (present.policies, present.quarantined):
        # The present budgets: they include all budgets at the cut, except those that an imported log names.
        rules = replace(Rules.from_state(state, rules), budgets=rules.budgets)
    if request.secrets == "none":
        rules = replace(rules, secrets=Secrets())
    if not (request.overrides and request.stricter_rules):
        return rules
    stricter = rules.override(request.stricter_rules)
    if not allows_policy(rules.policy, stricter.policy):
        raise _make_wider_error("confirmation policy")
    if not (allows_limits(rules.limits, stricter.limits) and allows_limits(rules.total, stricter.total)):
        raise _make_wider_error("limits")
    # `narrow`, because hooks, analyzer and allow-list of the source must apply as well.
    return replace(rules.narrow(stricter), secrets=rules.secrets)


def _choose_recorded_tools(parts: Parts, request: ForkRequest, cut: CutPoint, state: State) -> RecordedTools | None:
    """Return the record that answers the tool calls of a fork: the requested one or the source's; None if tools run.

    Args:
        state: The state at the cut.

    Raises:
        InvalidInput: The source runs no tools, and the fork would run them.
    """
    journal, mode = parts.journal, request.overrides.get("tools")
    inherited = RecordedTools.from_policies(journal.state.policies) or RecordedTools.from_policies(state.policies)
    if mode is None:
        return None if inherited is None else inherited.cut_at(cut.at)
    if mode != "recorded" and inherited is not None and inherited.mode == "recorded":
        raise _make_wider_error("use of recorded tools")
    return RecordedTools(mode=mode, source=journal.cid, start=cut.at, stop=journal.durable)


def _make_spec(parts: Parts, request: ForkRequest) -> AgentSpec:
    """Return the spec of the fork's agent: the requested or the present one, with the overrides of model and prompt."""
    overrides = {name: value for name, value in request.overrides.items() if name in ("model", "system_prompt")}
    spec = request.agent or parts.agent.spec
    return spec.model_copy(update=overrides) if overrides else spec


def _build_blueprint(parts: Parts, request: ForkRequest) -> Blueprint:
    """Return the blueprint of the fork's agent."""
    spec, pool = _make_spec(parts, request), parts.environment.pool
    if request.agent is None:
        # Shares the skills and the rendered catalog of the source, because there may be thousands of skills.
        return parts.agent.blueprint.for_conversation(
            spec, pool=pool, has_new_prompt="system_prompt" in request.overrides
        )
    state = parts.journal.state
    return make_blueprint(
        spec, state.workspace, parts.environment.settings, pool=pool, changed_rules=state.changed_rules
    )


def _make_builder(parts: Parts, request: ForkRequest, fork: WrittenFork) -> AgentBuilder:
    """Return the builder of the fork's agent. It shares what the source has built, and builds the rest on first use."""
    spec, state = _make_spec(parts, request), fork.journal.state
    has_own_skills = fork.workspace.own_folder is not None and spec.skills is None and spec.discover_skills
    if not has_own_skills and fork.contents is not None and fork.contents.blueprint is not None:
        return AgentBuilder.from_blueprint(fork.contents.blueprint)
    settings, pool = parts.environment.settings, parts.environment.pool
    if not has_own_skills and request.agent is None and parts.agent.is_built:
        shared = parts.agent.blueprint
        has_new_prompt = "system_prompt" in request.overrides
        return AgentBuilder(spec, lambda spec: shared.for_conversation(spec, pool=pool, has_new_prompt=has_new_prompt))

    # If an earlier request made this fork, tools of the source may have written to a shared folder since then.
    changed_rules = state.changed_rules | parts.journal.state.changed_rules

    def build(spec: AgentSpec) -> Blueprint:
        return make_blueprint(spec, state.workspace, settings, pool=pool, changed_rules=changed_rules)

    return AgentBuilder(spec, build)


def _describe_agent(parts: Parts, request: ForkRequest, spec: AgentSpec) -> JsonObject:
    """Return the record of the fork's agent.

    Addresses and paths in the record of an imported agent are copied, although they are not used in quarantine: without
    the address, the adopted fork would send its requests to the provider in the model's name.
    """
    snapshot, present = spec.snapshot(), parts.journal.state
    if not present.quarantined or request.agent is not None:
        return snapshot
    replaced: set[str] = set()
    if "model" in request.overrides:
        replaced.add("base_url")
    if "system_prompt" in request.overrides:
        replaced.add("system_prompt_path")
    locations: dict[str, Any] = {name: present.agent.get(name) for name in LOCATION_FIELDS if name not in replaced}
    return snapshot | {name: value for name, value in locations.items() if value}


def _make_wider_error(rule: str) -> InvalidInput:
    return InvalidInput(f"the {rule} of a fork can only be stricter than its source's", hint="start a new conversation")
