"""The pipeline: the order of those who may object, and that nothing runs because one of them broke."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bough.guard import (
    AllowList,
    AlwaysConfirm,
    Assessment,
    CallRules,
    ConfirmRisky,
    Guard,
    Hook,
    HookKind,
    HookSet,
    Masker,
    NeverConfirm,
    Policy,
    Risk,
    RiskFinding,
    RuleAnalyzer,
    ToolRequest,
)

pytestmark = pytest.mark.anyio

Make = Callable[..., ToolRequest]


class Fixed:
    """An analyzer that always finds the same, or raises."""

    def __init__(self, *risks: Risk, error: Exception | None = None) -> None:
        self._risks = risks
        self._error = error
        self.asked = 0

    async def analyze(self, call: ToolRequest) -> Assessment:
        self.asked += 1
        if self._error is not None:
            raise self._error
        return Assessment(tuple(RiskFinding(risk, f"because {risk.value}") for risk in self._risks))

    def to_json(self) -> dict[str, Any]:
        return {"kind": "Fixed", "risks": [risk.value for risk in self._risks]}


def hook(command: str, kind: HookKind = HookKind.PRE_TOOL_USE, **fields: Any) -> HookSet:
    return HookSet((Hook(kind=kind, command=command, **fields),))


def guard(workspace: Path, *, masker: Masker | None = None, **rules: Any) -> Guard:
    return Guard(CallRules(**rules), conversation_id="conv-1", workspace=workspace, masker=masker)


async def test_without_objections_a_call_runs(workspace: Path, request_of: Make) -> None:
    review = await guard(workspace).review(request_of("x"))
    assert (review.decision, review.by, review.risk, review.events) == ("run", "", None, ())


POLICIES: list[tuple[Policy, Risk, str]] = [
    (AlwaysConfirm(), Risk.LOW, "confirm"),
    (NeverConfirm(), Risk.HIGH, "run"),
    (ConfirmRisky(), Risk.HIGH, "confirm"),
    (ConfirmRisky(), Risk.UNKNOWN, "confirm"),
    (ConfirmRisky(), Risk.MEDIUM, "run"),
    (ConfirmRisky(confirm_unknown=False), Risk.UNKNOWN, "run"),
    (ConfirmRisky(Risk.LOW), Risk.LOW, "confirm"),
]


@pytest.mark.parametrize(("policy", "risk", "decision"), POLICIES)
async def test_the_policy_decides_by_risk(
    policy: Policy, risk: Risk, decision: str, workspace: Path, request_of: Make
) -> None:
    checked = guard(workspace, policy=policy, analyzer=Fixed(risk))
    review = await checked.review(request_of("x"))
    assert (review.decision, review.risk) == (decision, risk)
    if decision == "confirm":
        assert (review.by, review.reason) == ("policy", f"because {risk.value}")
    assert (await checked.review(request_of("x"), approved=True)).decision == "run"


async def test_no_risk_hides_behind_an_unknown_one(workspace: Path, request_of: Make) -> None:
    """UNKNOWN is the most severe of the two, and may run; MEDIUM may not."""
    policy = ConfirmRisky(Risk.MEDIUM, confirm_unknown=False)
    review = await guard(workspace, policy=policy, analyzer=Fixed(Risk.MEDIUM, Risk.UNKNOWN)).review(request_of("x"))
    assert (review.decision, review.reason) == ("confirm", "because MEDIUM")


async def test_without_an_analyzer_the_policy_is_told_unknown(workspace: Path, request_of: Make) -> None:
    review = await guard(workspace, policy=ConfirmRisky()).review(request_of("x"))
    assert (review.decision, review.risk) == ("confirm", None)


@pytest.mark.parametrize("approved", [True, False])
@pytest.mark.parametrize("policy", [NeverConfirm(), ConfirmRisky(confirm_unknown=False), AlwaysConfirm()])
async def test_a_broken_analyzer_refuses_the_call(
    approved: bool, policy: Policy, workspace: Path, request_of: Make
) -> None:
    checked = guard(workspace, policy=policy, analyzer=Fixed(error=ValueError("no model")))
    review = await checked.review(request_of("x"), approved=approved)
    assert (review.decision, review.by) == ("reject", "analyzer")
    assert "no model" in review.reason


async def test_an_analyzer_that_finds_nothing_has_found_nothing_out(workspace: Path, request_of: Make) -> None:
    review = await guard(workspace, policy=ConfirmRisky(), analyzer=Fixed()).review(request_of("x"))
    assert (review.decision, review.risk) == ("confirm", Risk.UNKNOWN)


async def test_a_hook_comes_first_and_approval_does_not_overrule_it(workspace: Path, request_of: Make) -> None:
    analyzer = Fixed(Risk.LOW)
    checked = guard(workspace, hooks=hook("echo never >&2; exit 2"), analyzer=analyzer)
    for approved in (True, False):
        review = await checked.review(request_of("x"), approved=approved)
        assert (review.decision, review.by, review.reason) == ("reject", "hook", "never")
        assert [event.verdict for event in review.events] == ["deny"]
    assert analyzer.asked == 0


async def test_a_hook_that_asks_makes_a_person_decide(workspace: Path, request_of: Make) -> None:
    asks = """echo '{"hookSpecificOutput": {"permissionDecision": "ask", "permissionDecisionReason": "sure?"}}'"""
    checked = guard(workspace, hooks=hook(asks))
    review = await checked.review(request_of("x"))
    assert (review.decision, review.by, review.reason) == ("confirm", "hook", "sure?")
    assert (await checked.review(request_of("x"), approved=True)).decision == "run"


async def test_a_hook_that_allows_does_not_overrule_the_policy(workspace: Path, request_of: Make) -> None:
    checked = guard(workspace, hooks=hook("""echo '{"decision": "approve"}'"""), policy=AlwaysConfirm())
    review = await checked.review(request_of("x"))
    assert (review.decision, review.by) == ("confirm", "policy")


async def test_the_allow_list_rejects_whatever_a_person_says(workspace: Path, request_of: Make) -> None:
    checked = guard(workspace, allow_list=AllowList.of("Read"), policy=AlwaysConfirm())
    for approved in (True, False):
        review = await checked.review(request_of("write_file", path="a"), approved=approved)
        assert (review.decision, review.by) == ("reject", "allow-list"), "nobody is asked about what cannot be"


async def test_the_moments_reach_their_hooks(workspace: Path) -> None:
    """Each hook leaves a file; the prompt and the source are in what it was told."""
    hooks = HookSet(tuple(Hook(kind=kind, command=f"cat > {kind.value}.json") for kind in HookKind))
    checked = guard(workspace, hooks=hooks)
    call = ToolRequest(id="c", tool="t", workspace=workspace)
    await checked.on_start("fork")
    await checked.on_prompt("hello")
    await checked.review(call)
    await checked.after_call(call, {"ok": True})
    await checked.on_stop()
    await checked.on_end()
    told = {kind: json.loads((workspace / f"{kind.value}.json").read_text()) for kind in HookKind}
    assert told[HookKind.SESSION_START]["source"] == "fork"
    assert told[HookKind.USER_PROMPT_SUBMIT]["prompt"] == "hello"
    assert told[HookKind.POST_TOOL_USE]["tool_response"] == {"ok": True}
    assert {each["session_id"] for each in told.values()} == {"conv-1"}


async def test_a_stop_hook_sends_the_agent_back(workspace: Path) -> None:
    checked = guard(workspace, hooks=hook("echo tests fail >&2; exit 2", HookKind.STOP))
    verdict = await checked.on_stop()
    assert (verdict.decision, verdict.reason) == ("deny", "tests fail")


async def test_secrets_that_a_hook_prints_are_in_nothing_that_is_recorded(workspace: Path, request_of: Make) -> None:
    secret = "hunter2-hunter2"
    said = json.dumps({"decision": "block", "reason": secret, "additionalContext": secret})
    checked = guard(workspace, hooks=hook(f"echo '{said}'; echo {secret} >&2"), masker=Masker({"KEY": [secret]}))
    review = await checked.review(request_of("x"))
    assert review.decision == "reject"
    assert secret not in repr(review)
    assert "<secret:KEY>" in review.reason
    hooks = hook("cat > told", HookKind.POST_TOOL_USE)
    await guard(workspace, hooks=hooks, masker=Masker({"KEY": [secret]})).after_call(request_of("x"), {"out": secret})
    assert secret not in (workspace / "told").read_text()


CHOICES: dict[str, list[Any]] = {
    "policy": [NeverConfirm(), ConfirmRisky(), AlwaysConfirm()],
    "allow_list": [AllowList(), AllowList.of("Bash(ls:*)"), AllowList.of("Read")],
    "analyzer": [None, Fixed(Risk.LOW), RuleAnalyzer()],
    "hooks": [HookSet(), hook("exit 2"), hook("true", on_failure="continue")],
}
STRICTNESS = ["run", "confirm", "reject"]


@pytest.mark.parametrize("field", CHOICES)
async def test_a_narrowed_guard_is_never_laxer_than_either(field: str, workspace: Path, request_of: Make) -> None:
    """What a fork may do is at most what its source may do, at the cut and now."""
    calls = [
        request_of("run_command", command="ls"),
        request_of("run_command", command="rm -rf x"),
        request_of("other"),
    ]
    for left, right in itertools.product(CHOICES[field], repeat=2):
        a, b = (guard(workspace, **({"policy": ConfirmRisky()} | {field: value})) for value in (left, right))
        both = replace(a, rules=a.rules.narrow(b.rules))
        for call in calls:
            alone = [STRICTNESS.index((await checked.review(call)).decision) for checked in (a, b)]
            together = STRICTNESS.index((await both.review(call)).decision)
            assert together >= max(alone)


def test_what_is_recorded_is_json() -> None:
    rules = CallRules(
        hooks=hook("check.sh"), analyzer=RuleAnalyzer(), policy=ConfirmRisky(), allow_list=AllowList.of("Read")
    )
    recorded = json.dumps(rules.to_json())
    assert json.loads(recorded)["policy"] == {"kind": "ConfirmRisky", "threshold": "HIGH", "confirm_unknown": True}
    assert json.loads(recorded)["hooks"][0]["command"] == "check.sh"
