"""Hooks as real processes and functions: what they are told, what their answers mean, and what is left of them."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from bough.errors import InvalidInput
from bough.guard import Hook, HookAnswer, HookInput, HookKind, HookSet, HookVerdict

pytestmark = pytest.mark.anyio

PRE = HookKind.PRE_TOOL_USE


def told(workspace: Path, kind: HookKind = PRE, **fields: Any) -> HookInput:
    given: dict[str, Any] = {"conversation_id": "conv-1", "workspace": workspace}
    if kind in (PRE, HookKind.POST_TOOL_USE):
        given |= {"tool": "run_command", "tool_call_id": "call-1", "arguments": {"command": "ls"}}
    return HookInput(kind=kind, **(given | fields))


async def ask(workspace: Path, command: str, kind: HookKind = PRE, **fields: Any) -> HookVerdict:
    return await HookSet((Hook(kind=kind, command=command, **fields),)).run(told(workspace, kind))


def says(value: Any) -> str:
    return f"echo {shlex.quote(json.dumps(value))}"


async def test_a_hook_is_told_everything_as_one_json_object(workspace: Path) -> None:
    await ask(workspace, "cat > told.json; pwd > cwd.txt")
    given = json.loads((workspace / "told.json").read_text())
    assert given["hook_event_name"] == "PreToolUse"
    assert given["tool_name"] == "run_command"
    assert given["tool_input"] == {"command": "ls"}
    assert given["session_id"] == "conv-1"
    assert given["cwd"] == str(workspace)
    assert (workspace / "cwd.txt").read_text().strip() == os.path.realpath(workspace)


async def test_a_hook_after_a_tool_is_told_the_result(workspace: Path) -> None:
    hooks = HookSet((Hook(kind=HookKind.POST_TOOL_USE, command="cat > told.json"),))
    await hooks.run(told(workspace, HookKind.POST_TOOL_USE, response={"rows": [1, None]}))
    assert json.loads((workspace / "told.json").read_text())["tool_response"] == {"rows": [1, None]}


async def test_a_hook_does_not_inherit_keys(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXAMPLE_API_KEY", "not-for-hooks")
    await ask(workspace, "env > env.txt")
    env = dict(line.split("=", 1) for line in (workspace / "env.txt").read_text().splitlines())
    assert "EXAMPLE_API_KEY" not in env
    for name in ("BOUGH_PROJECT_DIR", "CLAUDE_PROJECT_DIR", "OPENHANDS_PROJECT_DIR"):
        assert env[name] == str(workspace)
    assert env["PATH"]


SPECIAL = "hookSpecificOutput"
ANSWERS: list[tuple[str, str, str]] = [
    ("true", "none", ""),
    ("exit 0", "none", ""),
    ("echo nothing to say", "none", ""),
    ("echo no >&2; exit 2", "deny", "no"),
    ("exit 2", "deny", "a hook denied it"),
    (says({"reason": "from stdout"}) + "; exit 2", "deny", "from stdout"),
    (says({"decision": "block", "reason": "r"}), "deny", "r"),
    (says({"decision": "deny", "reason": "r"}), "deny", "r"),
    (says({"decision": "approve"}), "allow", ""),
    (says({"decision": "allow"}), "allow", ""),
    (says({"continue": False, "stopReason": "s"}), "deny", "s"),
    (says({"continue": False, "decision": "allow"}), "deny", ""),
    (says({SPECIAL: {"permissionDecision": "deny", "permissionDecisionReason": "p"}}), "deny", "p"),
    (says({SPECIAL: {"permissionDecision": "ask", "permissionDecisionReason": "p"}}), "ask", "p"),
    (says({SPECIAL: {"permissionDecision": "allow"}}), "allow", ""),
    (says({SPECIAL: {"permissionDecision": "allow"}, "decision": "block", "reason": "r"}), "deny", "r"),
    (says({"suppressOutput": True}), "none", ""),
    ("exit 1", "none", "it failed with exit code 1"),
]


@pytest.mark.parametrize(("command", "decision", "reason"), ANSWERS, ids=[command for command, _, _ in ANSWERS])
async def test_what_an_answer_means(command: str, decision: str, reason: str, workspace: Path) -> None:
    verdict = await ask(workspace, command)
    assert (verdict.decision, verdict.reason) == (decision, reason)
    assert len(verdict.events) == 1
    event = verdict.events[0]
    assert (event.hook, event.command, event.tool_call_id) == ("PreToolUse", command, "call-1")
    assert event.verdict == ("error" if command == "exit 1" else decision)
    assert reason in event.output


FAILURES = [
    "/no/such/program",
    "no-such-program-anywhere",
    "kill -9 $$",
    "kill -SEGV $$",
    "echo '{\"decision\": '",
    says({"decision": "perhaps"}),
    says({"decision": ["block"]}),
    says({SPECIAL: {"permissionDecision": 7}}),
]


@pytest.mark.parametrize("command", FAILURES)
async def test_a_hook_that_could_not_answer_lets_no_call_through(command: str, workspace: Path) -> None:
    """It may have been about to say no."""
    verdict = await ask(workspace, command)
    assert verdict.decision == "deny"
    assert "must allow the call failed" in verdict.reason
    assert verdict.events[0].verdict == "error"


@pytest.mark.parametrize("command", FAILURES)
async def test_a_hook_may_say_that_its_failure_does_not_matter(command: str, workspace: Path) -> None:
    verdict = await ask(workspace, command, on_failure="continue")
    assert verdict.decision == "none"
    assert verdict.events[0].verdict == "error", "but it is recorded"


async def test_a_failing_hook_elsewhere_is_recorded_and_holds_nothing_up(workspace: Path) -> None:
    for kind in HookKind:
        if kind is not PRE:
            verdict = await ask(workspace, "kill -9 $$", kind)
            assert (verdict.decision, verdict.events[0].verdict) == ("none", "error")


async def test_a_hook_that_hangs_is_killed_with_all_it_started(workspace: Path) -> None:
    """The pipe is open as long as any process of the hook lives; the read ends only when all are gone."""
    os.mkfifo(workspace / "alive")
    reading = os.open(workspace / "alive", os.O_RDONLY | os.O_NONBLOCK)
    command = "trap '' TERM HUP INT; exec 9> alive; (trap '' TERM; sleep 1000) & echo started; sleep 1000"
    verdict = await ask(workspace, command, timeout_seconds=0.5)
    assert verdict.decision == "deny"
    assert "timed out after 0.5 s" in verdict.reason
    assert "started" in verdict.events[0].output
    os.set_blocking(reading, True)
    assert await asyncio.to_thread(os.read, reading, 1) == b""
    os.close(reading)


async def test_a_hook_that_leaves_a_process_behind_does_not_hold_up_its_answer(workspace: Path) -> None:
    os.mkfifo(workspace / "alive")
    reading = os.open(workspace / "alive", os.O_RDONLY | os.O_NONBLOCK)
    verdict = await ask(workspace, "exec 9> alive; sleep 1000 & " + says({"decision": "allow"}))
    assert verdict.decision == "allow"
    os.set_blocking(reading, True)
    assert await asyncio.to_thread(os.read, reading, 1) == b""
    os.close(reading)


async def test_cancelling_kills_the_hook(workspace: Path) -> None:
    os.mkfifo(workspace / "alive")
    running = asyncio.ensure_future(ask(workspace, "exec 9> alive; echo >&9; sleep 1000"))
    reading = await asyncio.to_thread(os.open, workspace / "alive", os.O_RDONLY)  # returns when the hook has opened it
    assert await asyncio.to_thread(os.read, reading, 1) == b"\n"
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await asyncio.to_thread(os.read, reading, 1) == b""
    os.close(reading)


async def test_a_flood_of_output_is_bounded(workspace: Path) -> None:
    verdict = await ask(
        workspace, "head -c 5000000 /dev/zero | tr '\\0' x; head -c 5000000 /dev/zero | tr '\\0' y >&2; exit 2"
    )
    assert verdict.decision == "deny"
    assert len(verdict.reason) <= 16 << 10
    assert len(verdict.events[0].output) <= 4 << 10


async def test_output_that_is_no_text_is_survived(workspace: Path) -> None:
    verdict = await ask(workspace, "printf '\\377\\376' >&2; exit 2")
    assert verdict.decision == "deny"


async def test_a_large_input_reaches_a_hook_that_does_not_read_it(workspace: Path) -> None:
    hooks = HookSet((Hook(kind=PRE, command="exit 2"),))
    verdict = await hooks.run(told(workspace, arguments={"content": "x" * 3_000_000}))
    assert verdict.decision == "deny"


async def test_context_reaches_the_model(workspace: Path) -> None:
    nested = {SPECIAL: {"additionalContext": "from json"}}
    assert (await ask(workspace, says(nested), HookKind.USER_PROMPT_SUBMIT)).context == "from json"
    assert (await ask(workspace, "echo plain", HookKind.USER_PROMPT_SUBMIT)).context == "plain"
    assert (await ask(workspace, "echo plain", HookKind.SESSION_START)).context == "plain"
    assert (await ask(workspace, "echo plain")).context == "", "a tool hook's chatter is not for the model"


async def test_the_first_no_ends_the_asking(workspace: Path) -> None:
    hooks = HookSet(
        tuple(
            Hook(kind=PRE, command=command)
            for command in (says({"decision": "ask", "reason": "a"}), "exit 2", "touch ran")
        )
    )
    verdict = await hooks.run(told(workspace))
    assert verdict.decision == "deny"
    assert [event.verdict for event in verdict.events] == ["ask", "deny"]
    assert not (workspace / "ran").exists()


async def test_no_hook_means_no_process_and_no_event(workspace: Path) -> None:
    hooks = HookSet(
        (Hook(kind=HookKind.STOP, command="touch ran"), Hook(kind=PRE, command="touch ran", matcher="Write"))
    )
    assert await hooks.run(told(workspace)) == HookVerdict()
    assert not (workspace / "ran").exists()


MATCHES = [
    ("run_command", True),
    ("*", True),
    ("", True),
    ("Bash", True),
    ("terminal", True),
    ("run_.*", True),
    ("/run_.*/", True),
    ("Write|run_command", True),
    ("Write|Edit|Bash", True),
    ("run", False),
    ("command", False),
    ("Write", False),
    ("Bash2", False),
]


@pytest.mark.parametrize(("matcher", "expected"), MATCHES)
def test_matchers(matcher: str, expected: bool, workspace: Path) -> None:
    """`Bash` must mean bough's own command tool, or a guard written for another agent would silently not apply."""
    assert Hook(kind=PRE, command="true", matcher=matcher).matches(told(workspace)) is expected


