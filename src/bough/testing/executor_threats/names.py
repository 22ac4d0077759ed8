"""Attacks on names in a workspace that configure later runs, and attacks that swap names while a run starts."""

# ruff: noqa: D102, S603, ASYNC240 - tests: their names say what they do
from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

from bough.errors import BoughError
from bough.execution.base import CodeExecutor, Mount
from bough.testing.executor_threats.base import Threats

_CHANGE = """
import os
def attempt(*attacks):
    for attack in attacks:
        try: attack()
        except OSError: pass
open('evil', 'w').write('evil')
os.makedirs('other/.git')
attempt(lambda: os.symlink('deep/repository/.git', 'through'))
for name in ('.git/config', 'deep/repository/.git/config', 'through/config', '.agents/skills/a/SKILL.md', 'bough.yaml',
             '.gitattributes'):
    attempt(
        lambda: open(name, 'w').write('evil'), lambda: open(name, 'a').write('evil'), lambda: os.truncate(name, 0),
        lambda: os.chmod(name, 0o777), lambda: os.unlink(name), lambda: os.rename('evil', name),
        lambda: os.link(name, 'twice'), lambda: open('twice', 'w').write('evil'),
        lambda: os.setxattr(name, 'user.x', b''),
        lambda: os.rename(name, 'gone'), lambda: os.mkdir(os.path.dirname(name) + '/hooks'),
    )
attempt(
    lambda: os.rename('deep/repository/.git', 'deep/repository/git'), lambda: os.rename('other/.git', '.git'),
    lambda: os.rename('.agents', 'agents'), lambda: os.rename('deep', 'moved'),
    lambda: open('moved/repository/.git/config', 'w').write('evil'), lambda: os.mkdir('moved/repository/.git/hooks'),
)
"""

_CHANGE_REPOSITORIES = """
import os
def attempt(*attacks):
    for attack in attacks:
        try: attack()
        except OSError: pass
for name in ('a/bare', 'separate'):
    attempt(
        lambda: open(name + '/config', 'w').write('evil'), lambda: os.mkdir(name + '/hooks'),
        lambda: os.rename(name, 'gone'), lambda: os.unlink(name + '/HEAD'),
    )
for name in ('made', 'made/inner'):
    os.makedirs(name + '/objects')
    os.mkdir(name + '/refs')
os.mkdir('worktree')
open('worktree/commondir', 'w').write('../made')
for name in ('made', 'made/inner', 'worktree'):
    open(name + '/HEAD', 'w').write('ref: refs/heads/main')
    open(name + '/config', 'w').write('[core] fsmonitor = touch /tmp/evil')
"""

_MAKE = """
import os
def attempt(attack):
    try: attack()
    except OSError: pass
open('file', 'w').write('[core]')
for number, folder in enumerate(('.', 'a', 'a/b/c/d/e', '/'.join('x' * 15), '/'.join('y' * 40), 'hidden', 'closed')):
    os.makedirs(f'{folder}/made/hooks', exist_ok=True)
    open(f'{folder}/made/config', 'w').write('[core]')
    os.rename(f'{folder}/made', f'{folder}/.git')
attempt(lambda: open('bough.yaml', 'w').write('x'))
attempt(lambda: open('config.yaml', 'w').write('x'))
attempt(lambda: os.makedirs('.agents/skills'))
attempt(lambda: os.symlink('a', '.bough'))
attempt(lambda: os.link('file', '.mcp.json'))
attempt(lambda: os.mkfifo('.openhands'))
attempt(lambda: open('.gitattributes', 'w').write('* filter=x'))
os.makedirs('case/.GiT')
os.makedirs('linked')
attempt(lambda: os.symlink('../a/.git', 'linked/.git'))
if os.fork() == 0:
    os.setsid()
    while True: attempt(lambda: os.makedirs('daemon/.git/hooks'))
while not os.path.exists('daemon'): pass
os.chmod('hidden', 0o311)
os.chmod('closed', 0o555)
"""

