"""Running a skill's script in an executor (tier 3).

The skill's whole folder is mounted read-only at `/skill`. The script runs in `/work`: the conversation's workspace, or
a fresh folder whose files are returned. Arguments are not interpreted by a shell.

Source: ADK (`RunSkillScriptTool`, its error codes and status).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import shlex
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

from bough.errors import BoughError, InvalidInput, NotFound
from bough.execution.base import (
    USUAL_GUARDS,
    CodeExecutionInput,
    CodeExecutionResult,
    CodeExecutor,
    File,
    Guards,
    Mount,
    Network,
)
from bough.execution.script_program import find_script_program
from bough.skills.model import Skill
from bough.skills.read.resources import list_resources, resolve, suggest_nearest
from bough.skills.trust.snapshot import SkillSnapshot, SnapshotStore, remove_tree

MAX_ARGUMENTS = 1_000
MAX_BYTES = 128 << 10


class BadArguments(InvalidInput):
    """Arguments that cannot be passed to a script.

    Attributes:
        error_code: `INVALID_ARGS_TYPE` or `INVALID_INPUT_ARGS`.
    """

    error_code: Literal["INVALID_ARGS_TYPE", "INVALID_INPUT_ARGS"]

    def __init__(self, message: str, error_code: Literal["INVALID_ARGS_TYPE", "INVALID_INPUT_ARGS"]) -> None:
        super().__init__(message, hint='pass a list ["--name", "x"], an object {"name": "x"} or a text \'--name x\'')
        self.error_code = error_code


def build_argv(args: Any = None) -> tuple[str, ...]:
    """Return the argument vector: a list verbatim, an object as options, a text split like in a POSIX shell.

    `{"name": "x", "verbose": true, "tag": ["a", "b"], "_": ["in.txt"]}` becomes
    `--name x --verbose --tag a --tag b in.txt`; `false` and `null` are omitted.

    Raises:
        BadArguments: Wrong type, an unclosed quote, a nested value, or too many arguments.
    """
    match args:
        case None:
            words: list[str] = []
        case str():
            words = _split(args)
        case Mapping():
            words = _build_options(cast("Mapping[Any, Any]", args))
        case list() | tuple():
            words = [_convert(item) for item in cast("list[Any]", args)]
        case _:
            raise BadArguments(
                f"invalid `args` of type {type(args).__name__}: expected a list, an object or a text",
                "INVALID_ARGS_TYPE",
            )
    return _check_words(words)


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise BadArguments(f"`args` cannot be split into words: {error}", "INVALID_INPUT_ARGS") from error


def _build_options(args: Mapping[Any, Any]) -> list[str]:
    words: list[str] = []
    for key, value in args.items():
        if key == "_":
            continue
        if not isinstance(key, str) or not key or any(char.isspace() or char in "=\0" for char in key):
            raise BadArguments(f"invalid option name {key!r}", "INVALID_INPUT_ARGS")
        flag = key if key.startswith("-") else f"--{key}"
        for item in _list_items(value):
            # Only `true` itself is a flag without a value: `1` is the value 1.
            words += [flag] if item is True else [flag, _convert(item)]
    return words + [_convert(item) for item in _list_items(args.get("_"))]


def _list_items(value: Any) -> list[Any]:
    items = cast("list[Any]", value) if isinstance(value, list | tuple) else [value]
    return [item for item in items if item is not None and item is not False]


def _convert(value: Any) -> str:
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case int() | float():
            return str(value)
        case _:
            raise BadArguments(
                f"invalid argument of type {type(value).__name__}: expected text or a number", "INVALID_INPUT_ARGS"
            )


def _check_words(words: list[str]) -> tuple[str, ...]:
    # The kernel ends an argument at NUL: the script would get less than was passed.
    if any("\0" in word for word in words):
        raise BadArguments("an argument contains a NUL byte", "INVALID_INPUT_ARGS")
    try:
        size = sum(len(word.encode()) for word in words)
    except UnicodeEncodeError as error:
        raise BadArguments("an argument is not valid Unicode", "INVALID_INPUT_ARGS") from error
    # Linux refuses to start a program with an argument of 128 KiB; here the error says what is wrong.
    if len(words) > MAX_ARGUMENTS or size > MAX_BYTES:
        raise BadArguments(f"more than {MAX_ARGUMENTS} arguments or {MAX_BYTES} bytes", "INVALID_INPUT_ARGS")
    return tuple(words)


ErrorCode: TypeAlias = Literal[
    "MISSING_SKILL_NAME",
    "MISSING_SCRIPT_NAME",
    "SKILL_NOT_FOUND",
    "SCRIPT_NOT_FOUND",
    "NO_CODE_EXECUTOR",
    "UNSUPPORTED_SCRIPT_TYPE",
    "INVALID_INPUT_ARGS",
    "INVALID_ARGS_TYPE",
    "EXECUTION_ERROR",
    "TIMEOUT",
    "SKILL_CHANGED",
    "SKILL_NOT_TRUSTED",
]

MAX_ERROR = 200
"""Maximum length of an error message for the model, in characters."""

MAX_SOURCE = 1 << 20
"""How much of a script is searched for inline metadata."""

_INLINE_METADATA = re.compile(r"(?m)^# /// (?P<type>[a-zA-Z0-9-]+)$\s(?P<content>(^#(| .*)$\s)+)^# ///$")
"""The expression that PEP 723 specifies."""

# Without bytecode: `__pycache__` folders would be among the output files.
_ENVIRONMENT: Mapping[str, str] = {"PYTHONDONTWRITEBYTECODE": "1", "SKILL_DIR": "/skill"}
_MAX_SKILL_ENTRIES = 64
# uv must use the sandbox's Python: a script could otherwise request another one, to be downloaded.
_UV_ENVIRONMENT: Mapping[str, str] = {"UV_CACHE_DIR": "/tmp/uv", "UV_PYTHON_DOWNLOADS": "never"}  # noqa: S108
NO_NETWORK = Network()
_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ScriptResult:
    """The result of a script.

    Attributes:
        status: `success` (exit code 0), `warning` (0, with output on stderr), `error` (otherwise).
        exit_code: None if nothing was run or a signal ended it.
        output_files: Files it created or changed in its working folder.
        truncated: Whether stdout or stderr was truncated.
        duration: Wall seconds.
        isolation: The isolation in effect: `none`, `landlock`, `namespaces` or `container`; empty if nothing was run.
        error: For the model, at most 200 characters; None unless `status` is `error`.
        details: The full error, for the log.
        argv: The arguments as passed.
        execution: The executor's result; None if nothing was run.
    """

    status: Literal["success", "warning", "error"]
    stdout: str = ""
    stderr: str = ""
    exit_code: int | None = None
    output_files: tuple[File, ...] = ()
    timed_out: bool = False
    truncated: bool = False
    duration: float = 0.0
    isolation: str = ""
    error_code: ErrorCode | None = None
    error: str | None = None
    details: str = ""
    skill: str = ""
    script: str = ""
    argv: tuple[str, ...] = ()
    execution: CodeExecutionResult | None = field(default=None, repr=False)

    def as_dict(self) -> dict[str, Any]:
        """Return the result for a model, as JSON: files by path and size; empty fields are omitted."""
        identity = {"skill": self.skill, "script": self.script} if self.script else {}
        out: dict[str, Any] = {**identity, "status": self.status, "stdout": self.stdout, "stderr": self.stderr}
        if self.exit_code is not None:
            out["exit_code"] = self.exit_code
        if self.output_files:
            out["output_files"] = [{"path": file.path, "size_bytes": len(file.content)} for file in self.output_files]
        flags = {"timed_out": self.timed_out, "truncated": self.truncated}
        out |= {name: value for name, value in flags.items() if value}
        if self.isolation:
            out |= {"duration": round(self.duration, 3), "isolation": self.isolation}
        if self.error_code:
            out |= {"error_code": self.error_code, "error": self.error}
        return out


class ScriptRefused(BoughError):
    """A script that was not run.

    Attributes:
        error_code: The reason.
    """

    code = "invalid_input"

    def __init__(self, error_code: ErrorCode, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint, details={"error_code": error_code})
        self.error_code: ErrorCode = error_code


def make_refusal(error_code: ErrorCode, message: str, *, skill: str = "", script: str = "") -> ScriptResult:
    """Return the result of a script that was not run."""
    return ScriptResult(
        status="error",
        error_code=error_code,
        error=shorten(message),
        details=message,
        skill=skill,
        script=script,
    )


def shorten(message: str) -> str:
    """Return `message` on one line with at most 200 characters."""
    line = " ".join(message.split())
    return line if len(line) <= MAX_ERROR else line[: MAX_ERROR - 1] + "…"


def resolve_script(skill: Skill, path: str, home: Path | None = None) -> str:
    """Return the path of a script relative to the skill's folder; the prefix `scripts/` is optional.

    Args:
        home: The snapshot to search; None: the skill's own folder.

    Raises:
        ScriptRefused: `MISSING_SCRIPT_NAME`, or `SCRIPT_NOT_FOUND` with the nearest match in the message.
    """
    name = path.strip().removeprefix("./") if isinstance(path, str) else ""  # pyright: ignore[reportUnnecessaryIsInstance]
    if not name:
        raise ScriptRefused("MISSING_SCRIPT_NAME", "no script name was given")
    folder = home if skill.folder is not None and home is not None else skill.folder
    if folder is None:
        raise ScriptRefused("SCRIPT_NOT_FOUND", f"skill {skill.name!r} is a single file and has no scripts")
    # `scripts/` first: a file of the same name at the top of the skill must not run in place of a script.
    for candidate in (f"scripts/{name.removeprefix('scripts/')}", name):
        try:
            file = resolve(folder, candidate)
        except InvalidInput as error:
            raise ScriptRefused("SCRIPT_NOT_FOUND", f"{error.message}; {error.hint}") from error
        except NotFound:
            continue
        return os.path.relpath(file, os.path.realpath(folder))
    files = list_resources(folder)
    hint = suggest_nearest(name, files.scripts or files.all)
    raise ScriptRefused("SCRIPT_NOT_FOUND", f"skill {skill.name!r} has no script {name[:60]!r}; {hint}")


def find_interpreter(file: Path) -> tuple[str, ...] | None:
    """Return the interpreter of a script, by its extension or its first line; the executable bit is irrelevant.

    None for Python, for which the executor chooses the interpreter.

    Raises:
        ScriptRefused: `UNSUPPORTED_SCRIPT_TYPE`.
    """
    with file.open("rb") as handle:
        head = handle.read(8192)
    program = find_script_program(file.name, head)
    if program is not None:
        return program.command or (None if program.language == "python" else (program.language,))
    raise ScriptRefused(
        "UNSUPPORTED_SCRIPT_TYPE",
        f"not a script: {file.name!r}; expected .py .sh .bash .js .mjs .cjs or a file that starts with `#!`",
    )


def read_dependencies(file: Path) -> tuple[str, ...]:
    """Return the declared dependencies of a Python script (PEP 723); empty for other scripts."""
    if file.suffix.lower() != ".py":
        return ()
    with file.open("rb") as handle:
        source = handle.read(MAX_SOURCE).decode("utf-8", "replace")
    blocks = [match for match in _INLINE_METADATA.finditer(source.replace("\r\n", "\n")) if match["type"] == "script"]
    if len(blocks) != 1:  # several blocks are an error by PEP 723, which `uv run --script` reports
        return ()
    lines = [line[2:] if line.startswith("# ") else line[1:] for line in blocks[0]["content"].splitlines()]
    try:
        names: Any = tomllib.loads("\n".join(lines)).get("dependencies", [])
    except tomllib.TOMLDecodeError:
        return ()
    is_valid = isinstance(names, list) and all(isinstance(name, str) for name in names)  # pyright: ignore
    return tuple(names) if is_valid else ()  # pyright: ignore


async def run_script(
    skill: Skill,
    executor: CodeExecutor | None,
    script_path: str,
    args: Any = None,
    *,
    workspace: Path | None = None,
    timeout_seconds: float | None = None,
    env: Mapping[str, str] | None = None,
    network: Network = NO_NETWORK,
    execution_id: str | None = None,
    snapshot: SkillSnapshot | None = None,
    guards: Guards = USUAL_GUARDS,
) -> ScriptResult:
    """Run a script of `skill` and return its result; any failure is a result with an error code.

    Args:
        executor: None returns `NO_CODE_EXECUTOR`.
        script_path: Relative to the skill's folder; `scripts/` is optional.
        args: A list, an object or a text; see `build_argv`.
        workspace: The working folder; None: an empty one, whose files are returned.
        timeout_seconds: None: the executor's default.
        network: Which domains it may reach. The dependencies that a script declares (PEP 723) are installed by
            `uv run --script` if uv is available and any domain is allowed; otherwise only the packages of the
            sandbox's Python are available.
        execution_id: Identifies the conversation; an executor may reuse a warm interpreter of the same id.
        snapshot: The snapshot of the skill to mount and run; None takes one for this run.
        guards: Names in the workspace that the script cannot change.
    """
    if executor is None:
        message = "no code executor is configured; pass one to the toolset or the agent"
        return make_refusal("NO_CODE_EXECUTOR", message, skill=skill.name, script=str(script_path))
    temporary: Path | None = None
    try:
        if snapshot is None and skill.folder is not None:
            temporary = Path(tempfile.mkdtemp(prefix="bough-skill-"))
            temporary.chmod(0o755)  # mkdtemp makes it 0700, but a sandbox may run as another user
            snapshot = await asyncio.to_thread(_take_snapshot, skill.folder, temporary)
        script, needs, request = await asyncio.to_thread(
            _prepare, skill, snapshot, script_path, args, workspace, network
        )
        # Held during the whole run: no other process may garbage-collect the mounted folder.
        with contextlib.nullcontext() if snapshot is None else snapshot.hold():
            ran = await executor.execute(
                replace(
                    request,
                    timeout_seconds=timeout_seconds,
                    env=request.env | dict(env or {}),
                    execution_id=execution_id,
                    guards=guards,
                )
            )
        home = snapshot.folder if snapshot is not None and workspace is not None else None
        result = make_result(ran, skill=skill.name, script=script, argv=request.argv)
        return _add_hint(result, needs, home)
    except (ScriptRefused, BadArguments) as error:
        return make_refusal(error.error_code, error.message, skill=skill.name, script=str(script_path))
    except BoughError as error:  # the model gets every failure as a result, and can react to it
        message = f"{error.message}; {error.hint}" if error.hint else error.message
        _log.warning("could not run script %s of skill %s: %s", script_path, skill.name, message)
        return make_refusal("EXECUTION_ERROR", message, skill=skill.name, script=str(script_path))
    except OSError as error:
        return make_refusal("EXECUTION_ERROR", f"the script cannot be read: {error.strerror}", skill=skill.name)
    finally:
        # Also if the run is cancelled; removing a large skill blocks, so it happens in a thread.
        if temporary is not None:
            await asyncio.to_thread(remove_tree, temporary)


def _take_snapshot(folder: Path, place: Path) -> SkillSnapshot:
    return SnapshotStore(place).take(Path(os.path.realpath(folder)), allow_faults=True)


def _prepare(
    skill: Skill,
    snapshot: SkillSnapshot | None,
    script_path: str,
    args: Any,
    workspace: Path | None,
    network: Network,
) -> tuple[str, tuple[str, ...], CodeExecutionInput]:
    """Return the script's path, its dependencies, and the request that runs it; reads the head of the script."""
    # The script is looked up in the snapshot that gets mounted, never in the skill's folder, which may have changed.
    home = Path(os.path.realpath(snapshot.folder if snapshot is not None else skill.folder or ""))
    script = resolve_script(skill, script_path, home)
    file = home / script
    needs = read_dependencies(file)
    command = find_interpreter(file)
    mounts = [Mount(source=str(home), target="/skill")]
    files: tuple[File, ...] = ()
    if workspace is None:
        skill_mounts, files = _mount_skill_files(home)
        mounts += skill_mounts
    environment = dict(_ENVIRONMENT)
    if needs and network.domains and (uv := find_uv()):
        # The program itself is mounted: a link to it would dangle in the sandbox.
        mounts.append(Mount(source=os.path.realpath(uv), target="/uv"))
        command = ("/uv", "run", "--quiet", "--no-project", "--script")
        environment |= _UV_ENVIRONMENT
    request = CodeExecutionInput(
        script=f"/skill/{script}",
        command=command,
        argv=build_argv(args),
        mounts=tuple(mounts),
        input_files=files,
        workspace=None if workspace is None else os.path.realpath(workspace),
        network=network,
        env=environment,
    )
    return script, needs, request


