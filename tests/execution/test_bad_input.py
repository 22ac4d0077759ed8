"""What cannot be run, on machines that lack something: a typed error that says what, and nothing left behind."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from bough.errors import ExecutorError, InvalidInput, NotSupported, SandboxUnavailable, Unavailable
from bough.execution import (
    CodeExecutionInput,
    ContainerCodeExecutor,
    ExecutionLimits,
    File,
    LocalSandboxCodeExecutor,
    UnsafeLocalCodeExecutor,
)
from bough.execution.base import CodeExecutor

pytestmark = pytest.mark.anyio


@pytest.fixture(params=[LocalSandboxCodeExecutor, UnsafeLocalCodeExecutor])
async def executor(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[CodeExecutor]:
    """An executor whose temporary folder is `tmp_path / "temporary"`, empty in the end."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    temporary.chmod(0o711)
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    executor = request.param()
    yield executor
    await executor.aclose()
    assert os.listdir(temporary) == []


async def test_1_gb_of_input_is_refused_by_its_size_before_anything_is_written(
    executor: CodeExecutor, tmp_path: Path
) -> None:
    files = (File(path="large", content=bytes(1 << 30)),)
    with pytest.raises(InvalidInput, match="1073741824 bytes"):
        await executor.execute(CodeExecutionInput(code="pass", input_files=files))
    assert os.listdir(tmp_path / "temporary") == []


async def test_more_than_10_000_input_files_are_refused_by_their_number(executor: CodeExecutor) -> None:
    files = tuple(File(path=f"f{n}", content=b"") for n in range(10_001))
    with pytest.raises(InvalidInput, match="10001 input files, and at most 10000 are allowed"):
        await executor.execute(CodeExecutionInput(code="pass", input_files=files))


@pytest.mark.slow
async def test_10_000_input_files_arrive(executor: CodeExecutor) -> None:
    files = tuple(File(path=f"d{n % 10}/f{n}", content=b"x") for n in range(10_000))
    code = "import os; print(sum(len(files) for _, _, files in os.walk('.')))"
    result = await executor.execute(CodeExecutionInput(code=code, input_files=files))
    assert (result.stdout, result.output_files) == (b"10000\n", ())


async def test_an_unknown_language_is_refused(executor: CodeExecutor) -> None:
    request: Any = {"code": "x", "language": "cobol"}
    with pytest.raises(InvalidInput, match="cobol") as caught:
        await executor.execute(CodeExecutionInput(**request))
    assert "python" in caught.value.hint


async def test_a_missing_interpreter_is_named(executor: CodeExecutor) -> None:
    with pytest.raises(ExecutorError, match="no-such-interpreter"):
        await executor.execute(CodeExecutionInput(code="x", command=("no-such-interpreter",)))


async def test_a_temporary_folder_that_is_not_there_is_told(
    executor: CodeExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await executor.healthy()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    with pytest.raises(ExecutorError, match="No such file") as caught:
        await executor.execute(CodeExecutionInput(code="pass"))
    assert "TMPDIR" in caught.value.hint


async def test_a_dead_engine_is_told_at_once_until_reinitialize(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "engine"))
    executor = ContainerCodeExecutor("any", docker_host=f"unix://{tmp_path}/engine")
    request = CodeExecutionInput(code="pass")
    with pytest.raises(SandboxUnavailable, match="No container engine answers"):
        await executor.execute(request)
    assert not await executor.healthy()
    with socket.socket(socket.AF_UNIX) as listener:
        (tmp_path / "engine").unlink()
        listener.bind(str(tmp_path / "engine"))
        listener.listen()
        listener.setblocking(False)
        with pytest.raises(Unavailable, match="failed") as caught:
            await executor.execute(request)
        assert "reinitialize()" in caught.value.hint
        with pytest.raises(BlockingIOError):
            listener.accept()  # it was not even asked
    await executor.reinitialize()
    with pytest.raises(SandboxUnavailable, match="No container engine answers"):
        await executor.execute(request)
    await executor.aclose()


async def test_what_only_a_kept_container_can_do_needs_keep(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"need a kept container: network, workspace") as refused:
        ContainerCodeExecutor("any", workspace=tmp_path, network=True)
    assert "keep=True" in refused.value.hint
    async with ContainerCodeExecutor("any", docker_host=f"unix://{tmp_path}/engine") as executor:
        with pytest.raises(NotSupported, match="starts a new container for each run"):
            await executor.run_command("true")


FULL = """
import asyncio, json, os, sys
from bough.errors import ExecutorError
from bough.execution import CodeExecutionInput, File, LocalSandboxCodeExecutor, UnsafeLocalCodeExecutor

async def main():
    executor = UnsafeLocalCodeExecutor() if sys.argv[1] == "unsafe" else LocalSandboxCodeExecutor()
    files = (File(path="large", content=bytes(2 << 20)),)
    try:
        await executor.execute(CodeExecutionInput(code="pass", input_files=files))
    except ExecutorError as error:
        told = [error.code, error.message, error.hint]
    left = [os.path.join(folder, name) for folder, _, names in os.walk("/mnt") for name in names]
    after = await executor.execute(CodeExecutionInput(code="print('works')"))
    full = await executor.execute(CodeExecutionInput(code="open('f', 'wb').write(bytes(2 << 20))"))
    await executor.aclose()
    print(json.dumps({"told": told, "left": left, "after": after.stdout.decode(), "full": full.stderr.decode(),
                      "in_the_end": os.listdir("/mnt")}))

asyncio.run(main())
"""


@pytest.mark.needs("bubblewrap")  # it makes the small disk, too
@pytest.mark.parametrize("kind", ["local", "unsafe"])
def test_a_full_temporary_disk_is_told_and_nothing_is_left_on_it(kind: str) -> None:
    command = ["bwrap", "--dev-bind", "/", "/", "--perms", "0711", "--size", str(1 << 20), "--tmpfs", "/mnt"]
    environment = {**os.environ, "TMPDIR": "/mnt"}
    ran = subprocess.run(
        [*command, sys.executable, "-c", FULL, kind], env=environment, check=True, stdout=subprocess.PIPE
    )
    found = json.loads(ran.stdout)
    assert found["told"][0] == "executor_error"
    assert "No space left" in found["told"][1]
    assert "TMPDIR" in found["told"][2]
    assert (found["left"], found["after"], found["in_the_end"]) == ([], "works\n", [])
    assert "No space left" in found["full"]


async def test_input_beyond_the_limits_of_a_request_is_refused(executor: CodeExecutor) -> None:
    limits = ExecutionLimits(work_bytes=10)
    with pytest.raises(InvalidInput, match="11 bytes"):
        await executor.execute(
            CodeExecutionInput(code="pass", input_files=(File(path="f", content=bytes(11)),), limits=limits)
        )
