"""Events that activate skills: at the start of a conversation, and by a user's message.

Source: OpenHands (keyword and task triggers are matched when a user message arrives).
"""

from __future__ import annotations

from bough.agents.skills.activation import (
    MAX_ACTIVE,
    AlwaysActiveSkills,
    find_always_active,
    is_current,
    make_activation_event,
    make_skip_events,
)
from bough.conversation.log.state import State
from bough.errors import BoughError
from bough.events.model import Event, SkillActivated
from bough.skills import SkillRegistry, TriggerIndex, TriggerMatch
from bough.skills.match.activation import activate_matches, make_count_error
from bough.skills.match.inputs import list_inputs, list_missing_inputs, parse_pairs
from bough.skills.match.triggers import match_withheld


def make_always_active_events(skills: AlwaysActiveSkills) -> list[Event]:
    """Return the events for always-active skills. The events have no texts: the instructions contain them."""
    events = [
        SkillActivated(name=activation.name, content_hash=activation.content_hash, trigger="always")
        for activation in skills.activations
    ]
    return [*events, *make_skip_events(skills.omitted)]


def make_activation_events(text: str, state: State, triggers: TriggerIndex, registry: SkillRegistry) -> list[Event]:
    """Return the events by which a user's message activates skills.

    They activate the skills that the message triggers, and always-active skills that are new or have changed. A task
    skill that asked for inputs gets those that the message gives as `name=value`. The text of a skill that a keyword
    triggers is added once. When the keyword is repeated, only the skill's list of allowed tools applies again. Skills
    over a limit, withheld or unreadable are recorded as skipped. Reads the files of the triggered skills.
    """
    matches = _add_answered_task(triggers.match(text), text, state, registry)
    repeated = [match for match in matches if _is_known(match, state, registry)]
    new_matches = [match for match in matches if match not in repeated]
    free_slots = max(0, MAX_ACTIVE - len(state.active_skills))
    accepted: list[TriggerMatch] = []
    refused: list[TriggerMatch] = []
    for match in new_matches:
        if match.kind != "keyword":
            accepted.append(match)
        elif free_slots > 0:
            accepted.append(match)
            free_slots -= 1
        else:
            refused.append(match)
    result = activate_matches(registry, accepted, changed_rules=state.changed_rules)
    skipped = [(match.skill, reason) for match, reason in result.skipped]
    count_error = make_count_error(f"more than {MAX_ACTIVE} skills are active")
    skipped += [(match.skill, count_error) for match in refused]
    withheld = {match.skill for match in match_withheld(registry, text)}
    skipped += [(skill.name, registry.explain_refusal(skill)) for skill in registry.withheld if skill.name in withheld]
    activations = [
        make_activation_event(
            activation,
            trigger=match.kind,
            previous_hash=state.active_skills.get(activation.name),
            keyword=match.keyword,
            inputs=match.inputs,
            allowed_tools=activation.allowed_tools,
        )
        for match, activation in result.activations
    ]
    return [
        *activations,
        *_reactivate(repeated, state, registry),
        *make_skip_events(skipped),
        *_update_always_active(state, registry),
    ]


def _add_answered_task(
    matches: list[TriggerMatch], text: str, state: State, registry: SkillRegistry
) -> list[TriggerMatch]:
    """Return the matches, plus the task skill that asked for inputs if the text gives some of them as `name=value`."""
    if state.task is None or state.task[0] not in registry or any(match.kind != "keyword" for match in matches):
        return matches
    name, earlier_inputs = state.task
    try:
        inputs = list_inputs(registry.get(name))
    except BoughError:  # the skill is no longer usable, so its task does not continue
        return matches
    missing = list_missing_inputs(inputs, earlier_inputs)
    pairs = parse_pairs(text, [skill_input for skill_input in inputs if skill_input.name in missing])
    if not pairs:
        return matches
    return [*matches, TriggerMatch(name, "task", ", ".join(pairs), earlier_inputs | pairs)]


def _is_known(match: TriggerMatch, state: State, registry: SkillRegistry) -> bool:
    """Whether a keyword triggered a skill whose present text is already in the log."""
    return match.kind == "keyword" and is_current(registry, match.skill, state.active_skills.get(match.skill))


def _reactivate(repeated: list[TriggerMatch], state: State, registry: SkillRegistry) -> list[Event]:
    """Return events without text for known skills, so that their lists of allowed tools apply again.

    A skill that is no longer usable is recorded as skipped. Its text remains in the conversation.
    """
    events: list[Event] = []
    for match in repeated:
        try:
            allowed = registry.get(match.skill).allowed_tools if match.skill in registry else None
        except BoughError as error:
            events += make_skip_events([(match.skill, error)])
            continue
        if allowed is not None:
            events.append(
                SkillActivated(
                    name=match.skill,
                    content_hash=state.active_skills[match.skill],
                    trigger=match.kind,
                    keyword=match.keyword,
                    allowed_tools=allowed,
                )
            )
    return events


def _update_always_active(state: State, registry: SkillRegistry) -> list[Event]:
    """Return the events of always-active skills that are new or have changed.

    Rule files that a tool wrote are omitted, which the log has recorded already. A fork may be cut after the
    instructions and before the events of the skills in them; such skills get events without text.
    """
    events: list[Event] = []
    for activation in find_always_active(registry, changed_rules=state.changed_rules).activations:
        previous_hash = state.active_skills.get(activation.name)
        if previous_hash is None and activation.rendered in state.instructions:
            events.append(SkillActivated(name=activation.name, content_hash=activation.content_hash, trigger="always"))
        elif previous_hash != activation.content_hash:
            events.append(make_activation_event(activation, trigger="always", previous_hash=previous_hash))
    return events
