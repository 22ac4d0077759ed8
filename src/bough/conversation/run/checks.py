"""The checks between the parts of a step: pauses, limits, repetition, condensation, and the guard's review of calls."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import TypeAlias, cast

from bough.agents.result_tools import READ_RESULT
from bough.agents.skills.tools import SKILL_TOOLS
from bough.conversation.log.condenser import Condenser, NoCondenser, Size
from bough.conversation.log.journal import Journal
from bough.conversation.log.recorded_tools import RecordedAnswers
from bough.conversation.log.state import State, ToolCall
from bough.conversation.rules import Rules
from bough.conversation.run.loop import REMINDER, Stop
from bough.conversation.run.recorder import Recorder
from bough.conversation.run.shared_bounds import SharedBounds
from bough.conversation.run.spending import BudgetUsedUp
from bough.conversation.run.stop import StopNote
from bough.errors import BoughError, public_message
from bough.events.model import (
    ErrorRaised,
    Event,
    LimitReached,
    ModelResponded,
    StateChanged,
    StuckDetected,
    ToolCalled,
    ToolFailed,
    ToolOutcome,
    ToolRejected,
    ToolReturned,
    UserMessage,
)
from bough.guard import AllowList, Guard, Review, ToolRequest
from bough.guard.limits import check
from bough.types import Clock, JsonObject

NUDGE = (
    "You are repeating yourself ({pattern}). Do something else: another approach, another tool, "
    "or tell the user what stands in the way."
)
FindReached: TypeAlias = Callable[[], Awaitable[LimitReached | None]]
"""Returns the limit that was reached; None if none was."""

MAX_SENT_BACK = 3
"""How many times the stop hooks may send the agent back to work in one run."""


class Supervisor:
    """The checks of one run. Every decision is in the log before it takes effect.

    Attributes:
        condenser: Shortens the view when it has grown too long.
    """

    def __init__(
        self,
        journal: Journal,
        recorder: Recorder,
        *,
        rules: Callable[[], Rules],
        clock: Clock,
        note: StopNote,
        shared: SharedBounds | None = None,
        find_reached: FindReached | None = None,
        run_check: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Supervise a run.

        Args:
            shared: Limits that the run shares with its own tasks and with sibling tasks.
            find_reached: Called before each request, when all usage so far is durable.
            run_check: Tests the files whenever no work is left; it may send the agent back to work.
        """
        self._journal = journal
        self._recorder = recorder
        self._rules = rules
        recorder.review_again = self.review_again
        self.condenser: Condenser = NoCondenser()
        self._clock = clock
        self._note = note
        self._shared = shared
        self._recorded_answers = RecordedAnswers(journal)
        self._find_reached = find_reached
        self._run_check = run_check
        self._started = clock.monotonic()
        self._steps = 0
        self._sent_back = 0
        self._stuck = StuckDetector()
        self._nudged = False

    def watch(self, event: Event) -> None:
        """Pass an event to the detector of repetition."""
        self._stuck.apply(event)

    async def before_request(self) -> Stop:
        """Stop for a waiting call, a pause, a hand-back, a limit or repetition; else condense the view if needed."""
        state = self._journal.state
        if self._record_waits():
            return "waiting_for_confirmation"
        if state.pausing:
            return "paused"
        if state.waiting:
            return "waiting_for_confirmation"
        if self._note.accept_hand_back():
            return "paused"
        stop = (
            await self._stop_at_limit(self._steps)
            or await self._stop_at_shared_limit()
            or await self._stop_at_quota()
            or self._stop_if_stuck()
        )
        if stop:
            return stop
        try:
            await condense(self._journal, self.condenser)
        except BudgetUsedUp as error:
            if error.reached is not None:
                self._journal.stage(error.reached)
            return "paused"
        self._steps += 1
        return None

    async def before_tools(self) -> Stop:
        """Have the guard review every open call before any of them runs."""
        state = self._journal.state
        if self._record_waits():
            return "waiting_for_confirmation"
        if state.pausing:
            return "paused"
        if stop := await self._stop_at_limit(0):
            return stop
        waiting: dict[str, JsonObject] = {}
        events: list[Event] = []
        for call in state.open_calls:
            if call.tool in self._recorder.output_tools:
                continue  # the call only returns the answer
            if self._recorder.tools is not None and call.tool not in self._recorder.tools:
                continue  # no tool has this name: nothing runs, and the model gets an error
            review_events, wait = await self._review_call(call)
            events += review_events
            if wait is not None:
                waiting[call.id] = wait
        if waiting:
            events.append(_make_wait(waiting))
        self._journal.stage(*events)  # durable before any of the calls runs
        return "waiting_for_confirmation" if waiting else None

    def _record_waits(self) -> bool:
        """Record the calls that wait for an approval or a result, and return whether any does.

        Called once all parallel calls have ended, so that the run can end and later continue from the log alone.
        """
        waits = {id: wait for id, wait in self._recorder.waits.items() if _is_open(self._journal.state, id)}
        self._recorder.waits.clear()
        if waits:
            self._journal.stage(_make_wait({**self._journal.state.waiting, **waits}))
        return bool(waits)

    async def review_again(self, id: str) -> bool:
        """Review a call again under the rules that the log has now, and return whether the call may start."""
        state = self._journal.state
        call = state.calls.get(id)
        if call is None or call.outcome is not None or state.pausing or id in state.waiting:
            return False
        events, wait = await self._review_call(call)
        if wait is not None:
            events.append(_make_wait({**state.waiting, id: wait}))
        self._journal.stage(*events)
        return wait is None and call.outcome is None

    async def _review_call(self, call: ToolCall) -> tuple[list[Event], JsonObject | None]:
        """Review a call. Returns the events to record, and the request for approval if the call has to wait."""
        # Set before the review, so that a change during the review makes it outdated.
        self._recorder.reviewed[call.id] = self._journal.controls
        review = await self._ask_guard(call)
        events: list[Event] = list(review.events)
        if review.risk is not None:
            self._recorder.risks[call.id] = review.risk.value
        if review.context:
            events.append(UserMessage.text(review.context, sender="hook"))
        if review.decision == "reject":
            events.append(ToolRejected(tool_call_id=call.id, tool=call.tool, by=review.by, reason=review.reason))
        # Not for `READ_RESULT`, which runs: it reads only this log.
        elif call.tool != READ_RESULT and (answer := await self._recorded_answers.answer(call)):
            outcome = self._recorder.limit_outcome(cast("ToolOutcome", answer[-1]))
            return [*events, *answer[:-1], outcome], None
        return events, _make_approval_request(call, review) if review.decision == "confirm" else None

    async def at_end(self) -> None:
        """Run the stop hooks and then the check of the run. Both may send the agent back to work."""
        if self._sent_back < MAX_SENT_BACK:
            await self._ask_stop_hooks()
        # After the hooks: if they send the agent back to work, the files are tested when that work is done.
        if self._run_check is not None and not self._journal.state.has_work:
            await self._run_check()

    async def _ask_stop_hooks(self) -> None:
        verdict = await self.guard().on_stop()
        events: list[Event] = list(verdict.events)
        if verdict.decision == "deny":
            self._sent_back += 1
            events.append(UserMessage.text(verdict.reason or "Continue: you are not done.", sender="hook"))
        self._journal.stage(*events)

    async def _stop_at_limit(self, steps: int) -> Stop:
        """Stop if the run or the conversation has reached a limit. Usage that a fork inherited counts.

        Args:
            steps: Steps of this run to check; 0 skips the check of steps.
        """
        rules, state = self._rules(), self._journal.state
        elapsed = self._clock.monotonic() - self._started
        reached = check(rules.limits, state.used_by_run, elapsed_seconds=elapsed, steps=steps)
        if reached is None:
            total_steps = state.used_in_all.requests
            reached = check(rules.total, state.used_in_all, elapsed_seconds=elapsed, steps=total_steps)
        if reached is None:
            return None
        self._journal.stage(reached)
        return "paused"

    async def _stop_at_shared_limit(self) -> Stop:
        """Stop if a limit is reached that the run shares with other conversations."""
        reached = None if self._shared is None else await self._shared.check(self._journal.state)
        if reached is None:
            return None
        self._journal.stage(reached)
        return "paused"

    async def _stop_at_quota(self) -> Stop:
        """Stop if the run has reached a limit that its caller checks, such as a tenant's quota."""
        if self._find_reached is None:
            return None
        await self._journal.settle()  # so that the check counts the usage of this run
        reached = await self._find_reached()
        if reached is None:
            return None
        self._journal.stage(reached)
        return "paused"

    def _stop_if_stuck(self) -> Stop:
        """Tell a model that repeats itself to do something else; stop the run if it repeats itself again."""
        pattern = self._stuck.find_pattern()
        if pattern is None:
            return None
        if self._nudged:
            self._journal.stage(pattern)
            return "stuck"
        self._nudged = True
        self._stuck.reset()
        self._journal.stage(UserMessage.text(NUDGE.format(pattern=pattern.pattern), sender=REMINDER))
        return None

    def guard(self) -> Guard:
        """Return the guard of the rules in force now."""
        state = self._journal.state
        return replace(self._rules().guard(self._journal.cid, state.workspace), settle=self._journal.settle)

    def _guard_for_calls(self) -> Guard:
        """Return the guard, narrowed to the tools that the active skills allow.

        The tools that read a skill's files and run its scripts are always allowed.
        """
        guard, allowed = self.guard(), self._journal.state.allowed_tools
        if allowed is None:
            return guard
        allow_list = guard.rules.allow_list.narrow(AllowList.of(*allowed, *SKILL_TOOLS, READ_RESULT))
        return replace(guard, rules=replace(guard.rules, allow_list=allow_list))

    async def _ask_guard(self, call: ToolCall) -> Review:
        """Return the guard's review of a call. A call from before a fork needs a confirmation if it would run."""
        request = ToolRequest(
            id=call.id,
            tool=call.tool,
            arguments=call.parsed_arguments,
            workspace=self._journal.state.workspace,
            reads_skills=call.tool in self._recorder.skill_readers,
        )
        review = await self._guard_for_calls().review(request, approved=call.approved)
        needs_approval = call.carried and not call.approved
        if needs_approval and review.decision == "run":
            return replace(review, decision="confirm", by="fork", reason="it was called before the fork")
        return review


