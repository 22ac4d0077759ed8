"""Reviews tool calls before they run: hooks, then analyzer, allow-list and confirmation policy.

A check that fails rejects the call, so that nothing runs because a check is broken.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self, TypeAlias

from bough.guard.allow import AllowList
from bough.guard.analyzer import SecurityAnalyzer
from bough.guard.confirmation_policy import AlwaysConfirm, NeverConfirm, Policy, narrower
from bough.guard.hook_verdict import HookVerdict
from bough.guard.hooks import HookInput, HookKind, HookSet, nothing_to_settle
from bough.guard.request import ToolRequest
from bough.guard.risk import Assessment, Risk, RiskFinding
from bough.types import Json, JsonObject

if TYPE_CHECKING:
    from bough.events.model import HookRan, UsageAdded
    from bough.guard.masker import Masker


Decision: TypeAlias = Literal["run", "confirm", "reject"]


@dataclass(frozen=True, kw_only=True)
class Review:
    """The decision about one call.

    Attributes:
        decision: `run` it, ask a person to `confirm` it, or `reject` it.
        by: What decided: `hook`, `analyzer`, `policy` or `allow-list`; empty if nothing objected.
        reason: For the person who decides, and for the model if the call is rejected.
        risk: The most severe risk found; None without an analyzer.
        context: Text of hooks for the model, in addition to the result.
        events: To be recorded, whatever the decision.
    """

    decision: Decision
    by: str = ""
    reason: str = ""
    risk: Risk | None = None
    context: str = ""
    events: tuple[HookRan | UsageAdded, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CallRules:
    """The rules that a `Guard` applies to every tool call.

    Attributes:
        policy: Which calls wait for a person.
        analyzer: Rates the risk of a call. Without one, every risk is UNKNOWN to the policy.
        hooks: Commands and functions that are asked about a call.
        allow_list: Which calls may be made at all; all calls if it has no lists.
    """

    policy: Policy = field(default_factory=NeverConfirm)
    analyzer: SecurityAnalyzer | None = None
    hooks: HookSet = field(default_factory=HookSet)
    allow_list: AllowList = field(default_factory=AllowList)

    def narrow(self, other: CallRules) -> Self:
        """Return these rules with everything that `other` forbids forbidden as well.

        Two different analyzers are both asked. If only one side has an analyzer and the other confirms calls of
        unknown risk, every call is confirmed.
        """
        return replace(
            self,
            policy=_narrow_policy(self, other),
            analyzer=_combine(self.analyzer, other.analyzer),
            hooks=self.hooks.narrow(other.hooks),
            allow_list=self.allow_list.narrow(other.allow_list),
        )

    def to_json(self) -> JsonObject:
        """Return the rules as a log records them."""
        return {
            "policy": self.policy.to_json(),
            "analyzer": None if self.analyzer is None else self.analyzer.to_json(),
            "hooks": self.hooks.to_json(),
            "allow_list": self.allow_list.to_json(),
        }


@dataclass(frozen=True)
class Guard:
    """Reviews the tool calls of one conversation by its rules, and runs its hooks. Safe for concurrent use.

    Attributes:
        conversation_id: Passed to hooks as their session id.
        workspace: Where hooks run.
        masker: Masks secrets in everything that hooks return, so the guard returns and records nothing unmasked.
        settle: Awaited before anything outside of this process is asked, so that the call it is asked about is
            durable.
    """

    rules: CallRules
    _: KW_ONLY
    conversation_id: str
    workspace: Path
    masker: Masker | None = None
    settle: Callable[[], Awaitable[None]] = nothing_to_settle

    async def review(self, call: ToolRequest, *, approved: bool = False) -> Review:
        """Return the decision about a call. Only hooks, and models that an analyzer asks, have run by then.

        Args:
            approved: Whether a person approved this call. That satisfies the policy and hooks that ask; it overrides
                neither a hook that denies nor the allow-list.
        """
        verdict = await self._ask(self._tool_input(HookKind.PRE_TOOL_USE, call))
        if verdict.decision == "deny":  # before the analyzer, which may send the call to a model
            return _make_review(verdict, None, "reject", "hook", verdict.reason or "a hook said no")
        assessment, failure = await self._assess(call)
        risk = None if self.rules.analyzer is None else assessment.risk
        decision = self._decide(call, verdict, assessment, failure, approved=approved)
        review = _make_review(verdict, risk, *decision)
        return replace(review, events=(*review.events, *assessment.spent))

    def _decide(
        self, call: ToolRequest, verdict: HookVerdict, assessment: Assessment, failure: str, *, approved: bool
    ) -> tuple[Decision, str, str]:
        """Return the decision, what decided, and the reason. `failure`: how the analyzer failed."""
        # Rejections come first: a person is not asked about a call that cannot run anyway.
        if failure:
            return "reject", "analyzer", self._mask(failure)
        if not self.rules.allow_list.permits(call):
            reason = f"`{call.tool}` with these arguments is not on the list of what may be called"
            return "reject", "allow-list", self._mask(reason)
        if approved:
            return "run", "", ""
        if verdict.decision == "ask":
            return "confirm", "hook", verdict.reason or "a hook asks"
        # Each finding separately: the policy may let UNKNOWN pass, which is the most severe of UNKNOWN and MEDIUM.
        to_confirm = [finding for finding in assessment.findings if self.rules.policy.needs_confirmation(finding.risk)]
        if to_confirm:
            reason = "; ".join(dict.fromkeys(finding.reason for finding in to_confirm if finding.reason))
            return "confirm", "policy", self._mask(reason) or "every call is confirmed"
        return "run", "", ""

    async def after(self, call: ToolRequest, result: Json) -> HookVerdict:
        """Run PostToolUse hooks with a tool's result. A `deny` cannot undo the call; its reason is for the model."""
        # Hooks are other programs, which may log their input.
        masked_result = self.masker.json(result) if self.masker else result
        return await self._ask(replace(self._tool_input(HookKind.POST_TOOL_USE, call), response=masked_result))

    async def on_prompt(self, text: str) -> HookVerdict:
        """Run UserPromptSubmit hooks. `deny` refuses the message; `context` is sent to the model with it."""
        return await self._ask(self._input(HookKind.USER_PROMPT_SUBMIT, prompt=text))

    async def on_start(self, source: str = "startup") -> HookVerdict:
        """Run SessionStart hooks; only their `context` is used. `source` is `startup`, `resume` or `fork`."""
        return await self._ask(self._input(HookKind.SESSION_START, source=source))

    async def on_end(self, source: str = "close") -> HookVerdict:
        """Run SessionEnd hooks; their answer has no effect."""
        return await self._ask(self._input(HookKind.SESSION_END, source=source))

    async def on_stop(self) -> HookVerdict:
        """Run Stop hooks. `deny` makes the agent continue, with the reason as a message."""
        return await self._ask(self._input(HookKind.STOP))

    async def _assess(self, call: ToolRequest) -> tuple[Assessment, str]:
        """Return the assessment, and how the analyzer failed; empty if it did not."""
        analyzer = self.rules.analyzer
        if analyzer is None:
            return Assessment((RiskFinding(Risk.UNKNOWN, "risk: not analyzed"),)), ""
        if getattr(analyzer, "outside", True):
            await self.settle()  # before the call leaves this process, or a crash would lose what others have seen
        try:
            return (await analyzer.analyze(call)).or_unknown(), ""
        except Exception as error:  # noqa: BLE001 - the guard's boundary: the call is refused and the error recorded
            return Assessment(), f"the security analyzer failed: {type(error).__name__}: {error}"

    async def _ask(self, hook_input: HookInput) -> HookVerdict:
        verdict = await self.rules.hooks.run(hook_input, settle=self.settle)
        if self.masker is None:
            return verdict
        events = tuple(
            event.model_copy(update={"command": self._mask(event.command), "output": self._mask(event.output)})
            for event in verdict.events
        )
        return replace(verdict, reason=self._mask(verdict.reason), context=self._mask(verdict.context), events=events)

    def _mask(self, text: str) -> str:
        return self.masker.text(text) if self.masker else text

    def _tool_input(self, kind: HookKind, call: ToolRequest) -> HookInput:
        return replace(self._input(kind), tool=call.tool, tool_call_id=call.id, arguments=call.arguments)

    def _input(self, kind: HookKind, *, prompt: str | None = None, source: str | None = None) -> HookInput:
        return HookInput(
            kind=kind,
            conversation_id=self.conversation_id,
            workspace=self.workspace,
            prompt=prompt,
            source=source,
        )


