"""What every code executor promises, as tests: subclass `ExecutorContract` and give it a fixture `executor`.

```python
class TestMine(ExecutorContract):
    @pytest.fixture
    async def executor(self):
        mine = MyExecutor()
        yield mine
        await mine.aclose()
```
Whether a process is really gone is judged by the kernel: it holds a lock on a file in a workspace, and the test on the
host takes that lock or fails to. Nothing here sleeps to wait for anything.
"""

# ruff: noqa: S103, S108, D102, ASYNC230, ASYNC240 - tests: their names say what they do
from __future__ import annotations

import asyncio
import fcntl
import os
import resource
import signal
from pathlib import Path
from typing import Any, ClassVar

import anyio
import anyio.to_thread
import pytest

from bough.errors import ExecutorError, InvalidInput
from bough.execution.base import (
    CodeExecutionInput,
    CodeExecutionResult,
    CodeExecutor,
    ExecutionLimits,
    File,
    Isolation,
    Mount,
)

HOLD_LOCK = """
import fcntl
lock = open("lock", "a")
fcntl.flock(lock, fcntl.LOCK_EX)
"""
"""Source that takes a lock which lasts exactly as long as some process that inherited it."""

DAEMONS = (
    HOLD_LOCK
    + """
import os, signal, sys, time
ready_read, ready_write = os.pipe()
for kind in ("plain", "setsid", "double"):
    if os.fork() == 0:
        if kind != "plain":
            os.setsid()
        if kind == "double" and os.fork():
            os._exit(0)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        os.write(ready_write, b"x")
        os.close(0); os.close(1); os.close(2)
        while True:
            time.sleep(1000)
ready = b""
while len(ready) < 3:
    ready += os.read(ready_read, 3)
print("daemons are up", flush=True)
lock.close()
"""
)
"""Source that leaves three processes behind which do everything to stay."""


def lock_is_free(folder: Path) -> bool:
    """Whether no process holds the lock that `HOLD_LOCK` took in `folder`."""
    with open(folder / "lock") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


