"""Validates a message, and makes the events that it adds to the log: the message, activated skills, a title."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from typing import cast
from uuid import UUID

from bough.agents.skills.activation import make_skip_events
from bough.agents.skills.tools import SkillToolset
from bough.connect.fetch import fetch
from bough.conversation.agent import make_title
from bough.conversation.log.journal import Journal
from bough.conversation.log.state import State
from bough.conversation.log.tool_result import clean
from bough.conversation.log.turns import Turn, TurnRecord
from bough.conversation.skills import make_activation_events
from bough.errors import Conflict, InvalidInput, LimitExceeded, NotFound, PermissionDenied
from bough.events.blob.blob import read_bytes
from bough.events.codec import ERASED, decode, encode
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
from bough.events.record import ConversationRecord
from bough.events.store import EventStore
from bough.guard import HookVerdict
from bough.skills import SkillRegistry
from bough.skills.match.triggers import TriggerIndex, match_withheld
from bough.types import require_type

MAX_MESSAGE_BYTES = 16 << 20
_PROMPT_CHARACTERS = 1_000
"""How many characters at the end of a system prompt are used to rank skills."""


def check_message(message: str | UserMessage, *, sender: str) -> UserMessage:
    """Return the message as an event, with lone surrogates replaced by U+FFFD.

    Raises:
        InvalidInput: The value is not a message, it is empty or longer than 16 MiB, or one of its images is invalid.
        LimitExceeded: Its images and files have more than 64 MiB.
    """
    if not isinstance(message, str | UserMessage):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise _make_type_error(message)
    event = UserMessage.text(clean(message), sender=sender) if isinstance(message, str) else message
    if all(isinstance(part, TextPart) and not part.text.strip() for part in event.content):
        raise InvalidInput("the message is empty", hint="give a text, an image or a file")
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
        InvalidInput: An image or file cannot be read, or has an unsupported type.
        LimitExceeded: An image or file has more than 20 MiB, or all of them more than 64 MiB.
    """
    if not images and not files:
        return message
    for name, values in (("images", images), ("files", files)):
        if not isinstance(values, list | tuple):
            raise InvalidInput(f"{name}: a list is required, not {type(values).__name__}", hint=f"{name}=[…]")
    if not isinstance(message, str | UserMessage):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise _make_type_error(message)
    parts: list[ContentPart] = [item if isinstance(item, ImagePart) else ImagePart.of(item) for item in images]
    parts += [item if isinstance(item, FilePart) else FilePart.of(item) for item in files]
    if isinstance(message, str):
        text = [TextPart(text=clean(message))] if message.strip() else []
        return UserMessage(content=(*text, *parts), sender=sender)
    return message.model_copy(update={"content": (*message.content, *parts)})


def _make_type_error(value: object) -> InvalidInput:
    return InvalidInput(
        f"a {type(value).__name__} is not a message",
        hint='give a text, or UserMessage(content=(TextPart(text="…"), ImagePart.of(path)))',
    )


async def is_sent(journal: Journal, message: UserMessage, networks: Sequence[str] = ()) -> bool:
    """Whether a log already has this message. If so, the journal is caught up with the log.

    Reads one row. URLs are fetched only if the log has an event of this id.

    Args:
        networks: See `fetch_inputs`.

    Raises:
        Conflict: The id belongs to a different event of the log.
    """
    store, conversation = journal.store, journal.cid
    try:
        _, seq = await store.locate(message.id, cid=conversation)
    except NotFound:
        return False
    (message,) = cast("list[UserMessage]", list(journal.mask([message])))
    message = cast("UserMessage", await fetch_inputs(message, networks))
    # As the log has it: bytes replaced by their digest, and invalid text by U+FFFD.
    as_recorded = cast("UserMessage", decode(seq, message.id, message.kind, message.ts, encode(message)))
    async for stored in store.read(conversation, seq, seq + 1):
        existing = stored.event
        is_message = isinstance(existing, UserMessage)
        if is_message and (existing.content, existing.sender) == (as_recorded.content, as_recorded.sender):
            await journal.catch_up()
            return True
    raise Conflict(
        f"the id {message.id} belongs to another event",
        hint="send the message with another id",
        details={"event": str(message.id)},
    )


