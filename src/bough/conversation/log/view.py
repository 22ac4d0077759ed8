"""The model messages of a log. Only this module turns events into messages.

The view is updated with the log: k new events cost O(k). It depends only on the events, so a shared prefix renders
byte-identically in every fork. It contains no conversation id, no current date and no path of this machine.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

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

from bough.conversation.log.tool_result import LOST, cut_text, show_result
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Shown:
    """A finished message. It shows the events with `start <= seq < stop`, which no other message shows."""

    message: ModelMessage
    start: int
    stop: int

    @property
    def continues_calls(self) -> bool:
        """Whether it contains results of calls, so that it cannot be separated from the message before it."""
        return any(isinstance(part, ToolReturnPart) for part in self.message.parts)


@dataclass(frozen=True, slots=True)
class ViewMark:
    """A position of a view: the number of finished messages, and the parts of the request that is not finished."""

    shown: list[Shown]
    length: int
    version: int
    calls: list[str]
    outcomes: dict[str, ToolReturnPart]
    prompts: list[tuple[int, UserPromptPart]]
    skills: dict[str, tuple[int, UserPromptPart]]

    def restore(self) -> View:
        """Return an independent view at this position. It shares the message objects. O(messages)."""
        view = View()
        view.reset_to(replace(self, shown=self.shown[: self.length]))
        return view


class View:
    """Model messages, built event by event.

    Attributes:
        shown: The finished messages, oldest first.
        version: Increases whenever messages that were already shown are shown differently.
    """

    def __init__(self) -> None:
        self.shown: list[Shown] = []
        self._calls: list[str] = []
        self._outcomes: dict[str, ToolReturnPart] = {}
        self._prompts: list[tuple[int, UserPromptPart]] = []
        self._skills: dict[str, tuple[int, UserPromptPart]] = {}
        self.version = 0

    def apply(self, seq: int, event: Event) -> None:
        """Add one event. O(1); `Condensed` costs O(messages)."""
        match event:
            case UserMessage():
                self._prompts.append((seq, UserPromptPart(_convert_content(event.content), timestamp=event.ts)))
            case SkillActivated():
                self._activate(seq, event)
            case ModelResponded():
                self._finish_request(seq if event.seen is None else event.seen)
                response = decode_response(event)
                self.shown.append(Shown(message=response, start=seq, stop=seq + 1))
                self._calls = [part.tool_call_id for part in response.tool_calls]
                self._outcomes = {}
            case ToolReturned() | ToolFailed() | ToolRejected() | ToolInterrupted():
                if event.tool_call_id in self._calls and event.tool_call_id not in self._outcomes:
                    self._outcomes[event.tool_call_id] = make_outcome_part(event)
            case Condensed():
                self._condense(event)
            case MessageStored():
                raise faults.foreign_messages()
            case _:
                pass

    def copy(self) -> View:
        """Return an independent view, which shares the message objects."""
        new = View()
        new.shown, new._calls, new._skills = list(self.shown), list(self._calls), dict(self._skills)
        new.version = self.version
        new._outcomes, new._prompts = dict(self._outcomes), list(self._prompts)
        return new

    def mark(self) -> ViewMark:
        """Return a mark of the present position. Its cost does not depend on the number of messages."""
        return ViewMark(
            shown=self.shown,
            length=len(self.shown),
            version=self.version,
            calls=list(self._calls),
            outcomes=dict(self._outcomes),
            prompts=list(self._prompts),
            skills=dict(self._skills),
        )

    def reset_to(self, mark: ViewMark) -> None:
        """Return to the position of `mark`."""
        self.shown, self.version = mark.shown, mark.version
        del self.shown[mark.length :]
        self._calls, self._outcomes = list(mark.calls), dict(mark.outcomes)
        self._prompts, self._skills = list(mark.prompts), dict(mark.skills)

    def latest_response(self) -> ModelResponse | None:
        """Return a copy of the latest response; None before the first one."""
        message = next((item.message for item in reversed(self.shown) if item.message.kind == "response"), None)
        return replace(message) if isinstance(message, ModelResponse) else None

    def pending_request(self) -> ModelRequest | None:
        """Return the request that the model has not answered yet; None if a call is open or there is nothing new."""
        if any(call not in self._outcomes for call in self._calls):
            return None
        return self._make_request([prompt for _, prompt in self._prompts])

    def messages(self) -> list[ModelMessage]:
        """Return the messages, oldest first. While a call is open they end with the response that made it."""
        messages = [item.message for item in self.shown]
        pending = self.pending_request()
        if pending is not None:
            messages.append(pending)
        return _merge_requests(messages)

    def _activate(self, seq: int, event: SkillActivated) -> None:
        """Add the text of a skill as a prompt, unless a tool call returned it."""
        if not event.rendered:
            return  # an earlier event has the text
        part = UserPromptPart(event.rendered, timestamp=event.ts)
        self._skills[event.name] = (seq, part)
        if event.trigger != "tool":
            self._prompts.append((seq, part))

    def _make_request(self, prompts: list[UserPromptPart]) -> ModelRequest | None:
        """Return the request with the results of the latest response's calls and `prompts`; None if it is empty."""
        results = [self._outcomes[call] for call in self._calls if call in self._outcomes]
        parts: list[ToolReturnPart | UserPromptPart] = [*results, *prompts]
        return ModelRequest(parts=parts, timestamp=parts[-1].timestamp) if parts else None

    def _finish_request(self, stop: int) -> None:
        """Add the request that the model answered, with the prompts before `stop`. Later prompts remain pending."""
        start = self.shown[-1].stop if self.shown else 0
        request = self._make_request([prompt for seq, prompt in self._prompts if seq < stop])
        if request is not None:
            self.shown.append(Shown(message=request, start=start, stop=max(start, stop)))
        self._prompts = [(seq, prompt) for seq, prompt in self._prompts if seq >= stop]

    def _condense(self, event: Condensed) -> None:
        """Replace the messages of the event's range by the summary and the texts of skills in that range."""
        condensed_indexes = [
            index for index, item in enumerate(self.shown) if event.start <= item.start and item.stop <= event.stop
        ]
        if not condensed_indexes:
            return
        first, stop = self._exclude_split_calls(condensed_indexes[0], condensed_indexes[-1] + 1)
        if first == stop:
            return
        skill_parts = [part for seq, part in self._skills.values() if event.start <= seq < event.stop and part.content]
        summary = UserPromptPart(event.summary, timestamp=event.ts)
        request = ModelRequest(parts=[*skill_parts, summary], timestamp=event.ts)
        self.version += 1
        condensed = Shown(message=request, start=event.start, stop=event.stop)
        self.shown = [*self.shown[:first], condensed, *self.shown[stop:]]  # a new list: marks refer to the old one

    def _exclude_split_calls(self, first: int, stop: int) -> tuple[int, int]:
        """Return the range of messages, shortened so that no call is separated from its result."""
        while first < stop and self.shown[first].continues_calls:
            first += 1
        while first < stop:
            last_message = self.shown[stop - 1].message
            if not (isinstance(last_message, ModelResponse) and last_message.tool_calls):
                break
            stop -= 1
        return first, stop


