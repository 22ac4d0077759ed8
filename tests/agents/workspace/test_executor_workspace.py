"""Our executors as a workspace of PydanticAI: its conformance suite, what must not get out, and an agent's run."""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from pydantic_ai import Agent, ModelMessage, ModelResponse, RunContext, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.workspaces import (
    CommandResult,
    LocalWorkspaceBackend,
    Workspace,
    WorkspaceBackend,
    WorkspaceCommand,
    WorkspaceOutputLimitError,
    WorkspaceRef,
    WorkspaceUnavailableError,
)
from pydantic_ai.workspaces.conformance import WorkspaceBackendSuite

from bough.agents.workspace.executor_workspace import ExecutorWorkspaceBackend
from bough.execution import LocalSandboxCodeExecutor, UnsafeLocalCodeExecutor
from bough.execution.base import CodeExecutor

pytestmark = pytest.mark.anyio


class Impatient(ExecutorWorkspaceBackend):
    """Ends commands sooner: one of the suite looks for up to 30 s at a folder that its sandbox holds until then."""

    async def run(self, command: WorkspaceCommand, *, timeout: float | None = None, **how: Any) -> CommandResult:
        return await super().run(command, timeout=min(timeout or 3, 3), **how)


class Conformance(WorkspaceBackendSuite):
    """The rules of the protocol; two are put in other words, because a sandbox has processes of its own."""

    @pytest.fixture
    async def executor(self) -> AsyncIterator[CodeExecutor]:
        executor = LocalSandboxCodeExecutor()
        yield executor
        await executor.aclose()

    @pytest.fixture
    def filesystem_honors_shell_permissions(self) -> bool:
        """As root, commands have no rights over an unreadable file, and the process that reads files for them has."""
        return os.geteuid() != 0

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        folder = tmp_path / "folder"
        folder.mkdir()
        return folder

    @pytest.fixture
    def backend(self, executor: CodeExecutor, folder: Path) -> WorkspaceBackend:
        return ExecutorWorkspaceBackend(executor, folder)

    @pytest.fixture
    def destructive_backend(self, executor: CodeExecutor, tmp_path: Path) -> Callable[[], WorkspaceBackend]:
        def build() -> WorkspaceBackend:
            folder = tmp_path / "destroyed"
            folder.mkdir()
            return Impatient(executor, folder)

        return build

    @pytest.fixture
    def attach_backend(self, executor: CodeExecutor) -> Callable[[WorkspaceRef], WorkspaceBackend]:
        return lambda ref: ExecutorWorkspaceBackend(executor, ref.id)

    @pytest.fixture
    def destroy_environment(self) -> Callable[[WorkspaceBackend], Awaitable[None]]:
        async def destroy(backend: WorkspaceBackend) -> None:
            assert backend.ref is not None
            await asyncio.to_thread(shutil.rmtree, backend.ref.id)

        return destroy

    async def test_background_child_does_not_hold_up_completed_command(  # type: ignore[override]
        self, backend: ExecutorWorkspaceBackend, folder: Path
    ) -> None:
        """The protocol lets such a child live on; here it ends with the command, seen from outside by its lock."""
        result = await backend.run(
            "flock lock sleep 3600 & until ! flock -n lock true; do :; done; echo up", shell=True
        )
        assert (result.exit_code, result.stdout) == (0, "up\n")
        with open(folder / "lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    async def test_cancellation_stops_foreground_work(  # type: ignore[override]
        self, backend: ExecutorWorkspaceBackend, folder: Path
    ) -> None:
        """Looked at from outside by a lock: the numbers of processes mean nothing in the next sandbox."""
        command = ["flock", "lock", "sh", "-c", "echo > up; exec sleep 3600"]
        async with anyio.create_task_group() as group:
            group.start_soon(backend.run, command)
            with anyio.fail_after(30):
                while not await backend.exists(f"{await backend.working_dir()}/up"):
                    await anyio.sleep(0.01)
            group.cancel_scope.cancel()
        with open(folder / "lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


class TestBubblewrap(Conformance):
    pass


class TestSandlock(Conformance):
    @pytest.fixture
    async def executor(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[CodeExecutor]:
        monkeypatch.setenv("PATH", str(tmp_path))
        executor = LocalSandboxCodeExecutor()
        yield executor
        await executor.aclose()

    async def test_fifo_read_does_not_wait_for_writer(  # type: ignore[override]
        self, backend: ExecutorWorkspaceBackend, folder: Path
    ) -> None:
        """Named pipes cannot be made in this sandbox; one that already exists is refused all the same."""
        os.mkfifo(folder / "fifo")
        with pytest.raises(OSError, match="Not a regular file"):
            await backend.read_bytes("/work/fifo")


class TestUnsafe(Conformance):
    @pytest.fixture
    async def executor(self) -> AsyncIterator[CodeExecutor]:
        executor = UnsafeLocalCodeExecutor()
        yield executor
        await executor.aclose()


@pytest.fixture
async def backend(tmp_path: Path) -> AsyncIterator[ExecutorWorkspaceBackend]:
    (tmp_path / "folder").mkdir()
    executor = LocalSandboxCodeExecutor()
    yield ExecutorWorkspaceBackend(executor, tmp_path / "folder")
    await executor.aclose()


@pytest.mark.parametrize(
    "target", ["{secret}", "../secret", "/etc/hostname", "/work/../../secret", "deep/../../secret"]
)
async def test_no_link_leads_file_operations_out(
    backend: ExecutorWorkspaceBackend, tmp_path: Path, target: str
) -> None:
    secret, link = tmp_path / "secret", tmp_path / "folder" / "link"
    secret.write_text("of the host")
    (tmp_path / "folder" / "deep").mkdir()
    link.symlink_to(target.format(secret=secret))
    for operation in (backend.read_bytes, backend.stat, backend.list_dir, backend.make_dir, backend.realpath):
        with pytest.raises(PermissionError):
            await operation("/work/link")
    with pytest.raises(PermissionError):
        await backend.write_bytes("/work/link", b"changed")
    assert not await backend.exists("/work/link")
    await backend.remove("/work/link")
    assert (secret.read_text(), link.is_symlink()) == ("of the host", False)


async def test_a_second_link_to_a_file_of_the_host_is_not_followed(
    backend: ExecutorWorkspaceBackend, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of the host")
    os.link(secret, tmp_path / "folder" / "link")
    with pytest.raises(PermissionError):
        await backend.read_bytes("/work/link")
    with pytest.raises(PermissionError):
        await backend.write_bytes("/work/link", b"changed")
    assert secret.read_text() == "of the host"


@pytest.mark.parametrize("path", ["/etc/passwd", "/work/../etc/passwd", "/workspace", "/"])
async def test_paths_outside_are_refused(backend: ExecutorWorkspaceBackend, path: str) -> None:
    with pytest.raises(PermissionError):
        await backend.read_bytes(path)
    with pytest.raises(PermissionError):
        await backend.write_bytes(path, b"")


async def test_what_decides_over_later_runs_is_read_only_for_files_and_commands(
    backend: ExecutorWorkspaceBackend, tmp_path: Path
) -> None:
    git = tmp_path / "folder" / ".git"
    git.mkdir()
    (git / "config").write_text("kept")
    for operation in (backend.remove, backend.make_dir, lambda path: backend.write_bytes(path, b"changed")):
        with pytest.raises(PermissionError):
            await operation("/work/.git/config")
    assert (await backend.run("echo changed > .git/config", shell=True)).exit_code != 0
    assert await backend.read_bytes("/work/.git/config") == b"kept"


async def test_too_much_is_an_error_and_never_half_a_success(backend: ExecutorWorkspaceBackend, tmp_path: Path) -> None:
    with pytest.raises(WorkspaceOutputLimitError):
        await backend.run("head -c 5000000 /dev/zero", shell=True)
    with open(tmp_path / "folder" / "large", "wb") as large:
        large.truncate((64 << 20) + 1)
    with pytest.raises(OSError, match="Larger than"):
        await backend.read_bytes("/work/large")


async def test_commands_see_nothing_of_the_host(backend: ExecutorWorkspaceBackend, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("of the host")
    assert (await backend.run(["cat", str(tmp_path / "secret")])).exit_code == 1
    assert (await backend.run("kill -9 $$", shell=True)).exit_code == 137


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf")])
async def test_bad_timeouts_are_refused(backend: ExecutorWorkspaceBackend, timeout: float) -> None:
    with pytest.raises(ValueError, match=r"timeout"):
        await backend.run(["true"], timeout=timeout)


async def test_without_a_sandbox_nothing_is_run(
    backend: ExecutorWorkspaceBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend._executor, "_rungs", ())
    with pytest.raises(WorkspaceUnavailableError, match="No sandbox"):
        await backend.run("touch ran", shell=True)
    assert os.listdir(tmp_path / "folder") == []


async def test_an_agent_works_in_it(backend: ExecutorWorkspaceBackend, tmp_path: Path) -> None:
    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if len(messages) == 1:
            return ModelResponse(parts=[ToolCallPart("shell", {"command": "tr a-z A-Z < in.txt | tee out.txt; pwd"})])
        return ModelResponse(parts=[TextPart("done: " + str(messages[-1].parts[0].content))])  # type: ignore[union-attr]

    agent: Agent[None, str] = Agent(FunctionModel(model))

    @agent.tool
    async def shell(context: RunContext[None], command: str) -> str:
        assert isinstance(context.workspace, Workspace)
        await context.workspace.write_bytes("in.txt", b"cake\n")
        return (await context.workspace.run(command, shell=True)).stdout

    result = await agent.run("bake", workspace=backend)
    assert result.output == "done: CAKE\n/work\n"
    assert (tmp_path / "folder" / "out.txt").read_text() == "CAKE\n"
    assert not isinstance(backend, LocalWorkspaceBackend)
