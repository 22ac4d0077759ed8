"""Trust in the hooks of a project: in its hook files, and in the programs of the project that they name.

A cloned repository may contain hooks. They run only after a person trusted them, and stop running when any of these
files changes, also during a run, since an agent may write where such a program is. They run in the sandbox with copies
of the trusted programs (see `hook_programs.py`), or outside of it if the person allowed that.
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
"""The maximum number of files that a hook file may name. One with more cannot be trusted."""

_WORDS = re.compile(r"""[^\s'"`;|&<>(){}=,]+""")
_VARIABLE = re.compile(r"""\$\{?\w+\}?["']?/?""")
_IMPLIED = {
    "make": "Makefile",
    "npm": "package.json",
    "pnpm": "package.json",
    "yarn": "package.json",
    "just": "justfile",
}
"""Programs that run a file of the project which the command does not name."""


@dataclass(frozen=True)
class HookFile:
    """A hook file of a project, with a digest of everything that trust in it covers.

    Attributes:
        name: Its path in the project.
        digest: Of the file and of all files that its commands name; empty if these are too many to be trusted.
        runner: Runs its hooks with the trusted programs; None if it is not trusted.
    """

    project: Path
    name: str
    digest: str
    runner: ProgramRunner | None = None

    @classmethod
    def read(cls, project: Path, name: str) -> HookFile:
        """Return the file in its current state. O(bytes) of all files."""
        files = tuple(
            islice(_distinct(project / name, _list_named_files(_load(project / name), project)), MAX_FILES + 1)
        )
        return cls(project, name, compute_digest(files) if len(files) <= MAX_FILES else "")

    @property
    def key(self) -> str:
        """Its path relative to the root of the project, as the trust store names it."""
        return os.path.relpath(self.project / self.name, project_root(self.project))

    @property
    def guarded(self) -> tuple[Path, ...]:
        """Paths that no script may change while these hooks are in use."""
        return () if self.runner is None else self.runner.guarded

    def is_unchanged(self) -> bool:
        """Whether all of the files are unchanged. O(bytes)."""
        # The files to compare are listed again, so that a file which a command names now counts, too.
        return bool(self.digest) and HookFile.read(self.project, self.name).digest == self.digest

    async def run(self, command: str, payload: JsonObject, *, workspace: Path, timeout_seconds: float) -> HookExit:
        """Run a command with the trusted programs and return how it ended."""
        if self.runner is None:
            return HookExit(None, trouble="nobody has trusted it")
        return await self.runner.run(command, payload, workspace=workspace, timeout_seconds=timeout_seconds)


def find_hooks(*, home: Path, project: Path, trust: TrustStore) -> HookSet:
    """Return the hooks of the user's home folder, then the trusted hooks of the project.

    The notes name files that are not trusted, or changed since; their hooks are not used.

    Raises:
        InvalidInput: A file in use is invalid.
    """
    all_hooks = load_hooks(home / "hooks.json")
    for hook_file in list_project_hooks(project):
        file = hook_file.project / hook_file.name
        programs = trust.find_programs(project, hook_file.key)
        if hook_file.digest and programs is not None and trust.trusts_file(project, hook_file.key, hook_file.digest):
            runner = ProgramRunner(hook_file.project, HookPrograms.from_json(programs), home / "snapshots")
            agreement = replace(hook_file, runner=runner)
            # The file may change between its digest and this line; each hook compares the digest before it runs.
            hooks = load_hooks(file)
            all_hooks = all_hooks.narrow(
                replace(hooks, hooks=tuple(replace(hook, agreement=agreement) for hook in hooks.hooks))
            )
        else:
            note = f"the hooks of {file} are not asked: `bough skills trust` trusts them as they are now"
            all_hooks = all_hooks.narrow(HookSet((), (note,)))
    return all_hooks


def trust_hooks(
    project: Path, hook_files: Iterable[HookFile], *, home: Path, trust: TrustStore, on_host: bool = False
) -> tuple[str, ...]:
    """Trust hook files of a project and the programs they name, as a person saw them. Returns their names.

    Args:
        hook_files: What the person saw; see `list_project_hooks`.
        on_host: Whether the hooks may run outside the sandbox.

    Raises:
        Conflict: A file changed in the meantime.
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
        # After the copy: if nothing changed since the person looked, the copy has what they saw.
        if not hook_file.is_unchanged():
            raise Conflict(f"{hook_file.project / hook_file.name} changed while it was being read", hint="try again")
    digests = {key: hook_file.digest for key, hook_file in by_key.items()}
    trust.trust(project, also=digests, skills={}, programs=programs)
    return tuple(by_key)


def list_project_hooks(project: Path) -> list[HookFile]:
    """Return the hook files of a project in their current state, without settings files that have no hooks."""
    top = project.absolute()
    return [HookFile.read(top, name) for name in PROJECT_FILES if _may_hold_hooks(top / name)]


def _load(file: Path) -> tuple[Hook, ...]:
    try:
        return load_hooks(file).hooks
    except InvalidInput:
        return ()  # reported by `find_hooks`, once the file is trusted


def _may_hold_hooks(file: Path) -> bool:
    if not file.is_file():
        return False
    try:
        hooks = load_hooks(file)
    except InvalidInput:
        return True  # listed, so that a person sees the invalid file
    return bool(hooks.hooks or hooks.notes)


def compute_digest(files: Iterable[Path]) -> str:
    """Return the sha256 of names and contents, hexadecimal. For an unreadable file, the error counts as its content."""
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

    Any word may be a path, so a file too many is listed rather than one too few.
    """
    for hook in hooks:
        words = _WORDS.findall(_VARIABLE.sub(" ", hook.command))
        words += [word.lstrip("/") for word in words]  # `$(pwd)/check.sh`
        words += [_IMPLIED[base] for base in map(os.path.basename, words) if base in _IMPLIED]
        for word in dict.fromkeys(words):
            yield from _expand(project / word, project)


def _distinct(first: Path, others: Iterable[Path]) -> Iterator[Path]:
    visited = {first}
    yield first
    for path in others:
        if path not in visited:
            visited.add(path)
            yield path


def _expand(path: Path, project: Path) -> Iterator[Path]:
    """Yield the file at a path, or all files below it. Paths outside of the project did not come with it."""
    try:
        # Inside as written or after links: a link out of the project is part of it, and its target is what runs.
        inside = path.absolute().is_relative_to(project.absolute()) or path.resolve().is_relative_to(project.resolve())
        if not inside or path.resolve() == project.resolve():
            return
        if path.is_file():
            yield path
        elif path.is_dir():
            yield from _walk(path)
    except (OSError, ValueError):
        return


def _walk(folder: Path) -> Iterator[Path]:
    for base, folders, names in os.walk(folder):
        folders.sort()  # in place: makes the order of the walk, and so the digest, reproducible
        yield from (Path(base, name) for name in sorted(names))