_SWAP = """
import os, random, sys, time
workspace, target, *names = sys.argv[1:]
os.chdir(workspace)
print('up', flush=True)
steps = (
    (lambda name: os.rename(name, 'folder'), 0), (lambda name: os.symlink(target, name), 0.001), (os.unlink, 0),
    (lambda name: os.rename('folder', name), 0.003), (os.mkdir, 0),
)
while True:
    name = random.choice(names)
    for step, most_seconds in steps:
        try: step(name)
        except OSError: pass  # the name exists, or the host moved it
        # The pauses make it a folder long enough for runs to start, and a link many times during a start.
        if most_seconds: time.sleep(random.random() * most_seconds)
"""

_ROUNDS = os.environ.get("BOUGH_RACE_ROUNDS")
"""Read at import, because tests run with a cleared environment."""

_LOOK = """
import glob
for name in ('/work/.agents', '/shown*', '/work/shown*', '/work/*/.git'):
    for path in glob.glob(name + '/secret'):
        try: print(open(path).read())
        except OSError: pass
"""


class NameThreats(Threats):
    """Attacks on guarded names in a workspace."""

    async def test_change_guarded_names(self, executor: CodeExecutor, workspace: Path) -> None:
        for name in (
            *(".git/config", "deep/repository/.git/config", ".agents/skills/a/SKILL.md", "bough.yaml"),
            ".gitattributes",
        ):
            (workspace / name).parent.mkdir(parents=True, exist_ok=True)
            (workspace / name).write_text("as it was")
        guarded = (".git", "deep/repository/.git", ".agents", "bough.yaml", ".gitattributes")
        inodes = {name: (workspace / name).stat().st_ino for name in guarded}
        result = await self.run(executor, _CHANGE, workspace=str(workspace))
        assert result.exit_code == 0, result.stderr
        if not (workspace / "deep").exists():
            (workspace / "moved").rename(workspace / "deep")
        assert {name: (workspace / name).stat().st_ino for name in guarded} == inodes
        for name in guarded:
            files = [path for path in (workspace / name, *(workspace / name).rglob("*")) if path.is_file()]
            assert [path.read_text() for path in files] == ["as it was"], name
            assert not os.listxattr(files[0])
            assert files[0].stat().st_mode & 0o111 == 0

    async def test_change_a_repository_of_another_name(self, executor: CodeExecutor, workspace: Path) -> None:
        """A bare repository, and the target of a `.git` file, because git runs commands from their configuration."""
        for folder in ("a/bare", "separate"):
            (workspace / folder / "objects").mkdir(parents=True)
            (workspace / folder / "refs").mkdir()
            (workspace / folder / "HEAD").write_text("ref: refs/heads/main\n")
            (workspace / folder / "config").write_text("as it was")
        (workspace / "project").mkdir()
        (workspace / "project" / ".git").write_text("gitdir: ../separate\n")
        (workspace / "HEAD").write_text("no repository")
        result = await self.run(executor, _CHANGE_REPOSITORIES, workspace=str(workspace))
        assert result.exit_code == 0, result.stderr
        for folder in ("a/bare", "separate"):
            assert (workspace / folder / "config").read_text() == "as it was"
            assert sorted(os.listdir(workspace / folder)) == ["HEAD", "config", "objects", "refs"]
        assert (workspace / "project" / ".git").read_text() == "gitdir: ../separate\n"
        for folder in ("made", "made/inner", "worktree"):
            assert "HEAD" not in os.listdir(workspace / folder), "git must not accept it as a repository"
            assert (workspace / folder / "config").exists(), "other files must remain"
        assert (workspace / "HEAD").read_text() == "no repository"

    async def test_create_guarded_names(self, executor: CodeExecutor, workspace: Path) -> None:
        result = await self.run(executor, _MAKE, workspace=str(workspace))
        assert result.exit_code == 0, result.stderr
        paths = [str(path) for path in workspace.rglob("*")]
        guarded = {".git", "bough.yaml", "config.yaml", ".agents", ".bough", ".mcp.json", ".openhands"}
        guarded.add(".gitattributes")
        assert [path for path in paths if os.path.basename(path).casefold() in guarded] == []
        set_aside = {path for path, reason in result.output_skipped if reason.startswith("guarded name, set aside as ")}
        assert {
            ".git",
            "a/.git",
            "a/b/c/d/e/.git",
            "hidden/.git",
            "closed/.git",
            "case/.GiT",
            "bough.yaml",
        } <= set_aside
        assert {"linked/.git", ".agents", ".bough", ".mcp.json", ".gitattributes", "daemon/.git"} <= set_aside
        assert len([path for path in set_aside if path.endswith("y/.git")]) == 1

    async def test_guarded_entries_of_a_person_remain_unchanged(self, executor: CodeExecutor, workspace: Path) -> None:
        """No attack: a moved repository, and guarded names with other kinds of entries, remain unchanged."""
        (workspace / "repository" / ".git").mkdir(parents=True)
        (workspace / "repository" / ".git" / "config").write_text("as it was")
        (workspace / ".claude").symlink_to("elsewhere")
        code = (
            "import os; os.rename('repository', 'moved'); os.makedirs('further/.agents'); open('.gitignore', 'w')\n"
            "try: os.unlink('.claude')\n"
            "except OSError: pass"
        )
        result = await self.run(executor, code, workspace=str(workspace))
        assert result.exit_code == 0, result.stderr
        assert (workspace / "moved" / ".git" / "config").read_text() == "as it was"
        assert (workspace / "further" / ".agents").is_dir()
        assert os.readlink(workspace / ".claude") == "elsewhere"
        assert sorted(path.name for path in workspace.iterdir()) == [".claude", ".gitignore", "further", "moved"]


