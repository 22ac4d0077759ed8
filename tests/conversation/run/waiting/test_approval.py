"""Calls that wait for a person: across restarts and forks, and never run without an approval of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.conversation.places import everywhere

from bough.conversation import AsyncConversation
from bough.errors import Conflict, InvalidInput, PermissionDenied
from bough.guard import (
    AllowList,
    AlwaysConfirm,
    ConfirmRisky,
    Hook,
    HookKind,
    HookSet,
    NeverConfirm,
    Risk,
    RuleAnalyzer,
)
from bough.testing import tool_call

pytestmark = pytest.mark.anyio


class Tool:
    """A tool that counts."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.agent: Any = None  # which has it

        def act(name: str) -> str:
            """Act."""
            self.ran.append(name)
            return f"acted {name}"

        self.act = act


@pytest.fixture
def tool() -> Tool:
    return Tool()


async def waiting(start: Any, scripted: Any, tool: Tool, *answers: str, **rules: Any) -> Any:
    spec = scripted(
        [tool_call("act", name="a"), tool_call("act", name="b")], *(answers or ("done",)), tools=(tool.act,)
    )
    tool.agent = spec
    conversation = await start(spec, **({"confirmation_policy": AlwaysConfirm()} | rules))
    await conversation.send_message("go")
    result = await conversation.run()
    assert result.status == "waiting_for_confirmation"
    assert tool.ran == []
    return conversation


@everywhere
async def test_approving_all_runs_all(start: Any, scripted: Any, tool: Tool) -> None:
    conversation = await waiting(start, scripted, tool)
    assert [call["arguments"] for call in conversation.state.waiting.values()] == [{"name": "a"}, {"name": "b"}]
    assert (await conversation.run()).status == "waiting_for_confirmation", "running again changes nothing"
    await conversation.approve()
    assert (await conversation.run()).output == "done"
    assert sorted(tool.ran) == ["a", "b"]


@everywhere
async def test_rejecting_one_tells_the_model_and_runs_the_other(start: Any, scripted: Any, tool: Tool) -> None:
    conversation = await waiting(start, scripted, tool)
    first, second = conversation.state.waiting
    await conversation.reject(first, reason="not that one")
    assert conversation.status == "waiting_for_confirmation"
    await conversation.approve(second)
    await conversation.run()
    assert tool.ran == ["b"]
    told = tool.agent.model.asked[1].messages[-1].parts
    assert "not that one" in str(told[0].content)


@everywhere
async def test_it_survives_a_restart(start: Any, scripted: Any, tool: Tool, reopen: Any) -> None:
    conversation = await waiting(start, scripted, tool)
    again = await reopen(conversation.id, tool.agent)
    assert len(again.state.waiting) == 2
    assert (await again.run()).status == "waiting_for_confirmation", "the policy came from the log"
    await again.approve()
    await again.run()
    assert sorted(tool.ran) == ["a", "b"]


@everywhere
async def test_approved_in_one_branch_rejected_in_the_other(start: Any, scripted: Any, tool: Tool, reopen: Any) -> None:
    source = await waiting(start, scripted, tool, "source done", "fork done")
    source = await reopen(source.id, tool.agent)
    async with await source.fork(pending="carry") as fork:
        assert (fork.status, len(fork.state.waiting)) == ("waiting_for_confirmation", 2)
        await source.reject(reason="no")
        assert (await source.run()).output == "source done"
        assert tool.ran == [], "the branch that said no ran nothing"
        await fork.approve()
        assert (await fork.run()).output == "fork done"
        assert sorted(tool.ran) == ["a", "b"]


@everywhere
async def test_a_comparison_names_the_arguments_of_calls_that_were_refused(
    start: Any, scripted: Any, tool: Tool
) -> None:
    source = await waiting(start, scripted, tool, "source done", "fork done")
    async with await source.fork(pending="carry") as fork:
        await source.approve()
        await source.run()
        await fork.reject(reason="no")
        (difference,) = (await source.compare(fork)).calls
    assert [(call.arguments, call.ended) for call in difference.a] == [
        ({"name": "a"}, "ToolReturned"),
        ({"name": "b"}, "ToolReturned"),
    ]
    assert [(call.arguments, call.ended) for call in difference.b] == [
        ({"name": "a"}, "ToolRejected"),
        ({"name": "b"}, "ToolRejected"),
    ]


@everywhere
async def test_an_approval_does_not_travel_into_a_fork(start: Any, scripted: Any, tool: Tool) -> None:
    source = await waiting(start, scripted, tool, "fork says", "source says")
    await source.approve()
    async with await source.fork(pending="carry") as fork:
        assert fork.status == "waiting_for_confirmation"
        assert (await fork.run()).status == "waiting_for_confirmation"
        assert tool.ran == []


