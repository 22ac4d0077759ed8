"""Checking every name, number and folder of a request before anything is started, and planning its run.

Source: ADK (relative paths only, one timeout rule).
"""

from __future__ import annotations

import errno
import math
import os
import re
import stat
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields
from typing import Final

from bough.errors import InvalidInput, NotSupported
from bough.execution.base import CodeExecutionInput, ExecutionLimits, Mount
from bough.execution.destination import PORT, DomainRule
from bough.execution.script_program import find_script_program
from bough.execution.value_types import check_kinds

WORK: Final = "/work"
CODE_FOLDER: Final = "/run/bough/code"
"""The folder inside the sandbox with the file of `code`."""

HOME: Final = "/tmp/home"  # noqa: S108 - the run's own
"""A private folder of each run, so that no start-up file in it outlives the run that wrote it."""

MAX_INPUT_FILES: Final = 10_000
MAX_TIMEOUT_SECONDS: Final = 7 * 24 * 3600.0

_PLACE: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_SYSTEM_FOLDERS = (
    "/bin",
    "/boot",
    "/dev",
    "/etc",
    "/lib",
    "/lib32",
    "/lib64",
    "/proc",
    "/run",
    "/sbin",
    "/sys",
    "/usr",
)
_CODE_FILES = {"python": "main.py", "bash": "main.sh", "sh": "main.sh", "node": "main.js"}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A valid request, with everything that does not depend on the executor.

    Attributes:
        python: The file inside that a Python interpreter runs; None to execute `argv`.
        argv: The arguments; with `python`, the value of `sys.argv`.
        path0: The first entry of `sys.path`.
        cwd: The working folder inside.
        code_file: Name and content of the file with `code`, if any.
        rules: The domains that may be reached; empty for none.
        shown: Device and number of the workspace and of each mount's source, by the path where it is seen inside: what
            was looked at here must be what is there when the program starts.
    """

    request: CodeExecutionInput
    python: str | None
    argv: tuple[str, ...]
    path0: str
    cwd: str
    env: dict[str, str]
    timeout_seconds: float
    code_file: tuple[str, bytes] | None
    workspace: str | None
    mounts: tuple[Mount, ...]
    rules: tuple[DomainRule, ...]
    shown: Mapping[str, tuple[int, int]]

    @property
    def stdin(self) -> bytes:
        """The input of the program."""
        return self.request.stdin if isinstance(self.request.stdin, bytes) else self.request.stdin.encode()


def plan(request: CodeExecutionInput, *, default_timeout_seconds: float) -> Plan:
    """Return the plan for `request`; accesses the file system only to check that its folders exist.

    Raises:
        InvalidInput: A part of it is invalid.
    """
    check_kinds(request)
    _check_mount_points(request)
    _check_limits(request.limits)
    _check_files(request)
    python, argv, path0, code_file = _program(request)
    workspace, state = (None, None) if request.workspace is None else _workspace(os.fspath(request.workspace))
    shown_identities = {} if state is None else {WORK: (state.st_dev, state.st_ino)}
    mounts: list[Mount] = []
    for mount in request.mounts:
        checked, state = _mount(mount, request, workspace)
        mounts.append(checked)
        shown_identities[checked.target] = (state.st_dev, state.st_ino)
    return Plan(
        request=request,
        python=python,
        argv=argv,
        path0=path0,
        cwd=_cwd(request),
        env=_env(request),
        timeout_seconds=_timeout(request.timeout_seconds, default_timeout_seconds),
        code_file=code_file,
        workspace=workspace,
        mounts=tuple(mounts),
        rules=tuple(DomainRule.parse(domain) for domain in request.network.domains),
        shown=shown_identities,
    )


def refuse_state(request: CodeExecutionInput) -> None:
    """Refuse a request for a persistent interpreter; for executors that start a new one for each run.

    Raises:
        NotSupported: The request is for one.
    """
    if request.stateful and request.execution_id is not None and request.code is not None:
        raise NotSupported(
            "this executor keeps no interpreter between runs, so variables of earlier runs would be gone",
            hint="leave `stateful` out and have the code set up what it needs, or use LocalSandboxCodeExecutor "
            "where bubblewrap is installed",
        )


def _check_mount_points(request: CodeExecutionInput) -> None:
    """Refuse paths that an executor would misread: a container engine separates paths by colons."""
    targets = [mount.target.rstrip("/") for mount in request.mounts]
    for path in (os.fspath(request.workspace or ""), *targets, *(mount.source for mount in request.mounts)):
        if ":" in path:
            raise InvalidInput(f"The path {path[:200]!r} has a colon.", hint="Rename the folder, or show one above it.")
    for mount, target in zip(request.mounts, targets, strict=True):
        if targets.count(target) > 1:
            raise InvalidInput(f"The mount target {target[:200]!r} is given twice.", hint="Give each target once.")
        above = [other for other, at in zip(request.mounts, targets, strict=True) if target.startswith(at + "/")]
        if any(os.path.isfile(other.source) for other in above):
            raise InvalidInput(
                f"The mount target {mount.target[:200]!r} lies below a file.", hint="Mount it elsewhere."
            )


def _program(request: CodeExecutionInput) -> tuple[str | None, tuple[str, ...], str, tuple[str, bytes] | None]:
    """Return (python file or None, argv, sys.path[0], code file) of the request."""
    if (request.code is None) == (request.script is None):
        raise InvalidInput("Exactly one of code and script must be given.", hint="Set code=… or script=…, not both.")
    if request.language not in _CODE_FILES:
        raise InvalidInput(
            f"The language {request.language!r} is not known.", hint=f"One of: {', '.join(sorted(_CODE_FILES))}."
        )
    _check_arguments(request)
    if request.code is not None:
        return _code_program(request, request.code)
    return _script_program(request, os.fspath(request.script or ""))


def _code_program(request: CodeExecutionInput, code: str) -> tuple[str | None, tuple[str, ...], str, tuple[str, bytes]]:
    try:
        content = code.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput("The code is not text: it has a lone surrogate.", hint="Send valid Unicode.") from error
    name = _CODE_FILES[request.language]
    path = f"{CODE_FOLDER}/{name}"
    if request.language == "python" and request.command is None:
        return path, (path, *request.argv), "", (name, content)
    command = request.command or (request.language,)
    return None, (*command, path, *request.argv), "", (name, content)


def _script_program(request: CodeExecutionInput, script: str) -> tuple[str | None, tuple[str, ...], str, None]:
    path = _script_path(script)
    if request.command is not None:
        return None, (*request.command, path, *request.argv), "", None
    program = find_script_program(path, b"")  # its text may exist only inside the sandbox
    if program is not None and program.language == "python":
        return path, (path, *request.argv), os.path.dirname(path), None
    interpreter = () if program is None else (program.language,)
    return None, (*interpreter, path, *request.argv), "", None


def _script_path(script: str) -> str:
    """Return the script's absolute path inside; a relative one counts from `/work`."""
    if script.startswith("/"):
        return "/" + "/".join(split_name(script[1:], subject="script"))
    return f"{WORK}/" + "/".join(split_name(script, subject="script"))


