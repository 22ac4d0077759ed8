"""The reward of a task, read only from what its test script wrote."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, cast

from bough.types import Json, JsonObject

MAX_REWARD_BYTES: Final = 64 << 10
REWARD_JSON: Final = "/logs/verifier/reward.json"
LOG_SEPARATOR: Final = "\n--- stderr\n"
"""Separates stdout from stderr in the log of a test script."""
REWARD_TEXT: Final = "/logs/verifier/reward.txt"


@dataclass(frozen=True, kw_only=True)
class Reward:
    """The score of an attempt at a task.

    Attributes:
        value: 0 to 1; the task is solved at 1.
        reason: Why the value is 0, or another remark.
        is_error: Whether the test script failed, rather than the agent.
        parts: All numbers of `reward.json`.
        changed: System files that changed while the agent ran, in a container.
        agent_timed_out: Whether the agent timed out; the reward still counts.
        verified: Whether the test script ran.
    """

    value: float = 0.0
    reason: str = ""
    is_error: bool = False
    parts: Mapping[str, float] = field(default_factory=dict[str, float])
    changed: tuple[str, ...] = ()
    agent_timed_out: bool = False
    verified: bool = True

    def as_dict(self) -> JsonObject:
        """Return the reward as JSON."""
        return {
            "value": self.value,
            "reason": self.reason,
            "is_error": self.is_error,
            "parts": dict(self.parts),
            "changed": list(self.changed),
            "agent_timed_out": self.agent_timed_out,
            "verified": self.verified,
        }

    @classmethod
    def of(cls, data: JsonObject) -> Reward:
        """Return the reward that `as_dict` wrote."""
        return cls(
            value=float(data["value"]),
            reason=str(data["reason"]),
            is_error=bool(data["is_error"]),
            parts=dict(data["parts"]),
            changed=tuple(data["changed"]),
            agent_timed_out=bool(data["agent_timed_out"]),
            verified=bool(data["verified"]),
        )


def parse_reward(
    json_content: bytes | None,
    text_content: bytes | None,
    exit_code: int | None,
    *,
    timed_out: bool,
    is_full: bool = False,
) -> Reward:
    """Return the reward that a test script wrote; `reward.json` takes precedence over `reward.txt`.

    Args:
        json_content: Content of `reward.json`; None if missing.
        text_content: Content of `reward.txt`; None if missing.
        exit_code: Exit code of the test script.
        is_full: Whether the test script was stopped because its files exceeded the task's storage.
    """
    if json_content is not None and json_content.strip():
        try:
            return _reward_from_json(json.loads(json_content))
        except (ValueError, RecursionError):
            return Reward(reason=f"reward.json is not JSON: {json_content[:80]!r}", is_error=True)
    if text_content is not None and text_content.strip():
        try:
            return _reward_from_json(float(text_content))
        except ValueError:
            return Reward(reason=f"reward.txt is not a number: {text_content[:80]!r}", is_error=True)
    if timed_out:
        return Reward(reason="verifier timed out")
    if is_full:
        return Reward(reason="the verifier was stopped because its files exceeded storage_mb")
    return Reward(reason=f"test.sh wrote no reward (exit {exit_code})")


def _reward_from_json(data: Json) -> Reward:
    """Return the reward for a number, or for an object of numbers: its `reward`, else the mean of all."""
    if isinstance(data, dict):
        fractions = {name: _as_fraction(value) for name, value in cast("JsonObject", data).items()}
        if not fractions or None in fractions.values():
            return Reward(reason=f"reward.json is not an object of numbers from 0 to 1: {data!r:.120}", is_error=True)
        parts = {name: value for name, value in fractions.items() if value is not None}
        value = parts.get("reward", math.fsum(parts.values()) / len(parts))
        return Reward(value=value, parts=parts)
    fraction = _as_fraction(data)
    if fraction is None:
        return Reward(reason=f"the reward {data!r:.80} is not a number from 0 to 1", is_error=True)
    return Reward(value=fraction)


def _as_fraction(value: Json) -> float | None:
    """Return a number from 0 to 1 as a float; None for any other value."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        return None  # also NaN, for which every comparison is false
    return float(value)
