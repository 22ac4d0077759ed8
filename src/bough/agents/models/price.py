"""Whether the price of a model is known."""

from __future__ import annotations

from typing import Any

from pydantic_ai.messages import ModelResponse
from pydantic_ai.models import Model
from pydantic_ai.usage import RequestUsage

from bough.agents.models.offline import OfflineModel
from bough.agents.models.replay import ReplayModel


def is_priced(model: Model[Any]) -> bool:
    """Whether the price list has the model; True for the offline and replay models, which cost nothing."""
    if isinstance(model, OfflineModel | ReplayModel):
        return True
    response = ModelResponse(
        parts=[],
        usage=RequestUsage(input_tokens=1, output_tokens=1),
        model_name=model.model_name,
        provider_name=model.system,
    )
    try:
        response.cost()
    except (LookupError, AssertionError):
        return False
    return True
