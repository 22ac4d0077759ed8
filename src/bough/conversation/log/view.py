"""Events as the model sees them: the one place where a log becomes messages.

The view grows with the log (k new events cost O(k)) and depends on nothing but the events, so that a shared prefix
renders byte-identically in every fork. Nothing in it names the conversation, the date or a path.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from pydantic_ai.messages import (
    AudioUrl,
    BinaryContent,
    DocumentUrl,
    ImageUrl,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    ToolReturnPart,
    UserContent,
    UserPromptPart,
)

from bough.conversation.log.tool_result import cut_text, show_result
from bough.errors import CorruptLog
from bough.events.blob.blob import is_digest, read_bytes
from bough.events.model import (
    Condensed,
    ContentPart,
    Event,
    FilePart,
    ImagePart,
    MessageStored,
    ModelResponded,
    SkillActivated,
    TextPart,
    ToolFailed,
    ToolInterrupted,
    ToolOutcome,
    ToolRejected,
    ToolReturned,
    UserMessage,
)
from bough.events.stores import faults

if TYPE_CHECKING:
    from bough.events.store import EventStore

LOST = "[what was sent here is not in this store]"
"""Shown to the model in place of bytes that the store does not have."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shown:
    """A finished message with the events it shows: those with `start <= seq < stop` and none of other messages."""

    message: ModelMessage
    start: int
    stop: int

    @property
    def continues_calls(self) -> bool:
        """Whether it holds results of calls, so that it cannot be parted from the message before it."""
        return any(isinstance(part, ToolReturnPart) for part in self.message.parts)


@dataclass(frozen=True, slots=True)
class ViewMark:
    """Where a view was: how much of its list it had shown, and its open end."""

    shown: list[Shown]
    length: int
    version: int
    calls: list[str]
    outcomes: dict[str, ToolReturnPart]
    prompts: list[tuple[int, UserPromptPart]]
    skills: dict[str, tuple[int, UserPromptPart]]

    def restore(self) -> View:
        """Return the view that was marked; it continues by itself, the messages so far are shared. O(messages)."""
        view = View()
        view.back_to(replace(self, shown=self.shown[: self.length]))
        return view