@pytest.mark.anyio
class ExecutorContract:
    """The promises of the `CodeExecutor` protocol; every executor keeps all of them.

    Attributes:
        tells_of_memory: Whether it can tell that memory ran out from another kill; false has to be documented.
    """

    tells_of_memory: ClassVar[bool] = True

    @pytest.fixture
    def executor(self) -> CodeExecutor:
        """The executor under test; a subclass gives it."""
        raise NotImplementedError("a subclass gives the fixture 'executor'")

    @pytest.fixture
    def workspace(self, tmp_path: Path) -> Path:
        """A folder of the caller, to be used as `/work` itself."""
        folder = tmp_path / "workspace"
        folder.mkdir()
        return folder

    @staticmethod
    async def run(executor: CodeExecutor, code: str, **request: Any) -> CodeExecutionResult:
        """Run Python source text."""
        return await executor.execute(CodeExecutionInput(code=code, **request))

    # what comes back

    async def test_stdout_stderr_and_exit_code(self, executor: CodeExecutor) -> None:
        result = await self.run(executor, "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)")
        assert (result.stdout, result.stderr, result.exit_code) == (b"out\n", b"err\n", 3)
        assert not result.ok
        assert not result.timed_out
        assert result.killed_by is None
        assert result.signal is None

    async def test_words_on_stderr_are_no_failure(self, executor: CodeExecutor) -> None:
        result = await self.run(executor, "import sys; print('Traceback: error, fatal', file=sys.stderr)")
        assert result.ok

    @pytest.mark.parametrize(
        ("ending", "exit_code"),
        [("0", 0), ("None", 0), ("", 0), ("3", 3), ("124", 124), ("137", 137), ("255", 255), ("'a message'", 1)],
    )
    async def test_sys_exit(self, executor: CodeExecutor, ending: str, exit_code: int) -> None:
        result = await self.run(executor, f"import sys; sys.exit({ending})")
        assert (result.exit_code, result.signal, result.timed_out, result.killed_by) == (exit_code, None, False, None)
        assert result.stderr == (b"a message\n" if "message" in ending else b"")

    async def test_an_exception_keeps_stdout_and_shows_the_line(self, executor: CodeExecutor) -> None:
        result = await self.run(executor, "print('before')\nraise ValueError('no good')\n")
        assert (result.stdout, result.exit_code) == (b"before\n", 1)
        assert b"raise ValueError('no good')" in result.stderr
        assert b"ValueError: no good" in result.stderr
        assert b"init.py" not in result.stderr

    async def test_a_syntax_error_is_a_result(self, executor: CodeExecutor) -> None:
        result = await self.run(executor, "def (:")
        assert result.exit_code == 1
        assert b"SyntaxError" in result.stderr

    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
    async def test_death_by_a_signal_is_no_timeout(self, executor: CodeExecutor, number: int) -> None:
        result = await self.run(executor, f"import os; print('here', flush=True); os.kill(os.getpid(), {int(number)})")
        assert (result.exit_code, result.signal, result.timed_out) == (None, number, False)
        assert result.stdout == b"here\n"

    async def test_bytes_come_through_unchanged(self, executor: CodeExecutor) -> None:
        everything = bytes(range(256)) * 16
        code = "import sys; sys.stdout.buffer.write(bytes(range(256)) * 16)"
        assert (await self.run(executor, code)).stdout == everything

    async def test_text_is_utf8(self, executor: CodeExecutor) -> None:
        result = await self.run(executor, "print('Größe → 木')")
        assert result.stdout.decode() == "Größe → 木\n"

    async def test_figures_are_plausible(self, executor: CodeExecutor) -> None:
        result = await self.run(executor, "x = bytearray(40 << 20)\nfor i in range(300000): pass")
        assert result.wall_seconds > 0
        assert 0 < result.cpu_seconds < 30
        assert (40 << 20) < result.max_rss_bytes < (4 << 30)

    async def test_the_reached_isolation_is_reported(self, executor: CodeExecutor) -> None:
        result = await self.run(executor, "pass")
        assert isinstance(result.isolation, Isolation)
        assert result.isolation == executor.isolation

    # what goes in

    async def test_stdin_of_some_megabytes(self, executor: CodeExecutor) -> None:
        data = os.urandom(1 << 20) * 5
        code = "import sys, hashlib; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())"
        import hashlib

        assert (await self.run(executor, code, stdin=data)).stdout.decode().strip() == hashlib.sha256(data).hexdigest()

    async def test_stdin_is_empty_by_default(self, executor: CodeExecutor) -> None:
        assert (await self.run(executor, "import sys; print(repr(sys.stdin.read()))")).stdout == b"''\n"

    async def test_arguments_never_pass_a_shell(self, executor: CodeExecutor) -> None:
        arguments = ("a b", "$HOME", "`id`", "; ls", "'", '"', "*", "", "-x", "ü\n")
        result = await self.run(executor, "import sys; print(repr(sys.argv[1:]))", argv=arguments)
        assert result.stdout.decode().strip() == repr(list(arguments))

    async def test_the_environment_is_clean(self, executor: CodeExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("A_SECRET_OF_THE_HOST", "s3cret")
        result = await self.run(executor, "import os; print(sorted(os.environ))", env={"MINE": "1"})
        assert result.stdout.decode().strip() == repr(["HOME", "LANG", "MINE", "PATH", "TMPDIR"])

    async def test_shell_code(self, executor: CodeExecutor) -> None:
        result = await self.run(executor, 'echo "$1"; exit 7', language="sh", argv=("a  b",))
        assert (result.stdout, result.exit_code) == (b"a  b\n", 7)

    async def test_a_script_of_a_mounted_folder_finds_its_neighbours(
        self, executor: CodeExecutor, tmp_path: Path
    ) -> None:
        scripts = tmp_path / "skill" / "scripts"
        scripts.mkdir(parents=True)
        (scripts / "main.py").write_text("import neighbour, sys; print(neighbour.NAME, sys.argv[1:], __name__)")
        (scripts / "neighbour.py").write_text("NAME = 'next door'")
        request = CodeExecutionInput(
            script="/skill/scripts/main.py",
            argv=("x",),
            mounts=(Mount(source=str(tmp_path / "skill"), target="/skill"),),
        )
        result = await executor.execute(request)
        assert result.stdout == b"next door ['x'] __main__\n"
        assert not (scripts / "__pycache__").exists() or result.isolation == Isolation.NONE

    async def test_a_script_runs_by_the_command_given(self, executor: CodeExecutor) -> None:
        request = CodeExecutionInput(
            script="tool",
            command=("sh", "-e"),
            argv=("1",),
            input_files=(File(path="tool", content=b'echo "got $1"; false; echo not reached'),),
        )
        result = await executor.execute(request)
        assert (result.stdout, result.exit_code) == (b"got 1\n", 1)

    async def test_an_executable_script_runs_by_its_first_line(self, executor: CodeExecutor) -> None:
        files = (File(path="bin/tool", content=b'#!/bin/sh\necho "by $0"', mode=0o755),)
        result = await executor.execute(CodeExecutionInput(script="bin/tool", input_files=files))
        assert result.exit_code == 0
        assert result.stdout.endswith(b"/bin/tool\n")

    async def test_a_missing_interpreter_is_an_error(self, executor: CodeExecutor) -> None:
        with pytest.raises(ExecutorError) as caught:
            await self.run(executor, "x", command=("no-such-interpreter",))
        assert "no-such-interpreter" in caught.value.message
        assert caught.value.hint

    # time

    async def test_timeout_0_is_at_once(self, executor: CodeExecutor) -> None:
        result = await self.run(executor, "print('never')", timeout_seconds=0)
        assert (result.timed_out, result.killed_by, result.exit_code, result.stdout) == (True, "timeout", None, b"")

    async def test_no_timeout_is_the_executors_own(self, executor: CodeExecutor) -> None:
        assert (await self.run(executor, "print(1)", timeout_seconds=None)).ok

    @pytest.mark.parametrize("seconds", [-1.0, -0.001, float("nan"), float("inf")])
    async def test_impossible_timeouts_are_refused(self, executor: CodeExecutor, seconds: float) -> None:
        with pytest.raises(InvalidInput):
            await self.run(executor, "print(1)", timeout_seconds=seconds)

    async def test_a_timeout_keeps_what_was_printed(self, executor: CodeExecutor) -> None:
        code = "import sys, time\nprint('first')\nprint('second', file=sys.stderr)\ntime.sleep(1000)"
        result = await self.run(executor, code, timeout_seconds=2.0)
        assert (result.timed_out, result.killed_by, result.exit_code) == (True, "timeout", None)
        assert (result.stdout, result.stderr) == (b"first\n", b"second\n")

    async def test_a_timeout_ends_what_ignores_signals(self, executor: CodeExecutor, workspace: Path) -> None:
        code = HOLD_LOCK + (
            "import signal, time\n"
            "for n in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP): signal.signal(n, signal.SIG_IGN)\n"
            "print('deaf', flush=True)\n"
            "while True: time.sleep(1000)"
        )
        result = await self.run(executor, code, timeout_seconds=2.0, workspace=str(workspace))
        assert (result.timed_out, result.stdout) == (True, b"deaf\n")
        assert lock_is_free(workspace)

    async def test_daemons_do_not_outlive_their_run(self, executor: CodeExecutor, workspace: Path) -> None:
        result = await self.run(executor, DAEMONS, workspace=str(workspace))
        assert (result.exit_code, result.stdout) == (0, b"daemons are up\n")
        assert lock_is_free(workspace)

    async def test_daemons_do_not_outlive_a_timeout(self, executor: CodeExecutor, workspace: Path) -> None:
        code = DAEMONS + "time.sleep(1000)"
        result = await self.run(executor, code, timeout_seconds=2.5, workspace=str(workspace))
        assert (result.timed_out, result.stdout) == (True, b"daemons are up\n")
        assert lock_is_free(workspace)

    async def test_cancelling_ends_the_whole_tree(self, executor: CodeExecutor, workspace: Path) -> None:
        os.mkfifo(workspace / "up")
        os.chmod(workspace / "up", 0o666)
        code = DAEMONS + "open('up', 'w').write('x')\ntime.sleep(1000)"
        with open(workspace / "up", "r+b", buffering=0) as up:
            running = asyncio.ensure_future(self.run(executor, code, workspace=str(workspace)))
            reading = asyncio.get_running_loop().run_in_executor(None, up.read, 1)
            await asyncio.wait([running, reading], return_when=asyncio.FIRST_COMPLETED)
            assert not running.done()
            assert await reading == b"x"
        assert not lock_is_free(workspace)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert lock_is_free(workspace)

    async def test_a_cancel_scope_ends_the_whole_tree(self, executor: CodeExecutor, workspace: Path) -> None:
        """It cancels in every turn of the event loop, cleaning up included."""
        os.mkfifo(workspace / "up")
        os.chmod(workspace / "up", 0o666)
        code = DAEMONS + "open('up', 'w').write('x')\ntime.sleep(1000)"
        with open(workspace / "up", "r+b", buffering=0) as up:
            async with anyio.create_task_group() as group:
                group.start_soon(lambda: self.run(executor, code, workspace=str(workspace)))
                assert await anyio.to_thread.run_sync(up.read, 1) == b"x"
                assert not lock_is_free(workspace)
                group.cancel_scope.cancel()
        assert lock_is_free(workspace)

    # much

    async def test_memory_that_ran_out_is_told(self, executor: CodeExecutor) -> None:
        """No process is over the bound, all together are; the largest one, which is the program, is what has to go."""
        code = (
            "import os, time\n"
            "reading, writing = os.pipe()\n"
            "for _ in range(2):\n"
            "    if os.fork() == 0:\n"
            "        less = b'x' * (60 << 20)\n"
            "        os.write(writing, b'x')\n"
            "        time.sleep(1000)\n"
            "    os.read(reading, 1)\n"
            "time.sleep(0.3)\n"
            "more = b'x' * (160 << 20)\n"
            "time.sleep(1000)"
        )
        result = await self.run(executor, code, limits=ExecutionLimits(memory_bytes=220 << 20))
        assert (result.signal, result.exit_code, result.timed_out) == (9, None, False), result.stderr
        assert result.killed_by == ("memory" if self.tells_of_memory else None)

    async def test_100_mb_of_output_keep_head_and_tail(self, executor: CodeExecutor) -> None:
        code = (
            "import sys\n"
            "sys.stdout.write('HEAD')\n"
            "for _ in range(100): sys.stdout.write('x' * 1_000_000)\n"
            "sys.stdout.write('TAIL')"
        )
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        result = await self.run(executor, code)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert result.stdout_bytes == 100_000_008
        assert result.stdout_truncated
        assert not result.stderr_truncated
        assert result.stdout.startswith(b"HEAD")
        assert result.stdout.endswith(b"TAIL")
        assert len(result.stdout) <= ExecutionLimits().stdout_bytes + 100
        assert grown < 20 << 10

    async def test_endless_output_ends_at_the_timeout(self, executor: CodeExecutor) -> None:
        result = await self.run(executor, "while True: print('y' * 4000)", timeout_seconds=2.0)
        assert result.timed_out
        assert result.stdout_truncated
        assert len(result.stdout) <= ExecutionLimits().stdout_bytes + 100

    async def test_output_up_to_the_bound_is_complete(self, executor: CodeExecutor) -> None:
        limits = ExecutionLimits(stdout_bytes=1000)
        result = await self.run(executor, "print('z' * 999)", limits=limits)
        assert (result.stdout, result.stdout_truncated) == (b"z" * 999 + b"\n", False)

    async def test_20_at_once_do_not_mix(self, executor: CodeExecutor) -> None:
        code = "import sys, os; n = open('mine').read(); open('out', 'w').write(n * 2); print(n, os.listdir('.'))"

        def request(n: int) -> CodeExecutionInput:
            return CodeExecutionInput(code=code, input_files=(File(path="mine", content=str(n).encode()),))

        results = await asyncio.gather(*(executor.execute(request(n)) for n in range(20)))
        for n, result in enumerate(results):
            assert result.stdout.split(b" ")[0] == str(n).encode()
            assert {file.path: file.content for file in result.output_files} == {"out": str(n).encode() * 2}

    async def test_the_event_loop_is_never_blocked_for_long(self, executor: CodeExecutor) -> None:
        await self.run(executor, "pass")
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.001)
                ticks += 1

        ticking = asyncio.ensure_future(tick())
        await self.run(executor, "import time; time.sleep(0.3)")
        ticking.cancel()
        assert ticks > 20

    # files

    async def test_input_files_nested_empty_binary_and_executable(self, executor: CodeExecutor) -> None:
        files = (
            File(path="a/b/c.bin", content=bytes(range(256))),
            File(path="empty", content=b""),
            File(path="run", content=b"#!/bin/sh\necho ran", mode=0o755),
            File(path="ü 木.txt", content=b"x"),
        )
        code = (
            "import os, subprocess\n"
            "assert open('a/b/c.bin', 'rb').read() == bytes(range(256))\n"
            "assert os.path.getsize('empty') == 0 and open('ü 木.txt').read() == 'x'\n"
            "print(subprocess.run(['./run'], capture_output=True).stdout)"
        )
        result = await self.run(executor, code, input_files=files)
        assert (result.stdout, result.stderr) == (b"b'ran\\n'\n", b"")
        assert result.output_files == ()

    @pytest.mark.parametrize(
        "name", ["../x", "/etc/x", "a/../../x", "", ".", "a//b", "a\0b", "a\\b", "a/", "./a", "x" * 300, "..", "a/./b"]
    )
    async def test_names_that_lead_elsewhere_are_refused(self, executor: CodeExecutor, name: str) -> None:
        with pytest.raises(InvalidInput):
            await self.run(executor, "pass", input_files=(File(path=name, content=b""),))

    @pytest.mark.parametrize(
        "request_",
        [
            {"working_dir": "../x"},
            {"working_dir": "/etc"},
            {"env": {"A=B": "x"}},
            {"env": {"A": "x\0y"}},
            {"argv": ("a\0b",)},
            {"language": "cobol"},
            {"workspace": "relative"},
            {"workspace": "/no/such/folder"},
            {"workspace": "/etc"},
            {"mounts": (Mount(source="/no/such/folder", target="/skill"),)},
            {"mounts": (Mount(source="/tmp", target="/usr/x"),)},
            {"mounts": (Mount(source="/tmp", target="skill"),)},
            {"mounts": (Mount(source="/tmp", target="/skill/../etc"),)},
            {"input_files": (File(path="a", content=b""), File(path="a", content=b""))},
            {"input_files": (File(path="a", content=b""), File(path="a/b", content=b""))},
            {"limits": ExecutionLimits(memory_bytes=-1)},
            {"limits": ExecutionLimits(work_bytes=10), "input_files": (File(path="a", content=b"x" * 11),)},
            {"command": ()},
            {"script": "a.py"},
        ],
        ids=str,
    )
    async def test_bad_requests_are_refused_with_a_hint(self, executor: CodeExecutor, request_: dict[str, Any]) -> None:
        with pytest.raises(InvalidInput) as caught:
            await self.run(executor, "pass", **request_)
        assert caught.value.hint

    async def test_only_new_and_changed_files_come_back(self, executor: CodeExecutor) -> None:
        files = (File(path="same", content=b"1"), File(path="other", content=b"1"))
        code = (
            "import os\n"
            "open('other', 'w').write('2')\n"
            "os.makedirs('deep/er')\n"
            "open('deep/er/new', 'wb').write(bytes(3))\n"
            "open('/tmp/elsewhere', 'w').write('x')"
        )
        result = await self.run(executor, code, input_files=files)
        assert {file.path: file.content for file in result.output_files} == {"other": b"2", "deep/er/new": bytes(3)}

    async def test_a_change_that_hides_its_traces_comes_back(self, executor: CodeExecutor) -> None:
        code = (
            "import os\n"
            "old = os.stat('f')\n"
            "with open('f', 'r+') as f: f.write('2')\n"
            "os.utime('f', ns=(old.st_atime_ns, old.st_mtime_ns))"
        )
        result = await self.run(executor, code, input_files=(File(path="f", content=b"1"),))
        assert [file.content for file in result.output_files] == [b"2"]

    async def test_globs_choose_what_comes_back(self, executor: CodeExecutor) -> None:
        code = "import os\nos.makedirs('a/b')\nfor n in ('x.csv', 'x.txt', 'a/y.csv', 'a/b/z.csv'): open(n, 'w')"
        result = await self.run(executor, code, output_globs=("*.csv", "a/**/z.*"))
        assert [file.path for file in result.output_files] == ["a/b/z.csv", "x.csv"]

    async def test_links_pipes_and_sparse_files_stay_behind(self, executor: CodeExecutor) -> None:
        code = (
            "import os\n"
            "os.symlink('/etc/passwd', 'symlink'); os.symlink('/', 'folder')\n"
            "open('one', 'w').write('x'); os.link('one', 'two')\n"
            "try: os.mkfifo('pipe')\n"
            "except PermissionError: os.symlink('no pipes here', 'pipe')\n"
            "with open('sparse', 'wb') as f: f.truncate(60 << 20)\n"
            "open('good', 'w').write('good')"
        )
        result = await self.run(executor, code)
        assert result.stderr == b""
        assert [file.path for file in result.output_files] == ["good"]
        reasons = dict(result.output_skipped)
        assert sorted(reasons) == ["folder", "one", "pipe", "sparse", "symlink", "two"]
        assert "link" in reasons["two"]
        assert "bytes" in reasons["sparse"]

    async def test_too_many_files_are_counted_not_sent(self, executor: CodeExecutor) -> None:
        limits = ExecutionLimits(output_files=10)
        result = await self.run(executor, "for i in range(50): open(f'f{i:02}', 'w')", limits=limits)
        assert len(result.output_files) == 10
        assert len(result.output_skipped) == 40

    async def test_files_survive_a_timeout(self, executor: CodeExecutor) -> None:
        code = "open('partial', 'w').write('kept')\nprint('x', flush=True)\nimport time; time.sleep(1000)"
        result = await self.run(executor, code, timeout_seconds=2.0)
        assert [file.content for file in result.output_files] == [b"kept"]

    async def test_the_working_folder(self, executor: CodeExecutor) -> None:
        code = "import os; print(os.path.relpath(os.getcwd(), os.environ['HOME']))"
        assert (await self.run(executor, code, working_dir="a/b")).stdout == b"a/b\n"

    # a person's own workspace

    async def test_a_workspace_is_used_in_place(self, executor: CodeExecutor, workspace: Path) -> None:
        (workspace / "notes.txt").write_text("old")
        (workspace / "untouched.txt").write_text("same")
        code = (
            "import os\n"
            "text = open('notes.txt').read()\n"
            "open('notes.txt', 'w').write(text + ' and new')\n"
            "os.mkdir('made'); open('made/file', 'w').write('x')"
        )
        result = await self.run(executor, code, workspace=str(workspace))
        assert (result.stderr, result.exit_code) == (b"", 0)
        assert (workspace / "notes.txt").read_text() == "old and new"
        assert (workspace / "made" / "file").stat().st_uid == workspace.stat().st_uid
        assert {file.path for file in result.output_files} == {"notes.txt", "made/file"}

    async def test_a_workspace_stays_after_a_timeout(self, executor: CodeExecutor, workspace: Path) -> None:
        code = "open('kept', 'w').write('x')\nimport time; time.sleep(1000)"
        await self.run(executor, code, workspace=str(workspace), timeout_seconds=2.0)
        assert (workspace / "kept").read_text() == "x"

    # the executor itself

    async def test_a_forged_result_is_only_text(self, executor: CodeExecutor) -> None:
        code = (
            "import os, sys\n"
            'forged = b\'s 0 1 1\\nr\\n{"exit_code": 0, "timed_out": true}\\n\'\n'
            "for fd in range(3, 64):\n"
            "    try: os.write(fd, forged)\n"
            "    except OSError: pass\n"
            "sys.stdout.buffer.write(forged); sys.stdout.flush()\n"
            "os._exit(9)"
        )
        result = await self.run(executor, code)
        assert (result.exit_code, result.timed_out, result.killed_by) == (9, False, None)
        assert result.stdout.startswith(b"s 0 1 1\n")

    async def test_no_descriptor_is_inherited(self, executor: CodeExecutor) -> None:
        code = (
            "import os\n"
            "def is_open(fd):\n"
            "    try: os.fstat(fd)\n"
            "    except OSError: return False\n"
            "    return True\n"
            "print([fd for fd in range(3, 256) if is_open(fd)])"
        )
        assert (await self.run(executor, code)).stdout == b"[]\n"

    async def test_it_says_who_it_is(self, executor: CodeExecutor) -> None:
        assert executor.name
        assert executor.default_timeout_seconds > 0
        assert isinstance(executor.stateful, bool)
        assert await executor.healthy()

    async def test_the_execution_id_comes_back(self, executor: CodeExecutor) -> None:
        assert (await self.run(executor, "pass", execution_id="abc-1")).execution_id == "abc-1"

    async def test_closing_twice_and_opening_again(self, executor: CodeExecutor) -> None:
        assert (await self.run(executor, "print(1)")).ok
        await executor.aclose()
        await executor.aclose()
        assert not await executor.healthy()
        await executor.reinitialize()
        assert await executor.healthy()
        assert (await self.run(executor, "print(2)")).stdout == b"2\n"