def _make_review(verdict: HookVerdict, risk: Risk | None, decision: Decision, by: str, reason: str) -> Review:
    return Review(decision=decision, by=by, reason=reason, risk=risk, context=verdict.context, events=verdict.events)


@dataclass(frozen=True)
class BothAnalyzers:
    """Asks two analyzers, one after the other; all findings of both count."""

    first: SecurityAnalyzer
    second: SecurityAnalyzer

    @property
    def outside(self) -> bool:
        """Whether one of them reaches outside of this process."""
        return any(getattr(analyzer, "outside", True) for analyzer in (self.first, self.second))

    async def analyze(self, call: ToolRequest) -> Assessment:
        """Return the findings of both; an analyzer without findings adds an UNKNOWN one."""
        assessments = [(await analyzer.analyze(call)).or_unknown() for analyzer in (self.first, self.second)]
        return Assessment.collect(
            (finding for assessment in assessments for finding in assessment.findings),
            spent=tuple(event for assessment in assessments for event in assessment.spent),
        )

    def to_json(self) -> JsonObject:
        """Return the records of both."""
        return {"kind": "BothAnalyzers", "analyzers": [self.first.to_json(), self.second.to_json()]}


def _narrow_policy(a: CallRules, b: CallRules) -> Policy:
    # Without an analyzer every risk is UNKNOWN. If `narrower` alone decided, the analyzer of the other side would rate
    # calls LOW that the side without one used to confirm.
    without_analyzer = [rules for rules in (a, b) if rules.analyzer is None]
    if len(without_analyzer) == 1 and without_analyzer[0].policy.needs_confirmation(Risk.UNKNOWN):
        return AlwaysConfirm()
    return narrower(a.policy, b.policy)


def _combine(a: SecurityAnalyzer | None, b: SecurityAnalyzer | None) -> SecurityAnalyzer | None:
    if a is None or b is None:
        return a or b
    # Compared by record: a reopened conversation has its own object of the same analyzer, and must not ask both.
    return a if a is b or a.to_json() == b.to_json() else BothAnalyzers(a, b)
