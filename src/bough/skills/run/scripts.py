"""Running a script of a skill in an executor (tier 3).

The skill's whole folder is shown read-only at `/skill`. The script works in `/work`: the conversation's workspace, or
a fresh folder whose files come back. Arguments are never seen by a shell.

Source: seed 003 (`RunSkillScriptTool`, its error codes and status).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from bough.errors import BoughError, InvalidInput, NotFound
from bough.execution.base import CodeExecutionInput, CodeExecutionResult, CodeExecutor, File, Mount, Network
from bough.skills.model import Skill
from bough.skills.read.resources import list_resources, nearest, resolve
from bough.skills.run.arguments import BadArguments, argv_of
from bough.skills.run.pep723 import inline_metadata
from bough.skills.trust.snapshot import SkillSnapshot, SnapshotStore, remove_tree

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
"""Characters of an error as the model sees it."""

MAX_SOURCE = 1 << 20
"""How much of a script is looked at for what it depends on."""

GUARDED = (".git", ".bough", ".agents", ".claude", ".openhands", "bough.yaml", ".mcp.json")
"""What a script may not change in a workspace, for it decides what happens later."""

_ENDINGS: Mapping[str, tuple[str, ...]] = {
    ".sh": ("bash",),
    ".bash": ("bash",),
    ".js": ("node",),
    ".mjs": ("node",),
}
_ENVIRONMENT: Mapping[str, str] = {"PYTHONDONTWRITEBYTECODE": "1", "SKILL_DIR": "/skill"}
_MAX_BESIDE = 64
_UV_ENVIRONMENT: Mapping[str, str] = {"UV_CACHE_DIR": "/tmp/uv", "UV_PYTHON_DOWNLOADS": "never"}  # noqa: S108
NO_NETWORK = Network()
_SHELLS = frozenset({"sh", "bash", "dash", "ksh", "zsh", "ash"})
_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ScriptResult:
    """What came of a script.

    Attributes:
        status: `success` (exit code 0), `warning` (0, with something on stderr), `error` (all else).
        exit_code: None when nothing was run, or when a signal ended it.
        output_files: Files it made or changed in its work folder.
        truncated: Whether stdout or stderr was longer than what is kept.
        duration: Wall seconds.
        isolation: What was really reached: `none`, `landlock`, `namespaces` or `container`; empty when nothing was run.
        error: For the model: at most 200 characters; None unless `status` is `error`.
        details: The error in full, for the log.
        argv: The arguments as they were passed.
        execution: All that the executor said; None when nothing was run.
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
        """The result as a model gets it: JSON, files by path and size, nothing empty but the streams and the status."""
        out: dict[str, Any] = {"status": self.status, "stdout": self.stdout, "stderr": self.stderr}
        if self.exit_code is not None:
            out["exit_code"] = self.exit_code
        if self.output_files:
            out["output_files"] = [{"path": each.path, "size_bytes": len(each.content)} for each in self.output_files]
        flags = {"timed_out": self.timed_out, "truncated": self.truncated}
        out |= {name: value for name, value in flags.items() if value}
        if self.isolation:
            out |= {"duration": round(self.duration, 3), "isolation": self.isolation}
        if self.error_code:
            out |= {"error_code": self.error_code, "error": self.error}
        return out


class ScriptRefused(BoughError):
    """A script that is not run.

    Attributes:
        error_code: Which of the codes above.
    """

    code = "invalid_input"

    def __init__(self, error_code: ErrorCode, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint, details={"error_code": error_code})
        self.error_code: ErrorCode = error_code


def refused(error_code: ErrorCode, message: str, *, skill: str = "", script: str = "") -> ScriptResult:
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
    """Return the path of a script relative to the skill's folder; the prefix `scripts/` may be left out.

    Args:
        home: The copy to look in; None: the skill's own folder.

    Raises:
        ScriptRefused: `MISSING_SCRIPT_NAME`, or `SCRIPT_NOT_FOUND` with the nearest match in the message.
    """
    name = path.strip().removeprefix("./") if isinstance(path, str) else ""  # pyright: ignore[reportUnnecessaryIsInstance]
    if not name:
        raise ScriptRefused("MISSING_SCRIPT_NAME", "no script is named")
    folder = home if skill.folder is not None and home is not None else skill.folder
    if folder is None:
        raise ScriptRefused("SCRIPT_NOT_FOUND", f"the skill {skill.name!r} is a single file and has no scripts")
    for candidate in (f"scripts/{name.removeprefix('scripts/')}", name):
        try:
            found = resolve(folder, candidate)
        except InvalidInput as error:
            raise ScriptRefused("SCRIPT_NOT_FOUND", f"{error.message}; {error.hint}") from error
        except NotFound:
            continue
        return os.path.relpath(found, os.path.realpath(folder))
    files = list_resources(folder)
    hint = nearest(name, files.scripts or files.all)
    raise ScriptRefused("SCRIPT_NOT_FOUND", f"the skill {skill.name!r} has no script {name[:60]!r}; {hint}")


