"""Noticing that an agent goes round in circles.

Source: OpenHands' stuck detector: repeated actions, repeated errors, monologue, alternation.
"""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass, field

from bough.events.model import (
    Event,
    ModelResponded,
    StuckDetected,
    ToolCalled,
    ToolFailed,
    ToolRejected,
    ToolReturned,
    UserMessage,
)

REPEATS = 4
"""The same call with the same result this often in a row."""
ERRORS = 3
"""The same call failing, refused ones too, this often in a row."""
ERRORS_AGAIN = 2
"""The same after a nudge: the fifth identical failure ends the run."""
MONOLOGUE = 3
"""The same text without a call this often in a row."""
ALTERNATIONS = 3
"""Two calls taking turns this often."""


_FAILED = "failed"


def _text(arguments: object) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, sort_keys=True, default=str)


@dataclass
class StuckDetector:
    """Looks at the latest calls and texts since the user spoke. O(1) an event."""

    _calls: dict[str, str] = field(default_factory=dict[str, str])
    _done: deque[tuple[str, str]] = field(default_factory=lambda: deque[tuple[str, str]](maxlen=2 * ALTERNATIONS))
    _texts: deque[str] = field(default_factory=lambda: deque[str](maxlen=MONOLOGUE))
    _was_reset: bool = False

    def apply(self, event: Event) -> None:
        """Take one event in."""
        match event:
            case UserMessage() if event.sender == "user":
                self._calls.clear()
                self._done.clear()
                self._texts.clear()
            case ToolCalled():
                self._calls[event.tool_call_id] = f"{event.tool} {_text(event.arguments)}"
            case ToolReturned():
                self._end(event.tool_call_id, "returned " + json.dumps(event.result, sort_keys=True, default=str))
            case ToolFailed() | ToolRejected():
                self._end(event.tool_call_id, _FAILED)
            case ModelResponded():
                self._respond(event)
            case _:
                pass

    def find_pattern(self) -> StuckDetected | None:
        """Return what pattern the latest events show; None where they show none."""
        done, texts = list(self._done), list(self._texts)
        if len(done) >= REPEATS and len(set(done[-REPEATS:])) == 1:
            return StuckDetected(pattern="the same call with the same result")
        errors = ERRORS_AGAIN if self._was_reset else ERRORS
        if len(done) >= errors and len(set(done[-errors:])) == 1 and done[-1][1] == _FAILED:
            return StuckDetected(pattern="the same call failing")
        if len(texts) == MONOLOGUE and len(set(texts)) == 1:
            return StuckDetected(pattern="the same text")
        if len(done) == 2 * ALTERNATIONS and len(set(done[::2])) == len(set(done[1::2])) == 1:
            return StuckDetected(pattern="two calls taking turns")
        return None

    def reset(self) -> None:
        """Forget the latest events, so that a nudge gets its chance."""
        self._done.clear()
        self._texts.clear()
        self._was_reset = True

    def _end(self, call: str, outcome: str) -> None:
        if (action := self._calls.pop(call, None)) is not None:
            self._done.append((action, outcome))

    def _respond(self, event: ModelResponded) -> None:
        parts = event.response.get("parts", [])
        calls = [part for part in parts if part.get("part_kind") == "tool-call"]
        if calls:
            self._texts.clear()
            # A call that never starts (refused, of an unknown tool, with arguments that do not fit) counts as well.
            self._calls = {part["tool_call_id"]: f"{part['tool_name']} {_text(part.get('args'))}" for part in calls}
        else:
            self._texts.append("".join(part.get("content") or "" for part in parts if part.get("part_kind") == "text"))
