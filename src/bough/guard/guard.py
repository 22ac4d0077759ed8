"""What stands between a tool call and its execution, in one place and one order.

hooks -> analyzer -> confirmation policy -> allow-list. Whoever fails in here says no: nothing runs because something
that should have looked at it broke.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from bough.guard.hook_verdict import HookVerdict
from bough.guard.hooks import HookInput, HookKind, nothing_to_settle
from bough.guard.request import ToolRequest
from bough.guard.risk import Assessment, Risk, RiskFinding
from bough.guard.rules import CallRules
from bough.types import Json

if TYPE_CHECKING:
    from bough.events.model import HookRan, UsageAdded
    from bough.guard.masker import Masker


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


@dataclass(frozen=True)
class Guard:
    """Reviews the tool calls of one conversation by its rules, and runs its hooks. Safe for concurrent use.

    Attributes:
        conversation_id: Passed to hooks as their session id.
        workspace: Where hooks run.
        masker: Masks secrets in everything that hooks return, so the guard returns and records nothing unmasked.
        settled: Awaited before anything outside of this process is asked, so that the call it is asked about is
            durable.
    """

    rules: CallRules
    _: KW_ONLY
    conversation_id: str
    workspace: Path
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
        risk = None if self.rules.analyzer is None else assessment.risk
        if not self.rules.allow_list.permits(call):
            reason = f"`{call.tool}` with these arguments is not on the list of what may be called"
            return self._refuse("allow-list", reason, verdict, risk)
        if not approved and verdict.decision == "ask":
            return _by_hook("confirm", verdict, risk)
        to_confirm = [finding for finding in assessment.findings if self.rules.policy.needs_confirmation(finding.risk)]
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

    async def _assess(self, call: ToolRequest) -> tuple[Assessment, str]:
        """Return the assessment, and how the analyzer failed; empty if it did not."""
        analyzer = self.rules.analyzer
        if analyzer is None:
            return Assessment((RiskFinding(Risk.UNKNOWN, "risk: not analyzed"),)), ""
        if getattr(analyzer, "outside", True):
            await self.settled()
        try:
            return (await analyzer.analyze(call)).or_unknown(), ""
        except Exception as error:  # noqa: BLE001 - the guard's boundary: the call is refused and the error recorded
            return Assessment(), f"the security analyzer failed: {type(error).__name__}: {error}"

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
        verdict = await self.rules.hooks.run(hook_input, settled=self.settled)
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
