"""Git on the host starts nothing that a repository names; every attack touches a canary when a plain git is used."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from bough import git
from bough.conversation.fork.workspace import fork_workspace
from bough.errors import InvalidInput

pytestmark = pytest.mark.anyio

ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    **{f"GIT_{who}_{what}": "a@b.c" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
}


def plain(folder: Path, *arguments: str) -> str:
    """Run git as people do."""
    done = subprocess.run(["git", *arguments], cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    return tmp_path / "canary"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A repository with a commit, and a file that is not committed."""
    folder = tmp_path / "source"
    folder.mkdir()
    plain(folder, "init", "-q")
    (folder / "a.txt").write_text("a")
    plain(folder, "add", ".")
    plain(folder, "commit", "-qm", "first")
    (folder / "b.txt").write_text("b")
    return folder


def by_filter(folder: Path, command: str) -> None:
    (folder / ".gitattributes").write_text("* filter=x=y\n")
    for key, value in (("clean", command), ("smudge", command), ("required", "true")):
        plain(folder, "config", f"filter.x=y.{key}", value)


def by_process(folder: Path, command: str) -> None:
    (folder / ".git" / "info" / "attributes").write_text("* filter=x\n")
    plain(folder, "config", "filter.x.process", command)


def by_hook(folder: Path, command: str) -> None:
    for name in ("post-checkout", "post-index-change", "reference-transaction"):
        hook = folder / ".git" / "hooks" / name
        hook.write_text(f"#!/bin/sh\n{command}\n")
        hook.chmod(0o755)


def by_monitor(folder: Path, command: str) -> None:
    plain(folder, "config", "core.fsmonitor", command)


def by_include(folder: Path, command: str) -> None:
    (folder / ".git" / "more").write_text(f'[core]\n\tfsmonitor = "{command}"\n[filter "x"]\n\tclean = "{command}"\n')
    (folder / ".gitattributes").write_text("* filter=x\n")
    plain(folder, "config", "includeIf.gitdir:**.path", "more")


def by_submodule(folder: Path, command: str) -> None:
    inner = folder / "inner"
    inner.mkdir()
    plain(inner, "init", "-q")
    (inner / "c.txt").write_text("c")
    plain(inner, "add", ".")
    plain(inner, "commit", "-qm", "inner")
    plain(folder, "add", "inner")
    plain(folder, "commit", "-qm", "with a submodule")
    (inner / "c.txt").write_text("changed")
    plain(inner, "config", "core.fsmonitor", command)


ATTACKS = [by_filter, by_process, by_hook, by_monitor, by_include, by_submodule]


@pytest.mark.parametrize("attack", ATTACKS)
async def test_a_worktree_fork_starts_nothing(
    attack: Callable[[Path, str], None], source: Path, tmp_path: Path, canary: Path
) -> None:
    attack(source, f"touch {canary}; false")
    fork = await fork_workspace("worktree", source, tmp_path / "fork")
    git.run(source, "status", "--porcelain", "--ignore-submodules=all")
    assert not canary.exists()
    assert (fork.path / "b.txt").read_text() == "b"
    await fork.remove()
    assert not fork.path.exists()
    assert not canary.exists()


@pytest.mark.parametrize("attack", ATTACKS)
def test_the_attacks_work_on_a_plain_git(attack: Callable[[Path, str], None], source: Path, canary: Path) -> None:
    attack(source, f"touch {canary}; false")
    subprocess.run(["git", "add", "--all"], cwd=source, env=ENVIRONMENT, capture_output=True, check=False)
    subprocess.run(["git", "status"], cwd=source, env=ENVIRONMENT, capture_output=True, check=False)
    assert canary.exists()


@pytest.mark.parametrize("kind", ["file", "link", "common"])
async def test_a_workspace_cannot_name_the_repository_of_another(kind: str, source: Path, tmp_path: Path) -> None:
    """A script that writes `.git` must not have a fork write into another repository."""
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    victim = source / ".git"
    match kind:
        case "file":
            (workspace / ".git").write_text(f"gitdir: {victim}\n")
        case "link":
            (workspace / ".git").symlink_to(victim)
        case _:
            (workspace / ".git").mkdir()
            (workspace / ".git" / "commondir").write_text(f"{victim}\n")
            (workspace / ".git" / "HEAD").write_text((victim / "HEAD").read_text())
    before = sorted(victim.rglob("*"))
    with pytest.raises(InvalidInput, match="does not belong"):
        await fork_workspace("worktree", workspace, tmp_path / "fork")
    assert sorted(victim.rglob("*")) == before


def test_worktrees_and_submodules_are_known(source: Path, tmp_path: Path) -> None:
    plain(source, "worktree", "add", "-q", "--detach", str(tmp_path / "tree"))
    plain(source, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(source), "inner")
    for folder in (source, tmp_path / "tree", source / "inner"):
        assert git.run(folder, "rev-parse", "--show-toplevel").stdout.strip() == str(folder)
    assert git.find_repository(tmp_path) is None
    with pytest.raises(InvalidInput, match="not in a git repository"):
        git.run(tmp_path, "status")


def test_no_other_repository_is_reached_unless_asked_for(source: Path, tmp_path: Path) -> None:
    refused = git.run(source, "fetch", "-q", str(source))
    assert refused.code
    assert "not allowed" in refused.stderr
    assert git.run(source, "fetch", "-q", str(source), protocols=("file",)).code == 0