def _check_arguments(request: CodeExecutionInput) -> None:
    if request.command is not None and not request.command:
        raise InvalidInput("The command is empty.", hint="Name an interpreter, for example ('python3',), or None.")
    for text in (*request.argv, *(request.command or ())):
        _check_text(text, "argument")


def _check_text(text: str, noun: str) -> None:
    try:
        raw = os.fsencode(text)
    except UnicodeEncodeError as error:
        raise InvalidInput(f"An {noun} has characters that cannot be passed on.", hint="Send valid Unicode.") from error
    if b"\0" in raw:
        raise InvalidInput(f"An {noun} has a NUL character.", hint="Pass such data by stdin or by a file.")
    if len(raw) > 128 * 1024 - 1:
        raise InvalidInput(f"An {noun} is longer than 128 KiB.", hint="Pass long data by stdin or by a file.")


def _check_limits(limits: ExecutionLimits) -> None:
    for limit in fields(limits):
        value = getattr(limits, limit.name)
        if not isinstance(value, int) or value < 0:
            raise InvalidInput(f"The limit {limit.name} is {value!r}.", hint="Limits are whole numbers, zero or more.")
    for name in ("memory_bytes", "processes", "open_files", "tmp_bytes", "work_bytes"):
        if getattr(limits, name) == 0:
            raise InvalidInput(f"The limit {name} is 0; nothing could run.", hint="Give at least 1.")


