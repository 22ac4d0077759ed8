"""Attacks: reading what is none of a script's business."""

# ruff: noqa: D102 - tests: their names say what they do
from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from bough.execution.base import (
    CodeExecutor,
)
from bough.testing.executor_threats.base import Threats

SEARCH = """
import os, sys, time
end = time.monotonic() + 3
def tell(path):
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as f:
            data = f.read(1 << 16) or b""
    except OSError:
        return
    if b"canary-" in data:
        at = data.index(b"canary-")
        print("FOUND", path, data[at:at + 60], flush=True)
for path in sys.argv[1:]:
    tell(path)
for pid in os.listdir("/proc"):
    if pid.isdigit() and int(pid) != os.getpid() and time.monotonic() < end:
        for name in ("environ", "cmdline"):
            tell(f"/proc/{pid}/{name}")
        for path in sys.argv[1:]:
            tell(f"/proc/{pid}/root{path}")
            tell(f"/proc/{pid}/cwd{path}")
for root in ("/etc", "/root", "/home", "/tmp", "/var/tmp", "/dev/shm", "/run", "/mnt", "/srv", "/opt"):
    for folder, _, names in os.walk(root):
        if folder.count("/") > 6 or time.monotonic() > end:
            break
        for name in names[:50]:
            if not folder.startswith("/run/bough"):
                tell(os.path.join(folder, name))
"""
"""Source that looks for canaries everywhere, and at the paths it is given."""


class ReadingThreats(Threats):
    """Attacks by reading what is none of a script's business."""

    async def test_read_secrets_on_the_host(
        self, executor: CodeExecutor, canary: str, outside: Path, isolated_home: Path
    ) -> None:
        places = [outside / "secret", isolated_home / ".ssh" / "id_ed25519", outside / "other-skill" / "SKILL.md"]
        for place in places:
            place.parent.mkdir(exist_ok=True)
            place.write_text(canary)
        result = await self.run(executor, SEARCH, *places)
        assert canary.encode() not in self.everything(result)

    async def test_read_the_password_hashes(self, executor: CodeExecutor) -> None:
        result = await self.run(executor, "print(open('/etc/shadow').read())")
        assert b"root:" not in result.stdout

    async def test_read_another_process(
        self, executor: CodeExecutor, canary: str, bystander: subprocess.Popen[bytes]
    ) -> None:
        pid = bystander.pid
        result = await self.run(executor, SEARCH, f"/proc/{pid}/environ", f"/proc/{pid}/cmdline", f"/proc/{pid}/mem")
        assert canary.encode() not in self.everything(result)

    async def test_read_the_environment_of_the_caller(
        self, executor: CodeExecutor, canary: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("A_KEY", canary)
        code = "import os; print(dict(os.environ)); os.system('env; cat /proc/*/environ')"
        assert canary.encode() not in self.everything(await self.run(executor, code))

    async def test_a_link_among_the_outputs_is_not_followed(
        self, executor: CodeExecutor, canary: str, outside: Path
    ) -> None:
        (outside / "secret").write_text(canary)
        code = (
            "import os, sys\n"
            "os.symlink(sys.argv[1] + '/secret', 'file'); os.symlink(sys.argv[1], 'folder')\n"
            "os.mkdir('was'); open('was/x', 'w'); os.rename('was', 'gone'); os.symlink(sys.argv[1], 'was')"
        )
        result = await self.run(executor, code, outside)
        assert canary.encode() not in self.everything(result)
