"""Fixtures for the attacks: secrets, folders and processes on the host."""

# ruff: noqa: S603 - tests: their names say what they do
from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bough.execution.base import (
    CodeExecutionInput,
    CodeExecutionResult,
    CodeExecutor,
)


@pytest.mark.anyio
class Threats:
    """The fixtures that every kind of attack uses."""

    let_through: frozenset[str] = frozenset()

    @pytest.fixture
    def executor(self) -> CodeExecutor:
        """The executor under test; subclasses override it."""
        raise NotImplementedError("a subclass gives the fixture 'executor'")

    @pytest.fixture(autouse=True)
    def _expect_documented(self, request: pytest.FixtureRequest) -> None:
        name = request.node.name
        if name in self.let_through or name.split("[")[0] in self.let_through:
            # `strict` fails the test if the attack is stopped, so that it is removed from `let_through`.
            request.node.add_marker(pytest.mark.xfail(strict=True, reason="documented: this executor does not stop it"))

    @pytest.fixture
    def canary(self) -> str:
        """A secret text that no attack may read."""
        return f"canary-{uuid.uuid4().hex}"

    @pytest.fixture
    def outside(self) -> Iterator[Path]:
        """A folder on the host that everyone may read and write."""
        folder = Path(tempfile.mkdtemp(prefix="outside-"))
        folder.chmod(0o777)
        yield folder
        shutil.rmtree(folder)

    @pytest.fixture
    def workspace(self, tmp_path: Path) -> Path:
        """A folder of the caller that is used as `/work`."""
        folder = tmp_path / "workspace"
        folder.mkdir()
        return folder

    @pytest.fixture
    def bystander(self, canary: str) -> Iterator[subprocess.Popen[bytes]]:
        """A process on the host with a secret in its environment and its arguments."""
        code = "import time; print('up', flush=True); time.sleep(1000)"
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", code, canary], stdout=subprocess.PIPE, env={"SECRET": canary}
        )
        assert process.stdout is not None
        # Once this line is read, Python is running, and `/proc` shows the secret.
        assert process.stdout.readline() == b"up\n"
        yield process
        process.kill()
        process.communicate()

    @staticmethod
    async def run(executor: CodeExecutor, code: str, *argv: object, **request: Any) -> CodeExecutionResult:
        """Run Python source text with arguments."""
        arguments = tuple(str(argument) for argument in argv)
        return await executor.execute(CodeExecutionInput(code=code, argv=arguments, **request))

    @staticmethod
    def everything(result: CodeExecutionResult) -> bytes:
        """Return stdout, stderr and the output files of a run."""
        files = b"".join(file.content for file in result.output_files)
        return result.stdout + result.stderr + files


def read_text(path: str) -> str:
    """Return the text of a file."""
    return Path(path).read_text()
