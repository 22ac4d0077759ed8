"""The rung without namespaces: Landlock and seccomp by the Python package `sandlock`, without root.

Files, network and system calls are restricted. Other processes of the same user are visible, but cannot be signalled
or traced.
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
from bough.execution.sandbox.seccomp import SECCOMP_INSTALL, build_filter

_READABLE_PATHS = (
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
    """The rung that runs plans under Landlock. One object serves any number of concurrent runs.

    Each run has its own supervisor, a process outside of the sandbox.

    Attributes:
        makes_mounts: Whether a supervisor can create mounts; set by the probe. If it cannot, read-only
            files in a writable folder can be changed through a link.
    """

    name: str = "sandlock"
    isolation: Isolation = Isolation.LANDLOCK
    interpreters: tuple[Interpreter, ...] = field(default_factory=list_interpreters)
    _interpreter: Interpreter = field(init=False, repr=False, compare=False)
    _filter: bytes = b""
    _prepared: Preparation = field(default_factory=Preparation)
    makes_mounts: bool = False

    async def probe(self) -> RungReport:
        """Compile the first process under Landlock, and test whether a supervisor can create mounts."""
        return await asyncio.to_thread(self._probe)

    def _probe(self) -> RungReport:
        """Build the filter, and try each interpreter until one works. Blocks."""
        if _find_package_folder() is None:
            return self._report_missing("The Python package sandlock is not installed.", "pip install sandlock")
        try:
            self._filter = build_filter(host_paths=True, read_only_mounts=False)
        except (ImportError, RuntimeError):
            return self._report_missing("libseccomp or pyseccomp is missing.", SECCOMP_INSTALL)
        failure = ""
        for interpreter in self.interpreters:
            self._interpreter = interpreter
            failure = self._try_interpreter()
            if not failure:
                if self.makes_mounts:
                    self._filter = build_filter(host_paths=True)
                gaps = list_gaps(self.name, conditions=find_conditions(mounts=self.makes_mounts))
                return RungReport(name=self.name, isolation=self.isolation, works=True, gaps=gaps)
        reason = failure.strip().splitlines()[-1]
        return self._report_missing(f"Landlock does not work on this machine: {reason}.", "")

    def _report_missing(self, missing: str, install: str) -> RungReport:
        return RungReport(name=self.name, isolation=self.isolation, works=False, missing=missing, install=install)

    def _try_interpreter(self) -> str:
        """Compile the first process in a sandbox with the interpreter; return the error, or an empty string."""
        argv = [*_make_supervisor_command(), "probe", self._interpreter.path, self._interpreter.folder or "", PREPARE]
        try:
            completed = subprocess.run(  # noqa: S603
                argv, capture_output=True, timeout=_PROBE_SECONDS, env=SUPERVISOR_ENVIRONMENT, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
        if completed.returncode == 0:
            mode, _, prepared = completed.stdout.partition(b" ")
            self.makes_mounts = mode == b"mounts"
            self._prepared = Preparation.parse(prepared)
            return ""
        return completed.stderr.decode(errors="replace").strip()[-300:] or f"exit code {completed.returncode}"

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
            "program": {**_make_program_configuration(plan), "filter": self._filter, "site": self._prepared.site},
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
            "boundary": self._make_boundary(plan, workspace),
        }
        return Launch(
            argv=[*_make_supervisor_command(), "start", CONF, STATUS],
            configuration=conf,
            stdin=plan.stdin,
            limits=plan.request.limits,
            env=SUPERVISOR_ENVIRONMENT,
        )

    def _make_boundary(self, plan: Plan, workspace: Workspace) -> dict[str, object]:
        """Return the paths that the program may read and write, and the host paths of the mounted ones."""
        writable = {WORK: workspace.work, "/tmp": workspace.tmp}  # noqa: S108
        read_only = {CODE_FOLDER: workspace.code, _INSIDE_FOLDER: INSIDE, _EXCHANGE: workspace.exchange}
        for mount in plan.mounts:
            mounts = writable if mount.writable else read_only
            mounts[mount.target] = mount.source
        read_only |= dict.fromkeys(_find_missing_parents({*writable, *read_only}), workspace.empty)
        guards = workspace.list_guarded(plan)
        if not self.makes_mounts:
            read_only |= {f"{WORK}/{entry.path}": f"{workspace.work}/{entry.path}" for entry in guards}
        system = [path for path in _READABLE_PATHS if os.path.exists(path)]
        if self._interpreter.folder is not None:
            system.append(self._interpreter.folder)
        return {
            "shown": writable,
            "read_only": read_only,
            "readable": [*system, "/proc", *_DEVICES],
            "writable": [*writable, "/dev/null"],
            "system": system,
            "identities": dict(plan.file_identities),
            "guarded": [(entry.path, entry.identity) for entry in guards],
        }


def _find_missing_parents(targets: set[str]) -> set[str]:
    """Return the parent folders of mount targets that do not exist on the host; node examines each of them."""
    parents = {str(folder) for target in targets for folder in PurePosixPath(target).parents}
    return {folder for folder in parents - targets if not os.path.exists(folder)}


def _make_program_configuration(plan: Plan) -> dict[str, object]:
    """Return the configuration for `inside/init.py`, without the limits that sandlock applies."""
    conf = configuration(plan, Identity())
    conf["unreachable"] = False  # sandlock refuses the call that makes a process unreachable
    conf["stdin"] = f"{_EXCHANGE}/stdin"
    conf["limits"] = resource_limits(plan, count_processes=False)
    return conf


def _check_reachable(paths: list[str]) -> None:
    """Refuse paths that the run's user cannot reach, because they cannot be mounted elsewhere.

    Raises:
        SandboxUnavailable: The user may not enter a parent folder.
    """
    for path in paths:
        for folder in reversed(Path(path).parents):
            if not os.stat(folder).st_mode & 0o001:
                raise SandboxUnavailable(
                    f"A script runs as an unprivileged user, which may not enter {folder}.",
                    hint=f"chmod o+x {folder}, or use another workspace",
                )


def _find_package_folder() -> str | None:
    """Return the folder in which the package sandlock is installed; None if it is not installed."""
    module_spec = importlib.util.find_spec("sandlock")
    return None if module_spec is None or module_spec.origin is None else str(Path(module_spec.origin).parent.parent)


def _make_supervisor_command() -> list[str]:
    """Return the beginning of a supervisor's command line. It runs in the Python that runs bough."""
    return [sys.executable, "-I", "-S", f"{INSIDE}/confine.py", str(_find_package_folder())]


def make_serving_command() -> list[str]:
    """Return the command line of the process that forks supervisors, without the number of its control socket."""
    return [*_make_supervisor_command(), "serve"]
