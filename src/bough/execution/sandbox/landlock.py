"""The rung without namespaces: Landlock and seccomp by the `sandlock` package; no root, nothing to install.

Files, network and system calls are confined; processes of the same user are visible, but cannot be reached.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from bough.errors import SandboxUnavailable
from bough.execution.base import Isolation
from bough.execution.gaps import list_gaps
from bough.execution.process.child import CONF, STATUS, Launch
from bough.execution.process.identity import Identity, identity_for
from bough.execution.process.workspace import Workspace
from bough.execution.request import CODE_FOLDER, WORK, Plan
from bough.execution.sandbox.bubblewrap import configuration, resource_limits
from bough.execution.sandbox.preloaded import SUPERVISOR_ENVIRONMENT
from bough.execution.sandbox.rung import (
    FIRST,
    INSIDE,
    PREPARE,
    Interpreter,
    Preparation,
    RungReport,
    find_conditions,
    list_interpreters,
)
from bough.execution.sandbox.seccomp import SECCOMP_INSTALL, filter_program

_READABLE = (
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/etc/alternatives",
    "/etc/ld.so.cache",
    "/etc/ssl/openssl.cnf",
)
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_INSIDE_FOLDER = "/run/bough/inside"
_EXCHANGE = "/run/bough/exchange"
_FLAGS = ("-I", "-S", "-X", "utf8")
_PROBE_SECONDS = 20.0


@dataclass
class LandlockRung:
    """Runs behind sandlock. One object serves any number of concurrent runs; each has its own supervisor.

    Attributes:
        makes_mounts: Whether a supervisor can create mounts, as found by a probe. If it cannot, names
            in a writable folder that are mounted read-only can be written through a link.
    """

    name: str = "sandlock"
    isolation: Isolation = Isolation.LANDLOCK
    interpreters: tuple[Interpreter, ...] = field(default_factory=list_interpreters)
    _interpreter: Interpreter = field(init=False)
    _filter: bytes = b""
    _prepared: Preparation = field(default_factory=Preparation)
    makes_mounts: bool = False

    async def probe(self) -> RungReport:
        """Compile the first process behind Landlock."""
        return await asyncio.to_thread(self._probe)

    def _probe(self) -> RungReport:
        if _package_folder() is None:
            return self._lacks("The Python package sandlock is not installed.", "pip install sandlock")
        try:
            self._filter = filter_program(host_paths=True, read_only_mounts=False)
        except (ImportError, RuntimeError):
            return self._lacks("libseccomp or pyseccomp is missing.", SECCOMP_INSTALL)
        failure = ""
        for interpreter in self.interpreters:
            self._interpreter = interpreter
            failure = self._try()
            if not failure:
                if self.makes_mounts:
                    self._filter = filter_program(host_paths=True)
                gaps = list_gaps(self.name, has=find_conditions(mounts=self.makes_mounts))
                return RungReport(name=self.name, isolation=self.isolation, works=True, gaps=gaps)
        return self._lacks(f"Landlock does not work here: {failure.strip().splitlines()[-1]}.", "")

    def _lacks(self, missing: str, install: str) -> RungReport:
        return RungReport(name=self.name, isolation=self.isolation, works=False, missing=missing, install=install)

    def _try(self) -> str:
        """Compile the first process in the sandbox; return the failure, or an empty text."""
        argv = [*_supervisor(), "probe", self._interpreter.path, self._interpreter.folder or "", PREPARE]
        try:
            done = subprocess.run(  # noqa: S603
                argv, capture_output=True, timeout=_PROBE_SECONDS, env=SUPERVISOR_ENVIRONMENT, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
        if done.returncode == 0:
            how, _, prepared = done.stdout.partition(b" ")
            self.makes_mounts = how == b"mounts"
            self._prepared = Preparation.parse(prepared)
            return ""
        return done.stderr.decode(errors="replace").strip()[-300:] or f"exit code {done.returncode}"

    def identity(self, plan: Plan) -> Identity:
        """Return the user that runs `plan`."""
        return identity_for(plan.workspace)

    def launch(self, plan: Plan, workspace: Workspace) -> Launch:
        """Return the command of the supervisor that confines and runs `plan`."""
        workspace.make_private()
        identity = workspace.identity
        if identity.uid is not None and not self.makes_mounts:
            _check_reachable([workspace.folder, workspace.work, *(mount.source for mount in plan.mounts)])
        limits = plan.request.limits
        conf = {
            "program": {**_program(plan), "filter": self._filter, "site": self._prepared.site},
            "code": self._prepared.code,
            "init": [
                self._interpreter.path,
                *_FLAGS,
                "-c",
                FIRST.format(f"{_EXCHANGE}/code"),
                "start",
                f"{_EXCHANGE}/configuration",
                "0",
            ],
            "exchange": workspace.exchange,
            "may_mount": self.makes_mounts,
            "uid": identity.uid,
            "gid": identity.gid,
            "memory_bytes": limits.memory_bytes,
            "processes": limits.processes + 1,
            "open_files": limits.open_files,
            "file_size_bytes": limits.file_size_bytes,
            "boundary": self._boundary(plan, workspace),
        }
        return Launch(
            argv=[*_supervisor(), "start", CONF, STATUS],
            configuration=conf,
            stdin=plan.stdin,
            limits=plan.request.limits,
            env=SUPERVISOR_ENVIRONMENT,
        )

    def _boundary(self, plan: Plan, workspace: Workspace) -> dict[str, object]:
        shown_paths = {WORK: workspace.work, "/tmp": workspace.tmp}  # noqa: S108
        read_only = {CODE_FOLDER: workspace.code, _INSIDE_FOLDER: INSIDE, _EXCHANGE: workspace.exchange}
        for mount in plan.mounts:
            (shown_paths if mount.writable else read_only)[mount.target] = mount.source
        read_only |= dict.fromkeys(_find_missing_parents({*shown_paths, *read_only}), workspace.empty)
        guards = workspace.guards(plan)
        if not self.makes_mounts:
            read_only |= {f"{WORK}/{entry.path}": f"{workspace.work}/{entry.path}" for entry in guards}
        system = [path for path in _READABLE if os.path.exists(path)]
        if self._interpreter.folder is not None:
            system.append(self._interpreter.folder)
        return {
            "shown": shown_paths,
            "read_only": read_only,
            "readable": [*system, "/proc", *_DEVICES],
            "writable": [*shown_paths, "/dev/null"],
            "system": system,
            "identities": dict(plan.shown),
            "guarded": [(entry.path, entry.identity) for entry in guards],
        }


def _find_missing_parents(targets: set[str]) -> set[str]:
    """Return the missing parent folders of mounts, because node examines each of them."""
    above = {str(folder) for target in targets for folder in PurePosixPath(target).parents}
    return {folder for folder in above - targets if not os.path.exists(folder)}


def _program(plan: Plan) -> dict[str, object]:
    """Return the configuration for `inside/init.py`; sandlock counts the processes, not the kernel by user."""
    conf = configuration(plan, Identity())
    conf["unreachable"] = False  # sandlock allows no change of that attribute
    conf["stdin"] = f"{_EXCHANGE}/stdin"
    conf["limits"] = resource_limits(plan, count_processes=False)
    return conf


def _check_reachable(paths: list[str]) -> None:
    """Refuse a folder that the run's user cannot reach, since no mount makes it reachable.

    Raises:
        SandboxUnavailable: The user cannot enter a parent folder, which the message names.
    """
    for path in paths:
        for folder in reversed(Path(path).parents):
            if not os.stat(folder).st_mode & 0o001:
                raise SandboxUnavailable(
                    f"Only root can pass through {folder}, and a script never runs as root.",
                    hint=f"chmod o+x {folder}, or use a workspace somewhere else",
                )


def _package_folder() -> str | None:
    module_spec = importlib.util.find_spec("sandlock")
    return None if module_spec is None or module_spec.origin is None else str(Path(module_spec.origin).parent.parent)


def _supervisor() -> list[str]:
    """Return the beginning of the supervisor's command line; it runs on the host's Python."""
    return [sys.executable, "-I", "-S", f"{INSIDE}/confine.py", str(_package_folder())]


def serving_command() -> list[str]:
    """Return the command line of the process that forks supervisors, without its control socket."""
    return [*_supervisor(), "serve"]