async def condense(journal: Journal, condenser: Condenser, *, force: bool = False) -> bool:
    """Condense the view if it is too long, and return whether it was condensed. A failure is recorded in the log.

    Raises:
        BudgetUsedUp: A budget is used up; nothing is recorded.
    """
    view = await journal.render()
    if view.shown and view.shown[-1].stop > journal.durable:
        await journal.settle()  # a condensed range is recorded by the seqs of its events, which must be final
        view = await journal.render()
    size = Size(messages=len(view.shown), tokens=journal.state.request_tokens)
    try:
        condensed = await condenser.condense(view, size, force=force)
    except BudgetUsedUp:
        raise
    except BoughError as error:
        message = f"condensing failed: {public_message(error)}"
        await journal.append(ErrorRaised(code=error.code, message=message, hint=error.hint))
        return False
    if condensed is None:
        return False
    await journal.append(condensed)
    return True


def _is_open(state: State, id: str) -> bool:
    call = state.calls.get(id)
    return call is not None and call.outcome is None


def _make_wait(waiting: dict[str, JsonObject]) -> StateChanged:
    return StateChanged(changes={"status": "waiting_for_confirmation", "waiting": waiting})


def _make_approval_request(call: ToolCall, review: Review) -> JsonObject:
    """Return the request for approval that a person is shown for a call."""
    risk = None if review.risk is None else review.risk.value
    return {
        "kind": "approval",
        "tool": call.tool,
        "arguments": call.parsed_arguments,
        "risk": risk,
        "reason": review.reason,
        "by": review.by,
    }


