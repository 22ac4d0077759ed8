"""A fork's copy of the workspace, while a program in the workspace replaces a folder by a link to the host's files."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bough.agents.spec import AgentSpec
from bough.conversation import AsyncConversation
from bough.conversation.fork.workspace import WorkspacePolicy
from bough.errors import BoughError
from bough.settings import Settings
from bough.testing import ScriptedModel

pytestmark = pytest.mark.anyio

_SWAP = """
import os, sys
os.chdir(sys.argv[1])
print("ready", flush=True)
names = [f"data-{number}" for number in range(12)]
while True:
    for name in names:
        os.rename(name, f"{name}.kept")
        os.symlink(sys.argv[2], name)
    for name in names:
        os.unlink(name)
        os.rename(f"{name}.kept", name)
"""


@contextmanager
def _swapping(workspace: Path, secret: Path) -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-c", _SWAP, workspace, secret], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        yield
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(("policy", "copies"), [("copy", 40), ("worktree", 6)])
async def test_no_copy_holds_a_folder_of_the_host(tmp_path: Path, policy: WorkspacePolicy, copies: int) -> None:
    workspace, secret = tmp_path / "workspace", tmp_path / "host"
    for folder in (*(workspace / f"data-{number}" for number in range(12)), secret):
        folder.mkdir(parents=True)
        (folder / f"{folder.name}.txt").write_text(folder.name)
    (workspace / "top.txt").write_text("top")
    if policy == "worktree":
        for command in (
            ["git", "init", "-q"],
            ["git", "add", "."],
            ["git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "first"],
        ):
            subprocess.run(command, cwd=workspace, check=True)
    settings = Settings.load(home=tmp_path / "home", env={}, cwd=tmp_path)
    spec = AgentSpec(model=ScriptedModel([]))
    conversation = await AsyncConversation.create(spec, workspace=workspace, store="memory:", settings=settings)
    made = 0
    async with conversation:
        with _swapping(workspace, secret):
            for _ in range(copies):
                try:
                    fork = await conversation.fork(workspace=policy)
                except BoughError:
                    continue
                async with fork:
                    made += 1
                    folder = fork.state.workspace
                    assert (folder / "top.txt").read_text() == "top"
                    names = {path.name for path in folder.rglob("*") if ".git" not in path.parts}
                    assert "host.txt" not in names, sorted(names)
    assert made == copies


async def test_a_copy_keeps_links_modes_and_repositories(tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    (workspace / "sub/deep").mkdir(parents=True)
    (workspace / "sub/run.sh").write_text("#!/bin/sh\n")
    (workspace / "sub/run.sh").chmod(0o755)
    (workspace / "sub/deep/to_run").symlink_to(workspace / "sub/run.sh")
    (workspace / "out").symlink_to("/etc/hostname")
    (workspace / "locked").mkdir()
    (workspace / "locked/file").write_text("x")
    (workspace / "locked").chmod(0o555)
    subprocess.run(["git", "init", "-q"], cwd=workspace, check=True)
    settings = Settings.load(home=tmp_path / "home", env={}, cwd=tmp_path)
    spec = AgentSpec(model=ScriptedModel([]))
    conversation = await AsyncConversation.create(spec, workspace=workspace, store="memory:", settings=settings)
    async with conversation, await conversation.fork(workspace="copy", ephemeral=True) as fork:
        copy = fork.state.workspace
        assert (copy / "sub/deep/to_run").resolve() == (copy / "sub/run.sh").resolve()
        assert (copy / "sub/run.sh").stat().st_mode & 0o777 == 0o755
        assert (copy / "out").readlink() == Path("/etc/hostname")
        assert (copy / "locked").stat().st_mode & 0o777 == 0o555
        assert (copy / "sub/run.sh").stat().st_mtime_ns == (workspace / "sub/run.sh").stat().st_mtime_ns
        subprocess.run(["git", "add", "."], cwd=copy, check=True)
    assert not copy.exists()  # a folder without permission to write is removed, too
