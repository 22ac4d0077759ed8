"""Secrets in a conversation: how often a provider is asked, who gets a value, and where it is seen."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import pytest

from bough.agents.workspace.tools import find_variables
from bough.conversation import AsyncConversation
from bough.execution.base import CodeExecutionInput, CodeExecutionResult, Isolation
from bough.guard import Secrets
from bough.testing import tool_call

pytestmark = pytest.mark.anyio
VALUE = "swordfish-and-chips"


class Provider:
    """Gives a value, and says how often and in which threads it was asked."""

    def __init__(self, value: str = VALUE) -> None:
        self.value, self.threads = value, list[threading.Thread]()

    def __call__(self) -> str:
        self.threads.append(threading.current_thread())
        return self.value


class EchoExecutor:
    """Prints the environment that it was given: what a command would see."""

    name, isolation = "echo", Isolation.NAMESPACES

    def __init__(self) -> None:
        self.environments: list[Mapping[str, str]] = []

    async def execute(self, request: CodeExecutionInput) -> CodeExecutionResult:
        self.environments.append(dict(request.env))
        return CodeExecutionResult(exit_code=0, stdout=repr(dict(request.env)).encode())

    async def aclose(self) -> None:
        """Nothing to close."""


def look() -> str:
    """Look."""
    return "nothing"


async def test_a_provider_is_asked_when_a_conversation_is_opened_and_once_a_run_in_a_thread(
    start: Any, scripted: Any, store: Any, settings: Any
) -> None:
    provider = Provider()
    spec = scripted(tool_call("look"), tool_call("look"), "one", "two", tools=(look,))
    conversation = await start(spec, secrets=Secrets({"TOKEN": provider}), title=f"about {VALUE}")
    assert len(provider.threads) == 1
    await conversation.send_message(f"the password is {VALUE}")
    await conversation.run()
    assert len(provider.threads) == 2, "a run of three steps"
    await conversation.send_message("again")
    await conversation.run()
    async with await conversation.fork() as fork:
        await fork.send_message("in a fork")
    assert len(provider.threads) == 3
    assert threading.main_thread() not in provider.threads, "the event loop waits for no provider"
    stored = b"".join([each.raw async for each in conversation.events])
    assert VALUE.encode() not in stored
    assert b"<secret:TOKEN>" in stored
    assert conversation.title == "about <secret:TOKEN>"


async def test_a_value_that_changes_between_runs_is_hidden_too(start: Any, scripted: Any) -> None:
    provider = Provider()
    conversation = await start(scripted("one", "two"), secrets=Secrets({"TOKEN": provider}))
    await conversation.send_message("go")
    await conversation.run()
    provider.value = "another-value"
    await conversation.send_message("on")
    await conversation.run()
    await conversation.send_message(f"{VALUE} and another-value")
    last = [each.raw async for each in conversation.events][-1]
    assert last.count(b"<secret:TOKEN>") == 2


async def test_a_command_gets_the_secrets_that_it_names(start: Any, scripted: Any) -> None:
    executor, first, second = EchoExecutor(), Provider(), Provider("another-value")
    commands = ['curl -H "Bearer $TOKEN"', "ls", "echo ${OTHER:-none}"]
    spec = scripted(
        *[tool_call("run_command", command=command) for command in commands], "done", workspace_access="run"
    )
    secrets = Secrets({"TOKEN": first, "OTHER": second})
    conversation = await start(spec, secrets=secrets, executor=executor)
    await conversation.send_message("go")
    await conversation.run()
    assert executor.environments == [{"TOKEN": VALUE}, {}, {"OTHER": "another-value"}]
    results = [each.event.result["stdout"] async for each in conversation.events if each.kind == "ToolReturned"]
    assert results == ["{'TOKEN': '<secret:TOKEN>'}", "{}", "{'OTHER': '<secret:OTHER>'}"]
    assert VALUE not in str(spec.model.asked), "the model is told what the log has"


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("echo $A ${B} $C_1", {"A", "B", "C_1"}),
        ("bash -c 'echo $INNER'", {"INNER"}),
        ("echo ${A:-x} ${#B} ${!C}", {"A", "B", "C"}),
        ("echo 5$ $1 $? a$", set()),
        ("cat <<E\n$HERE\nE", {"HERE"}),
    ],
)
def test_which_variables_a_command_names(command: str, names: set[str]) -> None:
    assert find_variables(command) == names


async def test_a_provider_that_fails_keeps_no_conversation_from_running(start: Any, scripted: Any) -> None:
    def fail() -> str:
        raise OSError("the vault is closed")

    conversation: AsyncConversation = await start(scripted("one"), secrets=Secrets({"TOKEN": fail}))
    await conversation.send_message("go")
    assert (await conversation.run()).output == "one"


def test_a_narrowed_copy_hides_what_the_other_one_read() -> None:
    whole = Secrets({"A": Provider(), "B": Provider("another-value")})
    part = whole.narrow(["A"])
    assert whole.value("B") == "another-value"
    assert part.masker().text("another-value") == "<secret:B>"
    assert part.masker() is whole.masker()
