"""What programs need behind Landlock, where names are shown without mounts of their own."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bough.execution import CodeExecutionInput, Isolation, LocalSandboxCodeExecutor, Mount
from bough.execution.process.cgroup import find_usable_hierarchy
from bough.execution.process.child import list_descendants

pytestmark = [pytest.mark.anyio, pytest.mark.needs("landlock")]


@pytest.mark.needs("node")
async def test_node_runs_code_and_scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads its settings of TLS at the start, and looks at every folder above a script."""
    (tmp_path / "skill").mkdir()
    (tmp_path / "skill" / "main.js").write_text("console.log('by', require('path').basename(__dirname))")
    monkeypatch.setenv("PATH", str(tmp_path))
    async with LocalSandboxCodeExecutor() as executor:
        code = "console.log(require('crypto').createHash('sha256').digest('hex').length)"
        result = await executor.execute(CodeExecutionInput(code=code, language="node"))
        assert (result.text, result.isolation) == ("64\n", Isolation.LANDLOCK), result.error_text
        mounts = (Mount(source=tmp_path / "skill", target="/data/of/skill"),)
        result = await executor.execute(CodeExecutionInput(script="/data/of/skill/main.js", mounts=mounts))
        assert result.text == "by skill\n", result.error_text


async def test_the_first_run_is_in_its_control_group_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its supervisor still loads when the run is first looked at: what is not there yet cannot be moved."""
    monkeypatch.setenv("PATH", str(tmp_path))
    async with LocalSandboxCodeExecutor() as executor:
        running = asyncio.ensure_future(executor.execute(CodeExecutionInput(code="import time; time.sleep(2)")))
        found = False
        while not running.done() and not found:
            await asyncio.wait([running], timeout=0.02)
            found = any(_is_in_group(pid) for pid in list_descendants(os.getpid()))
        running.cancel()
        await asyncio.wait([running])
        assert executor.isolation is Isolation.LANDLOCK
    assert found == (find_usable_hierarchy() is not None)


def _is_in_group(pid: int) -> bool:
    try:
        return "/bough-run-" in Path(f"/proc/{pid}/cgroup").read_text()
    except OSError:
        return False


WITHOUT_NAMESPACES = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
uid, gid = os.getuid(), os.getgid()
if libc.unshare(0x10000000) == 0:  # in a user namespace of its own it may say that there are no further ones
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w") as target: target.write(text)
    with open("/proc/sys/user/max_user_namespaces", "w") as target: target.write("0")
os.execv(sys.argv[1], sys.argv[1:])
"""

RUN_CODE = """
import asyncio, sys
from bough.execution import CodeExecutionInput, LocalSandboxCodeExecutor, Mount

async def main():
    executor = LocalSandboxCodeExecutor()
    mounts = (Mount(source=sys.argv[1], target="/skill"),)
    result = await executor.execute(CodeExecutionInput(code=sys.stdin.read(), mounts=mounts))
    await executor.aclose()
    print(result.isolation.name, result.text, result.error_text)

asyncio.run(main())
"""

CHANGE_THE_SKILL = """
import array, ctypes, fcntl, os
fd = os.open("/skill/SKILL.md", os.O_RDONLY)
for attempt in (
    lambda: os.fchmod(fd, 0o700), lambda: os.utime(fd, (1, 1)), lambda: os.setxattr(fd, "user.bough", b"x"),
    lambda: fcntl.ioctl(fd, 0x40086602, array.array("l", [0x80])), lambda: os.chmod(f"/proc/self/fd/{fd}", 0o700),
    lambda: ctypes.CDLL(None).utimensat(fd, b"", (ctypes.c_long * 4)(1, 0, 1, 0), 0x1000),
):
    try: attempt()
    except OSError: pass
open("/work/own", "w").close(); os.chmod("/work/own", 0o600); os.utime("/work/own", (1, 1))
print(oct(os.stat("/work/own").st_mode & 0o777), os.system("touch -d 2020-01-01 /work/own"))
"""


@pytest.mark.skipif(os.geteuid() == 0, reason="a script of root runs as a user who owns none of root's files")
def test_a_skill_cannot_be_changed_by_descriptor_where_no_mounts_can_be_made(tmp_path: Path) -> None:
    file = tmp_path / "SKILL.md"
    file.write_text("as it was")
    before = file.stat()
    program = f"import sys; sys.path[:] = {sys.path!r}\n{RUN_CODE}"
    ran = subprocess.run(
        [sys.executable, "-I", "-c", WITHOUT_NAMESPACES, sys.executable, "-I", "-c", program, str(tmp_path)],
        input=CHANGE_THE_SKILL,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={"PATH": "/nonexistent", "HOME": str(tmp_path)},
    )
    assert ran.stdout.split() == ["LANDLOCK", "0o600", "0"], ran.stderr
    after = file.stat()
    assert (after.st_mode, after.st_mtime_ns, os.listxattr(file)) == (before.st_mode, before.st_mtime_ns, [])
