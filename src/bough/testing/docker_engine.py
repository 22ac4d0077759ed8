"""A real container engine for tests, at DOCKER_HOST or newly started, and a small image."""

# pyright: reportUnknownMemberType=false
# ruff: noqa: S603, S607 - the commands are fixed
from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
from collections.abc import Collection, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

IMAGE: Final = "bough-test:latest"
START_SECONDS: Final = 30.0

_PROGRAMS = ("/bin/sh", "/bin/bash", "/bin/cat", "/bin/ls", "/bin/grep", "/usr/bin/env", "/usr/bin/id")
_OMITTED_MODULES = {
    "test",
    "idlelib",
    "tkinter",
    "ensurepip",
    "lib2to3",
    "__pycache__",
    "dist-packages",
    "site-packages",
}


def missing() -> str:
    """Return why no engine can run here; empty if it can."""
    if os.environ.get("DOCKER_HOST"):
        return ""
    if os.geteuid() != 0:
        return "only root can start a container engine"
    return "" if shutil.which("dockerd") else "dockerd is not installed (apt-get install docker.io)"


@contextmanager
def engine(folder: Path) -> Generator[str]:
    """Yield the address of the engine at DOCKER_HOST, or of a new engine with all its data in `folder`."""
    existing_host = os.environ.get("DOCKER_HOST")
    if existing_host:
        yield existing_host
        return
    host = f"unix://{folder}/engine.sock"
    command = ["dockerd", "--data-root", f"{folder}/data", "--exec-root", f"{folder}/exec", "-p", f"{folder}/pid"]
    # Logs go to a file, because a full pipe would block the engine.
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(
            [*command, "-H", host, "--iptables=false", "--ip6tables=false", "--bridge=none"], stdout=log, stderr=log
        )
    try:
        _wait_until_ready(process, folder / "log")
        yield host
    finally:
        process.terminate()
        process.wait(START_SECONDS)
        _unmount(folder)


def _unmount(folder: Path) -> None:
    """Unmount the network namespaces of containers that a stopped engine leaves mounted in `folder`."""
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    # In reverse order, because later mounts may be inside earlier mounts.
    for mount in reversed([mount for mount in mounts if Path(mount).is_relative_to(folder.resolve())]):
        subprocess.run(["umount", "--lazy", mount], check=True)


def _wait_until_ready(process: subprocess.Popen[bytes], log: Path) -> None:
    """Follow the engine's log until it reports that it listens."""
    with subprocess.Popen(["tail", "-f", "-n", "+1", str(log)], stdout=subprocess.PIPE) as tail:
        try:
            if tail.stdout is None:
                raise AssertionError("stdout is a pipe")
            for line in tail.stdout:
                if b"API listen on" in line:
                    return
                if process.poll() is not None:
                    break
        finally:
            tail.kill()
    raise RuntimeError(f"the engine did not start: {log.read_text()[-1000:]}")


def make_image(host: str, *, name: str = IMAGE) -> str:
    """Import an image of a small root file system copied from this machine: Python, a shell, a few programs."""
    import docker

    client = docker.DockerClient(host)
    try:
        repository, _, tag = name.partition(":")
        client.api.import_image_from_data(root_file_system(), repository=repository, tag=tag)
    finally:
        client.close()
    return name


def root_file_system(*, programs: Collection[str] = ()) -> bytes:
    """Return a tar archive with this machine's Python, a shell and other programs, with their libraries."""
    buffer = io.BytesIO()
    library = Path("/usr/lib") / os.path.basename(os.path.realpath("/usr/bin/python3"))
    paths: set[str] = set()
    for program in (*_PROGRAMS, *programs, "/usr/bin/python3", *map(str, (library / "lib-dynload").glob("*.so"))):
        paths |= {program, *_list_libraries(program)}
    with tarfile.open(fileobj=buffer, mode="w", dereference=True) as tar:
        for folder in ("tmp", "work", "proc", "sys", "dev", "etc", "run"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if folder == "tmp" else 0o755
            tar.addfile(entry)
        for path in sorted(paths):
            tar.add(path, arcname=path[1:])
        tar.add(library, arcname=str(library)[1:], filter=_choose_entry)
    return buffer.getvalue()


def _list_libraries(program: str) -> set[str]:
    """Return the shared libraries that a program is linked with."""
    output = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
    return {word for word in output.split() if word.startswith("/")}


def _choose_entry(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Return an entry of Python's library, or None to omit it."""
    return None if _OMITTED_MODULES & set(entry.name.split("/")) or "lib-dynload" in entry.name else entry