def _merge_requests(messages: list[ModelMessage]) -> list[ModelMessage]:
    """Return the messages with consecutive requests merged into one, as providers require."""
    merged: list[ModelMessage] = []
    for message in messages:
        previous = merged[-1] if merged else None
        if isinstance(message, ModelRequest) and isinstance(previous, ModelRequest):
            merged[-1] = replace(message, parts=[*previous.parts, *message.parts])
        else:
            merged.append(message)
    return merged


def decode_response(event: ModelResponded) -> ModelResponse:
    """Return the PydanticAI response that was recorded.

    Raises:
        CorruptLog: The event does not contain a model response.
    """
    (message,) = ModelMessagesTypeAdapter.validate_python([event.response])
    if not isinstance(message, ModelResponse):
        raise CorruptLog(f"event {event.id} contains no model response", hint="`bough doctor` checks the whole store")
    return message


def encode_response(response: ModelResponse) -> dict[str, Any]:
    """Return a response as JSON, thinking parts and provider signatures included."""
    (message,) = ModelMessagesTypeAdapter.dump_python([response], mode="json")
    return message


def make_outcome_part(event: ToolOutcome) -> ToolReturnPart:
    """Return the message part that shows the model the outcome of its call."""
    match event:
        case ToolReturned():
            part = _make_result_part(event.tool, event.tool_call_id, show_result(event), "success", event.ts)
            return replace(part, metadata=event) if _lacks_bytes(event) else part
        case ToolFailed():
            error = cut_text(event.error, event.shown, event.id)
            return _make_result_part(
                event.tool, event.tool_call_id, error, "retried" if event.retry else "failed", event.ts
            )
        case ToolRejected():
            text = f"The call was rejected: {event.reason}" if event.reason else "The call was rejected."
            return _make_result_part(event.tool, event.tool_call_id, text, "denied", event.ts)
        case ToolInterrupted():
            text = f"The call did not finish ({event.reason}); its effects are unknown."
            return _make_result_part(event.tool, event.tool_call_id, text, "interrupted", event.ts)