class View:
    """Model messages, built event by event."""

    def __init__(self) -> None:
        self.shown: list[Shown] = []
        self._calls: list[str] = []
        self._outcomes: dict[str, ToolReturnPart] = {}
        self._prompts: list[tuple[int, UserPromptPart]] = []
        self._skills: dict[str, tuple[int, UserPromptPart]] = {}
        self.version = 0
        """Raised whenever messages that were shown already are shown differently."""

    def apply(self, seq: int, event: Event) -> None:
        """Take one event in. O(1), but for `Condensed`."""
        match event:
            case UserMessage():
                self._prompts.append((seq, UserPromptPart(_content(event.content), timestamp=event.ts)))
            case SkillActivated():
                self._activate(seq, event)
            case ModelResponded():
                self._seal(seq if event.seen is None else event.seen)
                response = response_of(event)
                self.shown.append(Shown(message=response, start=seq, stop=seq + 1))
                self._calls = [part.tool_call_id for part in response.tool_calls]
                self._outcomes = {}
            case ToolReturned() | ToolFailed() | ToolRejected() | ToolInterrupted():
                if event.tool_call_id in self._calls and event.tool_call_id not in self._outcomes:
                    self._outcomes[event.tool_call_id] = outcome_part(event)
            case Condensed():
                self._condense(event)
            case MessageStored():
                raise faults.foreign_messages()
            case _:
                pass

    def copy(self) -> View:
        """Return a view that continues by itself; the messages so far are shared."""
        new = View()
        new.shown, new._calls, new._skills = list(self.shown), list(self._calls), dict(self._skills)
        new.version = self.version
        new._outcomes, new._prompts = dict(self._outcomes), list(self._prompts)
        return new

    def mark(self) -> ViewMark:
        """Return where the view is now. Does not depend on how much it shows."""
        open_end = list(self._calls), dict(self._outcomes), list(self._prompts), dict(self._skills)
        return ViewMark(self.shown, len(self.shown), self.version, *open_end)

    def back_to(self, mark: ViewMark) -> None:
        """Show again what was shown at `mark`."""
        self.shown, self.version = mark.shown, mark.version
        del self.shown[mark.length :]
        self._calls, self._outcomes = list(mark.calls), dict(mark.outcomes)
        self._prompts, self._skills = list(mark.prompts), dict(mark.skills)

    def latest_response(self) -> ModelResponse | None:
        """Return the latest response, for use and change by others; None before the first one."""
        message = next((item.message for item in reversed(self.shown) if item.message.kind == "response"), None)
        return replace(message) if isinstance(message, ModelResponse) else None

    def tail(self) -> ModelRequest | None:
        """Return the request that the model has not answered yet; None while a call is open or nothing is new."""
        if any(call not in self._outcomes for call in self._calls):
            return None
        requests = self._request([prompt for _, prompt in self._prompts])
        return requests[0] if requests else None

    def messages(self) -> list[ModelMessage]:
        """Return the messages, oldest first. While a call is open they end with the response that made it."""
        tail = self.tail()
        return _merge_requests([*(item.message for item in self.shown), *([] if tail is None else [tail])])

    def _activate(self, seq: int, event: SkillActivated) -> None:
        if not event.rendered:
            return  # its text is in the log already
        part = UserPromptPart(event.rendered, timestamp=event.ts)
        self._skills[event.name] = (seq, part)
        if event.trigger != "tool":
            self._prompts.append((seq, part))

    def _request(self, prompts: list[UserPromptPart]) -> list[ModelRequest]:
        results = [self._outcomes[call] for call in self._calls if call in self._outcomes]
        parts: list[ToolReturnPart | UserPromptPart] = [*results, *prompts]
        return [ModelRequest(parts=parts, timestamp=parts[-1].timestamp)] if parts else []

    def _seal(self, stop: int) -> None:
        start = self.shown[-1].stop if self.shown else 0
        for message in self._request([prompt for seq, prompt in self._prompts if seq < stop]):
            self.shown.append(Shown(message=message, start=start, stop=max(start, stop)))
        self._prompts = [(seq, prompt) for seq, prompt in self._prompts if seq >= stop]

    def _condense(self, event: Condensed) -> None:
        """Put the summary in the place of what it stands for; the text of skills that goes with it stays."""
        inside = [event.start <= item.start and item.stop <= event.stop for item in self.shown]
        if True not in inside:
            return
        first, last = inside.index(True), len(inside) - inside[::-1].index(True)
        first, last = self._whole_calls(first, last)
        if first == last:
            return
        skill_parts = [part for seq, part in self._skills.values() if event.start <= seq < event.stop and part.content]
        summary = UserPromptPart(event.summary, timestamp=event.ts)
        request = ModelRequest(parts=[*skill_parts, summary], timestamp=event.ts)
        self.version += 1
        condensed = Shown(message=request, start=event.start, stop=event.stop)
        self.shown = [*self.shown[:first], condensed, *self.shown[last:]]  # a new list: marks keep the old one

    def _whole_calls(self, first: int, last: int) -> tuple[int, int]:
        """Return the range without what it has of calls whose other part, call or result, lies outside of it."""
        while first < last and self.shown[first].continues_calls:
            first += 1
        while first < last and isinstance(end := self.shown[last - 1].message, ModelResponse) and end.tool_calls:
            last -= 1
        return first, last


def _merge_requests(messages: list[ModelMessage]) -> list[ModelMessage]:
    """Return the messages with neighbouring requests made one, as providers want them."""
    joined: list[ModelMessage] = []
    for message in messages:
        before = joined[-1] if joined else None
        if isinstance(message, ModelRequest) and isinstance(before, ModelRequest):
            joined[-1] = replace(message, parts=[*before.parts, *message.parts])
        else:
            joined.append(message)
    return joined


