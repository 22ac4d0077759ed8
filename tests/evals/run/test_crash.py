"""A run that is killed continues: each case is run once, whatever moment the kill came at."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bough.evals.run.folder import RunFolder, list_runs
from bough.evals.run.read import read_run
from bough.events import open_store

pytestmark = pytest.mark.anyio

CASES = 100
DRIVER = '''
import asyncio, sys
from pathlib import Path
from bough.agents.spec import AgentSpec
from bough.settings import Settings
from bough.evals import CaseInput, EvalSet, SetCase, evaluate
from bough.testing import ScriptedModel, tool_call

home, done = Path(sys.argv[1]), Path(sys.argv[2])

def work(case: str) -> str:
    """Do the work of a case."""
    with open(done, "a") as file:
        file.write(case + "\\n")
    return "done"

def step(asked):
    last = asked.messages[-1].parts[-1]
    if last.part_kind == "tool-return":
        return "finished"
    return tool_call("work", case=str(last.content))

agent = AgentSpec(name="a", model=ScriptedModel([step] * 1000), tools=(work,), skills=())
cases = EvalSet(name="s", cases=tuple(SetCase(id=f"c{n}", input=CaseInput.of(f"c{n}")) for n in range(100)))
settings = Settings.load(home=home, env={}, cwd=home)
run = asyncio.run(evaluate(cases, agent, settings=settings, jobs=4, resume="-" if len(sys.argv) > 3 else None))
print(run.pass_rate)
'''


def start(home: Path, done: Path, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", DRIVER, str(home), str(done), *more]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


async def test_a_hundred_cases_killed_twice_are_each_run_once(tmp_path: Path) -> None:
    home, done = tmp_path / "home", tmp_path / "done"
    home.mkdir()
    done.touch()
    for goal, more in ((20, ()), (60, ("again",))):
        process = start(home, done, *more)
        while len(done.read_text().splitlines()) < goal:
            assert process.poll() is None, process.communicate()
        process.send_signal(signal.SIGKILL)
        process.communicate()
    out, err = start(home, done, "again").communicate()
    assert out.strip() == "1.0", err
    (folder,) = list_runs(home / "evals")
    run, _ = await read_run(RunFolder(folder.path))
    assert [each.status for each in run.cases] == ["passed"] * CASES
    store = await open_store(folder.store_url)
    try:
        messages = notes = 0
        cut_off: set[str] = set()
        for each in run.cases:
            assert each.conversation is not None
            async for stored in store.read(await store.resolve(each.conversation)):
                messages += stored.kind == "UserMessage"
                notes += stored.kind == "TaskNoted"
                cut_off |= {each.case} if stored.kind == "ToolInterrupted" else set()
    finally:
        await store.aclose()
    assert (messages, notes) == (CASES, CASES), "each case was asked once and has one result"
    worked = done.read_text().splitlines()
    # A call that had started when the kill came is closed as interrupted and not made again, whether it ran or not.
    assert set(worked) | cut_off == {f"c{n}" for n in range(CASES)} and len(cut_off) <= 8
    assert len(worked) <= CASES + 8, "only calls that were cut off may have been made again by the model"
