"""The strongest sandbox without a container engine: bubblewrap namespaces, a seccomp filter, no capabilities.

Inside are `/usr` and its links, an `/etc` with only a user and a group file, a private `/tmp`, `/dev` and `/proc`,
`/work`, and the mounts of the request; everything but `/work`, `/tmp` and `/dev/shm` is read-only.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

from bough.execution.base import Isolation
from bough.execution.destination import PORT
from bough.execution.gaps import list_gaps
from bough.execution.process.child import CONF, CONTROL, STATUS, Launch, readable
from bough.execution.process.disk_use import max_names
from bough.execution.process.identity import Identity, free_uid, identity_for
from bough.execution.process.workspace import Workspace
from bough.execution.request import CODE_FOLDER, HOME, WORK, Plan
from bough.execution.sandbox.rung import (
    FIRST,
    INSIDE,
    PREPARE,
    Interpreter,
    Preparation,
    RungReport,
    find_conditions,
    list_interpreters,
    read_first_sources,
)
from bough.execution.sandbox.seccomp import PROGRAM_PID, SECCOMP_INSTALL, filter_program

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc/alternatives", "/etc/ld.so.cache")
_KERNEL = ("/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs")
"""Folders of kernel settings that are the machine's and not the namespace's."""

_PROBE_SECONDS = 10.0
_DROPPING = ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP", "CAP_DAC_READ_SEARCH")
"""Capabilities of the first process: to check the mounted files, and then to drop all privileges, these included."""
_KEPT_BY_ZYGOTES = (*_DROPPING, "CAP_SYS_ADMIN", "CAP_KILL")
_INSIDE = "/run/bough/inside"
_RUNS = "/run/bough/runs"
_EMPTY = "/run/bough/empty"
_OWN_WORKSPACE = "/run/bough/workspace"
_MOUNTS = "/run/bough/mounts"
_SESSION_FDS = 16
"""How many descriptors a session needs in addition to those of the program."""

_HIDDEN_ID = 65532


@dataclass
class BubblewrapRung:
    """Runs behind bubblewrap. One object serves any number of concurrent runs."""

    name: str = "bubblewrap"
    isolation: Isolation = Isolation.NAMESPACES
    _bwrap: str = ""
    interpreters: tuple[Interpreter, ...] = field(default_factory=list_interpreters)
    _interpreter: Interpreter = field(init=False)
    _options: tuple[str, ...] = ()
    _filter: bytes = b""
    _network_filter: bytes = b""
    _prepared: Preparation = field(default_factory=Preparation)
    _shown: tuple[str, ...] = ()

    async def probe(self) -> RungReport:
        """Find bubblewrap in PATH and run `true` in it, with every option of a run."""
        return await asyncio.to_thread(self._probe)

    def _probe(self) -> RungReport:
        bwrap = shutil.which("bwrap")
        if bwrap is None:
            return self._lacks("The program bwrap is not in PATH.", "apt-get install bubblewrap")
        try:
            self._filter = filter_program()
            self._network_filter = filter_program(network=True)
        except (ImportError, RuntimeError):
            return self._lacks("libseccomp or pyseccomp is missing.", SECCOMP_INSTALL)
        self._bwrap = bwrap
        self._options = _find_known_options(bwrap)
        failure = ""
        for interpreter in self.interpreters:
            self._interpreter = interpreter
            self._shown = _system(interpreter)
            failure = self._try()
            if not failure:
                gaps = list_gaps(self.name, has=find_conditions(mounts=True))
                return RungReport(name=self.name, isolation=self.isolation, works=True, gaps=gaps)
        return self._lacks(f"bwrap could not make its namespaces: {failure}.", _userns_remedy())

    def _lacks(self, missing: str, install: str) -> RungReport:
        return RungReport(name=self.name, isolation=self.isolation, works=False, missing=missing, install=install)

    def _try(self) -> str:
        """Compile the first process in the sandbox; return the failure, or an empty text."""
        identity = Identity(free_uid(), free_uid()) if os.geteuid() == 0 else Identity()
        filter_fd = readable(self._filter, "bough-filter")
        argv = [
            *self._isolation_arguments(identity, filter_fd),
            "--",
            self._interpreter.path,
            "-I",
            "-S",
            "-c",
            PREPARE,
        ]
        try:
            done = subprocess.run(  # noqa: S603
                argv,
                input=read_first_sources(),
                capture_output=True,
                timeout=_PROBE_SECONDS,
                env={},
                pass_fds=[filter_fd],
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
        finally:
            os.close(filter_fd)
        if done.returncode:
            return done.stderr.decode(errors="replace").strip()[-300:] or f"exit code {done.returncode}"
        self._prepared = Preparation.parse(done.stdout)
        return ""

    def identity(self, plan: Plan) -> Identity:
        """Return the user that runs `plan`."""
        return identity_for(plan.workspace)

    def launch(self, plan: Plan, workspace: Workspace) -> Launch:
        """Return the bubblewrap command that runs `plan`; the caller closes `pass_fds` once it is started."""
        identity = workspace.identity
        online = bool(plan.request.network.domains)
        program = self._network_filter if online else self._filter
        # bwrap loads the filter before the program is forked, which is the second process of its namespace.
        program = program.replace(PROGRAM_PID.to_bytes(4, sys.byteorder), (2).to_bytes(4, sys.byteorder))
        filter_fd = readable(program, "bough-filter")
        users_fd = readable(_users(identity), "bough-users")
        init_fd = readable(self._prepared.code, "bough-init")
        argv = [
            *self._isolation_arguments(identity, filter_fd, tmp_bytes=plan.request.limits.tmp_bytes),
            *self._places(plan, workspace),
            *("--perms", "0444", "--file", str(users_fd), "/etc/passwd"),
            *("--remount-ro", "/", "--chdir", "/"),
            *("--", self._interpreter.path, "-I", "-S", "-X", "utf8", "-c", FIRST.format(init_fd)),
            *("start", CONF, STATUS),
        ]
        return Launch(
            argv=argv,
            configuration={
                **configuration(plan, identity),
                "proxy_port": PORT if online else 0,
                "site": self._prepared.site,
                "shown": workspace.list_shown(plan),
            },
            stdin=plan.stdin,
            limits=plan.request.limits,
            env={},
            pass_fds=(filter_fd, users_fd, init_fd),
            kill_after_seconds=0.02,
            reports_last=True,
        )

    def warm_command(self, plan: Plan, folder: str, identity: Identity) -> tuple[list[str], tuple[int, ...]]:
        """Return the command of a zygote, whose first process may still create mounts and change its user."""
        users_fd = readable(_users(identity), "bough-users")
        rights = ("--cap-drop", "ALL", *(argument for name in _KEPT_BY_ZYGOTES for argument in ("--cap-add", name)))
        userns = () if identity.uid is not None else ("--unshare-user", "--uid", "0", "--gid", "0")
        argv = [
            *self._namespaces(),
            *(*userns, *rights),
            *self._shown,
            *_private(plan.request.limits.tmp_bytes),
            *self._warm_places(plan, folder),
            *("--perms", "0444", "--file", str(users_fd), "/etc/passwd", "--remount-ro", "/"),
            *("--", self._interpreter.path, "-I", "-S", "-X", "utf8", f"{_INSIDE}/zygote.py", CONTROL),
        ]
        return argv, (users_fd,)

    def python_command(self, plan: Plan) -> list[str]:
        """Return the arguments that run a Python file of a session as a separate process."""
        if plan.python is None:
            raise AssertionError("only for plans with a Python file")
        return [
            self._interpreter.path,
            "-I",
            "-S",
            "-X",
            "utf8",
            f"{_INSIDE}/program.py",
            plan.python,
            plan.path0,
            *plan.argv[1:],
        ]

    def session(self, plan: Plan, workspace: Workspace) -> Launch:
        """Return the launch of a persistent interpreter; its input must be a socket."""
        argv = (self._interpreter.path, "-I", "-S", "-X", "utf8", f"{_INSIDE}/session.py")
        launched = self.launch(replace(plan, python=None, argv=argv, cwd=WORK), workspace)
        open_files = plan.request.limits.open_files + _SESSION_FDS
        limits = {**resource_limits(plan, count_processes=True), "NOFILE": open_files}
        at = launched.argv.index("--remount-ro", launched.argv.index(WORK))
        inside = [*_parents(_INSIDE), "--ro-bind", INSIDE, _INSIDE]
        return replace(
            launched,
            argv=[*launched.argv[:at], *inside, *launched.argv[at:]],
            configuration={**launched.configuration, "limits": limits},
        )

    def _warm_places(self, plan: Plan, folder: str) -> list[str]:
        """Return the options that mount the sources of the zygote's mounts for each run, and the permanent mounts."""
        places = [*_parents(_INSIDE), "--ro-bind", INSIDE, _INSIDE, "--bind", folder, _RUNS]
        for folder_inside in (WORK, CODE_FOLDER, _EMPTY):
            places += _parents(f"{folder_inside}/x")
        if plan.workspace is not None:
            places += ["--bind", plan.workspace, _OWN_WORKSPACE]
        for number, mount in enumerate(plan.mounts):
            target = mount.target
            if target.startswith(WORK + "/"):
                target = f"{_MOUNTS}/{number}"
            places += [*_parents(target), "--bind" if mount.writable else "--ro-bind", mount.source, target]
        return places

    def warm_configuration(self, plan: Plan, workspace: Workspace) -> dict[str, object]:
        """Return the configuration of `plan` for `inside/zygote.py`."""
        run = f"{_RUNS}/{os.path.basename(workspace.folder)}"
        binds = [(_OWN_WORKSPACE if plan.workspace is not None else f"{run}/work", WORK, False)]
        binds.append((f"{run}/code", CODE_FOLDER, True))
        hidden = [_RUNS, *([] if plan.workspace is None else [_OWN_WORKSPACE])]
        for number, mount in enumerate(plan.mounts):
            if mount.target.startswith(WORK + "/"):
                binds.append((f"{_MOUNTS}/{number}", mount.target, not mount.writable))
        conf = configuration(plan, workspace.identity)
        return {
            **conf,
            "binds": sorted(binds, key=lambda bind: bind[1].count("/")),
            "guarded": [(entry.path, entry.identity) for entry in workspace.guards(plan)],
            "shown": workspace.list_shown(plan),
            "hidden": hidden,
            "tmp_bytes": plan.request.limits.tmp_bytes,
            "tmp_names": max_names(plan.request.limits),
            "filter": self._filter,
        }

    def _isolation_arguments(self, identity: Identity, filter_fd: int, *, tmp_bytes: int = 1 << 20) -> list[str]:
        """Return the options common to all runs: namespaces, capabilities, system folders."""
        return [
            *self._namespaces(),
            *self._rights(identity),
            *self._shown,
            *_private(tmp_bytes),
            *("--seccomp", str(filter_fd)),
        ]

    def _namespaces(self) -> list[str]:
        return [
            self._bwrap,
            *("--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-net", "--unshare-cgroup-try"),
            *("--hostname", "sandbox", "--die-with-parent", "--new-session", "--as-pid-1", "--clearenv"),
        ]

    def _rights(self, identity: Identity) -> list[str]:
        if identity.uid is not None:
            return ["--cap-drop", "ALL", *(argument for name in _DROPPING for argument in ("--cap-add", name))]
        ids = ["--uid", str(_HIDDEN_ID), "--gid", str(_HIDDEN_ID)]
        return ["--unshare-user", *self._options, *ids, "--cap-drop", "ALL"]

    def _places(self, plan: Plan, workspace: Workspace) -> list[str]:
        """Return the options that mount the workspace, the code and the requested mounts."""
        places = [*_parents(CODE_FOLDER), "--ro-bind", workspace.code, CODE_FOLDER]
        places += ["--bind", workspace.work, WORK]
        for mount in sorted(plan.mounts, key=lambda mount: mount.target.count("/")):
            if not mount.target.startswith(WORK + "/"):
                places += _parents(mount.target)
            places += ["--bind" if mount.writable else "--ro-bind", mount.source, mount.target]
        # Mounted by name, which may lead elsewhere by now: the first process compares each file with the checked one.
        for entry in workspace.guards(plan):
            places += ["--ro-bind", f"{workspace.work}/{entry.path}", f"{WORK}/{entry.path}"]
        return places


