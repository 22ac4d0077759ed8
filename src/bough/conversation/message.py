"""Validating messages, and the events that a message adds: itself, activated skills, a title."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from typing import cast
from uuid import UUID

from bough.agents.skills.activation import make_skip_events
from bough.agents.skills.tools import SkillToolset
from bough.connect.fetch import fetch
from bough.conversation.agent import title_of
from bough.conversation.log.state import State
from bough.conversation.log.tool_result import clean
from bough.conversation.skills import activation_events
from bough.errors import Conflict, InvalidInput, LimitExceeded, NotFound, PermissionDenied
from bough.events.codec import decode, encode
from bough.events.content import IMAGES, MAX_INPUT_BYTES, Source, image_type
from bough.events.model import (
    ContentPart,
    Event,
    FilePart,
    ImagePart,
    SkillActivated,
    StateChanged,
    TextPart,
    UserMessage,
)
from bough.events.store import EventStore
from bough.guard import HookVerdict
from bough.skills import SkillRegistry
from bough.skills.match.triggers import TriggerIndex, match_withheld

MAX_MESSAGE_BYTES = 16 << 20
_PROMPT_CHARACTERS = 1_000
"""How many characters at the end of a system prompt are used to rank skills."""


def check_message(message: str | UserMessage, *, sender: str) -> UserMessage:
    """Return the message as an event. Invalid text (lone surrogates) in it is replaced by U+FFFD.

    Raises:
        InvalidInput: It is not a message, is empty, longer than 16 MiB, or an image in it is invalid.
        LimitExceeded: Its images and files have more than 64 MiB.
    """
    if not isinstance(message, str | UserMessage):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise _not_a_message(message)
    event = UserMessage.text(clean(message), sender=sender) if isinstance(message, str) else message
    if not any(not isinstance(part, TextPart) or part.text.strip() for part in event.content):
        raise InvalidInput("the message is empty", hint="say what should be done")
    size = sum(len(getattr(part, "text", "") or getattr(part, "data", "")) for part in event.content)
    if size > MAX_MESSAGE_BYTES:
        raise InvalidInput(f"the message has {size} characters", hint="put long content into a file and name the file")
    check_size(event.content)
    for part in event.content:
        if isinstance(part, ImagePart):
            _check_image(part)
    return event


def add_inputs(
    message: str | UserMessage,
    images: Sequence[Source | ImagePart],
    files: Sequence[Source | FilePart],
    *,
    sender: str,
) -> str | UserMessage:
    """Return a message with images and files after its text; unchanged if there are none.

    Raises:
        InvalidInput: One cannot be read, or has an unsupported type.
        LimitExceeded: One has more than 20 MiB, or all of them more than 64 MiB.
    """
    if not images and not files:
        return message
    for name, values in (("images", images), ("files", files)):
        if not isinstance(values, list | tuple):
            raise InvalidInput(f"{name}: a list is needed, not {type(values).__name__}", hint=f"{name}=[…]")
    if not isinstance(message, str | UserMessage):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise _not_a_message(message)
    parts: list[ContentPart] = [item if isinstance(item, ImagePart) else ImagePart.of(item) for item in images]
    parts += [item if isinstance(item, FilePart) else FilePart.of(item) for item in files]
    if isinstance(message, str):
        text = [TextPart(text=clean(message))] if message.strip() else []
        return UserMessage(content=(*text, *parts), sender=sender)
    return message.model_copy(update={"content": (*message.content, *parts)})


def _not_a_message(value: object) -> InvalidInput:
    return InvalidInput(
        f"a {type(value).__name__} is not a message",
        hint='give a text, or UserMessage(content=(TextPart(text="…"), ImagePart.of(path)))',
    )


async def is_sent(store: EventStore, conversation: UUID, message: UserMessage, networks: Sequence[str] = ()) -> bool:
    """Whether a log has this message already. Reads one row; URLs are fetched only to compare their content.

    Args:
        message: With secrets masked.
        networks: See `fetch_inputs`.

    Raises:
        Conflict: Its id is that of another event of the log.
    """
    try:
        _, seq = await store.locate(message.id, cid=conversation)
    except NotFound:
        return False
    message = cast("UserMessage", await fetch_inputs(message, networks))
    # In the form of the log: bytes replaced by their digest, invalid text replaced.
    sent = cast("UserMessage", decode(seq, message.id, message.kind, message.ts, encode(message)))
    async for stored in store.read(conversation, seq, seq + 1):
        existing = stored.event
        if isinstance(existing, UserMessage) and (existing.content, existing.sender) == (sent.content, sent.sender):
            return True
    raise Conflict(
        f"the id {message.id} is that of another event",
        hint="send another message under an id of its own",
        details={"event": str(message.id)},
    )


def _check_image(part: ImagePart) -> None:
    if part.content is not None or part.url is not None or part.sha256 is not None:
        return  # bytes were checked when they were read; a URL or a digest is passed on
    try:
        data = base64.b64decode(part.data, validate=True)
    except ValueError as error:
        raise InvalidInput("an image of the message is not base64", hint="encode its bytes with base64") from error
    actual_type = image_type(data)
    if actual_type != part.media_type:
        problem = f"is {actual_type}" if actual_type else "is none that models can see"
        raise InvalidInput(
            f"an image of the message says it is {part.media_type!r:.80} and {problem}",
            hint=f"send one of {', '.join(IMAGES)}, under its own media type",
        )


def events_of(
    message: UserMessage,
    state: State,
    triggers: TriggerIndex,
    registry: SkillRegistry,
    toolset: SkillToolset | None = None,
) -> list[Event]:
    """Return the events of a message: itself, activated skills, a title, and a catalogue ranked for it.

    Only a user's message activates skills: the text of another agent may mention them without asking for them.

    Args:
        toolset: The agent's skills. If not all fit into the catalogue, the first message decides which do.
    """
    is_users = message.sender == "user"
    activated = activation_events(message.plain, state, triggers, registry) if is_users else []
    names = (event.name for event in activated if isinstance(event, SkillActivated) and event.trigger != "always")
    events: list[Event] = [message.model_copy(update={"skills": tuple(names)}), *activated]
    if not state.has_message and toolset is not None and not toolset.catalog.complete:
        events += _rank_catalog(message.plain, state, toolset)
    if state.title is None and (title := title_of(message.plain)):
        events.append(StateChanged(changes={"title": title}))
    return events


def _rank_catalog(text: str, state: State, toolset: SkillToolset) -> list[Event]:
    """Return the change of the instructions that ranks the catalogue for the first message.

    Made before the first request only: later changes would invalidate the provider's cached prefix.
    """
    request = "\n".join(
        filter(None, (state.title, text, state.instructions.partition("<available_skills>")[0][-1000:]))
    )
    ranked = toolset.rank_catalog(request).text
    instructions = state.instructions.replace(toolset.catalog.text, ranked, 1)
    return [] if instructions == state.instructions else [StateChanged(changes={"instructions": instructions})]


def refuse_untrusted(message: UserMessage, registry: SkillRegistry) -> tuple[PermissionDenied, list[Event]] | None:
    """Return the refusal of a message that calls an untrusted skill by `/name`, with its events, or None."""
    if message.sender != "user":
        return None
    for match in match_withheld(registry, message.plain):
        if match.kind == "slash":
            skill = next(withheld for withheld in registry.withheld if withheld.name == match.skill)
            refusal = registry.explain_refusal(skill)
            return refusal, [*make_skip_events([(skill.name, refusal)])]
    return None


def make_hook_events(verdict: HookVerdict) -> list[Event]:
    """Return the events of a hook's verdict, with a message for the model if it has one."""
    context = [UserMessage.text(verdict.context, sender="hook")] if verdict.context else []
    return [*verdict.events, *context]