async def find_message(
    journal: Journal, root: UUID, turn: Turn, *, source: ConversationRecord | None = None
) -> UserMessage:
    """Return the message of a recorded turn as a new message, with the bytes of its images and files.

    Args:
        journal: The log whose turns `turn` counts, caught up.
        root: The root of the conversation that repeats the turn.
        source: The conversation of the turn; None for the one in the record, or else the one of `journal`.

    Raises:
        InvalidInput: There is no such turn, or it belongs to a conversation with another root.
        NotFound: The conversation of the turn was deleted, or the message or its bytes were erased.
    """
    require_type(turn, Turn, "a turn", "give Turn(n), or a record of turns()")
    store, cid = journal.store, journal.cid
    if isinstance(turn, TurnRecord) and not await _has_event(store, cid, turn.message.id):
        source, cid = await store.get(turn.conversation), turn.conversation
    if source is not None and source.root != root:
        raise InvalidInput(
            f"turn {turn.number} belongs to an unrelated conversation: {source.id}",
            hint="give a turn of this conversation, of its source, or of their forks",
        )
    if isinstance(turn, TurnRecord):
        _, seq = await store.locate(turn.message.id, cid=cid)
    else:
        if not 1 <= turn.number <= journal.state.turns:
            raise InvalidInput(
                f"there is no turn {turn.number} to repeat: the conversation has {journal.state.turns}",
                hint="for a turn that only the source has, give its record, which turns() of the source returns",
            )
        await journal.settle()  # the message must be in the store
        seq = await journal.find_turn(turn.number - 1)
    (message,) = [cast("UserMessage", stored.event) async for stored in store.read(cid, seq, seq + 1)]
    if message.plain == ERASED and len(message.content) == 1:
        raise NotFound(f"the message of turn {turn.number} was erased", hint="repeat another turn")
    return UserMessage(content=await _attach_bytes(store, cid, message.content), sender=message.sender)


async def _has_event(store: EventStore, cid: UUID, id: UUID) -> bool:
    try:
        await store.locate(id, cid=cid)
    except NotFound:
        return False
    return True


async def _attach_bytes(store: EventStore, cid: UUID, parts: Sequence[ContentPart]) -> tuple[ContentPart, ...]:
    """Return copies of recorded parts with their bytes from the store.

    Raises:
        NotFound: The conversation does not have the bytes of a part.
    """
    digests = {part.sha256 for part in parts if isinstance(part, ImagePart | FilePart) and _is_stored(part)}
    bytes_by_digest = await read_bytes(store, cid, [digest for digest in digests if digest]) if digests else {}
    copies: list[ContentPart] = []
    for part in parts:
        if not isinstance(part, ImagePart | FilePart) or not _is_stored(part):
            copies.append(part)
            continue
        data = bytes_by_digest.get(part.sha256 or "")
        if data is None:
            raise NotFound(f"the bytes of {part.name or 'an input'} are not in the store", hint="send them again")
        copies.append(part.model_copy().carry_bytes(data))
    return tuple(copies)


def _is_stored(part: ContentPart) -> bool:
    """Whether the store has the bytes of a recorded part."""
    return isinstance(part, ImagePart | FilePart) and part.sha256 is not None and part.size_bytes is not None


def _check_image(part: ImagePart) -> None:
    """Check that a base64 image has the media type that it declares.

    Raises:
        InvalidInput: It has another media type, or is not base64.
    """
    if part.content is not None or part.url is not None or part.sha256 is not None:
        return  # bytes were checked when they were read; a URL or a digest cannot be checked here
    try:
        data = base64.b64decode(part.data, validate=True)
    except ValueError as error:
        raise InvalidInput("an image of the message is not base64", hint="encode its bytes with base64") from error
    actual_type = image_type(data)
    if actual_type != part.media_type:
        actual = f"is {actual_type}" if actual_type else "has no supported type"
        raise InvalidInput(
            f"an image of the message is declared as {part.media_type!r:.80} but {actual}",
            hint=f"send one of {', '.join(IMAGES)}, with its actual media type",
        )