async def test_functions_are_hooks_too(workspace: Path) -> None:
    seen: list[dict[str, Any]] = []

    def sync(payload: dict[str, Any]) -> dict[str, Any]:
        seen.append(payload)
        return {"decision": "ask", "reason": "look at it"}

    async def later(payload: dict[str, Any]) -> HookAnswer:
        return HookAnswer(decision="deny", reason=payload["tool_name"])

    hooks = HookSet((Hook(kind=PRE, function=sync), Hook(kind=PRE, function=later)))
    verdict = await hooks.run(told(workspace))
    assert (verdict.decision, verdict.reason) == ("deny", "run_command")
    assert seen[0]["tool_input"] == {"command": "ls"}
    assert verdict.events[0].command.endswith("sync")


async def test_a_function_that_raises_hangs_or_talks_nonsense_lets_no_call_through(workspace: Path) -> None:
    def raises(_: object) -> None:
        raise RuntimeError("broken")

    async def hangs(_: object) -> None:
        await asyncio.Event().wait()

    for function, says_why in ((raises, "broken"), (hangs, "timed out"), (lambda _: 42, "not a decision")):
        verdict = await HookSet((Hook(kind=PRE, function=function, timeout_seconds=0.1),)).run(told(workspace))
        assert verdict.decision == "deny"
        assert says_why in verdict.reason
        assert verdict.events[0].verdict == "error"