MAX_INPUTS_BYTES = 64 << 20
"""Of all images and files of a message."""


async def fetch_inputs(message: str | UserMessage, networks: Sequence[str] = ()) -> str | UserMessage:
    """Return a message whose images and files have their bytes; as it is where nothing of it is at a URL.

    Args:
        networks: Private networks that a URL may lead to, over plain HTTP too.

    Raises:
        InvalidInput: Nothing is at a URL, or no image or file that models can read.
        PermissionDenied: A URL leads to this machine or a private network, or is not encrypted.
        LimitExceeded: One has more than 20 MiB, or all of them more than 64 MiB.
        ConnectError: A server does not answer.
    """
    if not isinstance(message, UserMessage) or not any(map(_is_at_url, message.content)):
        return message
    parts = list(message.content)
    for place, part in enumerate(parts):
        if isinstance(part, ImagePart | FilePart) and part.is_at_url and part.url is not None:
            fetched = await fetch(part.url, max_bytes=MAX_INPUT_BYTES, networks=networks)
            parts[place] = part.with_bytes(fetched.data, name=fetched.name)
            check_size(parts)  # before the next one is in memory
    return message.model_copy(update={"content": tuple(parts)})


def check_size(parts: Iterable[ContentPart]) -> None:
    """Check how many bytes the parts of a message bring along.

    Raises:
        LimitExceeded: More than a message may have.
    """
    size = sum(len(part.content or b"") for part in parts if isinstance(part, ImagePart | FilePart))
    if size > MAX_INPUTS_BYTES:
        raise LimitExceeded(
            f"the images and files of the message have {size} bytes, more than {MAX_INPUTS_BYTES}",
            hint="send them in several messages, or put them into the workspace and name them: FilePart(path=…)",
        )


def _is_at_url(part: ContentPart) -> bool:
    return isinstance(part, ImagePart | FilePart) and part.is_at_url
