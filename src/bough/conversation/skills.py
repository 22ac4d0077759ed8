"""Which skills a message brings into a conversation, and which of them hold from its start.

Source: OpenHands (keyword and task triggers are looked at when a user message arrives).
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
from bough.skills.match.inputs import list_inputs, missing_inputs, parse_pairs
from bough.skills.match.triggers import match_withheld


def standing_events(standing: AlwaysActiveSkills) -> list[Event]:
    """Return what the log says of always-active skills; their texts are in the instructions."""
    events = [
        SkillActivated(name=activation.name, content_hash=activation.content_hash, trigger="always")
        for activation in standing.activations
    ]
    return [*events, *make_skip_events(standing.omitted)]


def activation_events(text: str, state: State, triggers: TriggerIndex, registry: SkillRegistry) -> list[Event]:
    """Return what a user's message activates: what it asks for, and always-active skills that are new or have changed.

    A task that asked for inputs continues with those that the message gives as `name=value`.
    A keyword brings a text once; when it comes again, only what the skill lets be called holds anew. What is over a
    bound, or cannot be read, is told. Reads the files of the skills concerned.
    """
    matches = _with_answer(triggers.match(text), text, state, registry)
    repeated = [match for match in matches if _is_known(match, state, registry)]
    room = max(0, MAX_ACTIVE - len(state.active_skills))
    fresh = [match for match in matches if match not in repeated]
    fitting = [match for match in fresh if match.kind != "keyword" or (room := room - 1) >= 0]
    done = activate_matches(registry, fitting, changed_rules=state.changed_rules)
    left_out = [(match.skill, reason) for match, reason in done.skipped]
    full = make_count_error(f"more than {MAX_ACTIVE} skills are active")
    left_out += [(match.skill, full) for match in fresh if match not in fitting]
    withheld = {match.skill for match in match_withheld(registry, text)}
    left_out += [(skill.name, registry.explain_refusal(skill)) for skill in registry.withheld if skill.name in withheld]
    texts = [
        make_activation_event(
            activation,
            trigger=match.kind,
            previous_hash=state.active_skills.get(activation.name),
            keyword=match.keyword,
            inputs=match.inputs,
            allowed_tools=activation.allowed_tools,
        )
        for match, activation in done.activations
    ]
    return [*texts, *_again(repeated, state, registry), *make_skip_events(left_out), *_updates(state, registry)]


def _with_answer(matches: list[TriggerMatch], text: str, state: State, registry: SkillRegistry) -> list[TriggerMatch]:
    """Return the matches, with the task that asked for inputs and is given some of them now (`name=value`)."""
    if state.task is None or state.task[0] not in registry or any(match.kind != "keyword" for match in matches):
        return matches
    name, earlier_inputs = state.task
    try:
        inputs = list_inputs(registry.get(name))
    except BoughError:  # it cannot be used any more: then nothing of it is asked
        return matches
    missing = missing_inputs(inputs, earlier_inputs)
    pairs = parse_pairs(text, [skill_input for skill_input in inputs if skill_input.name in missing])
    return [*matches, TriggerMatch(name, "task", ", ".join(pairs), earlier_inputs | pairs)] if pairs else matches


def _is_known(match: TriggerMatch, state: State, registry: SkillRegistry) -> bool:
    return match.kind == "keyword" and is_current(registry, match.skill, state.active_skills.get(match.skill))


def _again(repeated: list[TriggerMatch], state: State, registry: SkillRegistry) -> list[Event]:
    """Return records, without text, of known skills whose list of allowed tools begins to hold again.

    A skill that can no longer be used is recorded as skipped: its text stays in the conversation, and the message is
    sent without it.
    """
    again: list[Event] = []
    for match in repeated:
        try:
            allowed = registry.get(match.skill).allowed_tools if match.skill in registry else None
        except BoughError as error:
            again += make_skip_events([(match.skill, error)])
            continue
        if allowed is not None:
            hash = state.active_skills[match.skill]
            again.append(
                SkillActivated(
                    name=match.skill,
                    content_hash=hash,
                    trigger=match.kind,
                    keyword=match.keyword,
                    allowed_tools=allowed,
                )
            )
    return again


def _updates(state: State, registry: SkillRegistry) -> list[Event]:
    """Return always-active skills that are not, or no longer, what the conversation holds.

    Rules that a tool wrote are left out; that was recorded when it did. A fork may be cut between the instructions and
    the records of what they hold: then the records come without text.
    """
    events: list[Event] = []
    for activation in find_always_active(registry, changed_rules=state.changed_rules).activations:
        previous_hash = state.active_skills.get(activation.name)
        if previous_hash is None and activation.rendered in state.instructions:
            events.append(SkillActivated(name=activation.name, content_hash=activation.content_hash, trigger="always"))
        elif previous_hash != activation.content_hash:
            events.append(make_activation_event(activation, trigger="always", previous_hash=previous_hash))
    return events