def _make_result_part(tool: str, call: str, content: Any, outcome: Any, ts: datetime) -> ToolReturnPart:
    return ToolReturnPart(tool_name=tool, content=content, tool_call_id=call, outcome=outcome, timestamp=ts)


def _convert_content(parts: tuple[ContentPart, ...]) -> str | list[UserContent]:
    if len(parts) == 1 and isinstance(parts[0], TextPart):
        return parts[0].text
    return [_convert_part(part) for part in parts]


def _convert_part(part: ContentPart) -> UserContent:
    match part:
        case TextPart():
            return part.text
        case ImagePart():
            return _convert_image(part)
        case FilePart(sha256=str(digest), size_bytes=int()):
            return make_placeholder(digest, part.media_type)
        case FilePart(url=str(url)):
            return AudioUrl(url) if part.media_type.startswith("audio/") else DocumentUrl(url)
        case FilePart():
            return f"[file in the workspace: {part.path}]"


def _convert_image(part: ImagePart) -> UserContent:
    if part.sha256 is not None and not part.data:
        return make_placeholder(part.sha256, part.media_type)
    if part.url is not None:
        return ImageUrl(part.url)
    try:
        return BinaryContent(data=base64.b64decode(part.data, validate=True), media_type=part.media_type)
    except ValueError:
        return "[an image that cannot be read]"


def _lacks_bytes(event: ToolReturned) -> bool:
    """Whether the model is shown files of a result whose bytes must be read from the store."""
    return event.shown is None and any(file.content is None for file in event.files)


def make_placeholder(sha256: str, media_type: str) -> BinaryContent:
    """Return a placeholder for the bytes with this digest, which `fill_files` replaces by them."""
    return BinaryContent(data=b"", media_type=media_type, identifier=sha256)


async def fill_files(store: EventStore, cid: UUID, messages: Sequence[ModelMessage]) -> None:
    """Replace the placeholders of images and files by their bytes. O(messages) if there are none.

    If the conversation does not have the bytes, or they do not match their digest, the text `LOST` is used instead.
    """
    placeholders, results = list(_find_placeholders(messages)), list(_find_results_without_bytes(messages))
    digests = {content.identifier for _, _, content in placeholders}
    digests.update(file.sha256 for _, event in results for file in event.files if is_digest(file.sha256))
    if not placeholders and not results:
        return
    data_by_digest = await read_bytes(store, cid, digests)
    for contents, index, content in placeholders:
        data = data_by_digest.get(content.identifier)
        contents[index] = LOST if data is None else BinaryContent(data=data, media_type=content.media_type)
    for part, event in results:
        part.content, part.metadata = show_result(event, data_by_digest), None


async def load_result(store: EventStore, cid: UUID, event: ToolReturned) -> Any:
    """Return the content of a result as the model is shown it, with the bytes of its files."""
    if not _lacks_bytes(event):
        return show_result(event)
    digests = {file.sha256 for file in event.files if is_digest(file.sha256)}
    return show_result(event, await read_bytes(store, cid, digests))


def _find_results_without_bytes(messages: Sequence[ModelMessage]) -> Iterator[tuple[ToolReturnPart, ToolReturned]]:
    """Yield each result that lacks the bytes of its files, with its event."""
    for message in messages:
        for part in message.parts:
            if isinstance(part, ToolReturnPart) and isinstance(part.metadata, ToolReturned):
                yield part, part.metadata


def _find_placeholders(messages: Sequence[ModelMessage]) -> Iterator[tuple[list[Any], int, BinaryContent]]:
    """Yield each placeholder with the list that contains it and its index in the list."""
    for message in messages:
        for part in message.parts:
            if not isinstance(part, UserPromptPart) or isinstance(part.content, str):
                continue
            contents = cast("list[Any]", part.content)
            for index, content in enumerate(contents):
                if isinstance(content, BinaryContent) and not content.data and is_digest(content.identifier):
                    yield contents, index, content
