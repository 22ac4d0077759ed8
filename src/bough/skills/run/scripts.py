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
from bough.markdown import fence, join, table
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
    """Return a script's argument vector from a list, an object of options, or a text in POSIX shell syntax.

    `{"name": "x", "verbose": true, "tag": ["a", "b"], "_": ["in.txt"]}` becomes
    `--name x --verbose --tag a --tag b in.txt`; `false` and `null` are omitted.

    Raises:
        BadArguments: Wrong type, an unclosed quote, a nested value, or too many arguments.
    """
    match args:
        case None:
            arguments: list[str] = []
        case str():
            arguments = _split_text(args)
        case Mapping():
            arguments = _build_options(cast("Mapping[Any, Any]", args))
        case list() | tuple():
            arguments = [_format_argument(item) for item in cast("list[Any]", args)]
        case _:
            raise BadArguments(
                f"invalid `args` of type {type(args).__name__}: expected a list, an object or a text",
                "INVALID_ARGS_TYPE",
            )
    return _check_arguments(arguments)


def _split_text(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise BadArguments(f"`args` cannot be split into words: {error}", "INVALID_INPUT_ARGS") from error


def _build_options(args: Mapping[Any, Any]) -> list[str]:
    """Return `--name value` for each entry of an object, then the items of `_`."""
    arguments: list[str] = []
    for key, value in args.items():
        if key == "_":
            continue
        if not isinstance(key, str) or not key or any(char.isspace() or char in "=\0" for char in key):
            raise BadArguments(f"invalid option name {key!r}", "INVALID_INPUT_ARGS")
        flag = key if key.startswith("-") else f"--{key}"
        for item in _list_option_values(value):
            # Only `true` is a flag without a value; `1` is the value 1.
            arguments += [flag] if item is True else [flag, _format_argument(item)]
    return arguments + [_format_argument(item) for item in _list_option_values(args.get("_"))]


def _list_option_values(value: Any) -> list[Any]:
    """Return the values of an option; `null` and `false` are omitted."""
    items = cast("list[Any]", value) if isinstance(value, list | tuple) else [value]
    return [item for item in items if item is not None and item is not False]


def _format_argument(value: Any) -> str:
    """Return a text, a number or a truth value as an argument."""
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


def _check_arguments(arguments: list[str]) -> tuple[str, ...]:
    """Return the arguments as a tuple, or raise `BadArguments` if the kernel could not pass them."""
    # The kernel ends an argument at NUL, so the script would receive only the text before it.
    if any("\0" in argument for argument in arguments):
        raise BadArguments("an argument contains a NUL byte", "INVALID_INPUT_ARGS")
    try:
        size = sum(len(argument.encode()) for argument in arguments)
    except UnicodeEncodeError as error:
        raise BadArguments("an argument is not valid Unicode", "INVALID_INPUT_ARGS") from error
    # Linux cannot start a program with an argument of 128 KiB; this error is clearer than the kernel's.
    if len(arguments) > MAX_ARGUMENTS or size > MAX_BYTES:
        raise BadArguments(f"more than {MAX_ARGUMENTS} arguments or {MAX_BYTES} bytes", "INVALID_INPUT_ARGS")
    return tuple(arguments)


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
"""How much of a script is searched for inline metadata, in bytes."""

_INLINE_METADATA = re.compile(r"(?m)^# /// (?P<type>[a-zA-Z0-9-]+)$\s(?P<content>(^#(| .*)$\s)+)^# ///$")
"""The expression that PEP 723 specifies."""

# Without bytecode: `__pycache__` folders would be among the output files.
_ENVIRONMENT: Mapping[str, str] = {"PYTHONDONTWRITEBYTECODE": "1", "SKILL_DIR": "/skill"}
_MAX_SKILL_ENTRIES = 64
"""How many entries at the top of a skill's folder are shown in an empty working folder."""

_MAX_COPIED_BYTES = 1 << 20
"""Total size of a skill's top-level files that are copied into an empty working folder."""

# uv must use the sandbox's Python: otherwise a script could request another version, which uv would download.
_UV_ENVIRONMENT: Mapping[str, str] = {"UV_CACHE_DIR": "/tmp/uv", "UV_PYTHON_DOWNLOADS": "never"}  # noqa: S108
NO_NETWORK = Network()
_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ScriptResult:
    """The result of a script.

    Attributes:
        status: `success` (exit code 0), `warning` (0, with output on stderr), `error` (otherwise).
        exit_code: None if nothing was run, or a signal ended the script.
        output_files: Files that the script created or changed in its working folder.
        truncated: Whether stdout or stderr was truncated.
        duration: Wall seconds.
        isolation: The isolation in effect: `none`, `landlock`, `namespaces` or `container`; empty if nothing was run.
        error: For the model, at most 200 characters; None unless `status` is `error`.
        details: The full error message, for the log.
        argv: The arguments that the script received.
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

    def _repr_markdown_(self) -> str:
        return join(
            fence(self.stdout) if self.stdout else "",
            fence(self.stderr) if self.stderr else "",
            table(
                [
                    ("script", f"{self.skill}/{self.script}" if self.script else ""),
                    ("status", self.status),
                    ("exit code", "" if self.exit_code is None else str(self.exit_code)),
                    ("error", self.error or ""),
                    ("seconds", f"{self.duration:.2f}"),
                    ("isolation", self.isolation),
                    ("files", ", ".join(f"{file.path} ({len(file.content)} bytes)" for file in self.output_files)),
                ]
            ),
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the result for a model, as JSON: files by path and size; empty fields are omitted."""
        identity = {"skill": self.skill, "script": self.script} if self.script else {}
        result: dict[str, Any] = {**identity, "status": self.status, "stdout": self.stdout, "stderr": self.stderr}
        if self.exit_code is not None:
            result["exit_code"] = self.exit_code
        if self.output_files:
            result["output_files"] = [
                {"path": file.path, "size_bytes": len(file.content)} for file in self.output_files
            ]
        flags = {"timed_out": self.timed_out, "truncated": self.truncated}
        result |= {name: value for name, value in flags.items() if value}
        if self.isolation:
            result |= {"duration": round(self.duration, 3), "isolation": self.isolation}
        if self.error_code:
            result |= {"error_code": self.error_code, "error": self.error}
        return result


class ScriptRefused(BoughError):
    """Raised for a script that cannot be run.

    Attributes:
        error_code: Why it cannot be run.
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


def resolve_script(skill: Skill, path: str, snapshot_folder: Path | None = None) -> str:
    """Return the path of a script relative to the skill's folder; the prefix `scripts/` is optional.

    Args:
        snapshot_folder: The snapshot to search; None: the skill's own folder.

    Raises:
        ScriptRefused: `MISSING_SCRIPT_NAME`, or `SCRIPT_NOT_FOUND` with the nearest match in the message.
    """
    name = path.strip().removeprefix("./") if isinstance(path, str) else ""  # pyright: ignore[reportUnnecessaryIsInstance]
    if not name:
        raise ScriptRefused("MISSING_SCRIPT_NAME", "no script name was given")
    folder = skill.folder
    if folder is None:
        raise ScriptRefused("SCRIPT_NOT_FOUND", f"skill {skill.name!r} is a single file and has no scripts")
    if snapshot_folder is not None:
        folder = snapshot_folder
    # `scripts/` first: a file of the same name at the top of the skill must not run in place of a script.
    for candidate in (f"scripts/{name.removeprefix('scripts/')}", name):
        try:
            file = resolve(folder, candidate)
        except InvalidInput as error:
            raise ScriptRefused("SCRIPT_NOT_FOUND", f"{error.message}; {error.hint}") from error
        except NotFound:
            continue
        return os.path.relpath(file, os.path.realpath(folder))
    resources = list_resources(folder)
    hint = suggest_nearest(name, resources.scripts or resources.all)
    raise ScriptRefused("SCRIPT_NOT_FOUND", f"skill {skill.name!r} has no script {name[:60]!r}; {hint}")


def find_interpreter(file: Path) -> tuple[str, ...] | None:
    """Return the command that interprets a script, by its extension or first line; the executable bit is irrelevant.

    None for a Python script, whose interpreter the executor chooses.

    Raises:
        ScriptRefused: `UNSUPPORTED_SCRIPT_TYPE`.
    """
    with file.open("rb") as handle:
        head = handle.read(8192)
    program = find_script_program(file.name, head)
    if program is None:
        raise ScriptRefused(
            "UNSUPPORTED_SCRIPT_TYPE",
            f"not a script: {file.name!r}; expected .py .sh .bash .js .mjs .cjs or a file that starts with `#!`",
        )
    if program.command:
        return program.command
    return None if program.language == "python" else (program.language,)


def read_dependencies(file: Path) -> tuple[str, ...]:
    """Return the declared dependencies of a Python script (PEP 723); empty for other scripts."""
    if file.suffix.lower() != ".py":
        return ()
    with file.open("rb") as handle:
        source = handle.read(MAX_SOURCE).decode("utf-8", "replace")
    blocks = [match for match in _INLINE_METADATA.finditer(source.replace("\r\n", "\n")) if match["type"] == "script"]
    if len(blocks) != 1:  # PEP 723 forbids several blocks; `uv run --script` reports them
        return ()
    lines = [line[2:] if line.startswith("# ") else line[1:] for line in blocks[0]["content"].splitlines()]
    try:
        dependencies: Any = tomllib.loads("\n".join(lines)).get("dependencies", [])
    except tomllib.TOMLDecodeError:
        return ()
    is_valid = isinstance(dependencies, list) and all(isinstance(item, str) for item in dependencies)  # pyright: ignore
    return tuple(dependencies) if is_valid else ()  # pyright: ignore


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
        network: The domains that the script may reach. If any is allowed and uv is available, `uv run --script`
            installs the script's declared dependencies (PEP 723). Otherwise the script can import only the packages
            of the sandbox's Python.
        execution_id: Identifies the conversation; an executor may reuse the warm interpreter of an earlier run.
        snapshot: The snapshot of the skill to mount and run; None takes one for this run only.
        guards: Names in the workspace that the script cannot change.
    """
    if executor is None:
        message = "no code executor is configured; pass one to the toolset or the agent"
        return make_refusal("NO_CODE_EXECUTOR", message, skill=skill.name, script=str(script_path))
    temporary_folder: Path | None = None
    try:
        if snapshot is None and skill.folder is not None:
            temporary_folder = Path(tempfile.mkdtemp(prefix="bough-skill-"))
            temporary_folder.chmod(0o755)  # mkdtemp makes it 0700, but a sandbox may run as another user
            snapshot = await asyncio.to_thread(_take_snapshot, skill.folder, temporary_folder)
        script, dependencies, request = await asyncio.to_thread(
            _prepare_request, skill, snapshot, script_path, args, workspace, network
        )
        # Held during the whole run: no other process may garbage-collect the mounted folder.
        with contextlib.nullcontext() if snapshot is None else snapshot.hold():
            execution = await executor.execute(
                replace(
                    request,
                    timeout_seconds=timeout_seconds,
                    env=request.env | dict(env or {}),
                    execution_id=execution_id,
                    guards=guards,
                )
            )
        skill_folder = snapshot.folder if snapshot is not None and workspace is not None else None
        result = make_result(execution, skill=skill.name, script=script, argv=request.argv)
        return _add_hint(result, dependencies, skill_folder)
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
        if temporary_folder is not None:
            await asyncio.to_thread(remove_tree, temporary_folder)


def _take_snapshot(skill_folder: Path, store_folder: Path) -> SkillSnapshot:
    """Return a snapshot of a skill in a temporary store."""
    return SnapshotStore(store_folder).take(Path(os.path.realpath(skill_folder)), allow_faults=True)


def _prepare_request(
    skill: Skill,
    snapshot: SkillSnapshot | None,
    script_path: str,
    args: Any,
    workspace: Path | None,
    network: Network,
) -> tuple[str, tuple[str, ...], CodeExecutionInput]:
    """Return the script's path, its dependencies, and the request that runs it. Reads the script."""
    # Looked up in the snapshot, which is what is mounted: the skill's own folder may have changed since.
    skill_folder = Path(os.path.realpath(snapshot.folder if snapshot is not None else skill.folder or ""))
    script = resolve_script(skill, script_path, skill_folder)
    script_file = skill_folder / script
    dependencies = read_dependencies(script_file)
    command = find_interpreter(script_file)
    mounts = [Mount(source=str(skill_folder), target="/skill")]
    input_files: tuple[File, ...] = ()
    if workspace is None:
        skill_mounts, input_files = _mount_skill_files(skill_folder)
        mounts += skill_mounts
    environment = dict(_ENVIRONMENT)
    if dependencies and network.domains and (uv := find_uv()):
        # The program itself is mounted: a link to it would dangle in the sandbox.
        mounts.append(Mount(source=os.path.realpath(uv), target="/uv"))
        command = ("/uv", "run", "--quiet", "--no-project", "--script")
        environment |= _UV_ENVIRONMENT
    request = CodeExecutionInput(
        script=f"/skill/{script}",
        command=command,
        argv=build_argv(args),
        mounts=tuple(mounts),
        input_files=input_files,
        workspace=None if workspace is None else os.path.realpath(workspace),
        network=network,
        env=environment,
    )
    return script, dependencies, request


def _mount_skill_files(skill_folder: Path) -> tuple[list[Mount], tuple[File, ...]]:
    """Return mounts and files that show a skill's own folders and small files in an empty working folder.

    Then `open("references/format.md")` works, as in ADK. Not used with a workspace: there, a script opens the skill's
    files below `$SKILL_DIR`.
    """
    mounts: list[Mount] = []
    copied_files: list[File] = []
    bytes_left = _MAX_COPIED_BYTES
    for path in sorted(skill_folder.iterdir())[:_MAX_SKILL_ENTRIES]:
        if path.is_symlink() or path.name.startswith("."):
            continue
        if path.is_dir():
            mounts.append(Mount(source=str(path), target=f"/work/{path.name}"))
        elif (size := path.stat().st_size) <= bytes_left:
            bytes_left -= size
            copied_files.append(File(path=path.name, content=path.read_bytes()))
    return mounts, tuple(copied_files)


def find_uv() -> str | None:
    """Return the path of `uv`: in the folder of this interpreter, else in `PATH`; None if it is not installed."""
    return shutil.which("uv", path=os.path.dirname(sys.executable)) or shutil.which("uv")


def _add_hint(result: ScriptResult, dependencies: tuple[str, ...], skill_folder: Path | None) -> ScriptResult:
    """Return a result whose error explains a missing file of the skill or a missing dependency.

    Args:
        dependencies: What the script declares.
        skill_folder: The mounted skill; None if its files are also in the working folder.
    """
    if result.error_code != "EXECUTION_ERROR":
        return result
    missing_file = "" if skill_folder is None else _find_missing_file(result.stderr, skill_folder)
    if missing_file:
        message = f"{result.details}; {missing_file} belongs to the skill: open it below $SKILL_DIR (/skill)"
        return replace(result, error=shorten(message), details=message)
    if not dependencies or "ModuleNotFoundError" not in result.stderr:
        return result
    message = f"{result.details}; declared dependencies are not installed: {', '.join(dependencies)}"
    message += "; `bough skills run … --network DOMAIN` installs them with uv"
    return replace(result, error=shorten(message), details=message)


def _find_missing_file(stderr: str, skill_folder: Path) -> str:
    """Return the file that Python reports as not found, if the skill contains it; empty otherwise."""
    # Only relative names without `..`: a script's output must not make this process test paths outside the skill.
    match = re.search(r"FileNotFoundError: .*: '([^'/][^']{0,200})'\s*$", stderr)
    if match is None or ".." in match[1].split("/"):
        return ""
    return match[1] if (skill_folder / match[1]).is_file() else ""


def make_result(execution: CodeExecutionResult, *, skill: str, script: str, argv: tuple[str, ...] = ()) -> ScriptResult:
    """Return the script result of an execution; its status depends on exit code, timeout and stderr."""
    stdout, stderr = execution.stdout.decode("utf-8", "replace"), execution.stderr.decode("utf-8", "replace")
    error_code, message = _describe_failure(execution, stderr)
    success_status: Literal["warning", "success"] = "warning" if stderr.strip() else "success"
    return ScriptResult(
        status="error" if error_code else success_status,
        stdout=stdout,
        stderr=stderr,
        exit_code=execution.exit_code,
        output_files=execution.output_files,
        timed_out=execution.timed_out,
        truncated=execution.stdout_truncated or execution.stderr_truncated,
        duration=execution.wall_seconds,
        isolation=execution.isolation.name.lower(),
        error_code=error_code,
        error=shorten(message) if error_code else None,
        details=message,
        skill=skill,
        script=script,
        argv=argv,
        execution=execution,
    )


def _describe_failure(execution: CodeExecutionResult, stderr: str) -> tuple[ErrorCode | None, str]:
    """Return the error code and message of an execution; None and an empty message if it succeeded."""
    if execution.timed_out:
        return "TIMEOUT", f"timed out after {execution.wall_seconds:.1f} s; the output so far was kept"
    if execution.ok:
        return None, ""
    lines = stderr.strip().splitlines()
    last_line = f": {lines[-1].strip()}" if lines else ""
    if execution.exit_code is not None:
        return "EXECUTION_ERROR", f"exit code {execution.exit_code}{last_line}"
    cause = execution.killed_by or (f"signal {execution.signal}" if execution.signal else "a limit")
    return "EXECUTION_ERROR", f"killed by {cause}{last_line}"
