"""Attacks that write outside of the workspace."""

# ruff: noqa: S108, D102, ASYNC240 - tests: their names say what they do
from __future__ import annotations

import os
import shutil
import stat
import sys
import tempfile
import uuid
from contextlib import suppress
from pathlib import Path

import pytest

from bough.errors import BoughError
from bough.execution.base import (
    CodeExecutor,
    File,
    Mount,
)
from bough.execution.sandbox.rung import INSIDE
from bough.testing.executor_threats.base import Threats, read_text

_CHANGE_TREE = """
import ctypes, os, platform, sys
libc = ctypes.CDLL(None, use_errno=True)
OLD = {'utime': 132, 'utimes': 235} if platform.machine() == 'x86_64' else {}

def watch(folder):
    if libc.inotify_add_watch(libc.inotify_init1(0), folder.encode(), 0xfff) > 0: print('watches', folder)

def attack(folder):
    file = os.path.join(folder, 'file')
    for number in OLD.values():
        libc.syscall(number, file.encode(), None)
    for attempt in (
        lambda: watch(folder),
        lambda: os.mkdir(file + '-made'), lambda: os.mkfifo(file + '-pipe'), lambda: os.symlink('x', file + '-link'),
        lambda: os.link(file, file + '-linked'), lambda: os.link(file, '/work/linked'),
        lambda: os.setxattr(file, 'user.bough', b'x'), lambda: os.utime(file, (1, 1)), lambda: os.chmod(file, 0o600),
        lambda: os.chmod(folder, 0o755), lambda: os.chown(file, os.getuid(), os.getgid()),
        lambda: os.truncate(file, 1), lambda: os.rename(file, file + '-moved'),
        lambda: os.rename(file, '/work/moved'), lambda: os.unlink(file),
        lambda: os.rmdir(os.path.join(folder, 'empty')),
        lambda: print(os.stat(file)), lambda: print(os.listdir(folder)), lambda: print(os.open(file, os.O_PATH)),
        lambda: print(os.listxattr(file)),
    ):
        try: attempt()
        except OSError: pass

for folder in sys.argv[1:]:
    attack(folder)
    try: os.chdir(folder)
    except OSError: continue
    attack('.')
"""

_CHANGE_BY_DESCRIPTOR = """
import array, ctypes, fcntl, os, sys
libc = ctypes.CDLL(None, use_errno=True)

def attack(path):
    fd = os.open(path, os.O_RDONLY)
    link = '/proc/self/fd/%d' % fd
    flags = array.array('i', [0x00000080])
    for attempt in (
        lambda: os.fchmod(fd, 0o700), lambda: os.utime(fd, (1, 1)), lambda: os.setxattr(fd, 'user.bough', b'x'),
        lambda: os.fchown(fd, -1, os.getgid()), lambda: fcntl.ioctl(fd, 0x40086602, flags),
        lambda: libc.fchmodat(fd, b'', 0o700, 0x1000), lambda: libc.syscall(452, fd, b'', 0o700, 0x1000),
        lambda: libc.utimensat(fd, b'', (ctypes.c_long * 4)(1, 0, 1, 0), 0x1000),
        lambda: os.chmod(link, 0o700), lambda: os.utime(link, (1, 1)), lambda: os.setxattr(link, 'user.bough', b'x'),
        lambda: os.chmod(path, 0o700), lambda: os.utime(path, (1, 1)), lambda: os.setxattr(path, 'user.bough', b'x'),
        lambda: os.removexattr(fd, 'user.kept'), lambda: os.removexattr(path, 'user.kept'),
    ):
        try: attempt()
        except OSError: pass
    os.close(fd)

for path in sys.argv[1:]:
    try: attack(path)
    except OSError: pass
"""


def _describe_tree(folder: Path) -> dict[str, tuple[object, ...]]:
    """Return the changeable attributes of each file and folder."""
    states: dict[str, tuple[object, ...]] = {}
    for path in (folder, *folder.rglob("*")):
        state = path.lstat()
        content = path.read_bytes() if path.is_file() else b""
        attributes = os.listxattr(path, follow_symlinks=False)
        states[str(path)] = (state.st_mode, state.st_uid, state.st_mtime_ns, state.st_nlink, content, attributes)
    return states