def response_of(event: ModelResponded) -> ModelResponse:
    """Return the PydanticAI response that was recorded."""
    (message,) = ModelMessagesTypeAdapter.validate_python([event.response])
    if not isinstance(message, ModelResponse):
        raise CorruptLog(f"event {event.id} holds no model response", hint="`bough doctor` checks the whole store")
    return message


def response_json(response: ModelResponse) -> dict[str, Any]:
    """Return a response as JSON, thinking parts and provider signatures included."""
    (message,) = ModelMessagesTypeAdapter.dump_python([response], mode="json")
    return message


def outcome_part(event: ToolOutcome) -> ToolReturnPart:
    """Return what the model is told about how its call ended."""
    match event:
        case ToolReturned():
            return _part(event.tool, event.tool_call_id, show_result(event), "success", event.ts)
        case ToolFailed():
            error = cut_text(event.error, event.shown, event.id)
            return _part(event.tool, event.tool_call_id, error, "retried" if event.retry else "failed", event.ts)
        case ToolRejected():
            text = f"The call was rejected: {event.reason}" if event.reason else "The call was rejected."
            return _part(event.tool, event.tool_call_id, text, "denied", event.ts)
        case ToolInterrupted():
            text = f"The call did not finish ({event.reason}); its effects are unknown."
            return _part(event.tool, event.tool_call_id, text, "interrupted", event.ts)


def _part(tool: str, call: str, content: Any, outcome: Any, ts: datetime) -> ToolReturnPart:
    return ToolReturnPart(tool_name=tool, content=content, tool_call_id=call, outcome=outcome, timestamp=ts)


def _content(parts: tuple[ContentPart, ...]) -> str | list[UserContent]:
    if len(parts) == 1 and isinstance(parts[0], TextPart):
        return parts[0].text
    return [_user_content(part) for part in parts]


def _user_content(part: ContentPart) -> UserContent:
    match part:
        case TextPart():
            return part.text
        case ImagePart():
            return _image(part)
        case FilePart(sha256=str(digest), size_bytes=int()):
            return describe_bytes(digest, part.media_type)
        case FilePart(url=str(url)):
            return AudioUrl(url) if part.media_type.startswith("audio/") else DocumentUrl(url)
        case FilePart():
            return f"[file in the workspace: {part.path}]"


def _image(part: ImagePart) -> UserContent:
    if part.sha256 is not None and not part.data:
        return describe_bytes(part.sha256, part.media_type)
    if part.url is not None:
        return ImageUrl(part.url)
    try:
        return BinaryContent(data=base64.b64decode(part.data, validate=True), media_type=part.media_type)
    except ValueError:
        return "[an image that cannot be read]"


def describe_bytes(sha256: str, media_type: str) -> BinaryContent:
    """Return the placeholder of bytes that `fill_inputs` reads."""
    return BinaryContent(data=b"", media_type=media_type, identifier=sha256)


async def fill_inputs(store: EventStore, messages: Sequence[ModelMessage]) -> None:
    """Replace the placeholders of images and files by their bytes. O(messages) if there are none.

    Bytes that are missing, or do not match their digest, are replaced by the text `LOST`.
    """
    places = list(_list_missing(messages))
    if not places:
        return
    data_by_digest = await read_bytes(store, {content.identifier for _, _, content in places})
    for contents, index, content in places:
        data = data_by_digest.get(content.identifier)
        contents[index] = LOST if data is None else BinaryContent(data=data, media_type=content.media_type)


def _list_missing(messages: Sequence[ModelMessage]) -> Iterator[tuple[list[Any], int, BinaryContent]]:
    for message in messages:
        for part in message.parts:
            if not isinstance(part, UserPromptPart) or isinstance(part.content, str):
                continue
            contents = cast("list[Any]", part.content)
            for index, content in enumerate(contents):
                if isinstance(content, BinaryContent) and not content.data and is_digest(content.identifier):
                    yield contents, index, content