def command_of(file: Path) -> tuple[str, ...] | None:
    """Return the interpreter that runs a script, by its ending or its first line; the run bit does not matter.

    None for Python, which executors know best how to run.

    Raises:
        ScriptRefused: `UNSUPPORTED_SCRIPT_TYPE`.
    """
    with file.open("rb") as handle:
        head = handle.read(8192)
    first = _shebang(head)
    ending = file.suffix.lower()
    if ending == ".py":
        return None
    if ending in (".sh", ".bash"):  # a shell script may name its own shell, nothing else
        return first if first and os.path.basename(first[0]) in _SHELLS else _ENDINGS[ending]
    if ending in _ENDINGS:
        return _ENDINGS[ending]
    if first:
        return first
    raise ScriptRefused(
        "UNSUPPORTED_SCRIPT_TYPE",
        f"{file.name!r} is not a script: only .py .sh .bash .js .mjs and files that begin with `#!` are run",
    )


def dependencies_of(file: Path) -> tuple[str, ...]:
    """Return what a Python script says it needs (PEP 723); nothing for all others."""
    if file.suffix.lower() != ".py":
        return ()
    with file.open("rb") as handle:
        metadata = inline_metadata(handle.read(MAX_SOURCE).decode("utf-8", "replace"))
    return () if metadata is None else metadata.dependencies


def _shebang(head: bytes) -> tuple[str, ...]:
    if not head.startswith(b"#!"):
        return ()
    words = head[2:].split(b"\n", 1)[0].decode("utf-8", "replace").replace("\r", "").split()
    if words and os.path.basename(words[0]) == "env":
        words = words[1:]
        if words and words[0] == "-S":
            words = words[1:]
        while words and re.fullmatch(r"[A-Za-z_]\w*=.*", words[0]):
            words = words[1:]
    return tuple(words)


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
) -> ScriptResult:
    """Run a script of `skill` and return what happened; whatever goes wrong is a result with an error code.

    Args:
        executor: None gives `NO_CODE_EXECUTOR`.
        script_path: Relative to the skill's folder; `scripts/` may be left out.
        args: See `argv_of`.
        workspace: A folder to work in; None: a fresh one whose files come back.
        timeout_seconds: None: the executor's default.
        network: What it may reach. A script that declares dependencies (PEP 723) gets them through `uv run --script`
            where uv is and something may be reached; else it runs with what the sandbox's Python has.
        execution_id: Whose run it is; an executor may keep a warm interpreter for the next one.
        snapshot: The copy of the skill that is shown and run; None makes one for this run.
    """
    if executor is None:
        message = "no code executor is configured; give one to the toolset or the agent"
        return refused("NO_CODE_EXECUTOR", message, skill=skill.name, script=str(script_path))
    temporary: Path | None = None
    try:
        if snapshot is None and skill.folder is not None:
            temporary = Path(tempfile.mkdtemp(prefix="bough-skill-"))
            temporary.chmod(0o755)
            snapshot = await asyncio.to_thread(_take_once, skill.folder, temporary)
        script, needs, request = await asyncio.to_thread(
            _prepare, skill, snapshot, script_path, args, workspace, network
        )
        with contextlib.nullcontext() if snapshot is None else snapshot.hold():
            ran = await executor.execute(
                replace(
                    request,
                    timeout_seconds=timeout_seconds,
                    env=request.env | dict(env or {}),
                    execution_id=execution_id,
                )
            )
        home = snapshot.folder if snapshot is not None and workspace is not None else None
        return _explained(result_of(ran, skill=skill.name, script=script, argv=request.argv), needs, home)
    except (ScriptRefused, BadArguments) as error:
        return refused(error.error_code, error.message, skill=skill.name, script=str(script_path))
    except BoughError as error:
        message = f"{error.message}; {error.hint}" if error.hint else error.message
        _log.warning("script %s of skill %s could not be run: %s", script_path, skill.name, message)
        return refused("EXECUTION_ERROR", message, skill=skill.name, script=str(script_path))
    except OSError as error:
        return refused("EXECUTION_ERROR", f"the script cannot be read: {error.strerror}", skill=skill.name)
    finally:
        if temporary is not None:
            await asyncio.to_thread(remove_tree, temporary)


def _take_once(folder: Path, place: Path) -> SkillSnapshot:
    return SnapshotStore(place).take(Path(os.path.realpath(folder)), allow_faults=True)


