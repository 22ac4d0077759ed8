"""Stream a complete model response in pieces, as a provider does."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from math import ceil

from anyio.lowlevel import checkpoint
from pydantic_ai.messages import ModelResponse, ModelResponseStreamEvent, TextPart, ThinkingPart, ToolCallPart
from pydantic_ai.models import ModelRequestParameters, StreamedResponse

_TEXT_PIECES = 8
_ARGS_PIECES = 3


@dataclass
class PiecewiseResponse(StreamedResponse):
    """Streams a response: a text in up to 8 deltas, a tool call as its name and up to 3 parts of its arguments.

    Other tasks may run between two pieces, so a cancelled stream ends after at most one more piece.

    Attributes:
        response: The complete response.
        failure: An exception to raise after the last piece, like a broken connection.
    """

    response: ModelResponse
    failure: BaseException | None = None
    _is_complete: bool = field(default=False, init=False)

    @classmethod
    def of(
        cls, response: ModelResponse, parameters: ModelRequestParameters, *, failure: BaseException | None = None
    ) -> PiecewiseResponse:
        """Return the stream of `response`; its usage is available from the start."""
        stream = cls(parameters, response, failure)
        # Set here, because no delta contains them. A run that stops early must still count the cost of the response.
        stream._usage = response.usage
        stream.finish_reason = response.finish_reason
        stream.provider_response_id = response.provider_response_id
        stream.provider_details = response.provider_details
        return stream

    async def _get_event_iterator(self) -> AsyncIterator[ModelResponseStreamEvent]:
        for index, part in enumerate(self.response.parts):
            for event in self._events(index, part):
                await checkpoint()  # otherwise the whole stream would run before a cancellation is noticed
                if self.cancelled:
                    return
                yield event
        if self.failure is not None:
            raise self.failure
        self._is_complete = True  # after the failure, so that a broken stream never counts as complete

    def get(self) -> ModelResponse:
        """Return the response streamed so far; when the stream is complete, exactly `response`."""
        # A copy of `response`, because deltas lose signatures and provider details, which a replay needs.
        return replace(self.response) if self._is_complete else super().get()

    def _events(self, index: int, part: object) -> Iterator[ModelResponseStreamEvent]:
        """Yield the stream events of a part of the response."""
        manager = self._parts_manager
        match part:
            case TextPart():
                # An empty text is streamed as one delta; without a delta, the part would be missing in the response.
                for piece in cut(part.content, _TEXT_PIECES) or [""]:
                    yield from manager.handle_text_delta(vendor_part_id=index, content=piece)
            case ThinkingPart():
                for piece in cut(part.content, _TEXT_PIECES) or [""]:
                    yield from manager.handle_thinking_delta(vendor_part_id=index, content=piece)
                if part.signature:
                    yield from manager.handle_thinking_delta(
                        vendor_part_id=index, signature=part.signature, provider_name=part.provider_name
                    )
            case ToolCallPart():
                start = manager.handle_tool_call_delta(
                    vendor_part_id=index, tool_name=part.tool_name, tool_call_id=part.tool_call_id
                )
                pieces = cut(part.args_as_json_str(), _ARGS_PIECES)
                deltas = (manager.handle_tool_call_delta(vendor_part_id=index, args=piece) for piece in pieces)
                yield from (event for event in (start, *deltas) if event is not None)
            case _:
                yield manager.handle_part(vendor_part_id=index, part=part)  # pyright: ignore[reportArgumentType]

    async def close_stream(self) -> None:
        """Do nothing: the stream has no connection."""

    @property
    def model_name(self) -> str:
        """The name of the model that returned the response."""
        return self.response.model_name or ""

    @property
    def provider_name(self) -> str | None:
        """The name of the model's provider."""
        return self.response.provider_name

    @property
    def provider_url(self) -> str | None:
        """The address of the model's provider."""
        return self.response.provider_url

    @property
    def timestamp(self) -> datetime:
        """The time at which the response was created."""
        return self.response.timestamp


def cut(text: str, pieces: int) -> list[str]:
    """Split `text` into at most `pieces` parts of about equal length; return no part for an empty text."""
    size = max(1, ceil(len(text) / pieces))
    return [text[start : start + size] for start in range(0, len(text), size)]
