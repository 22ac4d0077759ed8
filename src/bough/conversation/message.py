"""What a message brings into a conversation: itself, the skills it activates, a title where there is none."""

from __future__ import annotations

from bough.conversation.setup import title_of
from bough.conversation.state import State
from bough.errors import InvalidInput
from bough.events.model import Event, SkillActivated, StateChanged, TextPart, UserMessage
from bough.skills import SkillRegistry
from bough.skills.activation import activate
from bough.skills.triggers import TriggerIndex

MAX_MESSAGE_BYTES = 16 << 20


def checked(message: str | UserMessage, *, sender: str) -> UserMessage:
    """Return the message as an event.

    Raises:
        InvalidInput: It is empty, or longer than 16 MiB.
    """
    event = UserMessage.text(message, sender=sender) if isinstance(message, str) else message
    if not any(not isinstance(part, TextPart) or part.text.strip() for part in event.content):
        raise InvalidInput("the message is empty", hint="say what should be done")
    size = sum(len(getattr(part, "text", "") or getattr(part, "data", "")) for part in event.content)
    if size > MAX_MESSAGE_BYTES:
        raise InvalidInput(f"the message has {size} characters", hint="put what is so long into a file and name it")
    return event


def events_of(message: UserMessage, state: State, triggers: TriggerIndex, registry: SkillRegistry) -> list[Event]:
    """Return the message's events: itself, what it activates, and the title it gives."""
    activated = _activated(message.plain, state, triggers, registry)
    events: list[Event] = [message.model_copy(update={"skills": tuple(event.name for event in activated)})]
    events += activated
    if state.title is None and (title := title_of(message.plain)):
        events.append(StateChanged(changes={"title": title}))
    return events


def _activated(text: str, state: State, triggers: TriggerIndex, registry: SkillRegistry) -> list[SkillActivated]:
    events: list[SkillActivated] = []
    for match in triggers.match(text):
        activation = activate(registry.get(match.skill), match.inputs)
        if match.kind == "keyword" and state.active_skills.get(match.skill) == activation.content_hash:
            continue  # its text is in the log already
        events.append(
            SkillActivated(
                name=activation.name,
                content_hash=activation.content_hash,
                trigger=match.kind,
                keyword=match.keyword,
                rendered=activation.rendered,
                inputs=match.inputs,
            )
        )
    return events
