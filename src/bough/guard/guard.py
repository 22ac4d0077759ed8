"""Reviews tool calls before they run: hooks, then analyzer, allow-list and confirmation policy.

If a check itself fails, the call is rejected: a broken check must not let a call run.
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
from bough.guard.hooks import HookInput, HookKind, HookSet, settle_nothing
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
        by: Which check decided: `hook`, `analyzer`, `policy` or `allow-list`; empty if no check stopped the call.
        reason: Shown to the person who confirms the call, or to the model if the call is rejected.
        risk: The most severe risk found; None without an analyzer.
        context: Text of hooks, which the model gets in addition to the result.
        events: Events to record, whatever the decision.
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
        hooks: Commands and functions that review each call.
        allow_list: The calls that may run; all calls if it has no lists.
    """

    policy: Policy = field(default_factory=NeverConfirm)
    analyzer: SecurityAnalyzer | None = None
    hooks: HookSet = field(default_factory=HookSet)
    allow_list: AllowList = field(default_factory=AllowList)

    def narrow(self, other: CallRules) -> Self:
        """Return rules that forbid whatever these rules or `other` forbid.

        If the analyzers differ, both rate each call. If only one side has an analyzer and the other confirms calls of
        unknown risk, every call is confirmed.
        """
        return replace(
            self,
            policy=_narrow_policy(self, other),
            analyzer=_combine_analyzers(self.analyzer, other.analyzer),
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
        workspace: The working folder of hooks.
        masker: Masks secrets in everything that the guard returns or records.
        settle: Makes the call durable. Awaited before a hook or an analyzer that has effects outside of this process.
    """

    rules: CallRules
    _: KW_ONLY
    conversation_id: str
    workspace: Path
    masker: Masker | None = None
    settle: Callable[[], Awaitable[None]] = settle_nothing

    async def review(self, call: ToolRequest, *, approved: bool = False) -> Review:
        """Return the decision about a call, after running its hooks and its analyzer.

        Args:
            approved: Whether a person approved this call. An approval satisfies the policy and hooks that ask, but
                not a hook that denies, a failed analyzer or the allow-list.
        """
        verdict = await self._run_hooks(self._make_tool_input(HookKind.PRE_TOOL_USE, call))
        review = Review(decision="reject", context=verdict.context, events=verdict.events)
        if verdict.decision == "deny":  # before the analyzer, which may send the call to a model
            return replace(review, by="hook", reason=verdict.reason or "a hook denied it")
        assessment, failure = await self._assess(call)
        risk = None if self.rules.analyzer is None else assessment.risk
        decision, by, reason = self._decide(call, verdict, assessment, failure, approved=approved)
        events = (*verdict.events, *assessment.spent)
        return replace(review, decision=decision, by=by, reason=reason, risk=risk, events=events)

    def _decide(
        self, call: ToolRequest, verdict: HookVerdict, assessment: Assessment, failure: str, *, approved: bool
    ) -> tuple[Decision, str, str]:
        """Return the decision, the check that decided, and the reason.

        Args:
            failure: How the analyzer failed; empty if it did not.
        """
        # Rejections first, so that no person is asked about a call that cannot run anyway.
        if failure:
            return "reject", "analyzer", self._mask(failure)
        if not self.rules.allow_list.permits(call):
            reason = f"the allow-list does not contain `{call.tool}` with these arguments"
            return "reject", "allow-list", self._mask(reason)
        if approved:
            return "run", "", ""
        if verdict.decision == "ask":
            return "confirm", "hook", verdict.reason or "a hook asks for confirmation"
        # Findings are checked separately: a policy may confirm MEDIUM but not UNKNOWN, although UNKNOWN is more severe.
        # Reading skills is not confirmed: a person trusts them already, and needless questions are approved unread.
        findings = [finding for finding in assessment.findings if not (call.reads_skills and finding.risk is Risk.LOW)]
        to_confirm = [finding for finding in findings if self.rules.policy.needs_confirmation(finding.risk)]
        if to_confirm:
            reason = "; ".join(dict.fromkeys(finding.reason for finding in to_confirm if finding.reason))
            return "confirm", "policy", self._mask(reason) or "every call is confirmed"
        return "run", "", ""

    async def after_call(self, call: ToolRequest, result: Json) -> HookVerdict:
        """Run PostToolUse hooks with a tool's result. A `deny` cannot undo the call; the model gets its reason."""
        # Masked, because hooks are other programs that may log their input.
        masked_result = self.masker.json(result) if self.masker else result
        hook_input = self._make_tool_input(HookKind.POST_TOOL_USE, call)
        return await self._run_hooks(replace(hook_input, response=masked_result))

    async def on_prompt(self, text: str) -> HookVerdict:
        """Run UserPromptSubmit hooks. `deny` refuses the message; `context` is sent to the model with it."""
        return await self._run_hooks(self._make_input(HookKind.USER_PROMPT_SUBMIT, prompt=text))

    async def on_start(self, source: str = "startup") -> HookVerdict:
        """Run SessionStart hooks; only their `context` is used. `source` is `startup`, `resume` or `fork`."""
        return await self._run_hooks(self._make_input(HookKind.SESSION_START, source=source))

    async def on_end(self, source: str = "close") -> HookVerdict:
        """Run SessionEnd hooks; their answers have no effect."""
        return await self._run_hooks(self._make_input(HookKind.SESSION_END, source=source))

    async def on_stop(self) -> HookVerdict:
        """Run Stop hooks. `deny` makes the agent continue, with the reason as a message."""
        return await self._run_hooks(self._make_input(HookKind.STOP))

    async def _assess(self, call: ToolRequest) -> tuple[Assessment, str]:
        """Return the assessment, and how the analyzer failed; the text is empty if it did not fail."""
        analyzer = self.rules.analyzer
        if analyzer is None:
            risk = Risk.LOW if call.reads_skills else Risk.UNKNOWN
            return Assessment((RiskFinding(risk, "risk: not analyzed"),)), ""
        if getattr(analyzer, "outside", True):
            await self.settle()  # otherwise a crash could lose a call that another process has already seen
        try:
            return (await analyzer.analyze(call)).or_unknown(), ""
        except Exception as error:  # noqa: BLE001 - the guard's boundary: the call is refused and the error recorded
            return Assessment(), f"the security analyzer failed: {type(error).__name__}: {error}"

    async def _run_hooks(self, hook_input: HookInput) -> HookVerdict:
        """Run the hooks for an input, and return their verdict with secrets masked."""
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

    def _make_tool_input(self, kind: HookKind, call: ToolRequest) -> HookInput:
        return replace(self._make_input(kind), tool=call.tool, tool_call_id=call.id, arguments=call.arguments)

    def _make_input(self, kind: HookKind, *, prompt: str | None = None, source: str | None = None) -> HookInput:
        return HookInput(
            kind=kind,
            conversation_id=self.conversation_id,
            workspace=self.workspace,
            prompt=prompt,
            source=source,
        )


@dataclass(frozen=True)
class BothAnalyzers:
    """Runs two analyzers one after the other, and combines their findings."""

    first: SecurityAnalyzer
    second: SecurityAnalyzer

    @property
    def outside(self) -> bool:
        """Whether one of the analyzers has effects outside of this process."""
        return any(getattr(analyzer, "outside", True) for analyzer in (self.first, self.second))

    async def analyze(self, call: ToolRequest) -> Assessment:
        """Return the findings of both analyzers. One without findings adds an UNKNOWN finding."""
        assessments = [(await analyzer.analyze(call)).or_unknown() for analyzer in (self.first, self.second)]
        return Assessment.collect(
            (finding for assessment in assessments for finding in assessment.findings),
            spent=tuple(event for assessment in assessments for event in assessment.spent),
        )

    def to_json(self) -> JsonObject:
        """Return the records of both analyzers."""
        return {"kind": "BothAnalyzers", "analyzers": [self.first.to_json(), self.second.to_json()]}


def _narrow_policy(first: CallRules, second: CallRules) -> Policy:
    """Return the policy that confirms whenever one of the two policies does, each with its own analyzer."""
    # Without an analyzer every risk is UNKNOWN. With `narrower` alone, the other side's analyzer could rate a call LOW
    # that the side without an analyzer confirms as UNKNOWN.
    without_analyzer = [rules for rules in (first, second) if rules.analyzer is None]
    if len(without_analyzer) == 1 and without_analyzer[0].policy.needs_confirmation(Risk.UNKNOWN):
        return AlwaysConfirm()
    return narrower(first.policy, second.policy)


def _combine_analyzers(first: SecurityAnalyzer | None, second: SecurityAnalyzer | None) -> SecurityAnalyzer | None:
    """Return an analyzer with the findings of both; None if there is none."""
    if first is None or second is None:
        return first or second
    # Compared by their records, because a reopened conversation has another object for the same analyzer.
    is_same = first is second or first.to_json() == second.to_json()
    return first if is_same else BothAnalyzers(first, second)
