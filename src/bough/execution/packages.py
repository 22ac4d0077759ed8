"""The installed packages of an environment, which programs in a sandbox can import and cannot change.

Nothing of the environment runs on the host: no start-up file is read there, and no link in it is followed.
"""

from __future__ import annotations

import errno
import os
import platform
import re
import stat
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, Self

from bough.errors import InvalidInput
from bough.execution.base import CodeExecutionInput, Guards, Mount
from bough.execution.sandbox.rung import Interpreter, Version, list_interpreters

PACKAGES: Final = "/packages"
"""The folder inside the sandbox with the packages."""

MAX_CHECKED: Final = 5000
"""How many installed packages are checked for another Python or another platform."""

_MAX_TAGS_BYTES: Final = 64 << 10
_PYTHON_FOLDER = re.compile(r"python(\d+)\.(\d+)")
_CPYTHON_TAG = re.compile(r"cp(\d)(\d+)m?")
_MAX_LINKS: Final = 40
_PLATFORM_SUFFIX: Final = f"_{platform.machine()}"
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FOLDER: Final = _READ | os.O_DIRECTORY


@dataclass(frozen=True, kw_only=True)
class Packages:
    """The packages of a virtual environment, or of a folder that `pip install -t` filled.

    Attributes:
        root: The environment, without links.
        links: The links on the given path to `root`, each by its own place.
        folder: The folder of `root` with the packages.
        version: The Python for which they were installed; None if the folder does not say.
        stamp: Device, number and change time of `folder`; another one means that something was installed or removed.
    """

    root: str
    links: tuple[str, ...]
    folder: str
    version: Version | None
    stamp: tuple[int, int, int]

    @classmethod
    def find(cls, path: str | os.PathLike[str]) -> Self:
        """Return the packages of an environment. Blocks; O(packages).

        Args:
            path: A virtual environment, the `site-packages` of one, or a folder with installed packages. A relative
                path is resolved against the present working folder.

        Raises:
            InvalidInput: The path is missing, is a file, or has no packages; or they are of another platform, or of
                several versions of Python; or the environment keeps its packages behind a link.
        """
        # Absolute from here on: a later change of the working folder must not choose another environment.
        given_path = os.path.join(os.getcwd(), os.path.expanduser(os.fspath(path)))
        try:
            return cls._find(given_path)
        except (OSError, ValueError) as error:
            raise InvalidInput(
                f"packages: {given_path[:200]!r} cannot be read: {error}", hint="give a folder"
            ) from error

    @classmethod
    def _find(cls, given_path: str) -> Self:
        # Resolved once: a program that writes to the folder of a link could lead later runs elsewhere.
        real_path, links = _follow_links(given_path)
        if not os.path.exists(real_path):
            raise InvalidInput(
                f"packages: {given_path} does not exist", hint="python3 -m venv .venv, then give its folder"
            )
        if not os.path.isdir(real_path):
            raise InvalidInput(f"packages: {given_path} is a file", hint="give the folder of a virtual environment")
        root = _find_environment(real_path)
        folder, version = _find_folder(root)
        # A cloned folder can have an `.venv` whose `site-packages` is a link to a person's home.
        if os.path.realpath(folder) != folder:
            raise InvalidInput(
                f"packages: {folder} leads through a link out of its environment",
                hint="give the environment itself that it leads to",
            )
        stamp = _stamp(folder)  # before the packages are read: what is installed meanwhile is read the next time
        version = _agree(folder, version, _read_versions(folder))
        return cls(root=root, links=links, folder=folder, version=version, stamp=stamp)

    @property
    def is_current(self) -> bool:
        """Whether the folder is unchanged: no package was installed or removed. Makes one system call."""
        try:
            return _stamp(self.folder) == self.stamp
        except OSError:
            return False

    def find_again(self) -> Packages:
        """Return the packages that the environment has now. Blocks; O(packages).

        Raises:
            InvalidInput: The environment is missing, or was recreated for another Python.
        """
        present = Packages.find(self.root)
        if present.folder != self.folder or (self.version is not None and present.version != self.version):
            raise present.make_version_error(self.version)
        return replace(present, links=self.links)

    def make_version_error(self, earlier: Version | None) -> InvalidInput:
        """Return the error for an environment that was recreated for another Python than an executor has."""
        return InvalidInput(
            f"packages: {self.root} was for {_say(earlier)}, and is for {_say(self.version)} now",
            hint="make a new executor for it",
        )

    def find_interpreters(self) -> tuple[Interpreter, ...]:
        """Return the interpreters of this machine that can import the packages, the preferred one first.

        Raises:
            InvalidInput: There is none.
        """
        interpreters = list_interpreters(self.version)
        if interpreters:
            return interpreters
        versions = sorted({interpreter.version for interpreter in list_interpreters() if interpreter.version})
        names = [_say(version) for version in versions]
        raise InvalidInput(
            f"packages: {self.root} is for {_say(self.version)}, and a sandbox here has {' or '.join(names)}",
            hint=f"recreate the environment with {names[-1]}: {names[-1].lower().replace(' ', '')} -m venv .venv",
        )

    def add_to(self, request: CodeExecutionInput) -> CodeExecutionInput:
        """Return a request whose program can import the packages, and cannot change them in its workspace.

        `PYTHONPATH` of the request comes first.

        Raises:
            InvalidInput: The workspace or a writable mount is a part of the environment, or has it as one.
        """
        guards = request.guards
        if request.workspace is not None:
            workspace = os.path.realpath(request.workspace)
            if _contains(self.root, workspace):
                raise InvalidInput(
                    f"The workspace {workspace} is a part of the environment {self.root}, which no program may change.",
                    hint="Give another folder as the workspace, or another environment.",
                )
            guards = self.guard(guards, workspace)
        for mount in request.mounts:
            source = os.path.realpath(mount.source)
            # The guards cover the workspace only: another way to the same files must not be writable.
            contained = [path for path in (self.root, *self.links) if _contains(source, path)]
            if mount.writable and (contained or _contains(self.root, source)):
                raise InvalidInput(
                    f"The writable mount {mount.source!r} could change the packages in {self.root}.",
                    hint="Mount it read-only, or mount another folder.",
                )
        own_path = request.env.get("PYTHONPATH", "")
        return replace(
            request,
            # Checked again as every mount is: another folder in its place ends the run before the program starts.
            mounts=(*request.mounts, Mount(source=self.folder, target=PACKAGES)),
            env={**request.env, "PYTHONPATH": f"{own_path}:{PACKAGES}" if own_path else PACKAGES},
            guards=guards,
        )

    def guard(self, guards: Guards, workspace: str) -> Guards:
        """Return guards that also cover the environment, and the links that lead to it, where they are in a workspace.

        A link decides what the next `.venv/bin/python` of a person is, so its own place is guarded, not its target.
        """
        root = os.path.realpath(workspace)
        links = [os.path.relpath(link, root) for link in self.links if link != root and _contains(root, link)]
        extended = guards.extend(workspace, (self.root,))
        return replace(extended, paths=tuple(dict.fromkeys((*extended.paths, *links))))


