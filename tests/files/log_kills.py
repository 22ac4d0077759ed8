"""A program that kills itself at each step of a run, a restore or an apply, and checks log and folder each time.

`python log_kills.py OPERATION FOLDER` prints how often it was killed. Everything that opens a store is done in a fork.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from itertools import count
from pathlib import Path
from typing import Any
from uuid import UUID

from bough.agents.spec import AgentSpec
from bough.conversation import AsyncConversation
from bough.events.model import FilesKept
from bough.files import inspect_files
from bough.settings import Settings
from bough.testing import ScriptedModel, tool_call

MOST_STEPS = 24
BEFORE = {"a": "two", "b": "two", "mine": "mine"}
AFTER = {"restore": {"a": "one", "mine": "mine"}, "apply": {"a": "three", "b": "two", "c": "three", "mine": "mine"}}
"""The files before and after. Their contents begin with their number: else each store had those of the one before."""


def make_agent(*names: str, text: str) -> AgentSpec[Any]:
    """Return an agent that writes files."""
    calls = [tool_call("write_file", path=name, content=text) for name in names]
    return AgentSpec(name="writer", model=ScriptedModel([*calls, "done"]), workspace_access="write", skills=())


def name(number: int, *, branch: bool = False) -> UUID:
    return UUID(int=2 * number + branch + 1)


async def open_at(home: Path, id: UUID, agent: AgentSpec[Any]) -> Any:
    settings = Settings.load(home=home / "home", env={}, cwd=home, keep_files=True)
    return await AsyncConversation.open(id, agent=agent, settings=settings)


async def prepare(home: Path) -> None:
    """Make conversations, each with a folder, two steps of its own and a branch with two steps."""
    settings = Settings.load(home=home / "home", env={}, cwd=home, keep_files=True)
    for number in range(MOST_STEPS):
        folder = home / f"{number}"
        folder.mkdir()
        (folder / "a").write_text(f"{number} one")
        create: Any = AsyncConversation.create
        agent = make_agent("a", "b", text=f"{number} two")
        async with await create(agent, id=name(number), workspace=folder, settings=settings) as conversation:
            await conversation.send_message("go")
            await conversation.run()
            (folder / "mine").write_text(f"{number} mine")
            fork: Any = conversation.fork
            changed = make_agent("a", "c", text=f"{number} three")
            async with await fork(id=name(number, branch=True), workspace="copy", agent=changed) as branch:
                await branch.send_message("go")
                await branch.run()


async def do(operation: str, home: Path, number: int, step: Callable[[str], None]) -> None:
    """Do what is killed."""
    conversation = await open_at(home, name(number), make_agent("a", "d", text=f"{number} four"))
    file_store: Any = conversation._parts.environment.file_store
    file_store.step = step
    if operation == "restore":
        await conversation.restore(1)
    elif operation == "apply":
        branch = await open_at(home, name(number, branch=True), make_agent(text=""))
        await conversation.apply(branch)
        await branch.aclose()
    else:
        await conversation.send_message("again")
        await conversation.run()
    await conversation.aclose()


async def check(operation: str, home: Path, number: int) -> None:
    """Check that every tree that the log names is whole, and that the folder is as before or as after."""
    conversation = await open_at(home, name(number), make_agent(text=""))
    present = set((await conversation.files()).paths)  # finishes what was begun
    events = [stored.event async for stored in conversation.events if isinstance(stored.event, FilesKept)]
    trees = {tree for event in events for tree in (event.tree, event.before) if tree is not None}
    file_store: Any = conversation._parts.environment.file_store
    state = inspect_files(file_store, sorted(trees), full=True)
    assert (state.missing, state.damaged, state.journals) == ((), (), ()), state
    contents = {path.name: path.read_text().removeprefix(f"{number} ") for path in (home / f"{number}").iterdir()}
    assert set(contents) == present
    if operation in AFTER:
        assert contents in (BEFORE, AFTER[operation]), contents
        assert (events[-1].by == operation) <= (contents == AFTER[operation]), "the log is not ahead of the folder"
    await conversation.aclose()


def run_in_fork(make: Callable[[], Coroutine[Any, Any, None]]) -> bool:
    """Run a coroutine in a fork; return whether it was killed."""
    pid = os.fork()
    if not pid:
        status = 1
        try:
            asyncio.run(make())
            status = 0
        finally:
            sys.stderr.flush()
            os._exit(status)
    _, status = os.waitpid(pid, 0)
    assert status in (0, signal.SIGKILL), status
    return status == signal.SIGKILL


def main(operation: str, home: Path) -> int:
    """Kill the operation at its first step, then at its second, until it ends."""
    assert not run_in_fork(lambda: prepare(home))
    for number in range(MOST_STEPS):
        steps = count()

        def step(name: str, number: int = number, steps: count[int] = steps) -> None:
            if next(steps) == number:
                os.kill(os.getpid(), signal.SIGKILL)

        def kill(number: int = number, step: Callable[[str], None] = step) -> Coroutine[Any, Any, None]:
            return do(operation, home, number, step)

        def judge(number: int = number) -> Coroutine[Any, Any, None]:
            return check(operation, home, number)

        killed = run_in_fork(kill)
        assert not run_in_fork(judge), "the check was killed"
        if not killed:
            return number
    raise AssertionError(f"more than {MOST_STEPS} steps")


if __name__ == "__main__":
    print(main(sys.argv[1], Path(sys.argv[2])))
