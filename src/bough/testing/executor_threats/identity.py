"""Attacks that use the caller's identity, in particular root."""

# ruff: noqa: D102, ASYNC240 - tests: their names say what they do
from __future__ import annotations

import os
from pathlib import Path

from bough.execution.base import CodeExecutor
from bough.testing.executor_threats.base import Threats

_SETTINGS = (
    "/proc/sys/kernel/core_pattern",
    "/proc/sys/kernel/hung_task_warnings",
    "/proc/sys/kernel/modprobe",
    "/proc/sys/vm/overcommit_memory",
    "/proc/sysrq-trigger",
)

_OPEN = """
import os, sys
for path in sys.argv[1:]:
    try: os.close(os.open(path, os.O_WRONLY))
    except OSError: continue
    print('open for writing:', path)
"""

_SPOIL = """
import os
for path in ('link', 'setuid'):
    for attack in (lambda: open(path, 'a').write('spoilt'), lambda: os.chmod(path, 0o777)):
        try: attack()
        except OSError: pass
"""


class IdentityThreats(Threats):
    """Attacks with the caller's rights; run as root, they target root's own folders."""

    async def test_be_root_in_a_folder_of_the_caller(self, executor: CodeExecutor, workspace: Path) -> None:
        code = "import os; print(os.getresuid(), os.getresgid(), os.getgroups())"
        for folder in (str(workspace), None):
            result = await self.run(executor, code, workspace=folder)
            uids, gids, groups = result.stdout.decode().replace("(", "[").replace(")", "]").split("] [")
            assert "0" not in f"{uids} {gids} {groups}".replace(",", " ").replace("[", " ").replace("]", " ").split()

    async def test_open_settings_of_the_kernel(self, executor: CodeExecutor, workspace: Path) -> None:
        for folder in (str(workspace), None):
            result = await self.run(executor, _OPEN, *_SETTINGS, workspace=folder)
            assert (result.exit_code, result.stdout) == (0, b"")

    async def test_new_files_belong_to_the_caller(self, executor: CodeExecutor, workspace: Path) -> None:
        (workspace / "there").mkdir()
        (workspace / "there" / "link").symlink_to("before")
        os.mkfifo(workspace / "there" / "pipe")
        (workspace / "there" / "before").write_text("as it was")
        owner = workspace.stat().st_uid, workspace.stat().st_gid
        code = (
            "import os\n"
            "os.makedirs('new/folder'); open('new/folder/file', 'w').write('x'); os.symlink('/etc', 'link')\n"
            "open('there/before', 'a').write(', and more'); open('there/after', 'w'); os.link('there/after', 'twice')"
        )
        assert (await self.run(executor, code, workspace=str(workspace))).ok
        await executor.aclose()
        states = {path: path.lstat() for path in (workspace, *workspace.rglob("*"))}
        assert (workspace / "there" / "before").read_text() == "as it was, and more"
        assert len(states) == 11
        assert {(state.st_uid, state.st_gid) for state in states.values()} == {owner}

    async def test_files_with_another_name_elsewhere_are_not_given_away(
        self, executor: CodeExecutor, workspace: Path, outside: Path
    ) -> None:
        """As root, files that stay owned by root cannot be changed. An ordinary user may change own files."""
        (outside / "victim").write_text("as it was")
        (outside / "victim").chmod(0o644)
        os.link(outside / "victim", workspace / "link")
        (workspace / "setuid").write_text("as it was")
        (workspace / "setuid").chmod(0o4755)
        result = await self.run(executor, _SPOIL, workspace=str(workspace))
        assert result.ok
        if os.geteuid() == 0:
            for path in (outside / "victim", workspace / "setuid"):
                assert (path.read_text(), path.stat().st_uid) == ("as it was", 0)
            assert (outside / "victim").stat().st_mode & 0o777 == 0o644
