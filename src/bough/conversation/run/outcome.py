"""The outcome of one run, collected from its events: the last answer, and why the run did not simply finish."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from pydantic import ValidationError

from bough.agents.output_type import read_output
from bough.conversation.log.state import State, list_calls
from bough.conversation.result import CHECK_PASSED, RunResult, list_waiting
from bough.events.model import CheckRan, ErrorRaised, Event, FinishReason, ModelResponded, ScriptRan, StuckDetected


class RunOutcome:
    """Collects the outcome of one run from its events.

    Attributes:
        output: Text of the latest response without tool calls; empty before one.
        finish_reason: Why that response ended.
        partial: Whether that response was cut off.
        interrupted: Whether the run was stopped.
    """

    def __init__(self) -> None:
        self.output = ""
        self.finish_reason: FinishReason = "none"
        self.partial = False
        self.interrupted = False
        self._error = ""
        self._is_stuck = False
        self._script_failed = False
        self._nothing_fits = False
        self._check_passed = False

    def take_over(self, state: State) -> None:
        """Adopt the answer of a run that died right after that answer, so that this run has nothing left to do."""
        self.output, self.finish_reason, self.partial = state.output, state.finish_reason, state.partial

    def watch(self, event: Event) -> None:
        """Update the outcome with an event of the run."""
        match event:
            case ModelResponded():
                self._read_response(event)
            case ScriptRan():
                self._script_failed = event.status != "success"
            case ErrorRaised():
                self._error = event.code
            case StuckDetected():
                self._is_stuck = True
            case CheckRan():
                self._check_passed = event.passed and event.session is None
            case _:
                pass

    def reason(self, state: State) -> str:
        """Return why the run did not simply finish, the most severe reason first; empty if it did."""
        if state.status == "error" and self._error:
            return self._error
        if state.limit is not None:
            return state.limit
        if self.interrupted:
            return "interrupted"
        if state.status == "paused" and self._error:
            return self._error
        if self._is_stuck:
            return "stuck"
        if self.partial:
            return self.finish_reason if self.finish_reason in ("length", "content_filter") else "no_finish"
        if self._check_passed and state.status == "finished":
            return CHECK_PASSED
        if self._script_failed:
            return "script_failed"
        return "nothing_fits" if self._nothing_fits else ""

    def result(self, state: State, conversation: UUID, *, start: int, steps: int, data: Any) -> RunResult:
        """Return the result for the caller of the run.

        Args:
            start: Seq of the first event of the run.
            data: The value of the output type that the run returned.
        """
        return RunResult(
            conversation=conversation,
            status=state.status,
            output=self.output,
            steps=steps,
            start=start,
            stop=state.head,
            usage=state.own,
            limit=state.limit,
            data=data,
            finish_reason=self.finish_reason,
            partial=self.partial,
            reason=self.reason(state),
            waiting=list_waiting(state.waiting),
        )

    def _read_response(self, event: ModelResponded) -> None:
        """Take the output from a response. A response also clears an earlier error."""
        parts = event.response.get("parts", [])
        is_answer = not list_calls(event)
        text = "".join(part["content"] for part in parts if part.get("part_kind") == "text")
        self.output = text if is_answer else ""
        self.finish_reason, self.partial = event.finish_reason, event.partial
        details: Any = event.response.get("provider_details") or {}
        self._nothing_fits = details.get("nothing_fits") is True
        self._error = ""


def read_data(output_type: Any, returned: Any, recorded: Any) -> Any:
    """Return the value that a run returned, or else the recorded value, parsed as `output_type` if possible."""
    if returned is not None or recorded is None:
        return returned
    try:
        return read_output(output_type, recorded)
    except ValidationError:
        return recorded