@everywhere
async def test_carried_calls_wait_even_where_the_policy_never_asks(start: Any, scripted: Any, tool: Tool) -> None:
    spec = scripted([tool_call("act", name="a")], "done", "fork done", tools=(tool.act,))
    source = await start(spec)
    await source.send_message("go")
    await source.run()
    cut = [stored.seq async for stored in source.events if stored.kind == "ModelResponded"]
    async with await source.fork(at=cut[0] + 1, pending="carry") as fork:
        assert (await fork.run()).status == "waiting_for_confirmation"
        assert tool.ran == ["a"]
        await fork.approve()
        assert (await fork.run()).output == "fork done"
        assert tool.ran == ["a", "a"]


@everywhere
async def test_a_call_that_has_started_is_not_carried(start: Any, scripted: Any, tool: Tool) -> None:
    spec = scripted([tool_call("act", name="a")], "done", tools=(tool.act,))
    source = await start(spec)
    await source.send_message("go")
    await source.run()
    called = [stored.seq async for stored in source.events if stored.kind == "ToolCalled"]
    with pytest.raises(InvalidInput, match="has started"):
        await source.fork(at=called[0] + 1, pending="carry")


async def test_another_agent_needs_the_tools_of_carried_calls(start: Any, scripted: Any, tool: Tool) -> None:
    source = await waiting(start, scripted, tool)
    with pytest.raises(InvalidInput, match="no tool 'act'"):
        await source.fork(pending="carry", agent=scripted())
    assert await source.store.children(source.id) == []


@pytest.mark.parametrize("at_cut", [AlwaysConfirm(), ConfirmRisky(), NeverConfirm()])
@pytest.mark.parametrize("now", [AlwaysConfirm(), ConfirmRisky(), NeverConfirm()])
async def test_a_fork_is_as_strict_as_the_cut_and_as_the_source(
    start: Any, scripted: Any, at_cut: Any, now: Any
) -> None:
    source = await start(scripted("one"), confirmation_policy=at_cut)
    cut = source.state.head
    await source.set_confirmation_policy(now)
    fork = await source.fork(at=cut)
    policy = fork._rules_in_force().policy
    for risk in Risk:
        assert policy.needs_confirmation(risk) >= at_cut.needs_confirmation(risk)
        assert policy.needs_confirmation(risk) >= now.needs_confirmation(risk)
    assert fork.state.policies["policy"] == policy.to_json(), "and it is on record"


@everywhere
async def test_risky_calls_wait_and_harmless_ones_run(start: Any, scripted: Any) -> None:
    ran: list[str] = []

    def run_command(command: str) -> str:
        """Run."""
        ran.append(command)
        return "ok"

    spec = scripted(
        tool_call("run_command", command="ls"), tool_call("run_command", command="rm -rf /"), "x", tools=(run_command,)
    )
    conversation = await start(spec, confirmation_policy=ConfirmRisky(), security_analyzer=RuleAnalyzer())
    await conversation.send_message("go")
    assert (await conversation.run()).status == "waiting_for_confirmation"
    assert ran == ["ls"]
    risks = [stored.event.risk async for stored in conversation.events if stored.kind == "ToolCalled"]
    assert risks == ["LOW"]
    assert [call["risk"] for call in conversation.state.waiting.values()] == ["HIGH"]


@everywhere
async def test_nothing_waits(start: Any, scripted: Any, tool: Tool) -> None:
    conversation = await start(scripted("one"))
    with pytest.raises(Conflict, match="no call waits"):
        await conversation.approve()
    conversation = await waiting(start, scripted, tool)
    with pytest.raises(Conflict, match="does not wait"):
        await conversation.reject("unknown", reason="no")


async def test_an_allow_list_refuses(start: Any, scripted: Any, tool: Tool) -> None:
    spec = scripted([tool_call("act", name="a")], "I may not", tools=(tool.act,))
    conversation = await start(spec, allow_list=AllowList.of("read_file"))
    await conversation.send_message("go")
    assert (await conversation.run()).output == "I may not"
    assert tool.ran == []
    rejected = [stored.event async for stored in conversation.events if stored.kind == "ToolRejected"]
    assert [event.by for event in rejected] == ["allow-list"]


def hook(kind: HookKind, command: str) -> HookSet:
    return HookSet((Hook(kind=kind, command=command),))


async def test_a_hook_denies_and_is_recorded(start: Any, scripted: Any, tool: Tool) -> None:
    spec = scripted([tool_call("act", name="a")], "denied", tools=(tool.act,))
    hooks = hook(HookKind.PRE_TOOL_USE, "echo 'not today' >&2; exit 2")
    conversation = await start(spec, hooks=hooks)
    await conversation.send_message("go")
    await conversation.run()
    assert tool.ran == []
    assert "not today" in str(spec.model.asked[1].messages[-1].parts[0].content)
    verdicts = [stored.event.verdict async for stored in conversation.events if stored.kind == "HookRan"]
    assert verdicts == ["deny"]


