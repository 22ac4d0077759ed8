"""Whether a model can stream its responses; other models are asked for a whole response."""

from __future__ import annotations

from pydantic_ai.models import Model
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.wrapper import WrapperModel


def can_stream(model: Model) -> bool:
    """Return whether `model` supports streaming; a wrapper does if all wrapped models do."""
    match model:
        case WrapperModel():
            return can_stream(model.wrapped)
        case FallbackModel():
            return all(can_stream(one) for one in model.models)
        case FunctionModel():
            return model.stream_function is not None
        case _:
            return type(model).request_stream is not Model.request_stream