def _private(tmp_bytes: int) -> list[str]:
    """Return the options for the private file systems of a sandbox."""
    tmpfs = ("--size", str(tmp_bytes), "--perms", "1777", "--tmpfs")
    # bwrap covers some of these automatically, but only if it finds them writable, which it does not as root.
    kernel = tuple(word for path in _KERNEL for word in ("--ro-bind-try", path, path))
    devices = ("--proc", "/proc", *kernel, "--dev", "/dev", *tmpfs, "/dev/shm", "--remount-ro", "/dev")  # noqa: S108
    return [*devices, *tmpfs, "/tmp"]  # noqa: S108


def _parents(path: str) -> list[str]:
    """Return the options that create the parent folders of `path`, which every user may enter."""
    arguments: list[str] = []
    for folder in reversed(PurePosixPath(path).parents[:-1]):
        arguments += ["--perms", "0755", "--dir", str(folder)]
    return arguments


def _system(interpreter: Interpreter) -> tuple[str, ...]:
    """Return the options that mount the folders of the system and of the interpreter."""
    arguments: list[str] = [*_parents("/etc/passwd")]
    for path in _SYSTEM:
        if os.path.islink(path):
            arguments += ["--symlink", os.readlink(path), path]
        elif os.path.exists(path):
            arguments += ["--ro-bind", path, path]
    folder = interpreter.folder
    return tuple(arguments) if folder is None else (*arguments, *_parents(folder), "--ro-bind", folder, folder)


