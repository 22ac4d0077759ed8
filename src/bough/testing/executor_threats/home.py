"""Attacks through files that programs of a later run read at their start."""

# ruff: noqa: D102 - tests: their names say what they do
from __future__ import annotations

from pathlib import Path

from bough.execution.base import CodeExecutor
from bough.testing.executor_threats.base import Threats

_PLANT = """
import glob, os, subprocess, sys
canary = '/work/canary'
shell = f'touch {canary}\\n'
python = f'import os; os.close(os.open({canary!r}, os.O_CREAT | os.O_WRONLY))\\n'
git = f'[core]\\n\\tfsmonitor = touch {canary}\\n\\tpager = touch {canary}\\n'
try: subprocess.run(['git', 'init', '-q', '/work/repository'], check=False)
except FileNotFoundError: pass
for home in {os.environ['HOME'], '/work', os.path.expanduser('~')}:
    version = f'python{sys.version_info[0]}.{sys.version_info[1]}'
    site = f'{home}/.local/lib/{version}/site-packages'
    os.makedirs(site, exist_ok=True)
    os.makedirs(f'{home}/.config/git', exist_ok=True)
    for path, text in (
        (f'{site}/planted.pth', python), (f'{site}/usercustomize.py', python), (f'{home}/.bashrc', shell),
        (f'{home}/.profile', shell), (f'{home}/.bash_profile', shell), (f'{home}/.gitconfig', git),
        (f'{home}/.config/git/config', git),
    ):
        with open(path, 'w') as target:
            target.write(text)
"""

_USE = """
import os, subprocess
for command in (
    ['python3', '-c', ''], ['bash', '-lc', 'true'], ['bash', '-ic', 'true'], ['sh', '-lc', 'true'],
    ['git', '-C', '/work/repository', 'status'],
):
    try: subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True)
    except FileNotFoundError: pass
home = os.environ['HOME']
print(oct(os.stat(home).st_mode & 0o777), os.listdir(home), home == '/work' or home.startswith('/work/'))
"""


class HomeThreats(Threats):
    """Attacks on the next run of a workspace."""

    async def test_leave_a_start_up_file_behind(self, executor: CodeExecutor, workspace: Path) -> None:
        assert (await self.run(executor, _PLANT, workspace=str(workspace), execution_id="first")).ok
        result = await self.run(executor, _USE, workspace=str(workspace), execution_id="second")
        assert result.stdout == b"0o700 [] False\n"
        assert not (workspace / "canary").exists()
