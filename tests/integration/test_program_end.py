"""Programs that close nothing end all the same: with their own exit code, and with nothing left on the machine."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bough.skills import TrustStore
from bough.skills.install.review import review_project

BOUND_SECONDS = 60
"""A program that takes longer hangs: it would never have ended."""

BEGIN = """
import asyncio, gc, multiprocessing, os, signal, sys, threading, time, warnings
from pathlib import Path
from bough import AgentSpec, Conversation
from bough.errors import BoughError, Unavailable
from bough.execution import LocalSandboxCodeExecutor
from bough.testing import ScriptedModel, tool_call

STORE, FOLDER = sys.argv[1], Path(sys.argv[2])
started = threading.Event()

def talk(*steps, tools=(), skill_roots=(), **fields):
    skills = None if skill_roots else ()
    agent = AgentSpec(model=ScriptedModel(steps), tools=list(tools), skills=skills, skill_roots=skill_roots)
    conversation = Conversation(agent, workspace=FOLDER, store=STORE, **fields)
    conversation.send_message("begin")
    return conversation

async def wait_for_ever() -> str:
    started.set()
    await asyncio.Event().wait()

def block_for_ever() -> str:
    started.set()
    threading.Event().wait()
"""

SPY = """
import ctypes, json, pathlib, subprocess, sys
ctypes.CDLL(None).prctl(36, 1)  # orphans of the program become children of this process
done = subprocess.run(sys.argv[1:], capture_output=True, text=True)
children = [pid for each in pathlib.Path("/proc/self/task").glob("*/children") for pid in each.read_text().split()]
commands = [pathlib.Path(f"/proc/{pid}/cmdline").read_text().replace(chr(0), " ") for pid in children]
left = [command for command in commands if command]  # a process that has ended, or is about to, has none
print(json.dumps({"code": done.returncode, "out": done.stdout, "err": done.stderr, "processes": left}))
"""


@dataclass(frozen=True)
class Ended:
    """How a program ended, and what it left."""

    code: int
    out: str
    err: str
    processes: list[str]
    folders: list[str]
    leases: int
    statuses: list[str]


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory:" if request.param == "memory" else f"sqlite:///{tmp_path / 'log.db'}"


def run(tmp_path: Path, program: str, store: str = "memory:") -> Ended:
    """Run a program to its end."""
    temporary, folder = tmp_path / "temporary", tmp_path / "folder"
    temporary.mkdir()
    temporary.chmod(0o711)
    folder.mkdir()
    script = tmp_path / "program.py"
    script.write_text(BEGIN + textwrap.dedent(program))
    env = {**os.environ, "TMPDIR": str(temporary)}
    spied = subprocess.run(
        [sys.executable, "-c", SPY, sys.executable, str(script), store, str(folder)],
        env=env,
        capture_output=True,
        text=True,
        timeout=BOUND_SECONDS,
        check=True,
    )
    told: dict[str, Any] = json.loads(spied.stdout)
    return Ended(**told, folders=sorted(os.listdir(temporary)), **kept(store))


def kept(store: str) -> dict[str, Any]:
    """Return what a SQLite store says of leases and statuses."""
    if store == "memory:":
        return {"leases": 0, "statuses": []}
    with sqlite3.connect(store.removeprefix("sqlite:///")) as db:
        (leases,) = db.execute("select count(*) from lease").fetchone()
        statuses = [status for (status,) in db.execute("select status from conversation order by created")]
    return {"leases": leases, "statuses": statuses}


def check_nothing_left(ended: Ended) -> None:
    assert ended.processes == []
    assert ended.folders == []
    assert ended.leases == 0


PLAIN = {
    "the end of the file": ("talk('hello').run()", 0),
    "an exception": ("c = talk('hello')\nc.run()\nraise ValueError('mine')", 1),
    "an open fork": ("c = talk('hello')\nc.run()\nbranch = c.fork()", 0),
    "sys.exit": ("c = talk('hello')\nc.run()\nsys.exit(3)", 3),
    "an ephemeral fork with its own files": ("c = talk('hello')\nb = c.fork(workspace='copy', ephemeral=True)", 0),
    "a stream left open": ("c = talk('hello')\ns = c.run_stream()\nnext(s)\nkept = s", 0),
    "a listing alone": ("Conversation.list(STORE)", 0),
    "a failed opening": ("Conversation.open('00000000', store=STORE)", 1),
    "a closed one": ("with talk('hello') as c:\n    c.run()", 0),
    "a non-daemon thread that has run one": ("t = threading.Thread(target=talk('hello').run)\nt.start()\nt.join()", 0),
    "a handler at exit that closes": ("import atexit\nc = talk('hello')\natexit.register(c.close)", 0),
    "a use at exit": (
        "import atexit\nc = talk('hello')\n"
        "def late():\n    try: c.run()\n    except Unavailable as error: print(error.message)\natexit.register(late)",
        0,
    ),
}


@pytest.mark.parametrize("name", PLAIN)
def test_a_program_that_closes_nothing_ends_with_its_own_exit_code(name: str, store: str, tmp_path: Path) -> None:
    program, code = PLAIN[name]
    ended = run(tmp_path, program, store)
    assert ended.code == code, ended.err
    assert "bough:" not in ended.err, "nothing had to be left"
    assert "running" not in ended.statuses
    check_nothing_left(ended)
    if name == "a use at exit":
        assert ended.out == "the program is ending\n"


def test_a_run_in_progress_is_interrupted_and_can_be_resumed(store: str, tmp_path: Path) -> None:
    program = """
        c = talk(tool_call("wait_for_ever"), tools=[wait_for_ever])
        result = []
        threading.Thread(target=lambda: print(c.run().status), daemon=True).start()
        started.wait()
        sys.exit(4)
    """
    ended = run(tmp_path, program, store)
    assert ended.code == 4, ended.err
    assert ended.statuses in ([], ["paused"])
    check_nothing_left(ended)


def test_a_tool_that_blocks_for_ever_is_left_and_named(tmp_path: Path) -> None:
    program = """
        c = talk(tool_call("block_for_ever"), tools=[block_for_ever])
        threading.Thread(target=c.run, daemon=True).start()
        started.wait()
        sys.exit(5)
    """
    store = f"sqlite:///{tmp_path / 'log.db'}"
    ended = run(tmp_path, program, store)
    assert ended.code == 5, ended.err
    assert "bough: left 1 blocking call running in threads" in ended.err
    assert ended.statuses == ["paused"]
    check_nothing_left(ended)


def test_a_conversation_that_does_not_close_is_named(tmp_path: Path) -> None:
    program = """
        from bough import AsyncConversation
        async def never(self): await asyncio.Event().wait()
        AsyncConversation.aclose = never
        c = talk("hello")
        print(c.short_id)
    """
    ended = run(tmp_path, program)
    assert ended.code == 0
    assert f"bough: left conversation {ended.out.strip()}, which did not close in 4 s" in ended.err


def test_ctrl_c_interrupts_the_run_and_the_next_line_may_go_on(store: str, tmp_path: Path) -> None:
    program = """
        c = talk(tool_call("wait_for_ever"), "done", tools=[wait_for_ever])
        def press():
            started.wait()
            os.kill(os.getpid(), signal.SIGINT)
        threading.Thread(target=press, daemon=True).start()
        try:
            c.run()
        except KeyboardInterrupt:
            print(c.status, c.run().output)
            raise
    """
    ended = run(tmp_path, program, store)
    assert ended.out == "paused done\n", ended.err
    assert ended.code == -signal.SIGINT
    assert ended.statuses in ([], ["finished"])
    check_nothing_left(ended)


def test_ctrl_c_at_any_moment_ends_the_program_with_nothing_left(tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    env = {**os.environ, "TMPDIR": str(temporary)}
    script = tmp_path / "program.py"
    script.write_text(
        BEGIN
        + textwrap.dedent(
            """
            print("ready", flush=True)
            while True:
                c = talk("one", "two")
                c.run()
                c.fork().run()
            """
        )
    )
    for moment in range(8):
        store = f"sqlite:///{tmp_path / f'{moment}.db'}"
        program = subprocess.Popen(
            [sys.executable, str(script), store, str(tmp_path)],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        with program:
            assert program.stdout is not None
            program.stdout.readline()
            time.sleep(0.013 * moment)  # not to wait for anything: the moment is what varies
            program.send_signal(signal.SIGINT)
            program.communicate(timeout=BOUND_SECONDS)
        assert program.returncode == -signal.SIGINT
        assert os.listdir(temporary) == []
        if Path(store.removeprefix("sqlite:///")).exists():
            found = kept(store)
            assert found["leases"] == 0
            assert "running" not in found["statuses"]


def test_a_server_of_a_skill_and_a_stateful_session_end_with_the_program(store: str, tmp_path: Path) -> None:
    server = Path(__file__).parents[1] / "connect" / "stdio_server.py"
    skill = tmp_path / "skills" / "plank-shop"
    (skill / "scripts").mkdir(parents=True)
    (skill / "SKILL.md").write_text("---\nname: plank-shop\ndescription: Measures planks.\n---\nMeasure them.\n")
    (skill / "scripts" / "count.py").write_text("print(42)")
    config = {"command": sys.executable, "args": [str(server)], "env": {"PID_FILE": str(tmp_path / "pid")}}
    (skill / ".mcp.json").write_text(json.dumps({"mcpServers": {"run_directory": config}}))
    skills = {each.key: each.grant(("run_directory",)) for each in review_project(skill.parent)}
    TrustStore(Path.home() / ".bough").trust(skill.parent, skills=skills)  # it may run outside of the sandbox
    program = f"""
        executor = LocalSandboxCodeExecutor(stateful=True)
        c = talk(
            tool_call("load_skill", skill_name="plank-shop"),
            [tool_call("plank_shop_measure", plank="oak"),
             tool_call("run_skill_script", skill_name="plank-shop", script_path="scripts/count.py")],
            tool_call("wait_for_ever"),
            tools=[wait_for_ever],
            skill_roots=(Path({str(skill.parent)!r}),),
            executor=executor,
        )
        threading.Thread(target=c.run, daemon=True).start()
        started.wait()
        print(sum(e.kind == "ToolReturned" for e in c.events))
        sys.exit(6)
    """
    ended = run(tmp_path, program, store)
    assert ended.code == 6, ended.err
    assert ended.out == "3\n", ended.err
    check_nothing_left(ended)
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text()}").exists()


def test_a_process_that_is_forked_is_told_to_open_again_and_ends(tmp_path: Path) -> None:
    program = """
        c = talk("one", "two")
        def child(id):
            try:
                c.run()
            except Unavailable as error:
                print(error.message, "/", error.hint, flush=True)
            c.close()
            other = talk("in the child")
            print(other.run().output, flush=True)
        process = multiprocessing.get_context("fork").Process(target=child, args=(c.id,))
        process.start()
        process.join()
        print(process.exitcode, c.run().output)
    """
    ended = run(tmp_path, program, f"sqlite:///{tmp_path / 'log.db'}")
    assert ended.out.splitlines() == [
        "opened before this process was forked / open it again in this process",
        "in the child",
        "0 one",
    ], ended.err
    assert ended.code == 0
    check_nothing_left(ended)


def test_a_blocking_name_inside_an_asynchronous_tool_is_an_error_with_a_hint_and_no_deadlock(tmp_path: Path) -> None:
    program = """
        async def nested() -> str:
            try:
                Conversation.list(STORE)
            except Unavailable as error:
                return f"{error.message}; {error.hint}"
        c = talk(tool_call("nested"), "done", tools=[nested])
        print(c.run().output)
        print([e.event.result for e in c.events if e.kind == "ToolReturned"][0])
    """
    ended = run(tmp_path, program)
    assert ended.code == 0, ended.err
    assert "done" in ended.out
    assert "AsyncConversation" in ended.out


def test_a_plain_function_as_tool_may_use_blocking_names(tmp_path: Path) -> None:
    program = """
        def nested() -> str:
            with talk("from within") as inner:
                return inner.run().output
        c = talk(tool_call("nested"), "done", tools=[nested])
        print(c.run().output)
        print([e.event.result for e in c.events if e.kind == "ToolReturned"][0])
    """
    ended = run(tmp_path, program)
    assert ended.out == "done\nfrom within\n", ended.err
    check_nothing_left(ended)


def test_a_pipe_that_closes_and_code_on_the_command_line(tmp_path: Path) -> None:
    code = BEGIN + "c = talk('hello')\nc.run()\nwhile True: print('x' * 4096, flush=True)"
    program = subprocess.Popen(
        [sys.executable, "-c", code, "memory:", str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    with program:
        assert program.stdout is not None
        program.stdout.read(1)
        program.stdout.close()
        assert program.stderr is not None
        said = program.stderr.read()
        assert program.wait(BOUND_SECONDS) in (1, 120)
    assert b"BrokenPipeError" in said


def test_an_object_that_is_dropped_warns_and_is_closed(tmp_path: Path) -> None:
    program = """
        warnings.simplefilter("always")
        c = talk("hello")
        core = c._core
        del c
        gc.collect()
        while not core._closed: time.sleep(0.01)
        print("closed")
    """
    ended = run(tmp_path, program)
    assert ended.out == "closed\n", ended.err
    assert "ResourceWarning" in ended.err
    assert ended.code == 0


def test_a_cell_of_a_notebook_runs_beside_the_notebooks_loop(tmp_path: Path) -> None:
    program = """
        async def cell():
            return talk("hello").run().output
        print(asyncio.run(cell()))
    """
    ended = run(tmp_path, program)
    assert ended.out == "hello\n", ended.err
    check_nothing_left(ended)