def _check_files(request: CodeExecutionInput) -> None:
    if len(request.input_files) > MAX_INPUT_FILES:
        raise InvalidInput(
            f"{len(request.input_files)} input files are more than {MAX_INPUT_FILES}.",
            hint="Give the folder itself as workspace or mount it.",
        )
    names: set[str] = set()
    for file in request.input_files:
        split_name(file.path, subject="input file name")
        if file.path in names:
            raise InvalidInput(f"The input file {file.path!r} is given twice.", hint="Give every name once.")
        names.add(file.path)
    _check_no_file_is_folder(names)
    total = sum(len(file.content) for file in request.input_files)
    if total > request.limits.work_bytes:
        raise InvalidInput(
            f"The input files have {total} bytes, the workspace holds {request.limits.work_bytes}.",
            hint="Raise limits.work_bytes, or mount the folder they come from.",
        )


def _check_no_file_is_folder(names: set[str]) -> None:
    for name in names:
        parent = os.path.dirname(name)
        while parent:
            if parent in names:
                raise InvalidInput(f"The input file {parent!r} is also the folder of {name!r}.", hint="Rename one.")
            parent = os.path.dirname(parent)


def _cwd(request: CodeExecutionInput) -> str:
    if request.working_dir in (".", ""):
        return WORK
    return f"{WORK}/" + "/".join(split_name(request.working_dir, subject="working folder"))


def _env(request: CodeExecutionInput) -> dict[str, str]:
    """Return the whole environment of the program: a few fixed names, and those of the request."""
    for name, value in request.env.items():
        if not _ENV_NAME.match(name):
            raise InvalidInput(
                f"The environment variable name {name[:200]!r} is refused.", hint="Letters, digits, underscores."
            )
        _check_text(value, "environment value")
    base = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": HOME,
        "TMPDIR": "/tmp",  # noqa: S108 - the run's own
        "LANG": "C.UTF-8",
        "PYTHONNOUSERSITE": "1",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        # Behind Landlock the host's /etc/gitconfig is denied rather than absent, which git takes for an error.
        "GIT_CONFIG_NOSYSTEM": "1",
    }
    if request.network.domains:
        proxy = f"http://127.0.0.1:{PORT}"
        base |= {"HTTP_PROXY": proxy, "HTTPS_PROXY": proxy, "http_proxy": proxy, "https_proxy": proxy}
    return {**base, **request.env}


def _timeout(requested: float | None, default: float) -> float:
    seconds = default if requested is None else requested
    if not math.isfinite(seconds) or not 0 <= seconds <= MAX_TIMEOUT_SECONDS:
        raise InvalidInput(
            f"A timeout of {seconds} seconds is refused.",
            hint=f"0 to {MAX_TIMEOUT_SECONDS:.0f}, or None for the default.",
        )
    return seconds


def _workspace(path: str) -> tuple[str, os.stat_result]:
    """Return the real path of a workspace, and its `stat` result."""
    if "\0" in path or not os.path.isabs(path):
        raise InvalidInput(f"The workspace {path[:200]!r} is not an absolute path.", hint="Give an absolute path.")
    real = os.path.realpath(path)
    if real == "/" or _below(real, _SYSTEM_FOLDERS):
        raise InvalidInput(f"The workspace {path!r} is a system folder.", hint="Use a folder of your own.")
    try:
        state = os.lstat(real)
    except OSError:
        state = None
    if state is None or not stat.S_ISDIR(state.st_mode):
        raise InvalidInput(f"The workspace {path!r} is not a folder.", hint="Create it first.")
    return real, state


