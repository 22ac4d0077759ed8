"""The system-call filter: what is not listed is answered and kills nobody, and what real programs need is listed."""

from __future__ import annotations

import pytest

from bough.execution import CodeExecutionInput, LocalSandboxCodeExecutor

pytestmark = pytest.mark.anyio

UNLISTED = """
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
for number in (9999, 1023, 460):  # none of them has a meaning yet, or one that is listed
    assert libc.syscall(ctypes.c_long(number), 0, 0, 0, 0, 0, 0) == -1
    print(errno.errorcode[ctypes.get_errno()])
"""

THREADS_AND_PROCESSES = """
import asyncio, concurrent.futures, hashlib, mmap, multiprocessing, os, resource, sqlite3, subprocess, tempfile, time

def square(n):
    return n * n

if __name__ == "__main__":
    with concurrent.futures.ThreadPoolExecutor(8) as pool:  # as the libraries of linear algebra have one
        assert sum(pool.map(lambda n: len(hashlib.sha256(bytes(1 << 16)).digest()) + n, range(64))) == 64 * 32 + 2016
    with multiprocessing.get_context("fork").Pool(4) as pool:
        assert pool.map(square, range(10)) == [n * n for n in range(10)]
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        assert list(pool.map(square, range(4))) == [0, 1, 4, 9]
    with tempfile.TemporaryFile() as file:
        file.truncate(1 << 16)
        with mmap.mmap(file.fileno(), 0) as memory:
            memory[:4] = b"text"
            memory.flush()
    with sqlite3.connect("db") as database:
        database.execute("pragma journal_mode=wal")
        database.execute("create table t (x)")
    async def shell():
        process = await asyncio.create_subprocess_shell("cat", stdin=-1, stdout=-1)
        return (await process.communicate(b"through a pipe"))[0]
    assert asyncio.run(shell()) == b"through a pipe"
    assert subprocess.run(["sort"], input=b"b\\na\\n", capture_output=True).stdout == b"a\\nb\\n"
    os.nice(1); resource.getrusage(resource.RUSAGE_CHILDREN); time.clock_gettime(time.CLOCK_BOOTTIME)
    print("works")
"""

NODE = """
const { Worker, isMainThread, parentPort } = require('worker_threads');
const fs = require('fs'), crypto = require('crypto'), { execFileSync } = require('child_process');
if (!isMainThread) { parentPort.postMessage(crypto.createHash('sha256').update('x').digest('hex').length); }
else {
  fs.writeFileSync('f', 'text'); fs.mkdirSync('d'); fs.renameSync('f', 'd/f');
  const said = execFileSync('cat', ['d/f']).toString();
  fs.watch('.', () => {}).close();
  new Worker(__filename).on('message', (n) => console.log(said, n, Math.max(...new Array(1000).fill(7))));
}
"""

SHELL = """
set -e
mkfifo p; (echo through > p) & read -r word < p; wait
diff <(echo a) <(echo a); trap 'echo trapped' EXIT
tar c p | tar t; find . -name p -exec stat -c %F {} +; touch -d 2020-01-01 f; cp -a f g; ln -s g h; readlink -f h
sleep 0.01; timeout 5 true; nice true; echo "$word $(seq 3 | sort -r | tr -d '\\n')"
"""


async def test_a_call_that_is_not_listed_is_not_implemented(namespaces: LocalSandboxCodeExecutor) -> None:
    result = await namespaces.execute(CodeExecutionInput(code=UNLISTED))
    assert result.stdout.split() == [b"ENOSYS"] * 3, result.stderr


async def test_threads_processes_and_files_of_python(namespaces: LocalSandboxCodeExecutor) -> None:
    result = await namespaces.execute(CodeExecutionInput(code=THREADS_AND_PROCESSES))
    assert (result.stdout, result.exit_code) == (b"works\n", 0), result.stderr


@pytest.mark.needs("node")
async def test_node_with_workers_and_children(namespaces: LocalSandboxCodeExecutor) -> None:
    result = await namespaces.execute(CodeExecutionInput(code=NODE, language="node"))
    assert result.stdout == b"text 64 7\n", result.stderr


async def test_a_shell_with_pipes_links_and_traps(namespaces: LocalSandboxCodeExecutor) -> None:
    result = await namespaces.execute(CodeExecutionInput(code=SHELL, language="bash"))
    assert result.stdout.split() == b"p fifo /work/g through 321 trapped".split(), result.stderr


@pytest.mark.parametrize("mode", [0o755, 0o4755, 0o2755])
async def test_no_file_is_made_without_a_name(namespaces: LocalSandboxCodeExecutor, mode: int) -> None:
    """Nobody sees how large it is, and it could be given a name later; libraries take their other way."""
    code = f"import os\nfd = os.open('.', os.O_TMPFILE | os.O_RDWR, {mode})\n"
    code += "os.link(f'/proc/self/fd/{fd}', 'made', follow_symlinks=True)"
    result = await namespaces.execute(CodeExecutionInput(code=code))
    assert b"Operation not supported" in result.stderr
    assert result.output_files == ()
    code = "import tempfile\nwith tempfile.TemporaryFile() as file: file.write(b'x'); print(file.tell())"
    assert (await namespaces.execute(CodeExecutionInput(code=code))).stdout == b"1\n"