MAX_SAME_RESULTS = 4
"""An agent is stuck after this many identical calls in a row with the same result."""
MAX_SAME_FAILURES = 3
"""An agent is stuck after this many identical calls in a row that fail or are refused."""
MAX_SAME_FAILURES_AFTER_NUDGE = 2
"""Replaces `MAX_SAME_FAILURES` after a nudge: the fifth identical failure ends the run."""
MAX_SAME_TEXTS = 3
"""An agent is stuck after this many identical texts in a row without a call."""
MAX_ALTERNATIONS = 3
"""An agent is stuck after two calls have alternated this many times."""


_FAILED = "failed"


def _encode_arguments(arguments: object) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, sort_keys=True, default=str)


@dataclass
class StuckDetector:
    """Detects repetition in the latest calls and texts since the user's last message. O(1) per event."""

    _open_calls: dict[str, str] = field(default_factory=dict[str, str])
    _ended_calls: deque[tuple[str, str]] = field(
        default_factory=lambda: deque[tuple[str, str]](maxlen=2 * MAX_ALTERNATIONS)
    )
    _texts: deque[str] = field(default_factory=lambda: deque[str](maxlen=MAX_SAME_TEXTS))
    _was_reset: bool = False

    def apply(self, event: Event) -> None:
        """Update the latest calls and texts with an event."""
        match event:
            case UserMessage() if event.sender == "user":
                self._open_calls.clear()
                self._ended_calls.clear()
                self._texts.clear()
            case ToolCalled():
                self._open_calls[event.tool_call_id] = f"{event.tool} {_encode_arguments(event.arguments)}"
            case ToolReturned():
                self._record_outcome(
                    event.tool_call_id, "returned " + json.dumps(event.result, sort_keys=True, default=str)
                )
            case ToolFailed() | ToolRejected():
                self._record_outcome(event.tool_call_id, _FAILED)
            case ModelResponded():
                self._read_response(event)
            case _:
                pass

    def find_pattern(self) -> StuckDetected | None:
        """Return the pattern of repetition that the latest events show; None if they show none."""
        calls, texts = list(self._ended_calls), list(self._texts)
        if len(calls) >= MAX_SAME_RESULTS and len(set(calls[-MAX_SAME_RESULTS:])) == 1:
            return StuckDetected(pattern="the same call with the same result")
        failures = MAX_SAME_FAILURES_AFTER_NUDGE if self._was_reset else MAX_SAME_FAILURES
        if len(calls) >= failures and len(set(calls[-failures:])) == 1 and calls[-1][1] == _FAILED:
            return StuckDetected(pattern="the same call failing")
        if len(texts) == MAX_SAME_TEXTS and len(set(texts)) == 1:
            return StuckDetected(pattern="the same text")
        if len(calls) == 2 * MAX_ALTERNATIONS and len(set(calls[::2])) == len(set(calls[1::2])) == 1:
            return StuckDetected(pattern="two calls taking turns")
        return None

    def reset(self) -> None:
        """Forget the latest calls and texts, so that the model can react to the nudge."""
        self._ended_calls.clear()
        self._texts.clear()
        self._was_reset = True

    def _record_outcome(self, call: str, outcome: str) -> None:
        if (action := self._open_calls.pop(call, None)) is not None:
            self._ended_calls.append((action, outcome))

    def _read_response(self, event: ModelResponded) -> None:
        parts = event.response.get("parts", [])
        calls = [part for part in parts if part.get("part_kind") == "tool-call"]
        if calls:
            self._texts.clear()
            # Recorded here, not at `ToolCalled`, since a refused or invalid call never starts but counts too.
            self._open_calls = {
                part["tool_call_id"]: f"{part['tool_name']} {_encode_arguments(part.get('args'))}" for part in calls
            }
        else:
            self._texts.append("".join(part.get("content") or "" for part in parts if part.get("part_kind") == "text"))