def make_message_events(
    message: UserMessage,
    state: State,
    triggers: TriggerIndex,
    registry: SkillRegistry,
    toolset: SkillToolset | None = None,
) -> list[Event]:
    """Return the events that a message adds: the message, activated skills, a title, and a re-ranked catalog.

    Only a user's message activates skills, because another agent may mention a skill without calling it.

    Args:
        toolset: The agent's skills. If the catalog is too small for all of them, the first message ranks them.
    """
    skill_events = make_activation_events(message.plain, state, triggers, registry) if message.sender == "user" else []
    names = (event.name for event in skill_events if isinstance(event, SkillActivated) and event.trigger != "always")
    events: list[Event] = [message.model_copy(update={"skills": tuple(names)}), *skill_events]
    if not state.has_message and toolset is not None and not toolset.catalog.complete:
        events += _rank_catalog(message.plain, state, toolset)
    title = make_title(message.plain)
    if state.title is None and title:
        events.append(StateChanged(changes={"title": title}))
    return events


def _rank_catalog(text: str, state: State, toolset: SkillToolset) -> list[Event]:
    """Return the event that replaces the catalog in the instructions by one ranked for the first message.

    This happens only before the first request, because later changes would invalidate the provider's cached prefix.
    """
    prompt, _, _ = state.instructions.partition("<available_skills>")
    query = "\n".join(filter(None, (state.title, text, prompt[-_PROMPT_CHARACTERS:])))
    ranked = toolset.rank_catalog(query).text
    instructions = state.instructions.replace(toolset.catalog.text, ranked, 1)
    if instructions == state.instructions:
        return []
    return [StateChanged(changes={"instructions": instructions})]


def refuse_untrusted(message: UserMessage, registry: SkillRegistry) -> tuple[PermissionDenied, list[Event]] | None:
    """Return the error and the events for a message that calls an untrusted skill by `/name`; None if it does not."""
    if message.sender != "user":
        return None
    for match in match_withheld(registry, message.plain):
        if match.kind == "slash":
            skill = next(withheld for withheld in registry.withheld if withheld.name == match.skill)
            refusal = registry.explain_refusal(skill)
            return refusal, list(make_skip_events([(skill.name, refusal)]))
    return None


def make_hook_events(verdict: HookVerdict) -> list[Event]:
    """Return the events of a hook's verdict, with a message for the model if it has one."""
    context = [UserMessage.text(verdict.context, sender="hook")] if verdict.context else []
    return [*verdict.events, *context]


MAX_INPUTS_BYTES = 64 << 20
"""The largest total size of the images and files of a message."""


async def fetch_inputs(message: str | UserMessage, networks: Sequence[str] = ()) -> str | UserMessage:
    """Return a message with the bytes of its images and files at URLs; unchanged if it has none.

    Args:
        networks: Private networks that URLs may address, also with plain HTTP.

    Raises:
        InvalidInput: A URL does not exist, or has no image or file of a supported type.
        PermissionDenied: A URL addresses this machine or a private network, or is not https.
        LimitExceeded: An image or file has more than 20 MiB, or all of them more than 64 MiB.
        ConnectError: A server does not answer.
    """
    if not isinstance(message, UserMessage) or not any(map(_is_at_url, message.content)):
        return message
    parts = list(message.content)
    for index, part in enumerate(parts):
        if isinstance(part, ImagePart | FilePart) and part.is_at_url and part.url is not None:
            fetched = await fetch(part.url, max_bytes=MAX_INPUT_BYTES, networks=networks)
            parts[index] = part.with_bytes(fetched.data, name=fetched.name)
            check_size(parts)  # before the next one is read into memory
    return message.model_copy(update={"content": tuple(parts)})


def check_size(parts: Iterable[ContentPart]) -> None:
    """Check the total size of the images and files of a message.

    Raises:
        LimitExceeded: They have more than 64 MiB.
    """
    size = sum(len(part.content or b"") for part in parts if isinstance(part, ImagePart | FilePart))
    if size > MAX_INPUTS_BYTES:
        raise LimitExceeded(
            f"the images and files of the message have {size} bytes, more than {MAX_INPUTS_BYTES}",
            hint="send them in several messages, or put them into the workspace and name them: FilePart(path=…)",
        )


def _is_at_url(part: ContentPart) -> bool:
    return isinstance(part, ImagePart | FilePart) and part.is_at_url
