"""Which hooks of a project a person has agreed to: the very files, and the very programs of the project that they name.

A repository that was cloned brings its hooks along. They are asked only after a person trusted them as they are, and no
longer once any of these files has changed, even in mid-run: an agent may write where such a program lies. They run in
the sandbox with the programs as they were trusted (`hook_programs.py`), or, where a person allowed that, on this
machine.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from bough.errors import Conflict, InvalidInput
from bough.guard.hook_command import Ran
from bough.guard.hook_file import PROJECT_FILES, load_hooks
from bough.guard.hook_programs import HookPrograms, ProgramRunner, copy_programs
from bough.guard.hooks import Hook, HookSet
from bough.skills import TrustStore
from bough.skills.find.places import project_root
from bough.skills.trust.snapshot import SnapshotStore
from bough.types import JsonObject

MAX_FILES = 2000
"""How many files a file of hooks may name; one with more of them cannot be trusted."""

_WORDS = re.compile(r"""[^\s'"`;|&<>(){}=,]+""")
_VARIABLE = re.compile(r"""\$\{?\w+\}?["']?/?""")
_IMPLIED = {
    "make": "Makefile",
    "npm": "package.json",
    "pnpm": "package.json",
    "yarn": "package.json",
    "just": "justfile",
}
"""Programs that run what a file of the project says without naming it."""


@dataclass(frozen=True)
class Agreed:
    """What a person agrees to who trusts a file of hooks as it is.

    Attributes:
        digest: Of the file and of what its commands name; empty where that is too much to be trusted.
        runner: Runs them with the programs that were trusted; None where nobody trusted them yet.
    """

    project: Path
    name: str
    digest: str
    runner: ProgramRunner | None = None

    @classmethod
    def now(cls, project: Path, name: str) -> Agreed:
        """Return what one would agree to now. O(bytes of the files)."""
        files = tuple(
            islice(_distinct(project / name, _list_named_files(_load(project / name), project)), MAX_FILES + 1)
        )
        return cls(project, name, digest_of(files) if len(files) <= MAX_FILES else "")

    @property
    def key(self) -> str:
        """The file, relative to the top of the project: its name in the trust store."""
        return os.path.relpath(self.project / self.name, project_root(self.project))

    @property
    def guarded(self) -> tuple[Path, ...]:
        """What no script may change while these hooks are asked."""
        return () if self.runner is None else self.runner.guarded

    def holds(self) -> bool:
        """Whether all of it is still as it was."""
        return bool(self.digest) and Agreed.now(self.project, self.name).digest == self.digest

    async def run(self, command: str, payload: JsonObject, *, workspace: Path, timeout_seconds: float) -> Ran:
        """Run a command with the programs that were trusted."""
        if self.runner is None:
            return Ran(None, trouble="nobody has trusted it")
        return await self.runner.run(command, payload, workspace=workspace, timeout_seconds=timeout_seconds)


def find_hooks(*, home: Path, project: Path, trust: TrustStore) -> HookSet:
    """Return the hooks of the user's home folder, then those of the project that a person has trusted as they are.

    Files that are not trusted, or have changed since, are named in the notes; nothing of them is asked.

    Raises:
        InvalidInput: A file that counts is wrong.
    """
    all_hooks = load_hooks(home / "hooks.json")
    for agreed in project_hooks(project):
        file = agreed.project / agreed.name
        programs = trust.find_programs(project, agreed.key)
        if agreed.digest and programs is not None and trust.trusts_file(project, agreed.key, agreed.digest):
            runner = ProgramRunner(agreed.project, HookPrograms.from_json(programs), home / "snapshots")
            agreed = replace(agreed, runner=runner)
            hooks = load_hooks(file)
            all_hooks = all_hooks.narrow(
                replace(hooks, hooks=tuple(replace(hook, agreed=agreed) for hook in hooks.hooks))
            )
        else:
            note = f"the hooks of {file} are not asked: `bough skills trust` trusts them as they are now"
            all_hooks = all_hooks.narrow(HookSet((), (note,)))
    return all_hooks


def trust_hooks(
    project: Path, hooks_files: Iterable[Agreed], *, home: Path, trust: TrustStore, on_host: bool = False
) -> tuple[str, ...]:
    """Trust files of hooks of a project, and the programs they name, as a person saw them. Returns their names.

    Args:
        hooks_files: What the person saw; see `project_hooks`.
        on_host: Whether the hooks may run on this machine, outside the sandbox.

    Raises:
        Conflict: A file has changed meanwhile.
        PermissionDenied: A program cannot be copied.
    """
    snapshots = SnapshotStore(home / "snapshots")
    agreed = {hooks_file.key: hooks_file for hooks_file in hooks_files if hooks_file.digest}
    programs: dict[str, JsonObject] = {}
    for key, hooks_file in agreed.items():
        hooks = _load(hooks_file.project / hooks_file.name)
        files = _list_named_files(hooks, hooks_file.project)
        commands = [hook.command for hook in hooks]
        programs[key] = copy_programs(hooks_file.project, files, commands, snapshots, on_host=on_host).to_json()
        if not hooks_file.holds():
            raise Conflict(f"{hooks_file.project / hooks_file.name} changed while it was being read", hint="try again")
    digests = {key: hooks_file.digest for key, hooks_file in agreed.items()}
    trust.trust(project, also=digests, skills={}, programs=programs)
    return tuple(agreed)


def project_hooks(project: Path) -> list[Agreed]:
    """Return the project's files of hooks, each as it is now; a settings file without hooks is none."""
    top = project.absolute()
    return [Agreed.now(top, name) for name in PROJECT_FILES if _may_hold_hooks(top / name)]


def _load(file: Path) -> tuple[Hook, ...]:
    try:
        return load_hooks(file).hooks
    except InvalidInput:
        return ()  # it says so when it is read for good, which is when it is trusted


def _may_hold_hooks(file: Path) -> bool:
    if not file.is_file():
        return False
    try:
        hooks = load_hooks(file)
    except InvalidInput:
        return True
    return bool(hooks.hooks or hooks.notes)


def digest_of(files: Iterable[Path]) -> str:
    """Return the hash of names and contents; of what cannot be read, that it cannot."""
    digest = hashlib.sha256()
    for file in files:
        try:
            with file.open("rb") as handle:
                content = hashlib.file_digest(handle, "sha256").hexdigest()
        except OSError as error:
            content = type(error).__name__
        digest.update(f"{file}\0{content}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _list_named_files(hooks: Iterable[Hook], project: Path) -> Iterator[Path]:
    """Yield the files of the project that commands name, those of folders that they name, and those they imply."""
    for hook in hooks:
        words = _WORDS.findall(_VARIABLE.sub(" ", hook.command))
        words += [word.lstrip("/") for word in words]  # `$(pwd)/check.sh`
        words += [_IMPLIED[base] for base in map(os.path.basename, words) if base in _IMPLIED]
        for word in dict.fromkeys(words):
            yield from _files(project / word, project)


def _distinct(first: Path, others: Iterable[Path]) -> Iterator[Path]:
    visited = {first}
    yield first
    for path in others:
        if path not in visited:
            visited.add(path)
            yield path


def _files(path: Path, project: Path) -> Iterator[Path]:
    """Yield what a word of a command leads to; what lies outside of the project it did not bring along."""
    try:
        inside = path.absolute().is_relative_to(project.absolute()) or path.resolve().is_relative_to(project.resolve())
        if not inside or path.resolve() == project.resolve():
            return
        if path.is_file():
            yield path
        elif path.is_dir():
            yield from _below(path)
    except (OSError, ValueError):
        return


def _below(folder: Path) -> Iterator[Path]:
    for base, folders, names in os.walk(folder):
        folders.sort()
        yield from (Path(base, name) for name in sorted(names))
