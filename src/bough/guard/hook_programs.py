"""Copies the programs of a project's hooks when a person trusts them, and runs the hooks with these copies.

A hook's command names a file. This file may read or import other files of its folder, which scripts in the sandbox can
change. So the whole folder is copied, and the copy is mounted in its place. If the file is in the top folder of the
project, only the file is copied, not the whole project; for a Python file, also the modules that it imports. Python
never imports from the working folder.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from bough.errors import BoughError
from bough.execution.base import CodeExecutionInput, ExecutionLimits, Mount
from bough.execution.request import WORK
from bough.guard.hook_command import OUTPUT_BYTES, HookExit, describe_event, run_command
from bough.skills.trust.python_code import read_code
from bough.skills.trust.snapshot import SnapshotStore
from bough.skills.trust.tree import SkillTree, read_file_tree
from bough.types import JsonObject

MODULES: Final = ""
"""The name of the copy of the imported modules, in place of a path."""

_MODULES_FOLDER: Final = "/hook"
_MODULE_OPTION = re.compile(r"\s-m\s+([\w.]+)")


@dataclass(frozen=True)
class HookPrograms:
    """Copies of the programs that a hook file names.

    Attributes:
        copies: For each copy, its path in the project or `MODULES`, and its digest.
        search_folders: Folders in the copy of modules that are added to Python's search path.
        on_host: Whether a person allowed the hooks to run outside the sandbox.
    """

    copies: tuple[tuple[str, str], ...] = ()
    search_folders: tuple[str, ...] = ()
    on_host: bool = False

    def to_json(self) -> JsonObject:
        """Return the record for the trust store."""
        return {"copies": dict(self.copies), "search": list(self.search_folders), "host": self.on_host}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> HookPrograms:
        """Return the programs that `to_json` recorded."""
        copies = cast("dict[str, str]", value.get("copies") or {})
        return cls(tuple(sorted(copies.items())), tuple(value.get("search") or ()), value.get("host") is True)


def copy_programs(
    project: Path, files: Iterable[Path], commands: Iterable[str], snapshots: SnapshotStore, *, on_host: bool
) -> HookPrograms:
    """Copy the programs of a hook file. O(bytes).

    Args:
        files: The files that the commands name.
        commands: The commands, whose `-m` options name modules.
        on_host: Whether a person allowed the hooks to run outside the sandbox.

    Raises:
        PermissionDenied: A program is too large to be copied, or a link leads out of its folder.
        StoreError: The copies cannot be written.
    """
    names = sorted({os.path.relpath(file, project) for file in files})
    modules = [match for command in commands for match in _MODULE_OPTION.findall(command)]
    sources: set[str] = set()
    for path in names:
        folder = os.path.dirname(path)
        sources.add(folder or path)
        if not folder and path.endswith(".py"):
            modules.append(path.removesuffix(".py"))
    # The copy of a folder contains its subfolders.
    outermost = {source for source in sources if not any(source.startswith(f"{other}/") for other in sources)}
    copies = {source: _copy_path(project / source, snapshots) for source in sorted(outermost)}
    search_folders: list[str] = []
    if modules:
        copies[MODULES] = _copy_modules(project, modules, snapshots, search_folders)
    return HookPrograms(tuple(sorted(copies.items())), tuple(search_folders), on_host)


def _copy_path(path: Path, snapshots: SnapshotStore) -> str:
    """Copy a folder or a single file, and return the digest of the copy."""
    if path.is_dir():
        return snapshots.take(path).digest
    return snapshots.add(path, lambda folder: read_file_tree(path, copy_to=folder)).digest


def _copy_modules(project: Path, modules: Iterable[str], snapshots: SnapshotStore, search_folders: list[str]) -> str:
    """Copy modules and what they import, add their folders to `search_folders`, and return the digest of the copy."""

    def copy(folder: Path) -> SkillTree:
        code = read_code(project, modules, copy_to=folder)
        search_folders.extend(dict.fromkeys(code.roots.values()))
        return code.tree

    return snapshots.add(project, copy).digest


@dataclass(frozen=True)
class ProgramRunner:
    """Runs a project's hooks with the copies of their programs.

    Attributes:
        project: The folder that the paths of the programs are relative to.
        snapshots: The folder with the copies.
    """

    project: Path
    programs: HookPrograms
    snapshots: Path

    @property
    def guarded(self) -> tuple[Path, ...]:
        """Programs that run outside the sandbox. Scripts must not change them."""
        paths = [path for path, _ in self.programs.copies if path != MODULES]
        return tuple(self.project / path for path in paths) if self.programs.on_host else ()

    async def run(self, command: str, payload: JsonObject, *, workspace: Path, timeout_seconds: float) -> HookExit:
        """Run a command line, and return how it ended. Cancelling kills it and the processes that it started."""
        store = SnapshotStore(self.snapshots)
        folders: dict[str, Path] = {}
        for path, digest in self.programs.copies:
            copy = store.find(digest)
            if copy is not None:
                folders[path] = copy.folder
        # Without its copy, a program must not run: the file of the project may have changed since it was trusted.
        if len(folders) < len(self.programs.copies):
            return HookExit(None, failure="the copy of its program is missing: run `bough skills trust` again")
        if self.programs.on_host:
            env = self._make_python_variables({path: str(folder) for path, folder in folders.items()})
            return await run_command(
                command, payload, workspace=workspace, timeout_seconds=timeout_seconds, extra_env=env
            )
        return await self._run_in_sandbox(command, payload, folders, workspace, timeout_seconds)

    async def _run_in_sandbox(
        self, command: str, payload: JsonObject, folders: Mapping[str, Path], workspace: Path, timeout_seconds: float
    ) -> HookExit:
        """Run a command line with the copies mounted in place of the programs."""
        from bough.execution.local import LocalSandboxCodeExecutor

        mounts: list[Mount] = []
        for number, (path, folder) in enumerate(folders.items()):
            if path == MODULES or (self.project / path).is_dir():
                mounts.append(Mount(source=folder, target=_MODULES_FOLDER if path == MODULES else f"{WORK}/{path}"))
                continue
            # Landlock can only mount folders, so the command is changed to name the single file in another folder.
            target = f"{_MODULES_FOLDER}-{number}"
            command, replaced_count = _replace_path(command, path, target)
            if replaced_count:
                mounts.append(Mount(source=folder, target=target))
            else:
                mounts.append(Mount(source=folder / path, target=f"{WORK}/{path}"))
        sandbox_paths = {path: _MODULES_FOLDER if path == MODULES else f"{WORK}/{path}" for path in folders}
        sandbox_payload = {**payload, "cwd": WORK, "working_dir": WORK}
        request = CodeExecutionInput(
            code=command,
            language="sh",
            stdin=json.dumps(sandbox_payload, ensure_ascii=True).encode() + b"\n",
            workspace=workspace,
            mounts=tuple(mounts),
            env=describe_event(payload, WORK) | self._make_python_variables(sandbox_paths),
            timeout_seconds=timeout_seconds,
            output_globs=(),
            limits=ExecutionLimits(stdout_bytes=OUTPUT_BYTES, stderr_bytes=OUTPUT_BYTES),
        )
        try:
            async with LocalSandboxCodeExecutor() as executor:
                result = await executor.execute(request)
        except BoughError as error:
            hint = "`bough skills trust --host-hooks` lets it run outside the sandbox"
            return HookExit(None, failure=f"it cannot run in the sandbox: {error.message} ({hint})")
        failure = f"it timed out after {timeout_seconds:g} s and was killed" if result.timed_out else ""
        exit_code = None if result.timed_out else result.exit_code
        return HookExit(exit_code, result.text, result.error_text, failure)

    def _make_python_variables(self, folders: Mapping[str, str]) -> dict[str, str]:
        """Return the variables that make Python import from the copies only."""
        modules = [os.path.normpath(os.path.join(folders[MODULES], root)) for root in self.programs.search_folders]
        package_folders = [
            folder for path, folder in folders.items() if path != MODULES and (self.project / path).is_dir()
        ]
        return {
            "PYTHONPATH": os.pathsep.join((*package_folders, *modules)),
            "PYTHONSAFEPATH": "1",  # no imports from the working folder, which scripts can write
            "PYTHONDONTWRITEBYTECODE": "1",  # hooks of other projects may share a copy
        }


def _replace_path(command: str, name: str, folder: str) -> tuple[str, int]:
    """Replace a top-level file in a command line by its copy in `folder`; return the line and the number of changes."""
    # The pattern includes a prefix for the project's folder: `./check.py`, `$PROJECT/check.py`, `"$PROJECT"/check.py`.
    variable = r"\$\{?\w+\}?"
    pattern = rf"""(?<![\w./$-])(?:{variable}/|"{variable}"/|\./)?{re.escape(name)}(?![\w./-])"""
    return re.subn(pattern, lambda _: f"{folder}/{name}", command)