def _mount_skill_files(home: Path) -> tuple[list[Mount], tuple[File, ...]]:
    """Return mounts and files that make a skill's own folders and small files visible in an empty working folder.

    So `open("references/format.md")` works, as in ADK. Nothing is added to a user's workspace, where a script uses
    `$SKILL_DIR`.
    """
    mounts: list[Mount] = []
    files: list[File] = []
    bytes_left = MAX_SOURCE
    for path in sorted(home.iterdir())[:_MAX_SKILL_ENTRIES]:
        if path.is_symlink() or path.name.startswith("."):
            continue
        if path.is_dir():
            mounts.append(Mount(source=str(path), target=f"/work/{path.name}"))
        elif (size := path.stat().st_size) <= bytes_left:
            bytes_left -= size
            files.append(File(path=path.name, content=path.read_bytes()))
    return mounts, tuple(files)


def find_uv() -> str | None:
    """Return the path of `uv`: in the folder of this interpreter, else in `PATH`; None if it is not installed."""
    return shutil.which("uv", path=os.path.dirname(sys.executable)) or shutil.which("uv")


def _add_hint(result: ScriptResult, needs: tuple[str, ...], home: Path | None) -> ScriptResult:
    """Add a hint to the error about a module that was not installed, or a file that is in the skill's own folder."""
    if (
        result.error_code == "EXECUTION_ERROR"
        and home is not None
        and (name := _find_missing_file(result.stderr, home))
    ):
        message = f"{result.details}; {name} belongs to the skill: open it below $SKILL_DIR (/skill)"
        return replace(result, error=shorten(message), details=message)
    if result.error_code != "EXECUTION_ERROR" or not needs or "ModuleNotFoundError" not in result.stderr:
        return result
    message = f"{result.details}; declared dependencies are not installed: {', '.join(needs)}"
    message += "; `bough skills run … --network DOMAIN` fetches them by uv"
    return replace(result, error=shorten(message), details=message)


