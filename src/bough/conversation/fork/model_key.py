"""Sealed secrets in forks: whether a fork may use the model's key that was posted for its source."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bough.types import JsonObject

MODEL_KEY = "$model"
"""The name of a model's key among sealed secrets. No environment variable can have it, so scripts never get the key."""


def is_same_recipient(a: JsonObject, b: JsonObject) -> bool:
    """Whether the models of two recorded agents have the same provider and address, so that a key is valid for both."""
    return _find_recipient(a) == _find_recipient(b)


def keep_sealed(fork_agent: JsonObject, *states: tuple[JsonObject, Mapping[str, Any]]) -> dict[str, str]:
    """Return the sealed secrets of a fork: the conversation for which each was sealed, by name of the secret.

    The model's key is kept only if it was posted for the provider and address of the fork's model, because no other
    provider may get it.

    Args:
        fork_agent: The recorded agent of the fork.
        states: Agent and policies at the cut, then at the head. For a cut in the imported part of a log, only those at
            the head.
    """
    at_cut: dict[str, str] = states[0][1].get("sealed") or {}
    other_secrets = {name: holder for name, holder in at_cut.items() if name != MODEL_KEY}
    for agent, policies in states:
        sealed: dict[str, str] = policies.get("sealed") or {}
        holder = sealed.get(MODEL_KEY)
        if holder is not None and is_same_recipient(agent, fork_agent):
            return other_secrets | {MODEL_KEY: holder}
    return other_secrets


def _find_recipient(agent: JsonObject) -> tuple[str, Any]:
    """Return provider and address of a recorded agent's model."""
    return str(agent.get("model") or "").partition(":")[0], agent.get("base_url")
