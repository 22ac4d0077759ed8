"""Imports PydanticAI's message histories into conversations, and exports conversations as such histories.

`conversation_store` returns an event store as PydanticAI's `ConversationStore`.
"""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, overload

from pydantic import ValidationError
from pydantic_ai.messages import (
    BinaryContent,
    CachePoint,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    RetryPromptPart,  # pyright: ignore[reportDeprecated] - stored histories of older versions have it
    SystemPromptPart,
    ToolReturnPart,
    UserPromptPart,
)

from bough.agents.usage import read_usage
from bough.conversation.conversation import AsyncConversation
from bough.conversation.log.tool_result import take_out_files
from bough.conversation.log.view import encode_response
from bough.conversation.sync import Conversation
from bough.errors import InvalidInput, Unavailable
from bough.events.model import (
    ContentPart,
    Event,
    ImagePart,
    ModelResponded,
    StateChanged,
    TextPart,
    ToolFailed,
    ToolInterrupted,
    ToolRejected,
    ToolReturned,
    UserMessage,
)
from bough.settings import Price

if TYPE_CHECKING:
    from bough.conversation.adapters.pydantic_store import LogConversationStore
    from bough.events.store import StoreAdmin


def conversation_store(store: StoreAdmin) -> LogConversationStore:
    """Return an event store as PydanticAI's `ConversationStore`.

    Raises:
        Unavailable: The installed version of PydanticAI has no `ConversationStore`.
    """
    try:
        from bough.conversation.adapters.pydantic_store import LogConversationStore
    except ModuleNotFoundError as error:
        if error.name != "pydantic_ai.conversation_store":
            raise
        raise Unavailable(
            f"pydantic-ai-slim {version('pydantic-ai-slim')} has no ConversationStore",
            hint="install pydantic-ai-slim 2.68 or newer, or move histories with import_messages and export_messages",
        ) from error
    return LogConversationStore(store)


@overload
def export_messages(conversation: Conversation[Any]) -> bytes: ...
@overload
def export_messages(conversation: AsyncConversation[Any]) -> Awaitable[bytes]: ...
def export_messages(conversation: Conversation[Any] | AsyncConversation[Any]) -> bytes | Awaitable[bytes]:
    """Return the messages that the model is shown, as JSON for `ModelMessagesTypeAdapter`.

    For an `AsyncConversation` the result is awaitable.
    """
    if isinstance(conversation, AsyncConversation):
        return _export(conversation)
    return ModelMessagesTypeAdapter.dump_json(conversation.messages())


async def _export(conversation: AsyncConversation[Any]) -> bytes:
    return ModelMessagesTypeAdapter.dump_json(await conversation.messages())


@dataclass(frozen=True)
class ImportReport:
    """The result of importing a history.

    Attributes:
        count: How many events were appended.
        left_out: A description of each part that was not imported, with the number of its message.
    """

    count: int
    left_out: tuple[str, ...] = ()


async def import_messages(conversation: AsyncConversation, data: bytes | Sequence[ModelMessage]) -> ImportReport:
    """Append a PydanticAI history to a conversation without messages, and return a report.

    System prompts and instructions are not imported, because the conversation has those of its agent. Calls without a
    result are closed, so that the conversation can continue. Files other than images, URLs, cache points, and metadata
    of results are not imported. A note in the message replaces each file and URL. All omissions are reported.

    Raises:
        InvalidInput: `data` is not such a history, or the conversation already has messages.
    """
    if await conversation.messages():
        raise InvalidInput("the conversation already has messages", hint="import into a new one")
    messages = _parse_messages(data)
    events = list(_make_events(messages, conversation.settings.prices))
    closed = StateChanged(changes={"status": "finished"}, reason="imported")
    await conversation.append(*events, closed)
    left_out = [
        f"message {index}: {part}" for index, message in enumerate(messages) for part in _list_left_out(message)
    ]
    return ImportReport(len(events) + 1, tuple(left_out))


