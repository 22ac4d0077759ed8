"""What stands between a tool call and its execution, in one place and one order.

hooks -> analyzer -> confirmation policy -> allow-list. Whoever fails in here says no: nothing runs because something
that should have looked at it broke.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

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


_UNKNOWN = Assessment.of(Risk.UNKNOWN).findings


@dataclass(frozen=True, kw_only=True)
class Review:
    """What the guard says of one call.

    Attributes:
        decision: `run` it, ask a person to `confirm` it, or `reject` it.
        by: Who said so: `hook`, `analyzer`, `policy` or `allow-list`; empty where nobody objected.
        reason: For the person who is asked, and for the model when it is rejected.
        risk: What the analyzer found; None where there is none.
        context: What hooks want the model to know beside the result.
        events: To be recorded, whatever the decision.
    """

    decision: Literal["run", "confirm", "reject"]
    by: str = ""
    reason: str = ""
    risk: Risk | None = None
    context: str = ""
    events: tuple[HookRan | UsageAdded, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Guard:
    """Hooks, analyzer, policy and allow-list of one conversation. Safe for concurrent use.

    Attributes:
        conversation_id: What hooks are told as their session.
        workspace: Where hooks run.
        analyzer: None finds nothing out: the risk of every call is UNKNOWN to the policy.
        masker: Hides secrets in everything hooks say; the guard returns and records nothing unmasked.
        settled: Awaited before anything outside of this process is asked: what it is asked about is durable then.
    """

    conversation_id: str
    workspace: Path
    hooks: HookSet = field(default_factory=HookSet)
    analyzer: SecurityAnalyzer | None = None
    policy: Policy = field(default_factory=NeverConfirm)
    allow_list: AllowList = field(default_factory=AllowList)
    masker: Masker | None = None
    settled: Callable[[], Awaitable[None]] = nothing_to_settle

    async def review(self, call: ToolRequest, *, approved: bool = False) -> Review:
        """Return what is to happen to a call; nothing has run yet but the hooks.

        Args:
            approved: A person has agreed to this very call, so the policy and an asking hook are content. A hook that
                denies and the allow-list are not overruled by it.
        """
        verdict = await self._ask(self._tool_input(HookKind.PRE_TOOL_USE, call))
        if verdict.decision == "deny":
            return _by_hook("reject", verdict, None)
        assessment, broken = await self._assess(call)
        review = self._judge(call, verdict, assessment, broken, approved=approved)
        return replace(review, events=(*review.events, *assessment.spent))

    def _judge(
        self, call: ToolRequest, verdict: HookVerdict, assessment: Assessment, broken: str, *, approved: bool
    ) -> Review:
        """Return what hooks, analyzer, policy and allow-list come to together; `broken`: how the analyzer failed."""
        if broken:
            return self._refuse("analyzer", broken, verdict, assessment.risk)
        risk = None if self.analyzer is None else assessment.risk
        if not self.allow_list.permits(call):
            reason = f"`{call.tool}` with these arguments is not on the list of what may be called"
            return self._refuse("allow-list", reason, verdict, risk)
        if not approved and verdict.decision == "ask":
            return _by_hook("confirm", verdict, risk)
        to_confirm = [finding for finding in assessment.findings if self.policy.needs_confirmation(finding.risk)]
        if to_confirm and not approved:
            reason = "; ".join(dict.fromkeys(finding.reason for finding in to_confirm if finding.reason))
            return Review(
                decision="confirm",
                by="policy",
                reason=self._mask(reason) or "every call is confirmed",
                risk=risk,
                context=verdict.context,
                events=verdict.events,
            )
        return Review(decision="run", risk=risk, context=verdict.context, events=verdict.events)

    async def after(self, call: ToolRequest, result: Json) -> HookVerdict:
        """Tell PostToolUse hooks what a tool returned; a `deny` cannot undo it, its reason is for the model."""
        masked_result = self.masker.json(result) if self.masker else result
        return await self._ask(replace(self._tool_input(HookKind.POST_TOOL_USE, call), response=masked_result))

    async def on_prompt(self, text: str) -> HookVerdict:
        """Ask UserPromptSubmit hooks; `deny` keeps the message out, `context` goes to the model with it."""
        return await self._ask(self._input(HookKind.USER_PROMPT_SUBMIT, prompt=text))

    async def on_start(self, source: str = "startup") -> HookVerdict:
        """Tell SessionStart hooks; only their `context` counts. `source` is `startup`, `resume` or `fork`."""
        return await self._ask(self._input(HookKind.SESSION_START, source=source))

    async def on_end(self, source: str = "close") -> HookVerdict:
        """Tell SessionEnd hooks; their answer counts for nothing."""
        return await self._ask(self._input(HookKind.SESSION_END, source=source))

    async def on_stop(self) -> HookVerdict:
        """Ask Stop hooks; `deny` sends the agent back to work with the reason."""
        return await self._ask(self._input(HookKind.STOP))

    def narrow(self, other: Guard) -> Guard:
        """Return this guard with everything that `other` forbids forbidden as well; for forks.

        Two different analyzers are both asked. Where only one guard has an analyzer and the other asks about every
        call, because their risk is unknown to it, every call is still asked about.
        """
        return replace(
            self,
            hooks=self.hooks.narrow(other.hooks),
            analyzer=_both(self.analyzer, other.analyzer),
            policy=_narrower_policy(self, other),
            allow_list=self.allow_list.narrow(other.allow_list),
        )

    def to_json(self) -> JsonObject:
        """What a conversation records of its guard; secrets are not in it."""
        return {
            "policy": self.policy.to_json(),
            "analyzer": None if self.analyzer is None else self.analyzer.to_json(),
            "hooks": self.hooks.to_json(),
            "allow_list": self.allow_list.to_json(),
        }

    async def _assess(self, call: ToolRequest) -> tuple[Assessment, str]:
        """The assessment, and what went wrong with it."""
        if self.analyzer is None:
            return Assessment((RiskFinding(Risk.UNKNOWN, "risk: not analyzed"),)), ""
        if getattr(self.analyzer, "outside", True):
            await self.settled()
        try:
            assessment = await self.analyzer.analyze(call)
        except Exception as error:  # noqa: BLE001 - the guard's boundary: the call is refused and the error recorded
            return Assessment(), f"the security analyzer failed: {type(error).__name__}: {error}"
        return (assessment if assessment.findings else replace(assessment, findings=_UNKNOWN)), ""

    def _refuse(self, by: str, reason: str, verdict: HookVerdict, risk: Risk | None) -> Review:
        return Review(
            decision="reject",
            by=by,
            reason=self._mask(reason),
            risk=risk,
            context=verdict.context,
            events=verdict.events,
        )

    async def _ask(self, hook_input: HookInput) -> HookVerdict:
        verdict = await self.hooks.run(hook_input, settled=self.settled)
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


def _by_hook(decision: Literal["confirm", "reject"], verdict: HookVerdict, risk: Risk | None) -> Review:
    return Review(
        decision=decision,
        by="hook",
        reason=verdict.reason or "a hook said no" if decision == "reject" else verdict.reason or "a hook asks",
        risk=risk,
        context=verdict.context,
        events=verdict.events,
    )


@dataclass(frozen=True)
class BothAnalyzers:
    """Two analyzers, one after the other; every finding of both counts."""

    first: SecurityAnalyzer
    second: SecurityAnalyzer

    @property
    def outside(self) -> bool:
        """Whether one of them reaches outside of this process."""
        return any(getattr(analyzer, "outside", True) for analyzer in (self.first, self.second))

    async def analyze(self, call: ToolRequest) -> Assessment:
        """Return what both found; one that found nothing counts as UNKNOWN."""
        assessments = [await part.analyze(call) for part in (self.first, self.second)]
        return Assessment.collect(
            (finding for part in assessments for finding in part.findings or _UNKNOWN),
            spent=tuple(event for part in assessments for event in part.spent),
        )

    def to_json(self) -> JsonObject:
        """Both."""
        return {"kind": "BothAnalyzers", "analyzers": [self.first.to_json(), self.second.to_json()]}


def _narrower_policy(a: Guard, b: Guard) -> Policy:
    """Without an analyzer every risk is UNKNOWN; another guard's analyzer must not make such a call pass unasked."""
    blind = [policy for policy in (a, b) if policy.analyzer is None]
    if len(blind) == 1 and blind[0].policy.needs_confirmation(Risk.UNKNOWN):
        return AlwaysConfirm()
    return narrower(a.policy, b.policy)


def _both(a: SecurityAnalyzer | None, b: SecurityAnalyzer | None) -> SecurityAnalyzer | None:
    if a is None or b is None:
        return a or b
    return a if a is b or a.to_json() == b.to_json() else BothAnalyzers(a, b)
