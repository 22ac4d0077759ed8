"""Streaming a complete model response in pieces, as a provider would."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime

from anyio.lowlevel import checkpoint
from pydantic_ai.messages import ModelResponse, ModelResponseStreamEvent, TextPart, ThinkingPart, ToolCallPart
from pydantic_ai.models import ModelRequestParameters, StreamedResponse

_TEXT_PIECES = 8
_ARGS_PIECES = 3


@dataclass
class PiecewiseResponse(StreamedResponse):
    """Streams `response`: a text in up to eight deltas, a tool call as its name and up to three parts of its arguments.

    Yields to other tasks between two pieces, so that a cancelled stream ends after at most one more piece.

    Attributes:
        response: The complete response.
        failure: Raised after the last piece, like a broken connection.
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
        # Set here, because no delta carries them: a run that stops early still counts what the response cost.
        stream._usage = response.usage
        stream.finish_reason = response.finish_reason
        stream.provider_response_id = response.provider_response_id
        stream.provider_details = response.provider_details
        return stream

    async def _get_event_iterator(self) -> AsyncIterator[ModelResponseStreamEvent]:
        for index, part in enumerate(self.response.parts):
            for event in self._events(index, part):
                await checkpoint()  # without it, the whole stream would run before a cancellation is noticed
                if self.cancelled:
                    return
                yield event
        if self.failure is not None:
            raise self.failure
        self._is_complete = True  # after the failure, so that a broken stream never counts as complete

    def get(self) -> ModelResponse:
        """Return what was streamed so far; at the end exactly `response`, with signatures and provider details."""
        # Deltas lose some details of parts, which a replay must have unchanged.
        return replace(self.response) if self._is_complete else super().get()

    def _events(self, index: int, part: object) -> Iterator[ModelResponseStreamEvent]:
        manager = self._parts_manager
        match part:
            case TextPart():
                # An empty text is still one delta, else the part would be missing from the response.
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
        """Name of the model that returned the response."""
        return self.response.model_name or ""

    @property
    def provider_name(self) -> str | None:
        """Name of its provider."""
        return self.response.provider_name

    @property
    def provider_url(self) -> str | None:
        """Address of its provider."""
        return self.response.provider_url

    @property
    def timestamp(self) -> datetime:
        """When the response was created."""
        return self.response.timestamp


def cut(text: str, pieces: int) -> list[str]:
    """Split `text` into at most `pieces` parts of about equal length; an empty text has none."""
    size = max(1, -(-len(text) // pieces))
    return [text[at : at + size] for at in range(0, len(text), size)]