def _mount(mount: Mount, request: CodeExecutionInput, workspace: str | None) -> tuple[Mount, os.stat_result]:
    """Return the mount with the real path of its source, and the `stat` result of that."""
    if "\0" in mount.source or not os.path.isabs(mount.source) or not os.path.exists(mount.source):
        raise InvalidInput(f"The mount source {mount.source!r} is not there.", hint="Give an absolute, existing path.")
    if not mount.target.startswith("/"):
        raise InvalidInput(f"The mount target {mount.target!r} is not absolute.", hint="For example /skill.")
    target = "/" + "/".join(split_name(mount.target[1:], subject="mount target"))
    if _below(target, (*_SYSTEM_FOLDERS, "/tmp")) or target == WORK:  # noqa: S108
        raise InvalidInput(f"Nothing can be mounted at {target!r}.", hint="Use /skill, /data/… or below /work.")
    _check_target_in_workspace(target, request)
    source, state = _resolve_source(mount.source, request, workspace)
    return Mount(source=source, target=target, writable=mount.writable), state


def _resolve_source(source: str, request: CodeExecutionInput, workspace: str | None) -> tuple[str, os.stat_result]:
    """Return the real path of a mount's source, and its `stat` result.

    Follows no link below the workspace, where scripts can create them.

    Raises:
        InvalidInput: It is missing, or it lies in the workspace behind a link.
    """
    normal_path = os.path.normpath(source)
    folders = [] if workspace is None else [os.path.normpath(str(request.workspace)), workspace]
    try:
        for folder in folders:
            if workspace is not None and normal_path.startswith(folder + "/"):
                names = normal_path[len(folder) + 1 :]
                return f"{workspace}/{names}", _look_beneath(workspace, names.split("/"))
        real = os.path.realpath(source)
        return real, os.lstat(real)
    except OSError as error:
        raise InvalidInput(
            f"The mount source {source!r} is not there, or leads through a link.", hint="Mount what it leads to."
        ) from error


def _look_beneath(folder: str, names: Sequence[str]) -> os.stat_result:
    """Return the `stat` result of a path below a folder, opened name by name without following a link.

    Raises:
        OSError: A name is missing or a link.
    """
    with ExitStack() as opened:
        fd = os.open(folder, _PLACE | os.O_DIRECTORY)
        opened.callback(os.close, fd)
        for name in names:
            fd = os.open(name, _PLACE, dir_fd=fd)
            opened.callback(os.close, fd)
        state = os.fstat(fd)
    if stat.S_ISLNK(state.st_mode):
        raise OSError(errno.ELOOP, "a link")
    return state


def _check_target_in_workspace(target: str, request: CodeExecutionInput) -> None:
    """Refuse to create folders in a person's workspace only to mount something over them."""
    if request.workspace is None or not _below(target, (WORK,)):
        return
    workspace = os.fspath(request.workspace)
    place = os.path.join(workspace, target[len(WORK) + 1 :])
    real_place = os.path.realpath(place)
    if not os.path.exists(place) or not _below(real_place, (os.path.realpath(workspace),)):
        raise InvalidInput(f"The workspace has no {target!r} to mount over.", hint="Create it in the workspace first.")


def _below(path: str, folders: tuple[str, ...]) -> bool:
    return any(path == folder or path.startswith(folder + "/") for folder in folders)


def split_name(name: str, *, subject: str = "file name") -> list[str]:
    """Return the parts of a relative path.

    Raises:
        InvalidInput: It is empty, absolute, too long, has half a surrogate pair, a NUL, a backslash, an empty part, `.`
            or `..`.
    """
    parts = name.split("/")
    bad = not name or "\0" in name or "\\" in name or not 0 < _size_bytes(name) <= 1024
    if bad or any(part in ("", ".", "..") or _size_bytes(part) > 255 for part in parts):
        raise InvalidInput(
            f"The {subject} {name[:200]!a} is not a plain relative path.",
            hint="Use forward slashes, no leading slash, no '..', no backslash, at most 1024 bytes.",
        )
    return parts


def _size_bytes(name: str) -> int:
    """Return the length of a name in the file system; 0 if half a surrogate pair makes it invalid."""
    try:
        return len(os.fsencode(name))
    except UnicodeEncodeError:
        return 0
