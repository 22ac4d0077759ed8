"""The executor contract: the request of a run."""

# ruff: noqa: D102 - tests: their names say what they do
from __future__ import annotations

import os
from pathlib import Path

import pytest

from bough.errors import ExecutorError, InvalidInput
from bough.execution.base import (
    CodeExecutionInput,
    CodeExecutor,
    File,
    Isolation,
    Mount,
)
from bough.testing.executor_contract.base import Contract


class RequestsContract(Contract):
    """Rules for the request of a run."""

    async def test_stdin_of_some_megabytes(self, executor: CodeExecutor) -> None:
        data = os.urandom(1 << 20) * 5
        code = "import sys, hashlib; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())"
        import hashlib

        assert (await self.run(executor, code, stdin=data)).stdout.decode().strip() == hashlib.sha256(data).hexdigest()

    async def test_text_and_path_objects_are_accepted(self, executor: CodeExecutor, workspace: Path) -> None:
        (workspace / "there").write_text("in the workspace")
        request = CodeExecutionInput(
            code="import sys; print(sys.stdin.read(), open('file').read(), open('there').read())",
            stdin="grün",
            input_files=(File(path=Path("file"), content="ü"),),
            workspace=workspace,
        )
        result = await executor.execute(request)
        assert (result.text, result.error_text) == ("grün ü in the workspace\n", "")

    async def test_lone_surrogates_are_rejected(self) -> None:
        with pytest.raises(InvalidInput):
            CodeExecutionInput(code="pass", stdin="\ud800")
        with pytest.raises(InvalidInput):
            File(path="a", content="\ud800")

    async def test_stdin_is_empty_by_default(self, executor: CodeExecutor) -> None:
        assert (await self.run(executor, "import sys; print(repr(sys.stdin.read()))")).stdout == b"''\n"

    async def test_arguments_never_pass_a_shell(self, executor: CodeExecutor) -> None:
        arguments = ("a b", "$HOME", "`id`", "; ls", "'", '"', "*", "", "-x", "ü\n")
        result = await self.run(executor, "import sys; print(repr(sys.argv[1:]))", argv=arguments)
        assert result.stdout.decode().strip() == repr(list(arguments))

    async def test_the_environment_is_clean(self, executor: CodeExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("A_SECRET_OF_THE_HOST", "s3cret")
        result = await self.run(executor, "import os; print(sorted(os.environ))", env={"MINE": "1"})
        assert result.stdout.decode().strip() == repr(
            ["GIT_CONFIG_GLOBAL", "GIT_CONFIG_NOSYSTEM", "HOME", "LANG", "MINE", "PATH", "PYTHONNOUSERSITE", "TMPDIR"]
        )

    async def test_shell_code(self, executor: CodeExecutor) -> None:
        result = await self.run(executor, 'echo "$1"; exit 7', language="sh", argv=("a  b",))
        assert (result.stdout, result.exit_code) == (b"a  b\n", 7)

    async def test_a_mounted_script_imports_its_neighbours(self, executor: CodeExecutor, tmp_path: Path) -> None:
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
