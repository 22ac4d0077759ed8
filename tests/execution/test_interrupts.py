"""An interrupt ends the processes that `execute_sync` waits for: Ctrl-C in a program, and the interrupt of a tool."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bough.agents.spec import AgentSpec
from bough.conversation import AsyncConversation, Conversation
from bough.events.model import ToolInterrupted
from bough.execution import CodeExecutionInput, LocalSandboxCodeExecutor
from bough.portal import CallScope, portal
from bough.settings import Settings
from bough.testing import ScriptedModel, tool_call

pytestmark = [pytest.mark.anyio, pytest.mark.needs("bubblewrap")]

PROGRAM = """
import sys
from bough import CodeExecutionInput, LocalSandboxCodeExecutor
executor = LocalSandboxCodeExecutor()
request = CodeExecutionInput(code=sys.argv[1], language="bash", workspace=sys.argv[2], timeout_seconds=600)
try:
    executor.execute_sync(request)
except KeyboardInterrupt:
    print("interrupted", executor.execute_sync(CodeExecutionInput(code="print(1)")).text)
"""


class Sleeper:
    """A shell program that sleeps, with a child that does, for longer than any test lasts."""

    def __init__(self, workspace: Path) -> None:
        self.workspace = workspace
        workspace.mkdir()
        self.seconds = str(10**6 + secrets.randbelow(10**6))
        self.code = f"sleep {self.seconds} & exec sleep {self.seconds}"

    @property
    def request(self) -> CodeExecutionInput:
        return CodeExecutionInput(
            code=self.code, language="bash", workspace=self.workspace, timeout_seconds=600, execution_id="cell"
        )

    async def has_started(self) -> None:
        while len(self.list_processes()) < 2:
            await asyncio.to_thread(os.sched_yield)

    def list_processes(self) -> list[str]:
        """Return the processes of the machine that are still in its sleep."""
        running: list[str] = []
        for folder in Path("/proc").iterdir():
            try:
                command = (folder / "cmdline").read_bytes() if folder.name.isdigit() else b""
            except OSError:  # it has just ended
                continue
            if command.split(b"\0")[:2] == [b"sleep", self.seconds.encode()]:
                running.append(folder.name)
        return running


async def test_the_interrupt_of_a_tool_ends_what_it_waits_for(tmp_path: Path) -> None:
    sleeper, ends = Sleeper(tmp_path / "work"), list[str]()
    async with LocalSandboxCodeExecutor() as executor:

        def wait() -> str:
            """Run a program and wait for it."""
            for request in (sleeper.request, CodeExecutionInput(code="open('/work/second', 'w')")):
                try:
                    executor.execute_sync(request)
                except asyncio.CancelledError:
                    ends.append("cancelled")
            return "never"

        spec = AgentSpec(model=ScriptedModel([tool_call("wait"), "done"]), tools=(wait,), skills=())
        settings = Settings.load(home=tmp_path / "home", env={}, cwd=tmp_path)
        conversation = await AsyncConversation.create(spec, workspace=tmp_path, store="memory:", settings=settings)
        await conversation.send_message("go")
        run = asyncio.create_task(conversation.run())
        await sleeper.has_started()
        assert sleeper.list_processes()
        await conversation.interrupt()
        assert (await run).reason == "interrupted"
        assert sleeper.list_processes() == []
        assert ends == ["cancelled", "cancelled"], "nothing that the tool asks for later is started"
        events = [stored.event async for stored in conversation.events]
        assert [event.reason for event in events if isinstance(event, ToolInterrupted)] == ["interrupted"]
        result = await asyncio.to_thread(
            executor.execute_sync, CodeExecutionInput(code="print(1)", execution_id="cell")
        )
        assert result.text == "1\n"
        await conversation.aclose()


async def test_ctrl_c_ends_the_processes_and_the_executor_works_on(tmp_path: Path) -> None:
    sleeper = Sleeper(tmp_path / "work")
    arguments = [sys.executable, "-c", PROGRAM, sleeper.code, str(sleeper.workspace)]
    program = await asyncio.create_subprocess_exec(*arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    await sleeper.has_started()
    assert sleeper.list_processes()
    program.send_signal(signal.SIGINT)
    stdout, stderr = await program.communicate()
    assert (program.returncode, stdout) == (0, b"interrupted 1\n\n"), stderr
    assert sleeper.list_processes() == []


async def test_a_call_that_has_not_begun_is_cancelled_too() -> None:
    scope, calls = CallScope(), list[str]()
    scope.cancel()

    async def note() -> None:
        calls.append("ran")

    with pytest.raises(asyncio.CancelledError):
        await asyncio.to_thread(scope.run, portal().call, note)
    assert calls == []


def test_an_interrupted_tool_closes_what_it_has_opened(tmp_path: Path) -> None:
    """Else its store and its processes would stay until the program ends, or longer."""
    settings, scope, closed = Settings.load(tmp_path / "home", env={}), CallScope(), list[bool]()

    def use() -> None:
        with Conversation("offline", workspace=tmp_path, settings=settings) as conversation:
            store = conversation._core.store  # type: ignore[union-attr]
            scope.cancel()
            try:
                conversation.send_message("refused")
            except asyncio.CancelledError:
                closed.append(False)
        closed.append(store._closed)  # type: ignore[union-attr]

    scope.run(use)
    assert closed == [False, True]
