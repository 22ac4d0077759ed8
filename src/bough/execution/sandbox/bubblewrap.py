"""The strongest sandbox without a container engine: bubblewrap namespaces, a seccomp filter, no capabilities.

A sandbox contains `/usr` and its links, a small `/etc`, a private `/tmp`, `/dev` and `/proc`, `/work`, and the mounts
of the request. Everything is read-only except `/work`, `/tmp`, `/dev/shm` and writable mounts.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

from bough.execution.base import Isolation
from bough.execution.destination import PORT
from bough.execution.gaps import list_gaps
from bough.execution.process.child import CONF, CONTROL, STATUS, Launch, open_in_memory
from bough.execution.process.disk_use import max_names
from bough.execution.process.identity import Identity, choose_free_uid, identity_for
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
from bough.execution.sandbox.seccomp import PROGRAM_PID, SECCOMP_INSTALL, build_filter

_SYSTEM_FOLDERS = (
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/etc/alternatives",
    "/etc/ld.so.cache",
)
_KERNEL_FOLDERS = ("/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs")
"""Paths of kernel settings that belong to the machine, not to a namespace."""

_PROBE_SECONDS = 10.0
_DROPPING_CAPABILITIES = ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP", "CAP_DAC_READ_SEARCH")
"""Capabilities with which the first process checks the mounted files, and then drops all privileges."""

_ZYGOTE_CAPABILITIES = (*_DROPPING_CAPABILITIES, "CAP_SYS_ADMIN", "CAP_KILL")
_INSIDE = "/run/bough/inside"
_RUNS = "/run/bough/runs"
_EMPTY = "/run/bough/empty"
_ZYGOTE_WORKSPACE = "/run/bough/workspace"
"""The mount point of the workspace in a zygote, from which each run mounts it at `/work`."""

_ZYGOTE_MOUNTS = "/run/bough/mounts"
"""The folder in a zygote with the sources of mounts below `/work`, named by number."""

_SESSION_FDS = 16
"""How many descriptors a session needs in addition to those of the program."""

_HIDDEN_ID = 65532
"""The uid and gid that a program sees instead of the caller's, in a user namespace."""


