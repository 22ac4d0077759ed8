"""Which hooks of a project a person has agreed to: the very files, and the very programs of the project that they name.

A repository that was cloned brings its hooks along, and hooks run with the user's rights outside any sandbox. So they
are asked only after a person trusted them as they are, and no longer once any of these files has changed, even in
mid-run: an agent may write where such a program lies. What these programs themselves read or import is not looked at.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from bough.errors import InvalidInput
from bough.guard.hook_file import PROJECT_FILES, load_hooks
from bough.guard.hooks import Hook, HookSet
from bough.skills import TrustStore
from bough.skills.find.places import project_root

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
    """

    project: Path
    name: str
    digest: str

    @classmethod
    def now(cls, project: Path, name: str) -> Agreed:
        """Return what one would agree to now. O(bytes of the files)."""
        file = project / name
        try:
            hooks = load_hooks(file).hooks
        except InvalidInput:
            hooks = ()  # it says so when it is read for good, which is when it is trusted
        files = tuple(islice(_distinct(file, _list_named_files(hooks, project)), MAX_FILES + 1))
        return cls(project, name, digest_of(files) if len(files) <= MAX_FILES else "")

    @property
    def key(self) -> str:
        """The file, relative to the top of the project: its name in the trust store."""
        return os.path.relpath(self.project / self.name, project_root(self.project))

    def holds(self) -> bool:
        """Whether all of it is still as it was."""
        return bool(self.digest) and Agreed.now(self.project, self.name).digest == self.digest


def find_hooks(*, home: Path, project: Path, trust: TrustStore) -> HookSet:
    """Return the hooks of the user's home folder, then those of the project that a person has trusted as they are.

    Files that are not trusted, or have changed since, are named in the notes; nothing of them is asked.

    Raises:
        InvalidInput: A file that counts is wrong.
    """
    found = load_hooks(home / "hooks.json")
    for agreed in project_hooks(project):
        file = agreed.project / agreed.name
        if agreed.digest and trust.remembers(project, agreed.key, agreed.digest):
            hooks = load_hooks(file)
            found = found.narrow(replace(hooks, hooks=tuple(replace(each, agreed=agreed) for each in hooks.hooks)))
        else:
            note = f"the hooks of {file} are not asked: `bough skills trust` trusts them as they are now"
            found = found.narrow(HookSet((), (note,)))
    return found


def project_hooks(project: Path) -> list[Agreed]:
    """Return the project's files of hooks, each as it is now; a settings file without hooks is none."""
    top = project.absolute()
    return [Agreed.now(top, name) for name in PROJECT_FILES if _may_hold_hooks(top / name)]


def _may_hold_hooks(file: Path) -> bool:
    if not file.is_file():
        return False
    try:
        found = load_hooks(file)
    except InvalidInput:
        return True
    return bool(found.hooks or found.notes)


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


def _distinct(first: Path, rest: Iterable[Path]) -> Iterator[Path]:
    seen = {first}
    yield first
    for path in rest:
        if path not in seen:
            seen.add(path)
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