def _find_missing_file(stderr: str, home: Path) -> str:
    """Return the file name in a Python `FileNotFoundError` if the skill has that file; empty otherwise."""
    # Relative names without `..` only: the output of a script must not make this process look elsewhere.
    match = re.search(r"FileNotFoundError: .*: '([^'/][^']{0,200})'\s*$", stderr)
    return match[1] if match and ".." not in match[1].split("/") and (home / match[1]).is_file() else ""


def make_result(ran: CodeExecutionResult, *, skill: str, script: str, argv: tuple[str, ...] = ()) -> ScriptResult:
    """Convert an executor's result to a script's result. The status depends on exit code and timeout only."""
    stdout, stderr = ran.stdout.decode("utf-8", "replace"), ran.stderr.decode("utf-8", "replace")
    code, message = _describe_failure(ran, stderr)
    success_status: Literal["warning", "success"] = "warning" if stderr.strip() else "success"
    return ScriptResult(
        status="error" if code else success_status,
        stdout=stdout,
        stderr=stderr,
        exit_code=ran.exit_code,
        output_files=ran.output_files,
        timed_out=ran.timed_out,
        truncated=ran.stdout_truncated or ran.stderr_truncated,
        duration=ran.wall_seconds,
        isolation=ran.isolation.name.lower(),
        error_code=code,
        error=shorten(message) if code else None,
        details=message,
        skill=skill,
        script=script,
        argv=argv,
        execution=ran,
    )


def _describe_failure(ran: CodeExecutionResult, stderr: str) -> tuple[ErrorCode | None, str]:
    if ran.timed_out:
        return "TIMEOUT", f"timed out after {ran.wall_seconds:.1f} s; the output so far was kept"
    if ran.ok:
        return None, ""
    lines = stderr.strip().splitlines()
    last = f": {lines[-1].strip()}" if lines else ""
    if ran.exit_code is not None:
        return "EXECUTION_ERROR", f"exit code {ran.exit_code}{last}"
    how = ran.killed_by or (f"signal {ran.signal}" if ran.signal else "a limit")
    return "EXECUTION_ERROR", f"killed by {how}{last}"
