"""Check every name, number and folder of a request before its run starts, and make the plan of the run.

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
from bough.execution.value_types import check_types

WORK: Final = "/work"
CODE_FOLDER: Final = "/run/bough/code"
"""The folder inside the sandbox that contains the file with `code`."""

HOME: Final = "/tmp/home"  # noqa: S108 - private to the run
"""The home folder inside the sandbox. It is new for each run, so that no start-up file affects a later run."""

MAX_INPUT_FILES: Final = 10_000
MAX_TIMEOUT_SECONDS: Final = 7 * 24 * 3600.0

_PATH_FLAGS: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
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
    """A checked request, and everything about its run that does not depend on the executor.

    All paths are those inside the sandbox, except `workspace` and the sources of `mounts`.

    Attributes:
        python: The file that a Python interpreter runs; None to execute `argv`.
        argv: The command and its arguments; with `python`, the value of `sys.argv`.
        path0: The first entry of `sys.path`.
        cwd: The working folder.
        code_file: Name and content of the file with `code`; None for a script.
        domain_rules: The domains that the program may connect to; empty for none.
        file_identities: (device, inode) of the workspace and of each mount's source, by the path inside. They are
            compared again when the program starts, because a path may lead to another file by then.
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
    domain_rules: tuple[DomainRule, ...]
    file_identities: Mapping[str, tuple[int, int]]

    @property
    def stdin(self) -> bytes:
        """The input of the program."""
        return self.request.stdin if isinstance(self.request.stdin, bytes) else self.request.stdin.encode()


def make_plan(request: CodeExecutionInput, *, default_timeout_seconds: float) -> Plan:
    """Check `request` and return its plan. Reads the file system only to examine the workspace and the mounts.

    Raises:
        InvalidInput: A part of the request is invalid.
    """
    check_types(request)
    _check_mount_points(request)
    _check_limits(request.limits)
    _check_files(request)
    python, argv, path0, code_file = _choose_program(request)
    workspace, workspace_stat = (
        (None, None) if request.workspace is None else _check_workspace(os.fspath(request.workspace))
    )
    file_identities = {} if workspace_stat is None else {WORK: (workspace_stat.st_dev, workspace_stat.st_ino)}
    mounts: list[Mount] = []
    for mount in request.mounts:
        checked_mount, source_stat = _check_mount(mount, request, workspace)
        mounts.append(checked_mount)
        file_identities[checked_mount.target] = (source_stat.st_dev, source_stat.st_ino)
    return Plan(
        request=request,
        python=python,
        argv=argv,
        path0=path0,
        cwd=_resolve_cwd(request),
        env=_build_environment(request),
        timeout_seconds=_choose_timeout(request.timeout_seconds, default_timeout_seconds),
        code_file=code_file,
        workspace=workspace,
        mounts=tuple(mounts),
        domain_rules=tuple(DomainRule.parse(domain) for domain in request.network.domains),
        file_identities=file_identities,
    )


def refuse_persistent_interpreter(request: CodeExecutionInput) -> None:
    """Refuse a request for a persistent interpreter, in an executor that starts a new one for each run.

    Raises:
        NotSupported: The request is for a persistent interpreter.
    """
    if request.stateful and request.execution_id is not None and request.code is not None:
        raise NotSupported(
            "this executor starts a new interpreter for each run, so variables of earlier runs would be lost",
            hint="leave `stateful` out and set all variables in each run, or use LocalSandboxCodeExecutor "
            "where bubblewrap is installed",
        )


def _check_mount_points(request: CodeExecutionInput) -> None:
    """Refuse paths and mount targets that an executor cannot mount.

    Raises:
        InvalidInput: A path contains a colon, which container engines use as a separator; or a mount target is given
            twice, or lies below a mounted file.
    """
    targets = [mount.target.rstrip("/") for mount in request.mounts]
    for path in (os.fspath(request.workspace or ""), *targets, *(mount.source for mount in request.mounts)):
        if ":" in path:
            raise InvalidInput(
                f"The path {path[:200]!r} contains a colon.", hint="Rename the folder, or mount a folder above it."
            )
    for mount, target in zip(request.mounts, targets, strict=True):
        if targets.count(target) > 1:
            raise InvalidInput(f"The mount target {target[:200]!r} is given twice.", hint="Give each target once.")
        outer_mounts = [
            other
            for other, other_target in zip(request.mounts, targets, strict=True)
            if target.startswith(other_target + "/")
        ]
        if any(os.path.isfile(outer.source) for outer in outer_mounts):
            raise InvalidInput(
                f"The mount target {mount.target[:200]!r} lies below a mounted file.", hint="Choose another target."
            )