def _follow_links(path: str) -> tuple[str, tuple[str, ...]]:
    """Return an absolute path without links, and the links on the way, each by its own place without links.

    Raises:
        OSError: The links lead in a circle.
    """
    resolved, links, pending = "/", list[str](), path.split("/")[::-1]
    while pending:
        name = pending.pop()
        if name in ("", "."):
            continue
        if name == "..":
            resolved = os.path.dirname(resolved)
            continue
        entry = os.path.join(resolved, name)
        try:
            is_link = stat.S_ISLNK(os.lstat(entry).st_mode)
        except (FileNotFoundError, NotADirectoryError):
            is_link = False
        if not is_link:
            resolved = entry
            continue
        links.append(entry)
        if len(links) > _MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        target = os.readlink(entry)
        resolved = "/" if target.startswith("/") else resolved
        pending += target.split("/")[::-1]
    return resolved, tuple(links)


def _contains(folder: str, path: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _stamp(folder: str) -> tuple[int, int, int]:
    state = os.lstat(folder)
    return state.st_dev, state.st_ino, state.st_mtime_ns


def _say(version: Version | None) -> str:
    return "any Python" if version is None else f"Python {version[0]}.{version[1]}"


def _find_environment(folder: str) -> str:
    """Return the virtual environment whose `site-packages` the folder is; else the folder."""
    parts = folder.split("/")
    if parts[-1] == "site-packages" and parts[-3:-2] == ["lib"] and _PYTHON_FOLDER.fullmatch(parts[-2]):
        environment = "/".join(parts[:-3])
        if os.path.isfile(f"{environment}/pyvenv.cfg"):
            return environment
    return folder


def _find_folder(root: str) -> tuple[str, Version | None]:
    """Return the folder of packages in an environment, and the version of Python that its path names.

    Raises:
        InvalidInput: It has none, several, or those of another platform.
    """
    if os.path.isdir(f"{root}/Lib/site-packages"):
        raise InvalidInput(f"packages: {root} is an environment of Windows", hint="recreate it on this machine")
    library = f"{root}/lib"
    names = sorted(os.listdir(library)) if os.path.isdir(library) else []
    pythons = [name for name in names if os.path.isdir(f"{library}/{name}/site-packages")]
    if len(pythons) > 1:
        raise InvalidInput(
            f"packages: {root} has packages of {', '.join(pythons)}",
            hint=f"give the folder of one, for example {library}/{pythons[-1]}/site-packages",
        )
    for name in pythons:
        match = _PYTHON_FOLDER.fullmatch(name)
        if match is None:
            raise InvalidInput(f"packages: {root} is for {name}", hint="only CPython runs in the sandbox")
        return f"{library}/{name}/site-packages", (int(match[1]), int(match[2]))
    if os.path.isfile(f"{root}/pyvenv.cfg"):
        raise InvalidInput(f"packages: {root} has no site-packages", hint="recreate it: python3 -m venv .venv")
    match = _PYTHON_FOLDER.fullmatch(os.path.basename(os.path.dirname(root)))
    is_site = os.path.basename(root) in ("site-packages", "dist-packages")
    if not is_site and not any(name.endswith((".dist-info", ".egg-info")) for name in os.listdir(root)):
        raise InvalidInput(
            f"packages: {root} has no installed packages",
            hint="give a virtual environment, or a folder that `pip install -t` filled",
        )
    return root, None if match is None or not is_site else (int(match[1]), int(match[2]))


def _read_versions(folder: str) -> dict[str, set[Version]]:
    """Return the versions of Python that compiled packages need, by the names of their metadata folders.

    A package that any version of Python can import is left out.

    Raises:
        InvalidInput: A package is of another platform.
    """
    versions: dict[str, set[Version]] = {}
    for name, tags in _read_tags(folder):
        parsed = [tag.split("-") for tag in tags if tag.count("-") == 2]
        here = [(python, abi) for python, abi, system in parsed if _is_this_platform(system)]
        if parsed and not here:
            raise InvalidInput(
                f"packages: {name.removesuffix('.dist-info')} is for {parsed[0][2]}, and this machine is "
                f"{sys.platform}{_PLATFORM_SUFFIX}",
                hint="recreate the environment on this machine",
            )
        if any(abi in ("none", "abi3") for _, abi in here):
            continue
        needed = {(int(match[1]), int(match[2])) for _, abi in here if (match := _CPYTHON_TAG.fullmatch(abi))}
        if here and not needed:
            raise InvalidInput(
                f"packages: {name.removesuffix('.dist-info')} is for {here[0][1]}, which no sandbox here runs",
                hint="recreate the environment with an ordinary CPython",
            )
        if needed:
            versions[name] = needed
    return versions


def _is_this_platform(system: str) -> bool:
    return any(
        name == "any" or (name.startswith(("linux", "manylinux", "musllinux")) and name.endswith(_PLATFORM_SUFFIX))
        for name in system.split(".")
    )


def _read_tags(folder: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the name of each package's metadata folder and its tags. Follows no link and reads regular files only."""
    fd = os.open(folder, _FOLDER)
    try:
        names = [name for name in os.listdir(fd) if name.endswith(".dist-info")]
        for name in sorted(names)[:MAX_CHECKED]:
            try:
                text = _read_beneath(fd, name, "WHEEL")
            except OSError:  # a link, or no wheel: nothing is known of it
                continue
            yield name, [line[4:].strip() for line in text.splitlines() if line.startswith("Tag:")]
    finally:
        os.close(fd)


def _read_beneath(folder_fd: int, name: str, file: str) -> str:
    inner = os.open(name, _FOLDER, dir_fd=folder_fd)
    try:
        fd = os.open(file, _READ, dir_fd=inner)
    finally:
        os.close(inner)
    try:
        data = os.read(fd, _MAX_TAGS_BYTES) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
    finally:
        os.close(fd)
    return data.decode("utf-8", "replace")


def _agree(folder: str, version: Version | None, versions: dict[str, set[Version]]) -> Version | None:
    """Return the version that the folder and its compiled packages share.

    Raises:
        InvalidInput: They are for different versions.
    """
    candidates = None if version is None else {version}
    for name, needed in versions.items():
        shared = needed if candidates is None else candidates & needed
        if not shared:
            common, own = _say(min(candidates or needed)), _say(min(needed))
            raise InvalidInput(
                f"packages: {name.removesuffix('.dist-info')} in {folder} is for {own}, and the others for {common}",
                hint=f"install it anew with {common}",
            )
        candidates = shared
    return None if not candidates else max(candidates)
