"""What stands between the parts of a step: pauses, limits, circles, condensation, and the guard's review of calls."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from bough.agents.result_tools import READ_RESULT
from bough.agents.skills.tools import SKILL_TOOLS
from bough.conversation.log.condenser import Condenser, NoCondenser, Size
from bough.conversation.log.journal import Journal
from bough.conversation.log.state import State, ToolCall
from bough.conversation.rules import Rules
from bough.conversation.run.loop import REMINDER, Stop
from bough.conversation.run.recorder import Recorder
from bough.conversation.run.shared_bounds import SharedBounds
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
"""Returns a bound that was reached; None where there is room."""

MAX_SENT_BACK = 3
"""How often stop hooks may send the agent back in one run."""


class Supervisor:
    """The checks of one run. Whatever it decides is in the log before it takes effect.

    Attributes:
        condenser: Keeps what the model sees short.
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
    ) -> None:
        """Supervise a run.

        Args:
            shared: Bounds that it keeps together with tasks of its own, and with those beside it.
            find_reached: Asked before each request, when all that was used until then is durable.
        """
        self._journal = journal
        self._recorder = recorder
        self._rules = rules
        recorder.review_again = self.review_again
        self.condenser: Condenser = NoCondenser()
        self._clock = clock
        self._note = note
        self._shared = shared
        self._find_reached = find_reached
        self._started = clock.monotonic()
        self._steps = 0
        self._sent_back = 0
        self._stuck = StuckDetector()
        self._nudged = False

    def watch(self, event: Event) -> None:
        """Take in what happens, to notice circles."""
        self._stuck.apply(event)

    async def before_request(self) -> Stop:
        """Stop for a pause, a call that waits, a limit or a circle; condense what has grown too long."""
        state = self._journal.state
        if self._record_waits():
            return "waiting_for_confirmation"
        if state.pausing:
            return "paused"
        if state.waiting:
            return "waiting_for_confirmation"
        if self._note.hands_back():
            return "paused"
        if (
            stop := await self._stop_at_limit(self._steps)
            or await self._stop_at_shared_limit()
            or await self._stop_at_quota()
        ):
            return stop
        if stop := await self._circles():
            return stop
        await condense(self._journal, self.condenser)
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
                continue  # it gives the answer, and does nothing else
            if self._recorder.tools is not None and call.tool not in self._recorder.tools:
                continue  # no tool has this name: the model is told so, and nothing runs that was not reviewed
            reviewed, wait = await self._decide(call)
            events += reviewed
            if wait is not None:
                waiting[call.id] = wait
        if waiting:
            events.append(_wait_for(waiting))
        self._journal.stage(*events)  # written with the calls, before any of them runs
        return "waiting_for_confirmation" if waiting else None

    def _record_waits(self) -> bool:
        """Write down which calls wait for somebody's answer; say whether one does.

        Called once all parallel calls have ended, so that the run can end and continue from the log alone.
        """
        waits = {id: wait for id, wait in self._recorder.waits.items() if _is_open(self._journal.state, id)}
        self._recorder.waits.clear()
        if waits:
            self._journal.stage(_wait_for({**self._journal.state.waiting, **waits}))
        return bool(waits)

    async def review_again(self, id: str) -> bool:
        """Review a call once more, by what the log says now, and say whether it may start."""
        state = self._journal.state
        call = state.calls.get(id)
        if call is None or call.outcome is not None or state.pausing or id in state.waiting:
            return False
        events, wait = await self._decide(call)
        if wait is not None:
            events.append(_wait_for({**state.waiting, id: wait}))
        self._journal.stage(*events)
        return wait is None and call.outcome is None

    async def _decide(self, call: ToolCall) -> tuple[list[Event], JsonObject | None]:
        """Review a call; return what to record, and what a person is told where it has to wait for one."""
        self._recorder.reviewed[call.id] = self._journal.controls  # before the review: what comes during it counts
        review = await self._review(call)
        events: list[Event] = list(review.events)
        if review.risk is not None:
            self._recorder.risks[call.id] = review.risk.value
        if review.context:
            events.append(UserMessage.text(review.context, sender="hook"))
        if review.decision == "reject":
            events.append(ToolRejected(tool_call_id=call.id, tool=call.tool, by=review.by, reason=review.reason))
        return events, _describe_call(call, review) if review.decision == "confirm" else None

    async def at_end(self) -> None:
        """Let stop hooks send the agent back to work."""
        if self._sent_back >= MAX_SENT_BACK:
            return
        verdict = await self.guard().on_stop()
        events: list[Event] = list(verdict.events)
        if verdict.decision == "deny":
            self._sent_back += 1
            events.append(UserMessage.text(verdict.reason or "Continue: you are not done.", sender="hook"))
        self._journal.stage(*events)

    async def _stop_at_limit(self, steps: int) -> Stop:
        """Stop if the run has reached a limit, or if the conversation with what it inherited as a fork has."""
        rules, state = self._rules(), self._journal.state
        elapsed = self._clock.monotonic() - self._started
        reached = check(rules.limits, state.used_by_run, elapsed_seconds=elapsed, steps=steps) or check(
            rules.total, state.used_in_all, elapsed_seconds=elapsed, steps=state.used_in_all.requests
        )
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
        """Stop where a bound of those who run it is reached."""
        if self._find_reached is None:
            return None
        await self._journal.settle()  # what this run has used counts as well
        reached = await self._find_reached()
        if reached is None:
            return None
        self._journal.stage(reached)
        return "paused"

    async def _circles(self) -> Stop:
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
        """Return the guard by the rules in force now."""
        state = self._journal.state
        return replace(self._rules().guard(self._journal.cid, state.workspace), settle=self._journal.settle)

    def _guard_of_calls(self) -> Guard:
        """Return the guard with what the skills in use let be called; their own files and scripts always may."""
        guard, allowed = self.guard(), self._journal.state.allowed_tools
        if allowed is None:
            return guard
        allow_list = guard.rules.allow_list.narrow(AllowList.of(*allowed, *SKILL_TOOLS, READ_RESULT))
        return replace(guard, rules=replace(guard.rules, allow_list=allow_list))

    async def _review(self, call: ToolCall) -> Review:
        request = ToolRequest(id=call.id, tool=call.tool, arguments=call.given, workspace=self._journal.state.workspace)
        review = await self._guard_of_calls().review(request, approved=call.approved)
        if call.carried and not call.approved and review.decision == "run":
            return replace(review, decision="confirm", by="fork", reason="it was called before the fork")
        return review


async def condense(journal: Journal, condenser: Condenser, *, force: bool = False) -> bool:
    """Condense what the model sees if it is too much, and say whether that was done. A failure is recorded."""
    view = await journal.render()
    if view.shown and view.shown[-1].stop > journal.durable:
        await journal.settle()  # a range is named by the places of its events, which must be final
        view = await journal.render()
    size = Size(messages=len(view.shown), tokens=journal.state.request_tokens)
    try:
        condensed = await condenser.condense(view, size, force=force)
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


def _wait_for(waiting: dict[str, JsonObject]) -> StateChanged:
    return StateChanged(changes={"status": "waiting_for_confirmation", "waiting": waiting})


def _describe_call(call: ToolCall, review: Review) -> JsonObject:
    """Return what a person is told who is asked about a call."""
    risk = None if review.risk is None else review.risk.value
    return {
        "kind": "approval",
        "tool": call.tool,
        "arguments": call.given,
        "risk": risk,
        "reason": review.reason,
        "by": review.by,
    }


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