def _choose_program(request: CodeExecutionInput) -> tuple[str | None, tuple[str, ...], str, tuple[str, bytes] | None]:
    """Return the fields `python`, `argv`, `path0` and `code_file` of the plan."""
    if (request.code is None) == (request.script is None):
        raise InvalidInput("Exactly one of code and script must be given.", hint="Set code=… or script=…, not both.")
    if request.language not in _CODE_FILES:
        raise InvalidInput(
            f"The language {request.language!r} is not known.", hint=f"One of: {', '.join(sorted(_CODE_FILES))}."
        )
    _check_arguments(request)
    if request.code is not None:
        return _plan_code(request, request.code)
    return _plan_script(request, os.fspath(request.script or ""))


def _plan_code(request: CodeExecutionInput, code: str) -> tuple[str | None, tuple[str, ...], str, tuple[str, bytes]]:
    """Return `python`, `argv`, `path0` and `code_file` of the plan for source text."""
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


def _plan_script(request: CodeExecutionInput, script: str) -> tuple[str | None, tuple[str, ...], str, None]:
    """Return `python`, `argv`, `path0` and `code_file` of the plan for a script."""
    path = _resolve_script(script)
    if request.command is not None:
        return None, (*request.command, path, *request.argv), "", None
    program = find_script_program(path, b"")  # only by the name, because the file may exist only inside the sandbox
    if program is not None and program.language == "python":
        return path, (path, *request.argv), os.path.dirname(path), None
    interpreter = () if program is None else (program.language,)
    return None, (*interpreter, path, *request.argv), "", None


def _resolve_script(script: str) -> str:
    """Return the absolute path of a script inside the sandbox; `script` may be relative to `/work`."""
    if script.startswith("/"):
        return "/" + "/".join(split_path(script[1:], subject="script"))
    return f"{WORK}/" + "/".join(split_path(script, subject="script"))


def _check_arguments(request: CodeExecutionInput) -> None:
    if request.command is not None and not request.command:
        raise InvalidInput("The command is empty.", hint="Name an interpreter, for example ('python3',), or None.")
    for text in (*request.argv, *(request.command or ())):
        _check_text(text, "argument")


def _check_text(text: str, noun: str) -> None:
    """Refuse a text that cannot be an argument or environment value of a program."""
    try:
        raw = os.fsencode(text)
    except UnicodeEncodeError as error:
        raise InvalidInput(f"An {noun} is not valid Unicode.", hint="Remove half surrogate pairs.") from error
    if b"\0" in raw:
        raise InvalidInput(f"An {noun} contains a NUL character.", hint="Pass such data by stdin or by a file.")
    if len(raw) > 128 * 1024 - 1:
        raise InvalidInput(f"An {noun} is longer than 128 KiB.", hint="Pass long data by stdin or by a file.")


def _check_limits(limits: ExecutionLimits) -> None:
    for limit in fields(limits):
        value = getattr(limits, limit.name)
        if not isinstance(value, int) or value < 0:
            raise InvalidInput(f"The limit {limit.name} is {value!r}.", hint="Limits are whole numbers, zero or more.")
    for name in ("memory_bytes", "processes", "open_files", "tmp_bytes", "work_bytes"):
        if getattr(limits, name) == 0:
            raise InvalidInput(
                f"The limit {name} is 0, and no program can run with it.", hint="Set it to 1 or a larger number."
            )