class WritingThreats(Threats):
    """Attacks that write outside of the workspace."""

    @pytest.fixture
    def skill(self, outside: Path) -> Path:
        """A folder of the caller that is mounted read-only."""
        (outside / "SKILL.md").write_text("as it was")
        (outside / "SKILL.md").chmod(0o666)
        with suppress(OSError):  # the file system has no attributes
            os.setxattr(outside / "SKILL.md", "user.kept", b"1")
        return outside

    async def test_write_outside(self, executor: CodeExecutor, outside: Path) -> None:
        name = f"bough-{uuid.uuid4().hex}"
        code = (
            "import os, sys\n"
            "name, *folders = sys.argv[1:]\n"
            "for folder in folders:\n"
            "    try: open(os.path.join(folder, name), 'w').write('x')\n"
            "    except OSError: pass\n"
        )
        folders = [str(outside), "/tmp", "/var/tmp", "/dev/shm", "/", "/usr", "/etc", "/root", "/run", "/proc/1/cwd"]
        await self.run(executor, code, name, *folders)
        assert [folder for folder in folders if os.path.exists(os.path.join(folder, name))] == []

    async def test_change_a_tree_outside(self, executor: CodeExecutor, outside: Path) -> None:
        """Uses all calls that change a tree without opening a file; a supervisor may make them for the program."""
        # Also outside of /tmp, because a sandbox has its own /tmp, and other folders of the host need protection too.
        elsewhere = Path(tempfile.mkdtemp(prefix="bough-", dir="/var/tmp"))
        elsewhere.chmod(0o777)
        try:
            for folder in (outside, elsewhere):
                (folder / "file").write_text("as it was")
                (folder / "file").chmod(0o666)
                (folder / "empty").mkdir()
                (folder / "empty").chmod(0o777)
            initial = [_describe_tree(folder) for folder in (outside, elsewhere)]
            result = await self.run(executor, _CHANGE_TREE, outside, elsewhere)
            assert result.exit_code == 0, result.stderr
            assert [_describe_tree(folder) for folder in (outside, elsewhere)] == initial
            assert result.stdout == b"", "the attack must not read the tree either"
        finally:
            shutil.rmtree(elsewhere)

    async def test_change_the_mounted_skill(self, executor: CodeExecutor, outside: Path) -> None:
        (outside / "SKILL.md").write_text("as it was")
        (outside / "SKILL.md").chmod(0o666)
        code = (
            "import os\n"
            "for attack in (lambda: open('/skill/SKILL.md', 'w').write('x'), lambda: open('/skill/new', 'w'),\n"
            "               lambda: os.unlink('/skill/SKILL.md'), lambda: os.rename('/skill', '/gone'),\n"
            "               lambda: os.chmod('/skill/SKILL.md', 0), lambda: os.utime('/skill/SKILL.md', (0, 0)),\n"
            "               lambda: os.truncate('/skill/SKILL.md', 0), lambda: os.mkdir('/skill/folder')):\n"
            "    try: attack()\n"
            "    except OSError: pass\n"
        )
        initial = (outside / "SKILL.md").stat()
        await self.run(executor, code, mounts=(Mount(source=str(outside), target="/skill"),))
        final = (outside / "SKILL.md").stat()
        assert [p.name for p in outside.iterdir()] == ["SKILL.md"]
        assert (outside / "SKILL.md").read_text() == "as it was"
        assert (initial.st_mode, initial.st_mtime_ns) == (final.st_mode, final.st_mtime_ns)

    async def test_change_the_mounted_skill_by_descriptor(self, executor: CodeExecutor, skill: Path) -> None:
        """Tries system calls that a file's owner may make on a read-only descriptor: a script may run as the owner."""
        initial = _describe_tree(skill)
        mounts = (Mount(source=str(skill), target="/skill"),)
        result = await self.run(executor, _CHANGE_BY_DESCRIPTOR, "/skill", "/skill/SKILL.md", mounts=mounts)
        assert result.exit_code == 0, result.stderr
        assert _describe_tree(skill) == initial

    async def test_change_shared_files_by_descriptor(self, executor: CodeExecutor) -> None:
        """Shared files are, for example, those of the first process, or an interpreter that belongs to the caller."""
        initial = _describe_tree(Path(INSIDE))
        code = (
            f"{_CHANGE_BY_DESCRIPTOR}\n"
            "for folder in ('/run/bough/inside', os.path.dirname(os.path.realpath(sys.executable))):\n"
            "    if os.path.isdir(folder):\n"
            "        for name in ('.', *sorted(os.listdir(folder))[:20]):\n"
            "            try: attack(os.path.join(folder, name))\n"
            "            except OSError: pass\n"
        )
        result = await self.run(executor, code, sys.executable)
        assert result.exit_code == 0, result.stderr
        assert _describe_tree(Path(INSIDE)) == initial
        assert os.access(sys.executable, os.X_OK)

    async def test_change_a_protected_part_of_the_workspace(self, executor: CodeExecutor, workspace: Path) -> None:
        (workspace / ".git").mkdir()
        (workspace / ".git" / "config").write_text("as it was")
        code = (
            "import os\n"
            "for attack in (lambda: open('.git/config', 'w').write('x'), lambda: os.rename('.git', 'moved'),\n"
            "               lambda: open('.git/hook', 'w'), lambda: os.unlink('.git/config')):\n"
            "    try: attack()\n"
            "    except OSError: pass\n"
            "open('mine', 'w')"
        )
        mounts = (Mount(source=str(workspace / ".git"), target="/work/.git"),)
        result = await self.run(executor, code, workspace=str(workspace), mounts=mounts)
        assert result.exit_code == 0
        assert (workspace / ".git" / "config").read_text() == "as it was"
        assert sorted(p.name for p in workspace.iterdir()) == [".git", "mine"]
        assert [p.name for p in (workspace / ".git").iterdir()] == ["config"]

    async def test_input_files_are_not_written_through_a_planted_link(
        self, executor: CodeExecutor, workspace: Path, outside: Path
    ) -> None:
        (outside / "victim").write_text("as it was")
        plant = "import os, sys; os.symlink(sys.argv[1], 'd'); os.symlink(sys.argv[1] + '/victim', 'f')"
        assert (await self.run(executor, plant, outside, workspace=str(workspace))).ok
        files = (File(path="d/evil", content=b"x"), File(path="f", content=b"x"))
        for file in files:
            try:
                await self.run(executor, "pass", workspace=str(workspace), input_files=(file,))
            except BoughError:
                continue
        assert (outside / "victim").read_text() == "as it was"
        assert [p.name for p in outside.iterdir()] == ["victim"]

    async def test_leave_a_setuid_file_behind(self, executor: CodeExecutor, workspace: Path) -> None:
        code = (
            "import os, shutil\n"
            "shutil.copy('/bin/sh', 'a')\n"
            "def by_open(): os.close(os.open('b', os.O_CREAT | os.O_WRONLY, 0o4755))\n"
            "def by_fchmod(): os.fchmod(os.open('c', os.O_CREAT | os.O_WRONLY), 0o6755)\n"
            "for attack in (lambda: os.chmod('a', 0o4755), by_open, by_fchmod, lambda: os.mknod('d', 0o104755)):\n"
            "    try: attack()\n"
            "    except OSError: pass\n"
        )
        await self.run(executor, code, workspace=str(workspace))
        modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in workspace.iterdir()}
        assert "a" in modes
        assert {name: mode for name, mode in modes.items() if mode & 0o6000} == {}

    async def test_change_settings_of_the_kernel(self, executor: CodeExecutor) -> None:
        names = ("kernel/core_pattern", "kernel/hostname", "vm/overcommit_memory")
        initial = {name: read_text(f"/proc/sys/{name}") for name in names}
        code = (
            "import sys\n"
            "for path in sys.argv[1:]:\n"
            "    try:\n"
            "        old = open(path).read().strip()\n"
            "        open(path, 'w').write(old + ('0' if old.isdigit() else '-attacked'))\n"
            "    except OSError: pass\n"
            "import socket\n"
            "try: socket.sethostname('attacked')\n"
            "except OSError: pass\n"
        )
        try:
            await self.run(executor, code, *(f"/proc/sys/{name}" for name in names[:2]), "/proc/sysrq-trigger")
            assert {name: read_text(f"/proc/sys/{name}") for name in names} == initial
        finally:
            for name, value in initial.items():
                if read_text(f"/proc/sys/{name}") != value:
                    Path(f"/proc/sys/{name}").write_text(value)