class MountThreats(Threats):
    """Attacks on the mounts of a run that swap names while the run starts.

    Attributes:
        rounds: Total number of names that are mounted while they are swapped.
        names_at_once: Names that are mounted and swapped per run; each counts as a round. Increase it for executors
            that start slowly.
        seconds: No run starts after this time. BOUGH_RACE_ROUNDS overrides `rounds` and removes this limit.
    """

    rounds: ClassVar[int] = 5
    names_at_once: ClassVar[int] = 1
    seconds: ClassVar[float] = 10.0

    async def test_swap_a_guarded_name(
        self, executor: CodeExecutor, workspace: Path, outside: Path, canary: str
    ) -> None:
        more = [f"part-{number}/.git" for number in range(1, self.names_at_once)]
        await self._race(executor, workspace, outside, canary, [".agents", *more], ())

    async def test_swap_the_source_of_a_mount(
        self, executor: CodeExecutor, workspace: Path, outside: Path, canary: str
    ) -> None:
        names = [f"shown-{number}" for number in range(self.names_at_once)]
        mounts = tuple(Mount(source=workspace / name, target=f"/{name}") for name in names)
        await self._race(executor, workspace, outside, canary, names, mounts)

    async def _race(
        self,
        executor: CodeExecutor,
        workspace: Path,
        outside: Path,
        canary: str,
        names: list[str],
        mounts: tuple[Mount, ...],
    ) -> None:
        """Start runs while folders are replaced by links to a secret. A run may fail, but must not read the secret."""
        for name in names:
            (workspace / name).mkdir(parents=True)
        (outside / "secret").write_text(canary)
        refused: Counter[str] = Counter()
        started = 0
        rounds = self.rounds if _ROUNDS is None else int(_ROUNDS)
        end = time.monotonic() + (self.seconds if _ROUNDS is None else math.inf)
        with _swap_names(workspace, names, outside):
            while started * len(names) < rounds and time.monotonic() < end and refused.total() < 50 * rounds:
                try:
                    result = await self.run(executor, _LOOK, workspace=str(workspace), mounts=mounts)
                except BoughError as error:
                    refused[type(error).__name__] += 1
                    os.sched_yield()  # failed starts are quick; let the swapping process run if it shares the processor
                    continue
                started += 1
                assert canary.encode() not in self.everything(result), f"run {started}"
        assert started, f"every run was refused: {dict(refused)}"
        print(f"{started} runs of {len(names)} swapped names each, and refused: {dict(refused)}")


@contextmanager
def _swap_names(workspace: Path, names: list[str], outside: Path) -> Generator[None]:
    """During the block, another process replaces folders of the workspace by links to `outside` and back."""
    command = [sys.executable, "-I", "-S", "-c", _SWAP, str(workspace), str(outside), *names]
    swapping = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert swapping.stdout is not None
        assert swapping.stdout.readline() == b"up\n"
        yield
        assert swapping.poll() is None, "the swapping process must not end early"
    finally:
        swapping.kill()
        swapping.communicate()