def _check_files(request: CodeExecutionInput) -> None:
    """Refuse input files with invalid or repeated names, and too many or too large ones."""
    if len(request.input_files) > MAX_INPUT_FILES:
        raise InvalidInput(
            f"There are {len(request.input_files)} input files, and at most {MAX_INPUT_FILES} are allowed.",
            hint="Pass their folder as the workspace, or mount it.",
        )
    names: set[str] = set()
    for file in request.input_files:
        split_path(file.path, subject="input file name")
        if file.path in names:
            raise InvalidInput(f"The input file {file.path!r} is given twice.", hint="Give each name once.")
        names.add(file.path)
    _check_no_file_is_folder(names)
    total = sum(len(file.content) for file in request.input_files)
    if total > request.limits.work_bytes:
        raise InvalidInput(
            f"The input files have {total} bytes, and the limit of the workspace is {request.limits.work_bytes}.",
            hint="Raise limits.work_bytes, or mount the folder of these files.",
        )


def _check_no_file_is_folder(names: set[str]) -> None:
    """Refuse input files of which one is the parent folder of another."""
    for name in names:
        parent = os.path.dirname(name)
        while parent:
            if parent in names:
                raise InvalidInput(f"The input file {parent!r} is also the folder of {name!r}.", hint="Rename one.")
            parent = os.path.dirname(parent)


def _resolve_cwd(request: CodeExecutionInput) -> str:
    if request.working_dir in (".", ""):
        return WORK
    return f"{WORK}/" + "/".join(split_path(request.working_dir, subject="working folder"))


def _build_environment(request: CodeExecutionInput) -> dict[str, str]:
    """Return the complete environment of the program: a few fixed variables, and those of the request."""
    for name, value in request.env.items():
        if not _ENV_NAME.match(name):
            raise InvalidInput(
                f"The environment variable name {name[:200]!r} is invalid.",
                hint="Use letters, digits and underscores.",
            )
        _check_text(value, "environment value")
    base = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": HOME,
        "TMPDIR": "/tmp",  # noqa: S108 - private to the run
        "LANG": "C.UTF-8",
        "PYTHONNOUSERSITE": "1",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        # Under Landlock, reading the host's /etc/gitconfig is denied, and git would fail.
        "GIT_CONFIG_NOSYSTEM": "1",
    }
    if request.network.domains:
        proxy = f"http://127.0.0.1:{PORT}"
        base |= {"HTTP_PROXY": proxy, "HTTPS_PROXY": proxy, "http_proxy": proxy, "https_proxy": proxy}
    return {**base, **request.env}


def _choose_timeout(requested: float | None, default: float) -> float:
    seconds = default if requested is None else requested
    if not math.isfinite(seconds) or not 0 <= seconds <= MAX_TIMEOUT_SECONDS:
        raise InvalidInput(
            f"The timeout of {seconds} seconds is out of range.",
            hint=f"Use 0 to {MAX_TIMEOUT_SECONDS:.0f} seconds, or None for the default.",
        )
    return seconds


def _check_workspace(path: str) -> tuple[str, os.stat_result]:
    """Return the real path of a workspace, and its `stat` result."""
    if "\0" in path or not os.path.isabs(path):
        raise InvalidInput(f"The workspace {path[:200]!r} is not an absolute path.", hint="Pass an absolute path.")
    real = os.path.realpath(path)
    if real == "/" or _is_below(real, _SYSTEM_FOLDERS):
        raise InvalidInput(f"The workspace {path!r} is a system folder.", hint="Use a folder of your own.")
    try:
        real_stat = os.lstat(real)
    except OSError:
        real_stat = None
    if real_stat is None or not stat.S_ISDIR(real_stat.st_mode):
        raise InvalidInput(f"The workspace {path!r} is not a folder.", hint="Create it first.")
    return real, real_stat


def _check_mount(mount: Mount, request: CodeExecutionInput, workspace: str | None) -> tuple[Mount, os.stat_result]:
    """Return the mount with the real path of its source, and the source's `stat` result."""
    if "\0" in mount.source or not os.path.isabs(mount.source) or not os.path.exists(mount.source):
        raise InvalidInput(
            f"The mount source {mount.source!r} does not exist, or is not absolute.",
            hint="Pass the absolute path of an existing file or folder.",
        )
    if not mount.target.startswith("/"):
        raise InvalidInput(f"The mount target {mount.target!r} is not absolute.", hint="Use a path such as /skill.")
    target = "/" + "/".join(split_path(mount.target[1:], subject="mount target"))
    if _is_below(target, (*_SYSTEM_FOLDERS, "/tmp")) or target == WORK:  # noqa: S108
        raise InvalidInput(f"Nothing can be mounted at {target!r}.", hint="Use /skill, /data/… or below /work.")
    _check_target_in_workspace(target, request)
    source, source_stat = _resolve_source(mount.source, request, workspace)
    return Mount(source=source, target=target, writable=mount.writable), source_stat


