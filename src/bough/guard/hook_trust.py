"""Trust in the hooks of a project: in its hook files, and in the programs of the project that they name.

A cloned repository may contain hooks. They run only after a person has trusted them. They stop running as soon as one
of these files changes, even during a run, because an agent may be able to write them. They run in the sandbox with
copies of the trusted programs (see `hook_programs.py`), or outside of it if the person allowed that.
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
from bough.guard.hook_command import HookExit
from bough.guard.hook_file import PROJECT_FILES, load_hooks
from bough.guard.hook_programs import HookPrograms, ProgramRunner, copy_programs
from bough.guard.hooks import Hook, HookSet
from bough.skills import TrustStore
from bough.skills.find.places import project_root
from bough.skills.trust.snapshot import SnapshotStore
from bough.types import JsonObject

MAX_FILES = 2000
"""Maximum number of files that a hook file may name. A hook file with more cannot be trusted."""

_WORDS = re.compile(r"""[^\s'"`;|&<>(){}=,]+""")
_VARIABLE = re.compile(r"""\$\{?\w+\}?["']?/?""")
_IMPLIED_FILES = {
    "make": "Makefile",
    "npm": "package.json",
    "pnpm": "package.json",
    "yarn": "package.json",
    "just": "justfile",
}
"""The file of the project that each of these programs reads, although the command does not name it."""


@dataclass(frozen=True)
class HookFile:
    """A hook file of a project, with a digest of everything that trust in it covers.

    Attributes:
        name: Its path in the project.
        digest: The digest of the file and of all files that its commands name; empty if there are too many.
        runner: Runs its hooks with the trusted programs; None if the file is not trusted.
    """

    project: Path
    name: str
    digest: str
    runner: ProgramRunner | None = None

    @classmethod
    def read(cls, project: Path, name: str) -> HookFile:
        """Return a hook file in its current state. O(bytes) of the file and the files that it names."""
        named_files = _list_named_files(_load(project / name), project)
        files = tuple(islice(_list_distinct(project / name, named_files), MAX_FILES + 1))
        return cls(project, name, compute_digest(files) if len(files) <= MAX_FILES else "")

    @property
    def key(self) -> str:
        """Its path relative to the root of the project, which is its name in the trust store."""
        return os.path.relpath(self.project / self.name, project_root(self.project))

    @property
    def guarded(self) -> tuple[Path, ...]:
        """Paths that scripts must not change while these hooks are in use."""
        return () if self.runner is None else self.runner.guarded

    def is_unchanged(self) -> bool:
        """Whether all files are unchanged. O(bytes)."""
        # Lists the files again, because the commands may name other files now.
        return bool(self.digest) and HookFile.read(self.project, self.name).digest == self.digest

    async def run(self, command: str, payload: JsonObject, *, workspace: Path, timeout_seconds: float) -> HookExit:
        """Run a command with the trusted programs and return how it ended."""
        if self.runner is None:
            return HookExit(None, failure="it is not trusted")
        return await self.runner.run(command, payload, workspace=workspace, timeout_seconds=timeout_seconds)


def find_hooks(*, home: Path, project: Path, trust: TrustStore) -> HookSet:
    """Return the hooks of the user's home folder, then the trusted hooks of the project.

    The notes name the hook files that are not trusted, or that have changed since; their hooks are not returned.

    Raises:
        InvalidInput: A trusted file, or the user's own file, is invalid.
    """
    all_hooks = load_hooks(home / "hooks.json")
    for hook_file in list_project_hooks(project):
        hook_path = hook_file.project / hook_file.name
        programs = trust.find_programs(project, hook_file.key)
        if hook_file.digest and programs is not None and trust.trusts_file(project, hook_file.key, hook_file.digest):
            runner = ProgramRunner(hook_file.project, HookPrograms.from_json(programs), home / "snapshots")
            agreement = replace(hook_file, runner=runner)
            # If the file has changed since its digest was computed, no hook runs: each hook compares the digest first.
            hooks = load_hooks(hook_path)
            all_hooks = all_hooks.narrow(
                replace(hooks, hooks=tuple(replace(hook, agreement=agreement) for hook in hooks.hooks))
            )
        else:
            note = f"the hooks of {hook_path} do not run: `bough skills trust` trusts them in their current state"
            all_hooks = all_hooks.narrow(HookSet((), (note,)))
    return all_hooks


def trust_hooks(
    project: Path, hook_files: Iterable[HookFile], *, home: Path, trust: TrustStore, on_host: bool = False
) -> tuple[str, ...]:
    """Trust hook files of a project and the programs that they name. Returns the keys of the trusted files.

    Args:
        hook_files: The files as the person saw them; see `list_project_hooks`.
        on_host: Whether the hooks may run outside the sandbox.

    Raises:
        Conflict: A file has changed since the person saw it.
        PermissionDenied: A program cannot be copied.
    """
    snapshots = SnapshotStore(home / "snapshots")
    by_key = {hook_file.key: hook_file for hook_file in hook_files if hook_file.digest}
    programs: dict[str, JsonObject] = {}
    for key, hook_file in by_key.items():
        hooks = _load(hook_file.project / hook_file.name)
        files = _list_named_files(hooks, hook_file.project)
        commands = [hook.command for hook in hooks]
        programs[key] = copy_programs(hook_file.project, files, commands, snapshots, on_host=on_host).to_json()
        # Checked after copying, so that the copy is known to be the state that the person saw.
        if not hook_file.is_unchanged():
            raise Conflict(f"{hook_file.project / hook_file.name} changed while it was being read", hint="try again")
    digests = {key: hook_file.digest for key, hook_file in by_key.items()}
    trust.trust(project, other_files=digests, skills={}, programs=programs)
    return tuple(by_key)


def list_project_hooks(project: Path) -> list[HookFile]:
    """Return the hook files of a project in their current state, without settings files that have no hooks."""
    top = project.absolute()
    return [HookFile.read(top, name) for name in PROJECT_FILES if _may_contain_hooks(top / name)]


def _load(file: Path) -> tuple[Hook, ...]:
    """Return the hooks of a file; none if the file is invalid."""
    try:
        return load_hooks(file).hooks
    except InvalidInput:
        return ()  # reported by `find_hooks`, once the file is trusted


def _may_contain_hooks(file: Path) -> bool:
    """Whether a file exists and has hooks, has notes, or is invalid."""
    if not file.is_file():
        return False
    try:
        hooks = load_hooks(file)
    except InvalidInput:
        return True  # a person must see an invalid file
    return bool(hooks.hooks or hooks.notes)


def compute_digest(files: Iterable[Path]) -> str:
    """Return the SHA-256 of the names and contents of files, in hex. For an unreadable file, its error is hashed."""
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
    """Yield the files that commands name or imply, and all files in folders that they name.

    Every word is tried as a path, so files that the commands do not use may be among them.
    """
    for hook in hooks:
        words = _WORDS.findall(_VARIABLE.sub(" ", hook.command))
        words += [word.lstrip("/") for word in words]  # `$(pwd)/check.sh` has the word `/check.sh`
        words += [_IMPLIED_FILES[base] for base in map(os.path.basename, words) if base in _IMPLIED_FILES]
        for word in dict.fromkeys(words):
            yield from _list_files_at(project / word, project)


def _list_distinct(first: Path, others: Iterable[Path]) -> Iterator[Path]:
    """Yield `first` and the others without duplicates, lazily."""
    visited = {first}
    yield first
    for path in others:
        if path not in visited:
            visited.add(path)
            yield path


def _list_files_at(path: Path, project: Path) -> Iterator[Path]:
    """Yield the file at a path, or all files below it; none for a path outside of the project."""
    try:
        # Inside before or after resolving links: a link in the project may lead out of it, and then the target runs.
        real_path, real_project = path.resolve(), project.resolve()
        is_inside = path.absolute().is_relative_to(project.absolute()) or real_path.is_relative_to(real_project)
        if not is_inside or real_path == real_project:
            return
        if path.is_file():
            yield path
        elif path.is_dir():
            yield from _list_files_below(path)
    except (OSError, ValueError):
        return


def _list_files_below(folder: Path) -> Iterator[Path]:
    for base, folders, names in os.walk(folder):
        folders.sort()  # in place: the order of the walk, and so the digest, must be reproducible
        yield from (Path(base, name) for name in sorted(names))