async def test_a_hook_declared_async_decides_nothing(workspace: Path) -> None:
    verdict = await ask(workspace, "touch ran; exit 2", waits=False)
    assert verdict.decision == "none"
    assert (workspace / "ran").exists()


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"command": "  "},
        {"command": "x", "function": print},
        {"command": "x", "timeout_seconds": 0},
        {"command": "x", "timeout_seconds": float("nan")},
        {"command": "x", "timeout_seconds": 1e9},
        {"command": "x", "matcher": "("},
    ],
)
def test_a_hook_that_makes_no_sense_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        Hook(kind=PRE, **fields)


def test_narrowing_adds_and_never_removes() -> None:
    a, b = Hook(kind=PRE, command="a"), Hook(kind=PRE, command="b")
    both = HookSet((a,)).narrow(HookSet((a, b)))
    assert both.hooks == (a, b)
    assert HookSet((a, b)).narrow(HookSet()).hooks == (a, b)


async def test_the_interpreter_of_a_hook_may_be_anything(workspace: Path) -> None:
    (workspace / "guard.py").write_text(
        "import json, sys\n"
        "call = json.load(sys.stdin)\n"
        "if 'ls' in call['tool_input']['command']:\n"
        "    print('no listing', file=sys.stderr)\n"
        "    sys.exit(2)\n"
    )
    verdict = await ask(workspace, f'{shlex.quote(sys.executable)} "$CLAUDE_PROJECT_DIR/guard.py"')
    assert (verdict.decision, verdict.reason) == ("deny", "no listing")


def test_a_list_of_hooks_is_as_good_as_a_tuple() -> None:
    hook = Hook(kind=HookKind.STOP, command="true")
    assert HookSet([hook]) == HookSet((hook,))  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="this is a str"):
        HookSet(("true",))  # type: ignore[arg-type]
