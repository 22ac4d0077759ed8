"""Which models a run asks: that of its agent, those it falls back to, and the one that summarizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pydantic_ai.models import Model

from bough.agents.spec import AgentSpec
from bough.conversation.agent import require_prices, resolve_spec_model, with_other_model
from bough.conversation.log.condenser import Condenser, SummarizingCondenser
from bough.conversation.rules import Rules
from bough.conversation.run.ask import summarize
from bough.settings import Settings


class RunModels:
    """Makes the models of one run. Importing a provider takes up to a second, once.

    Args:
        rules: Returns the rules in force now: where they bound the cost, the prices of each model must be known.
    """

    def __init__(self, settings: Settings, rules: Callable[[], Rules]) -> None:
        self._settings = settings
        self._rules = rules

    def model_of(self, spec: AgentSpec) -> Model:
        """Return the agent's model.

        Raises:
            InvalidInput: The model is unknown, or its prices are needed and unknown.
            Unavailable: Its key or its package is missing.
        """
        model = resolve_spec_model(spec, self._settings)[0]
        require_prices(model, self._rules().limits)
        return model

    def resolve_named(self, name: str, spec: AgentSpec) -> Model:
        """Return another model, by name: at the agent's address, and with its key where the provider is the same.

        Raises: see `model_of`.
        """
        return self.model_of(with_other_model(spec, name, spec.base_url))

    def give_model(self, condenser: Condenser, spec: AgentSpec, model: Model) -> Condenser:
        """Return the condenser; one that summarizes can ask then, `model` where it has none of its own.

        Raises: see `model_of`.
        """
        if not isinstance(condenser, SummarizingCondenser):
            return condenser
        own = self.resolve_named(condenser.model, spec) if isinstance(condenser.model, str) else condenser.model
        return replace(condenser, model=own or model, summarize=condenser.summarize or summarize)