def _parse_messages(data: bytes | Sequence[ModelMessage]) -> list[ModelMessage]:
    if not isinstance(data, bytes):
        return list(data)
    try:
        return ModelMessagesTypeAdapter.validate_json(data)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        location = ".".join(str(part) for part in fault["loc"][:3])
        raise InvalidInput(
            f"not a PydanticAI message history: {location}: {fault['msg']}",
            hint="give the output of ModelMessagesTypeAdapter.dump_json",
        ) from error


def _make_events(messages: Sequence[ModelMessage], prices: Mapping[str, Price]) -> Iterator[Event]:
    open_calls: dict[str, str] = {}
    for message in messages:
        if isinstance(message, ModelResponse):
            yield from _close_calls_without_result(open_calls)
            yield ModelResponded(
                response=encode_response(message),
                model=message.model_name,
                usage=read_usage(message, prices),
                ts=message.timestamp,
            )
            open_calls = {call.tool_call_id: call.tool_name for call in message.tool_calls}
        else:
            yield from _make_request_events(message, open_calls)
    yield from _close_calls_without_result(open_calls)


def _make_request_events(message: ModelRequest, open_calls: dict[str, str]) -> Iterator[Event]:
    for part in message.parts:
        match part:
            case ToolReturnPart() if open_calls.pop(part.tool_call_id, None):
                yield _make_outcome(part)
            case RetryPromptPart() if open_calls.pop(part.tool_call_id, None):  # pyright: ignore[reportDeprecated]
                text = part.model_response()
                yield ToolFailed(tool_call_id=part.tool_call_id, tool=part.tool_name or "", error=text, retry=True)
            case UserPromptPart():
                yield UserMessage(content=tuple(_convert_content(part.content)), ts=part.timestamp)
            case _:
                continue


def _list_left_out(message: ModelMessage) -> Iterator[str]:
    """Yield a description of each part of a message that is not imported."""
    if isinstance(message, ModelResponse):
        return
    if message.instructions:
        yield "instructions"
    for part in message.parts:
        match part:
            case SystemPromptPart():
                yield "a system prompt"
            case UserPromptPart() if not isinstance(part.content, str):
                yield from (_name_content(item) for item in part.content if not _is_importable(item))
            case ToolReturnPart() if part.metadata is not None:
                yield f"metadata of the result of {part.tool_name} ({part.tool_call_id})"
            case _:
                continue


def _is_importable(item: Any) -> bool:
    return isinstance(item, str) or (isinstance(item, BinaryContent) and item.is_image)


def _name_content(item: Any) -> str:
    if isinstance(item, BinaryContent):
        return f"a file, {item.media_type}, {len(item.data)} bytes"
    return f"{type(item).__name__} {getattr(item, 'url', '')}".strip()


def _make_outcome(part: ToolReturnPart) -> Event:
    fields: dict[str, Any] = {"tool_call_id": part.tool_call_id, "tool": part.tool_name, "ts": part.timestamp}
    text = part.model_response_str(wrap_if_error=False)
    match part.outcome:
        case "success":
            result, files = take_out_files(part.content if isinstance(part.content, str) else _dump_content(part))
            return ToolReturned(result=result, files=files, **fields)
        case "denied":
            return ToolRejected(by="import", reason=text, **fields)
        case "interrupted":
            return ToolInterrupted(reason=text, **fields)
        case "failed" | "retried":
            return ToolFailed(error=text, retry=part.outcome == "retried", **fields)


def _dump_content(part: ToolReturnPart) -> Any:
    (message,) = ModelMessagesTypeAdapter.dump_python([ModelRequest(parts=[part])], mode="json")
    return message["parts"][0]["content"]


def _convert_content(content: Any) -> Iterator[ContentPart]:
    for item in [content] if isinstance(content, str) else content:
        if isinstance(item, str):
            yield TextPart(text=item)
        elif isinstance(item, BinaryContent) and item.is_image:
            yield ImagePart(data=base64.b64encode(item.data).decode(), media_type=item.media_type)
        elif not isinstance(item, CachePoint):
            yield TextPart(text=f"[{_name_content(item)}: not carried over]")


def _close_calls_without_result(open_calls: dict[str, str]) -> Iterator[Event]:
    for id, tool in open_calls.items():
        yield ToolInterrupted(tool_call_id=id, tool=tool, reason="its result was not in the imported history")
    open_calls.clear()