def _users(identity: Identity) -> bytes:
    """Return an /etc/passwd with root and the user of the run."""
    uid = _HIDDEN_ID if identity.uid is None else identity.uid
    gid = _HIDDEN_ID if identity.gid is None else identity.gid
    return b"root:x:0:0::/:/bin/false\nsandbox:x:%d:%d::%s:/bin/sh\n" % (uid, gid, HOME.encode())


def configuration(plan: Plan, identity: Identity) -> dict[str, object]:
    """Return the configuration of `plan` for `inside/init.py`."""
    return {
        "python": plan.python,
        "argv": list(plan.argv),
        "path0": plan.path0,
        "cwd": plan.cwd,
        "env": plan.env,
        "home": HOME,
        "unreachable": True,  # the program has the uid of the first process and must not read or trace it
        "uid": identity.uid,
        "gid": identity.gid,
        "limits": resource_limits(plan, count_processes=True),
    }


def resource_limits(plan: Plan, *, count_processes: bool) -> dict[str, int]:
    """Return the resource limits of `plan` by their names in `resource`, without `RLIMIT_`.

    Args:
        count_processes: Whether the kernel's count of processes, which is per user, covers this run only.
    """
    limits = plan.request.limits
    rlimits = {
        _memory_limit(plan): limits.memory_bytes,
        "NOFILE": limits.open_files,
        "FSIZE": limits.file_size_bytes,
        "CORE": 0,
    }
    return {**rlimits, "NPROC": limits.processes} if count_processes else rlimits


def _memory_limit(plan: Plan) -> str:
    """Return the name of the memory limit. Node reserves far more address space than it uses, so `AS` would stop it."""
    return "DATA" if plan.python is None and plan.argv[0].rsplit("/", 1)[-1] == "node" else "AS"


def _find_known_options(bwrap: str) -> tuple[str, ...]:
    """Return the options that only newer versions of bubblewrap support."""
    try:
        done = subprocess.run([bwrap, "--help"], capture_output=True, timeout=_PROBE_SECONDS, env={}, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return ("--disable-userns",) if b"--disable-userns" in done.stdout + done.stderr else ()


def _userns_remedy() -> str:
    """Return the command that most likely allows bubblewrap to create namespaces on this machine."""
    if _read("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == "1":
        return "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"
    if _read("/proc/sys/kernel/unprivileged_userns_clone") == "0":
        return "sysctl -w kernel.unprivileged_userns_clone=1"
    if _read("/proc/sys/user/max_user_namespaces") == "0":
        return "sysctl -w user.max_user_namespaces=10000"
    return ""


def _read(path: str) -> str:
    try:
        with open(path) as source:
            return source.read().strip()
    except OSError:
        return ""
