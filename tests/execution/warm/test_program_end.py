"""A program ends in a sandbox as in an interpreter of its own, though the sandbox has a shorter way for some."""

from __future__ import annotations

import subprocess

import pytest

from bough.execution import CodeExecutionInput, LocalSandboxCodeExecutor

pytestmark = pytest.mark.anyio

PROGRAMS = {
    "plain": "print('plain')",
    "no line end": "import sys; sys.stdout.write('no line end')",
    "exit handler": "import atexit; atexit.register(print, 'handler'); print('last line')",
    "failing exit handler": "import atexit; atexit.register(lambda: 1 / 0); print('last line')",
    "thread": "import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.05), print('thread'))).start()",
    "daemon thread": "import threading, time\nthreading.Thread(target=time.sleep, args=(9,), daemon=True).start()",
    "finalizer": "class A:\n    def __del__(self): print('taken away')\na = A()",
    "weak reference": "import weakref\nclass A: pass\na = A()\nr = weakref.ref(a, lambda _: print('gone'))",
    "finalize": "import weakref\nclass A: pass\na = A()\nweakref.finalize(a, print, 'finalized')",
    "generator": "def g():\n    try:\n        yield\n    finally:\n        print('closed')\na = g(); next(a)",
    "own stream": "import sys, io\nsys.stdout = io.TextIOWrapper(open(1, 'wb', closefd=False)); print('mine')",
    "replaced output": "import sys\nsys.stdout.write('first')\nclass W:\n    def write(self, text): pass\n"
    "    def flush(self): pass\nsys.stdout = W()",
    "frozen objects": "import gc\nclass A:\n    def __del__(self): print('taken away')\na = A(); gc.freeze()",
    "closed output": "import sys; print('before'); sys.stdout.close()",
    "broken output": "import os; print('x', end=''); os.close(1)",
    "C buffers": "import ctypes; ctypes.CDLL(None).printf(b'from C')",
    "exit code": "import sys; sys.exit(7)",
    "message": "import sys; sys.exit('a message')",
    "error": "def f(): 1 / 0\nf()",
    "environment": "import os\nprint(sorted(os.environ), flush=True)\nos.system('echo $HOME')",
    "missing module": "import that_does_not_exist",
    "a module that is missing and needed by none": "try:\n    import nothing\nexcept ImportError as e: print(e)",
    "packages": "import sys; print([p for p in sys.path if 'packages' in p])",
    "builtins": "print(callable(exit), callable(quit), callable(help))",
}
"""Programs by what is special about their ends, or about what is put off until a program asks for it."""


def bare(program: str, python: str) -> tuple[bytes, int]:
    """Return what an interpreter outside of any sandbox prints, and its exit code."""
    env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/tmp/home", "TMPDIR": "/tmp", "LANG": "C.UTF-8"}
    env |= {"PYTHONNOUSERSITE": "1", "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
    done = subprocess.run(
        [python, "-I", "-X", "utf8", "-c", program], capture_output=True, env=env, cwd="/", check=False
    )
    return done.stdout, done.returncode


@pytest.mark.parametrize("kind", ["cold", "warm"])
@pytest.mark.parametrize("name", PROGRAMS)
async def test_a_program_ends_as_in_an_interpreter_of_its_own(
    name: str, kind: str, namespaces: LocalSandboxCodeExecutor
) -> None:
    where = (await namespaces.execute(CodeExecutionInput(code="import sys; print(sys.executable)"))).stdout
    request = CodeExecutionInput(code=PROGRAMS[name], execution_id="warm" if kind == "warm" else None)
    if kind == "warm":
        assert await namespaces.warm_up(request)
    result = await namespaces.execute(request)
    assert (result.stdout, result.exit_code) == bare(PROGRAMS[name], where.decode().strip()), result.stderr


@pytest.mark.parametrize("kind", ["cold", "warm"])
async def test_what_was_not_closed_is_written_all_the_same(kind: str, namespaces: LocalSandboxCodeExecutor) -> None:
    code = "import sqlite3\nf = open('left open', 'w'); f.write('text')\n"
    code += "c = sqlite3.connect('db'); c.execute('pragma journal_mode=wal'); c.execute('create table t (x)')"
    request = CodeExecutionInput(code=code, execution_id="warm" if kind == "warm" else None)
    if kind == "warm":
        assert await namespaces.warm_up(request)
    result = await namespaces.execute(request)
    files = {file.path: file.content for file in result.output_files}
    assert files.keys() == {"left open", "db"}, "a database that is closed has no log beside it"
    assert files["left open"] == b"text"