def _prepare(
    skill: Skill,
    snapshot: SkillSnapshot | None,
    script_path: str,
    args: Any,
    workspace: Path | None,
    network: Network,
) -> tuple[str, tuple[str, ...], CodeExecutionInput]:
    """The script's path, what it depends on, and the request that runs it; reads the script's head."""
    home = Path(os.path.realpath(snapshot.folder if snapshot is not None else skill.folder or ""))
    script = resolve_script(skill, script_path, home)
    file = home / script
    needs = dependencies_of(file)
    command = command_of(file)
    mounts = [Mount(source=str(home), target="/skill")]
    files: tuple[File, ...] = ()
    if workspace is not None:
        mounts += guarded_mounts(workspace)
    else:
        shown, files = _beside(home)
        mounts += shown
    environment = dict(_ENVIRONMENT)
    if needs and network.domains and (uv := find_uv()):
        mounts.append(Mount(source=os.path.realpath(uv), target="/uv"))
        command = ("/uv", "run", "--quiet", "--no-project", "--script")
        environment |= _UV_ENVIRONMENT
    request = CodeExecutionInput(
        script=f"/skill/{script}",
        command=command,
        argv=argv_of(args),
        mounts=tuple(mounts),
        input_files=files,
        workspace=None if workspace is None else os.path.realpath(workspace),
        network=network,
        env=environment,
    )
    return script, needs, request


def _beside(home: Path) -> tuple[list[Mount], tuple[File, ...]]:
    """Return what shows a skill's own folders and small files in a fresh working folder.

    So `open("references/format.md")` works, as seed 003 has it. A person's workspace gets nothing of it: there a script
    uses `$SKILL_DIR`.
    """
    mounts: list[Mount] = []
    files: list[File] = []
    left = MAX_SOURCE
    for path in sorted(home.iterdir())[:_MAX_BESIDE]:
        if path.is_symlink() or path.name.startswith("."):
            continue
        if path.is_dir():
            mounts.append(Mount(source=str(path), target=f"/work/{path.name}"))
        elif (size := path.stat().st_size) <= left:
            left -= size
            files.append(File(path=path.name, content=path.read_bytes()))
    return mounts, tuple(files)


def find_uv() -> str | None:
    """Return the path of `uv`: beside this interpreter, else on the path; None where it is not."""
    return shutil.which("uv", path=os.path.dirname(sys.executable)) or shutil.which("uv")


def _explained(result: ScriptResult, needs: tuple[str, ...], home: Path | None) -> ScriptResult:
    """Say so where a module is missing because nothing could be fetched, or a file because it lies in the skill."""
    if result.error_code == "EXECUTION_ERROR" and home is not None and (name := _missing_file(result.stderr, home)):
        message = f"{result.details}; {name} is in the skill: open it below $SKILL_DIR (/skill)"
        return replace(result, error=shorten(message), details=message)
    if result.error_code != "EXECUTION_ERROR" or not needs or "ModuleNotFoundError" not in result.stderr:
        return result
    message = f"{result.details}; the script declares dependencies that are not there: {', '.join(needs)}"
    message += "; `bough skills run … --network DOMAIN` fetches them where uv is"
    return replace(result, error=shorten(message), details=message)


def _missing_file(stderr: str, home: Path) -> str:
    """Return the name in a Python error about a file that is not there, where the skill has one of that name."""
    found = re.search(r"FileNotFoundError: .*: '([^'/][^']{0,200})'\s*$", stderr)
    return found[1] if found and ".." not in found[1].split("/") and (home / found[1]).is_file() else ""


def guarded_mounts(workspace: Path) -> list[Mount]:
    """Return read-only mounts over what a script may not change in `workspace`, as far as it is there.

    A link is left out: laid over, it would show what it points at.
    """
    found: list[Mount] = []
    for name in GUARDED:
        path = workspace / name
        if path.exists() and not path.is_symlink():
            found.append(Mount(source=os.path.realpath(path), target=f"/work/{name}"))
    return found


def result_of(ran: CodeExecutionResult, *, skill: str, script: str, argv: tuple[str, ...] = ()) -> ScriptResult:
    """Return what an executor said as a script's result. The status comes from exit code and timeout only."""
    stdout, stderr = ran.stdout.decode("utf-8", "replace"), ran.stderr.decode("utf-8", "replace")
    code, message = _failure(ran, stderr)
    return ScriptResult(
        status="error" if code else "warning" if stderr.strip() else "success",
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


def _failure(ran: CodeExecutionResult, stderr: str) -> tuple[ErrorCode | None, str]:
    if ran.timed_out:
        return "TIMEOUT", f"the script was ended after {ran.wall_seconds:.1f} s; its output up to then was kept"
    if ran.ok:
        return None, ""
    lines = stderr.strip().splitlines()
    last = f": {lines[-1].strip()}" if lines else ""
    if ran.exit_code is not None:
        return "EXECUTION_ERROR", f"exit code {ran.exit_code}{last}"
    how = ran.killed_by or (f"signal {ran.signal}" if ran.signal else "a bound")
    return "EXECUTION_ERROR", f"ended by {how}{last}"