@dataclass
class BubblewrapRung:
    """The rung that runs plans in bubblewrap. One object serves any number of concurrent runs."""

    name: str = "bubblewrap"
    isolation: Isolation = Isolation.NAMESPACES
    _bwrap: str = ""
    interpreters: tuple[Interpreter, ...] = field(default_factory=list_interpreters)
    _interpreter: Interpreter = field(init=False, repr=False, compare=False)
    _supported_options: tuple[str, ...] = ()
    _filter: bytes = b""
    _network_filter: bytes = b""
    _prepared: Preparation = field(default_factory=Preparation)
    _system_mounts: tuple[str, ...] = ()

    async def probe(self) -> RungReport:
        """Find bubblewrap in PATH, and run a Python program in it with the options of a run."""
        return await asyncio.to_thread(self._probe)

    def _probe(self) -> RungReport:
        """Build the filters, and try each interpreter until one works. Blocks."""
        bwrap = shutil.which("bwrap")
        if bwrap is None:
            return self._report_missing("The program bwrap is not in PATH.", "apt-get install bubblewrap")
        try:
            self._filter = build_filter()
            self._network_filter = build_filter(network=True)
        except (ImportError, RuntimeError):
            return self._report_missing("libseccomp or pyseccomp is missing.", SECCOMP_INSTALL)
        self._bwrap = bwrap
        self._supported_options = _find_newer_options(bwrap)
        failure = ""
        for interpreter in self.interpreters:
            self._interpreter = interpreter
            self._system_mounts = _system_options(interpreter)
            failure = self._try_interpreter()
            if not failure:
                gaps = list_gaps(self.name, conditions=find_conditions(mounts=True))
                return RungReport(name=self.name, isolation=self.isolation, works=True, gaps=gaps)
        return self._report_missing(f"bwrap could not create its namespaces: {failure}.", _find_userns_fix())

    def _report_missing(self, missing: str, install: str) -> RungReport:
        return RungReport(name=self.name, isolation=self.isolation, works=False, missing=missing, install=install)

    def _try_interpreter(self) -> str:
        """Compile the first process in a sandbox with the interpreter; return the error, or an empty string."""
        identity = Identity(choose_free_uid(), choose_free_uid()) if os.geteuid() == 0 else Identity()
        filter_fd = open_in_memory(self._filter, "bough-filter")
        argv = [
            *self._isolation_options(identity, filter_fd),
            "--",
            self._interpreter.path,
            "-I",
            "-S",
            "-c",
            PREPARE,
        ]
        try:
            completed = subprocess.run(  # noqa: S603
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
        if completed.returncode:
            return completed.stderr.decode(errors="replace").strip()[-300:] or f"exit code {completed.returncode}"
        self._prepared = Preparation.parse(completed.stdout)
        return ""

    def identity(self, plan: Plan) -> Identity:
        """Return the user that runs `plan`."""
        return identity_for(plan.workspace)

    def launch(self, plan: Plan, workspace: Workspace) -> Launch:
        """Return the bubblewrap command that runs `plan`; the caller closes `pass_fds` after starting it."""
        return self._make_launch(plan, workspace)

    def _make_launch(self, plan: Plan, workspace: Workspace, *, extra_mounts: Sequence[str] = ()) -> Launch:
        """Return the launch of a plan. `extra_mounts` are options for mounts in addition to those of the plan."""
        identity = workspace.identity
        is_online = bool(plan.request.network.domains)
        filter_code = self._network_filter if is_online else self._filter
        # bwrap installs the filter before the program is forked, whose pid in the namespace will be 2.
        filter_code = filter_code.replace(PROGRAM_PID.to_bytes(4, sys.byteorder), (2).to_bytes(4, sys.byteorder))
        filter_fd = open_in_memory(filter_code, "bough-filter")
        passwd_fd = open_in_memory(_make_passwd(identity), "bough-users")
        init_fd = open_in_memory(self._prepared.code, "bough-init")
        argv = [
            *self._isolation_options(identity, filter_fd, tmp_bytes=plan.request.limits.tmp_bytes),
            *self._mount_options(plan, workspace),
            *("--perms", "0444", "--file", str(passwd_fd), "/etc/passwd"),
            *extra_mounts,
            *("--remount-ro", "/", "--chdir", "/"),  # last, because mount points cannot be created afterwards
            *("--", self._interpreter.path, "-I", "-S", "-X", "utf8", "-c", FIRST.format(init_fd)),
            *("start", CONF, STATUS),
        ]
        return Launch(
            argv=argv,
            configuration={
                **configuration(plan, identity),
                "proxy_port": PORT if is_online else 0,
                "site": self._prepared.site,
                "shown": workspace.list_mounted(plan),
            },
            stdin=plan.stdin,
            limits=plan.request.limits,
            env={},
            pass_fds=(filter_fd, passwd_fd, init_fd),
            kill_after_seconds=0.02,
            reports_last=True,
        )

    def warm_command(self, plan: Plan, folder: str, identity: Identity) -> tuple[list[str], tuple[int, ...]]:
        """Return the command of a zygote and the descriptors that it inherits.

        Unlike other first processes, a zygote may create mounts and change its user.
        """
        passwd_fd = open_in_memory(_make_passwd(identity), "bough-users")
        userns = () if identity.uid is not None else ("--unshare-user", "--uid", "0", "--gid", "0")
        argv = [
            *self._namespace_options(),
            *(*userns, *_capability_options(_ZYGOTE_CAPABILITIES)),
            *self._system_mounts,
            *_private_options(plan.request.limits.tmp_bytes),
            *self._warm_mount_options(plan, folder),
            *("--perms", "0444", "--file", str(passwd_fd), "/etc/passwd", "--remount-ro", "/"),
            *("--", self._interpreter.path, "-I", "-S", "-X", "utf8", f"{_INSIDE}/zygote.py", CONTROL),
        ]
        return argv, (passwd_fd,)

    def python_command(self, plan: Plan) -> list[str]:
        """Return the command that runs the Python file of `plan` in a separate process of a session."""
        if plan.python is None:
            raise AssertionError("the plan has no Python file")
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
        """Return the launch of a persistent interpreter, whose stdin must be a socket."""
        argv = (self._interpreter.path, "-I", "-S", "-X", "utf8", f"{_INSIDE}/session.py")
        session_plan = replace(plan, python=None, argv=argv, cwd=WORK)
        launch = self._make_launch(session_plan, workspace, extra_mounts=_inside_options())
        open_files = plan.request.limits.open_files + _SESSION_FDS
        limits = {**resource_limits(plan, count_processes=True), "NOFILE": open_files}
        return replace(launch, configuration={**launch.configuration, "limits": limits})

    def _warm_mount_options(self, plan: Plan, folder: str) -> list[str]:
        """Return the options for the mounts of a zygote.

        Mounts outside of `/work` are mounted at their targets. The workspace and mounts below `/work` are mounted
        elsewhere, and each run mounts them again at their targets.
        """
        options = [*_inside_options(), "--bind", folder, _RUNS]
        for folder_inside in (WORK, CODE_FOLDER, _EMPTY):
            options += _parent_options(f"{folder_inside}/x")  # creates the folder itself
        if plan.workspace is not None:
            options += ["--bind", plan.workspace, _ZYGOTE_WORKSPACE]
        for number, mount in enumerate(plan.mounts):
            target = mount.target
            if target.startswith(WORK + "/"):
                target = f"{_ZYGOTE_MOUNTS}/{number}"
            options += [*_parent_options(target), "--bind" if mount.writable else "--ro-bind", mount.source, target]
        return options

    def warm_configuration(self, plan: Plan, workspace: Workspace) -> dict[str, object]:
        """Return the configuration of `plan` for `inside/zygote.py`."""
        run_folder = f"{_RUNS}/{os.path.basename(workspace.folder)}"
        # (source, target, whether it is read-only) of each mount
        binds = [(_ZYGOTE_WORKSPACE if plan.workspace is not None else f"{run_folder}/work", WORK, False)]
        binds.append((f"{run_folder}/code", CODE_FOLDER, True))
        hidden = [_RUNS, *([] if plan.workspace is None else [_ZYGOTE_WORKSPACE])]
        for number, mount in enumerate(plan.mounts):
            if mount.target.startswith(WORK + "/"):
                binds.append((f"{_ZYGOTE_MOUNTS}/{number}", mount.target, not mount.writable))
        conf = configuration(plan, workspace.identity)
        return {
            **conf,
            "binds": sorted(binds, key=lambda bind: bind[1].count("/")),
            "guarded": [(entry.path, entry.identity) for entry in workspace.list_guarded(plan)],
            "shown": workspace.list_mounted(plan),
            "hidden": hidden,
            "tmp_bytes": plan.request.limits.tmp_bytes,
            "tmp_names": max_names(plan.request.limits),
            "filter": self._filter,
        }

    def _isolation_options(self, identity: Identity, filter_fd: int, *, tmp_bytes: int = 1 << 20) -> list[str]:
        """Return the options common to all runs: namespaces, capabilities, system folders."""
        return [
            *self._namespace_options(),
            *self._privilege_options(identity),
            *self._system_mounts,
            *_private_options(tmp_bytes),
            *("--seccomp", str(filter_fd)),
        ]

    def _namespace_options(self) -> list[str]:
        return [
            self._bwrap,
            *("--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-net", "--unshare-cgroup-try"),
            *("--hostname", "sandbox", "--die-with-parent", "--new-session", "--as-pid-1", "--clearenv"),
        ]

    def _privilege_options(self, identity: Identity) -> list[str]:
        """Return the options for capabilities and user namespace."""
        if identity.uid is not None:
            return _capability_options(_DROPPING_CAPABILITIES)
        ids = ["--uid", str(_HIDDEN_ID), "--gid", str(_HIDDEN_ID)]
        return ["--unshare-user", *self._supported_options, *ids, "--cap-drop", "ALL"]

    def _mount_options(self, plan: Plan, workspace: Workspace) -> list[str]:
        """Return the options that mount the workspace, the code and the requested mounts."""
        options = [*_parent_options(CODE_FOLDER), "--ro-bind", workspace.code, CODE_FOLDER]
        options += ["--bind", workspace.work, WORK]
        for mount in sorted(plan.mounts, key=lambda mount: mount.target.count("/")):
            if not mount.target.startswith(WORK + "/"):
                options += _parent_options(mount.target)
            options += ["--bind" if mount.writable else "--ro-bind", mount.source, mount.target]
        # A path may lead to another file by now, so the first process compares the identity of each mounted file.
        for entry in workspace.list_guarded(plan):
            options += ["--ro-bind", f"{workspace.work}/{entry.path}", f"{WORK}/{entry.path}"]
        return options


def _capability_options(capabilities: Sequence[str]) -> list[str]:
    """Return the options that drop all capabilities except `capabilities`."""
    options = ["--cap-drop", "ALL"]
    for name in capabilities:
        options += ["--cap-add", name]
    return options


def _private_options(tmp_bytes: int) -> list[str]:
    """Return the options that mount the private `/proc`, `/dev`, `/dev/shm` and `/tmp` of a sandbox."""
    tmpfs = ("--size", str(tmp_bytes), "--perms", "1777", "--tmpfs")
    # bwrap makes some of these read-only automatically, but not if it is run by root.
    kernel = tuple(word for path in _KERNEL_FOLDERS for word in ("--ro-bind-try", path, path))
    devices = ("--proc", "/proc", *kernel, "--dev", "/dev", *tmpfs, "/dev/shm", "--remount-ro", "/dev")  # noqa: S108
    return [*devices, *tmpfs, "/tmp"]  # noqa: S108


def _parent_options(path: str) -> list[str]:
    """Return the options that create the parent folders of `path`, which every user may enter."""
    arguments: list[str] = []
    for folder in reversed(PurePosixPath(path).parents[:-1]):
        arguments += ["--perms", "0755", "--dir", str(folder)]
    return arguments


def _inside_options() -> list[str]:
    """Return the options that mount the folder of bough's own programs."""
    return [*_parent_options(_INSIDE), "--ro-bind", INSIDE, _INSIDE]


def _system_options(interpreter: Interpreter) -> tuple[str, ...]:
    """Return the options that mount the folders of the system and of the interpreter."""
    arguments: list[str] = [*_parent_options("/etc/passwd")]
    for path in _SYSTEM_FOLDERS:
        if os.path.islink(path):
            arguments += ["--symlink", os.readlink(path), path]
        elif os.path.exists(path):
            arguments += ["--ro-bind", path, path]
    folder = interpreter.folder
    return tuple(arguments) if folder is None else (*arguments, *_parent_options(folder), "--ro-bind", folder, folder)


def _make_passwd(identity: Identity) -> bytes:
    """Return an /etc/passwd with root and the user of the run."""
    uid = _HIDDEN_ID if identity.uid is None else identity.uid
    gid = _HIDDEN_ID if identity.gid is None else identity.gid
    return b"root:x:0:0::/:/bin/false\nsandbox:x:%d:%d::%s:/bin/sh\n" % (uid, gid, HOME.encode())


def configuration(plan: Plan, identity: Identity) -> dict[str, object]:
    """Return the configuration of `plan` for the first process; see `inside/init.py`."""
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
        count_processes: Whether to limit processes, which the kernel counts per user; only if no other run has the
            same user.
    """
    limits = plan.request.limits
    rlimits = {
        _choose_memory_limit(plan): limits.memory_bytes,
        "NOFILE": limits.open_files,
        "FSIZE": limits.file_size_bytes,
        "CORE": 0,
    }
    return {**rlimits, "NPROC": limits.processes} if count_processes else rlimits


def _choose_memory_limit(plan: Plan) -> str:
    """Return the name of the memory limit: `AS`, or `DATA` for node, which reserves much unused address space."""
    return "DATA" if plan.python is None and plan.argv[0].rsplit("/", 1)[-1] == "node" else "AS"


def _find_newer_options(bwrap: str) -> tuple[str, ...]:
    """Return the options to add if this bubblewrap is new enough to have them."""
    try:
        completed = subprocess.run([bwrap, "--help"], capture_output=True, timeout=_PROBE_SECONDS, env={}, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return ("--disable-userns",) if b"--disable-userns" in completed.stdout + completed.stderr else ()


def _find_userns_fix() -> str:
    """Return the command that most likely allows bubblewrap to create namespaces here; empty if none is known."""
    if _read_setting("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == "1":
        return "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"
    if _read_setting("/proc/sys/kernel/unprivileged_userns_clone") == "0":
        return "sysctl -w kernel.unprivileged_userns_clone=1"
    if _read_setting("/proc/sys/user/max_user_namespaces") == "0":
        return "sysctl -w user.max_user_namespaces=10000"
    return ""


def _read_setting(path: str) -> str:
    """Return the value of a kernel setting; an empty string if it does not exist."""
    try:
        with open(path) as source:
            return source.read().strip()
    except OSError:
        return ""