def _resolve_source(source: str, request: CodeExecutionInput, workspace: str | None) -> tuple[str, os.stat_result]:
    """Return the real path of a mount's source, and its `stat` result.

    Below the workspace it follows no link, because scripts can create links there.

    Raises:
        InvalidInput: The source does not exist, or its path in the workspace contains a link.
    """
    normal_path = os.path.normpath(source)
    workspace_paths = [] if workspace is None else [os.path.normpath(str(request.workspace)), workspace]
    try:
        for workspace_path in workspace_paths:
            if workspace is not None and normal_path.startswith(workspace_path + "/"):
                relative_path = normal_path[len(workspace_path) + 1 :]
                return f"{workspace}/{relative_path}", _stat_beneath(workspace, relative_path.split("/"))
        real = os.path.realpath(source)
        return real, os.lstat(real)
    except OSError as error:
        raise InvalidInput(
            f"The mount source {source!r} does not exist, or its path contains a link.",
            hint="Mount the target of the link.",
        ) from error


def _stat_beneath(folder: str, names: Sequence[str]) -> os.stat_result:
    """Return the `stat` result of the path `names` below a folder, opened name by name without following a link.

    Raises:
        OSError: A name does not exist, or is a link.
    """
    with ExitStack() as opened:
        fd = os.open(folder, _PATH_FLAGS | os.O_DIRECTORY)
        opened.callback(os.close, fd)
        for name in names:
            fd = os.open(name, _PATH_FLAGS, dir_fd=fd)
            opened.callback(os.close, fd)
        file_stat = os.fstat(fd)
    if stat.S_ISLNK(file_stat.st_mode):
        raise OSError(errno.ELOOP, "a link")
    return file_stat


def _check_target_in_workspace(target: str, request: CodeExecutionInput) -> None:
    """Refuse a mount target that does not exist in a person's workspace, because mounting would create it there.

    Raises:
        InvalidInput: The target lies below `/work`, and the workspace does not contain it.
    """
    if request.workspace is None or not _is_below(target, (WORK,)):
        return
    workspace = os.fspath(request.workspace)
    host_path = os.path.join(workspace, target[len(WORK) + 1 :])
    real_path = os.path.realpath(host_path)
    if not os.path.exists(host_path) or not _is_below(real_path, (os.path.realpath(workspace),)):
        raise InvalidInput(
            f"The mount target {target!r} does not exist in the workspace.", hint="Create it in the workspace first."
        )


def _is_below(path: str, folders: tuple[str, ...]) -> bool:
    """Whether `path` is one of the folders, or lies below one."""
    return any(path == folder or path.startswith(folder + "/") for folder in folders)


def split_path(path: str, *, subject: str = "file name") -> list[str]:
    """Return the parts of a relative path.

    Args:
        path: A path with forward slashes.
        subject: What the path names, for the error message.

    Raises:
        InvalidInput: The path is empty, absolute or too long, or it contains half a surrogate pair, a NUL, a backslash,
            an empty part, `.` or `..`.
    """
    parts = path.split("/")
    is_invalid = not path or "\0" in path or "\\" in path or not 0 < _measure_encoded(path) <= 1024
    if is_invalid or any(part in ("", ".", "..") or _measure_encoded(part) > 255 for part in parts):
        raise InvalidInput(
            f"The {subject} {path[:200]!a} is not a plain relative path.",
            hint="Use forward slashes, no leading slash, no '..', no backslash, at most 1024 bytes.",
        )
    return parts


def _measure_encoded(name: str) -> int:
    """Return the length of a name in bytes, as the file system stores it; 0 if it contains half a surrogate pair."""
    try:
        return len(os.fsencode(name))
    except UnicodeEncodeError:
        return 0
