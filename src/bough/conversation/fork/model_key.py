"""The model's key that was posted for a conversation: which fork of it may use that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bough.types import JsonObject

MODEL_KEY = "$model"
"""The name of a model's key among what is sealed; no environment variable can have it, so no script is given it."""


def is_same_recipient(a: JsonObject, b: JsonObject) -> bool:
    """Whether the models of two recorded agents are one provider's at one address: a key of one is for the other."""
    return _recipient_of(a) == _recipient_of(b)


def keep_sealed(fork: JsonObject, *states: tuple[JsonObject, Mapping[str, Any]]) -> dict[str, str]:
    """Return by name which conversation holds what was sealed for a fork.

    Args:
        fork: The recorded agent of the fork.
        states: Agent and policies as recorded at the cut, then as they are at present; of a cut in a log from elsewhere
            the present ones alone. The model's key is that of the first whose model has the provider and the address of
            the fork's: to anybody else it would be given away.
    """
    at_cut: dict[str, str] = states[0][1].get("sealed") or {}
    others = {name: holder for name, holder in at_cut.items() if name != MODEL_KEY}
    for agent, policies in states:
        sealed: dict[str, str] = policies.get("sealed") or {}
        holder = sealed.get(MODEL_KEY)
        if holder is not None and is_same_recipient(agent, fork):
            return others | {MODEL_KEY: holder}
    return others


def _recipient_of(agent: JsonObject) -> tuple[str, Any]:
    return str(agent.get("model") or "").partition(":")[0], agent.get("base_url")
