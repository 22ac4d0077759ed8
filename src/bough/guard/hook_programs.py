"""The programs of a project's hooks, as a person trusted them: copies, from which the hooks run in the sandbox.

A hook's command names a file; what that file reads or imports lies beside it, where scripts of the sandbox can write.
So the folder of each file that a command names is copied when the hook is trusted, and shown in the sandbox in its
place. Files at the top of the project, whose folder is the project itself, are copied alone; modules that Python files
among them import come from a copy too. Nothing is imported from the working folder.
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
from bough.guard.hook_command import OUTPUT_BYTES, Ran, describe_event, run_command
from bough.skills.trust.python_code import read_code
from bough.skills.trust.snapshot import SnapshotStore
from bough.skills.trust.tree import SkillTree, read_file_tree
from bough.types import JsonObject

MODULES: Final = ""
"""The name of the copy with modules that no folder of a named file contains."""

_MODULES_AT: Final = "/hook"
_MODULE_OPTION = re.compile(r"\s-m\s+([\w.]+)")


@dataclass(frozen=True)
class HookPrograms:
    """Copies of the programs that a file of hooks names.

    Attributes:
        copies: Path in the project (`MODULES`: of modules) and digest of each copy.
        search: Folders of the copy of modules in which Python searches.
        on_host: Whether the hooks run on this machine, outside the sandbox, which a person allowed.
    """

    copies: tuple[tuple[str, str], ...] = ()
    search: tuple[str, ...] = ()
    on_host: bool = False

    def to_json(self) -> JsonObject:
        """Return what the trust store has of them."""
        return {"copies": dict(self.copies), "search": list(self.search), "host": self.on_host}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> HookPrograms:
        """Return the programs that `to_json` wrote."""
        copies = cast("dict[str, str]", value.get("copies") or {})
        return cls(tuple(sorted(copies.items())), tuple(value.get("search") or ()), value.get("host") is True)


def copy_programs(
    project: Path, files: Iterable[Path], commands: Iterable[str], snapshots: SnapshotStore, *, on_host: bool
) -> HookPrograms:
    """Copy the programs of a file of hooks as they are now. O(bytes).

    Args:
        files: What the commands name.

    Raises:
        PermissionDenied: One cannot be copied: it is too large, or a link leads out of its folder.
        StoreError: The copies cannot be written.
    """
    names = sorted({os.path.relpath(file, project) for file in files})
    modules = [match for command in commands for match in _MODULE_OPTION.findall(command)]
    units: set[str] = set()
    for path in names:
        folder = os.path.dirname(path)
        units.add(folder or path)
        if not folder and path.endswith(".py"):
            modules.append(path.removesuffix(".py"))
    whole = {unit for unit in units if not any(unit.startswith(f"{other}/") for other in units)}
    copies = {unit: _copy_unit(project / unit, snapshots) for unit in sorted(whole)}
    search: list[str] = []
    if modules:
        copies[MODULES] = _copy_modules(project, modules, snapshots, search)
    return HookPrograms(tuple(sorted(copies.items())), tuple(search), on_host)


def _copy_unit(path: Path, snapshots: SnapshotStore) -> str:
    if path.is_dir():
        return snapshots.take(path).digest
    return snapshots.add(path, lambda folder: read_file_tree(path, copy_to=folder)).digest


def _copy_modules(project: Path, modules: Iterable[str], snapshots: SnapshotStore, search: list[str]) -> str:
    def copy(folder: Path) -> SkillTree:
        code = read_code(project, modules, copy_to=folder)
        search.extend(dict.fromkeys(code.roots.values()))
        return code.tree

    return snapshots.add(project, copy).digest


@dataclass(frozen=True)
class ProgramRunner:
    """Runs a project's hooks with the programs that a person trusted.

    Attributes:
        project: The project that the paths of the programs are relative to.
        snapshots: The folder of copies.
    """

    project: Path
    programs: HookPrograms
    snapshots: Path

    @property
    def guarded(self) -> tuple[Path, ...]:
        """What no script may change, because it runs on this machine."""
        paths = [path for path, _ in self.programs.copies if path != MODULES]
        return tuple(self.project / path for path in paths) if self.programs.on_host else ()

    async def run(self, command: str, payload: JsonObject, *, workspace: Path, timeout_seconds: float) -> Ran:
        """Run a command line and return how it ended. Cancelling kills it and all it started."""
        store = SnapshotStore(self.snapshots)
        folders = {path: copy.folder for path, digest in self.programs.copies if (copy := store.find(digest))}
        if len(folders) < len(self.programs.copies):
            return Ran(None, trouble="the copy of its program is gone: run `bough skills trust` again")
        if self.programs.on_host:
            env = self._python_path({path: str(folder) for path, folder in folders.items()})
            return await run_command(
                command, payload, workspace=workspace, timeout_seconds=timeout_seconds, extra_env=env
            )
        return await self._run_in_sandbox(command, payload, folders, workspace, timeout_seconds)

    async def _run_in_sandbox(
        self, command: str, payload: JsonObject, folders: Mapping[str, Path], workspace: Path, timeout_seconds: float
    ) -> Ran:
        from bough.execution.local import LocalSandboxCodeExecutor

        mounts: list[Mount] = []
        for number, (path, folder) in enumerate(folders.items()):
            if path == MODULES or (self.project / path).is_dir():
                mounts.append(Mount(source=folder, target=_MODULES_AT if path == MODULES else f"{WORK}/{path}"))
                continue
            # Landlock shows folders only, so the command names a single file where its copy is.
            place = f"{_MODULES_AT}-{number}"
            command, count = _name_elsewhere(command, path, place)
            source = folder if count else folder / path
            mounts.append(Mount(source=source, target=place if count else f"{WORK}/{path}"))
        sandbox_paths = {path: _MODULES_AT if path == MODULES else f"{WORK}/{path}" for path in folders}
        inside = {**payload, "cwd": WORK, "working_dir": WORK}
        request = CodeExecutionInput(
            code=command,
            language="sh",
            stdin=json.dumps(inside, ensure_ascii=True).encode() + b"\n",
            workspace=workspace,
            mounts=tuple(mounts),
            env=describe_event(payload, WORK) | self._python_path(sandbox_paths),
            timeout_seconds=timeout_seconds,
            output_globs=(),
            limits=ExecutionLimits(stdout_bytes=OUTPUT_BYTES, stderr_bytes=OUTPUT_BYTES),
        )
        try:
            async with LocalSandboxCodeExecutor() as executor:
                result = await executor.execute(request)
        except BoughError as error:
            how = "`bough skills trust --host-hooks` lets it run outside the sandbox"
            return Ran(None, trouble=f"it cannot run in the sandbox: {error.message} ({how})")
        trouble = f"it timed out after {timeout_seconds:g} s and was killed" if result.timed_out else ""
        exit_code = None if result.timed_out else result.exit_code
        return Ran(exit_code, result.text, result.error_text, trouble)

    def _python_path(self, folders: Mapping[str, str]) -> dict[str, str]:
        """Return the variables with which Python imports from the copies, not from what a script can write."""
        modules = [os.path.normpath(os.path.join(folders[MODULES], root)) for root in self.programs.search]
        package_folders = [
            folder for path, folder in folders.items() if path != MODULES and (self.project / path).is_dir()
        ]
        return {
            "PYTHONPATH": os.pathsep.join((*package_folders, *modules)),
            "PYTHONSAFEPATH": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
        }


def _name_elsewhere(command: str, name: str, folder: str) -> tuple[str, int]:
    """Return a command line that names a file of the project's top in another folder, and how often it does."""
    variable = r"\$\{?\w+\}?"
    pattern = rf"""(?<![\w./$-])(?:{variable}/|"{variable}"/|\./)?{re.escape(name)}(?![\w./-])"""
    return re.subn(pattern, lambda _: f"{folder}/{name}", command)