async def test_a_hook_refuses_a_message(start: Any, scripted: Any) -> None:
    conversation = await start(scripted(), hooks=hook(HookKind.USER_PROMPT_SUBMIT, "echo secret >&2; exit 2"))
    with pytest.raises(PermissionDenied, match="secret"):
        await conversation.send_message("tell me")
    assert [stored.kind async for stored in conversation.events] == ["ConversationStarted", "HookRan"]


async def test_a_stop_hook_sends_the_agent_back(start: Any, scripted: Any, tmp_path: Path) -> None:
    flag = tmp_path / "done"
    command = f"test -e {flag} && exit 0; touch {flag}; echo 'write the tests' >&2; exit 2"
    spec = scripted("finished", "tests written")
    conversation = await start(spec, hooks=hook(HookKind.STOP, command))
    await conversation.send_message("go")
    assert (await conversation.run()).output == "tests written"
    assert "write the tests" in str(spec.model.asked[1].messages[-1])


async def test_hooks_are_not_lost_by_opening_again(start: Any, scripted: Any, store: Any, settings: Any) -> None:
    hooks = hook(HookKind.PRE_TOOL_USE, "exit 0")
    conversation = await start(scripted("one"), hooks=hooks)
    with pytest.raises(InvalidInput, match="hooks that are not available here"):
        await AsyncConversation.open(conversation.id, store=store, agent=conversation.agent, settings=settings)
    again = await AsyncConversation.open(
        conversation.id, store=store, agent=conversation.agent, settings=settings, hooks=hooks
    )
    assert again._rules_in_force().hooks == hooks


async def test_hooks_are_asked_once_a_call_and_recorded_before_it_runs(start: Any, scripted: Any, tool: Tool) -> None:
    async def allow(_: Any) -> None:
        return None

    hooks = HookSet(
        (Hook(kind=HookKind.PRE_TOOL_USE, function=allow), Hook(kind=HookKind.POST_TOOL_USE, function=allow))
    )
    source = await start(scripted(tool_call("act", name="a"), "done", tools=(tool.act,)), hooks=hooks)
    await source.send_message("go")
    await source.run()
    kinds = [stored.kind async for stored in source.events if stored.kind.startswith(("Hook", "Tool"))]
    assert kinds == ["HookRan", "ToolCalled", "ToolReturned", "HookRan"], "none is lost at the end of the run"


# Rules of others, and rules given to one object only.


@everywhere
async def test_a_policy_that_another_object_sets_holds_for_the_running_run(
    start: Any, scripted: Any, tool: Tool, reopen: Any
) -> None:
    conversation: Any = None

    async def other_says_ask() -> str:
        """Set a policy as another process does."""
        other = await reopen(conversation.id, spec)
        await other.set_confirmation_policy(AlwaysConfirm())
        return "set"

    steps = (tool_call("other_says_ask"), tool_call("act", name="a"), "done")
    spec = scripted(*steps, tools=(tool.act, other_says_ask))
    conversation = await start(spec)
    await conversation.send_message("go")
    assert (await conversation.run()).status == "waiting_for_confirmation"
    assert tool.ran == []
    await conversation.set_confirmation_policy(NeverConfirm())
    await conversation.approve()
    assert (await conversation.run()).output == "done"


async def test_a_stricter_object_leaves_its_policy_in_the_log(
    start: Any, scripted: Any, tool: Tool, store: Any, settings: Any
) -> None:
    steps = (tool_call("act", name="a"), tool_call("act", name="b"), "done")
    conversation = await start(scripted(*steps, tools=(tool.act,)))
    await conversation.send_message("go")
    strict = await AsyncConversation.open(
        conversation.id,
        store=store,
        agent=conversation.agent,
        settings=settings,
        confirmation_policy=AlwaysConfirm(),
    )
    assert (await strict.run()).status == "waiting_for_confirmation"
    await strict.aclose()
    lax = await AsyncConversation.open(conversation.id, store=store, agent=conversation.agent, settings=settings)
    await lax.approve()
    assert (await lax.run()).status == "waiting_for_confirmation", "the second call is asked for as well"
    assert tool.ran == ["a"]


@everywhere
async def test_a_fork_at_an_earlier_event_keeps_the_policy_that_came_later(
    start: Any, scripted: Any, tool: Tool, reopen: Any
) -> None:
    spec = scripted("one", tool_call("act", name="a"), tools=(tool.act,))
    conversation = await start(spec)
    await conversation.send_message("go")
    await conversation.run()
    head = conversation.state.head
    other = await reopen(conversation.id, spec)
    await other.set_confirmation_policy(AlwaysConfirm())
    async with await conversation.fork(at=head) as fork:
        await fork.send_message("act")
        assert (await fork.run()).status == "waiting_for_confirmation"
        assert tool.ran == []
