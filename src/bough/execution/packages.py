"""The installed packages of an environment, which programs in a sandbox can import and cannot change.

No code of the environment runs on the host: its start-up files are not read, and links in it are not followed.
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
from bough.types import require_type

PACKAGES: Final = "/packages"
"""The folder inside the sandbox with the packages."""

MAX_CHECKED: Final = 5000
"""Maximum number of installed packages whose Python version and platform are checked."""

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
        links: The paths of the symbolic links between the path that was passed to `find` and `root`.
        folder: The folder of `root` with the packages.
        version: The Python version for which they were installed; None if it is unknown.
        stamp: Device, inode and mtime of `folder`, which change when a package is installed or removed.
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
                path is resolved against the current working folder.

        Raises:
            InvalidInput: The path does not exist, is a file, or contains no packages; the packages are for another
                platform or for several versions of Python; or a link leads to the folder of the packages.
        """
        require_type(path, (str, os.PathLike), "packages", "give the folder of a virtual environment")
        # Made absolute now, so that a later change of the working folder does not select another environment.
        absolute_path = os.path.join(os.getcwd(), os.path.expanduser(os.fspath(path)))
        try:
            return cls._find(absolute_path)
        except (OSError, ValueError) as error:
            raise InvalidInput(
                f"packages: {absolute_path[:200]!r} cannot be read: {error}", hint="give a folder"
            ) from error

    @classmethod
    def _find(cls, absolute_path: str) -> Self:
        # Resolved only once, because a program that can write to the folder of a link could redirect later runs.
        real_path, links = _follow_links(absolute_path)
        if not os.path.exists(real_path):
            raise InvalidInput(
                f"packages: {absolute_path} does not exist", hint="python3 -m venv .venv, then give its folder"
            )
        if not os.path.isdir(real_path):
            raise InvalidInput(f"packages: {absolute_path} is a file", hint="give the folder of a virtual environment")
        root = _find_environment(real_path)
        folder, version = _find_folder(root)
        # A cloned folder can have an `.venv` whose `site-packages` is a link to a person's home.
        if os.path.realpath(folder) != folder:
            raise InvalidInput(
                f"packages: {folder} leads through a link out of its environment",
                hint="give the environment itself that it leads to",
            )
        stamp = _read_stamp(folder)  # before the packages are read, so that an installation meanwhile changes the stamp
        version = _choose_version(folder, version, _read_versions(folder))
        return cls(root=root, links=links, folder=folder, version=version, stamp=stamp)

    @property
    def is_current(self) -> bool:
        """Whether the folder is unchanged: no package was installed or removed. Makes one system call."""
        try:
            return _read_stamp(self.folder) == self.stamp
        except OSError:
            return False

    def find_again(self) -> Packages:
        """Read the packages of the environment again and return them. Blocks; O(packages).

        Raises:
            InvalidInput: The environment does not exist, or was recreated for another Python.
        """
        current = Packages.find(self.root)
        if current.folder != self.folder or (self.version is not None and current.version != self.version):
            raise current.make_version_error(self.version)
        return replace(current, links=self.links)

    def make_version_error(self, earlier: Version | None) -> InvalidInput:
        """Return the error for an environment that was recreated for another version of Python."""
        return InvalidInput(
            f"packages: {self.root} was for {_format_version(earlier)}, and is for {_format_version(self.version)} now",
            hint="make a new executor for it",
        )

    def find_interpreters(self) -> tuple[Interpreter, ...]:
        """Return the interpreters of this machine that can import the packages, the preferred one first.

        Raises:
            InvalidInput: No interpreter here has the required version.
        """
        interpreters = list_interpreters(self.version)
        if interpreters:
            return interpreters
        versions = sorted({interpreter.version for interpreter in list_interpreters() if interpreter.version})
        names = [_format_version(version) for version in versions]
        raise InvalidInput(
            f"packages: {self.root} is for {_format_version(self.version)}, and a sandbox here "
            f"has {' or '.join(names)}",
            hint=f"recreate the environment with {names[-1]}: {names[-1].lower().replace(' ', '')} -m venv .venv",
        )

    def add_to(self, request: CodeExecutionInput) -> CodeExecutionInput:
        """Return a request whose program can import the packages, and cannot change them in its workspace.

        `PYTHONPATH` of the request comes first.

        Raises:
            InvalidInput: The workspace is inside the environment, or a writable mount is inside it or contains it.
        """
        guards = request.guards
        if request.workspace is not None:
            workspace = os.path.realpath(request.workspace)
            if _contains(self.root, workspace):
                raise InvalidInput(
                    f"The workspace {workspace} is a part of the environment {self.root}, which no program may change.",
                    hint="Give another folder as the workspace, or another environment.",
                )
            guards = self.extend_guards(guards, workspace)
        for mount in request.mounts:
            source = os.path.realpath(mount.source)
            # The guards cover only the workspace, so no writable mount may lead to the same files.
            contained = [path for path in (self.root, *self.links) if _contains(source, path)]
            if mount.writable and (contained or _contains(self.root, source)):
                raise InvalidInput(
                    f"The writable mount {mount.source!r} could change the packages in {self.root}.",
                    hint="Mount it read-only, or mount another folder.",
                )
        requested_path = request.env.get("PYTHONPATH", "")
        return replace(
            request,
            # Like every mount, checked again before the program starts; if it is another folder then, the run ends.
            mounts=(*request.mounts, Mount(source=self.folder, target=PACKAGES)),
            env={**request.env, "PYTHONPATH": f"{requested_path}:{PACKAGES}" if requested_path else PACKAGES},
            guards=guards,
        )

    def extend_guards(self, guards: Guards, workspace: str) -> Guards:
        """Return guards that also cover the environment, and the links that lead to it, if they are in a workspace.

        The links themselves are guarded too, because they determine which `.venv/bin/python` a person runs next.
        """
        folder = os.path.realpath(workspace)
        links = [os.path.relpath(link, folder) for link in self.links if link != folder and _contains(folder, link)]
        extended = guards.extend(workspace, (self.root,))
        return replace(extended, paths=tuple(dict.fromkeys((*extended.paths, *links))))


def _follow_links(path: str) -> tuple[str, tuple[str, ...]]:
    """Return an absolute path with its links resolved, and the path of each link that was followed.

    Raises:
        OSError: The links form a cycle.
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


def _read_stamp(folder: str) -> tuple[int, int, int]:
    folder_stat = os.lstat(folder)
    return folder_stat.st_dev, folder_stat.st_ino, folder_stat.st_mtime_ns


def _format_version(version: Version | None) -> str:
    return "any Python" if version is None else f"Python {version[0]}.{version[1]}"


def _find_environment(folder: str) -> str:
    """Return the virtual environment if the folder is the `site-packages` of one; otherwise the folder itself."""
    parts = folder.split("/")
    if parts[-1] == "site-packages" and parts[-3:-2] == ["lib"] and _PYTHON_FOLDER.fullmatch(parts[-2]):
        environment = "/".join(parts[:-3])
        if os.path.isfile(f"{environment}/pyvenv.cfg"):
            return environment
    return folder


def _find_folder(root: str) -> tuple[str, Version | None]:
    """Return the folder of packages in an environment, and the version of Python that its path names.

    Raises:
        InvalidInput: The environment has no such folder, or several, or was created on Windows.
    """
    if os.path.isdir(f"{root}/Lib/site-packages"):
        raise InvalidInput(f"packages: {root} was created on Windows", hint="recreate it on this machine")
    library = f"{root}/lib"
    names = sorted(os.listdir(library)) if os.path.isdir(library) else []
    python_names = [name for name in names if os.path.isdir(f"{library}/{name}/site-packages")]
    if len(python_names) > 1:
        raise InvalidInput(
            f"packages: {root} has packages of {', '.join(python_names)}",
            hint=f"give the folder of one, for example {library}/{python_names[-1]}/site-packages",
        )
    for name in python_names:
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
    """Return the versions of Python that each compiled package supports, by the name of its metadata folder.

    Packages that every version of Python can import are omitted.

    Raises:
        InvalidInput: A package is for another platform, or for an interpreter other than CPython.
    """
    versions: dict[str, set[Version]] = {}
    for name, tags in _read_tags(folder):
        split_tags = [tag.split("-") for tag in tags if tag.count("-") == 2]
        matching_tags = [(python, abi) for python, abi, system in split_tags if _is_this_platform(system)]
        if split_tags and not matching_tags:
            raise InvalidInput(
                f"packages: {name.removesuffix('.dist-info')} is for {split_tags[0][2]}, and this machine is "
                f"{sys.platform}{_PLATFORM_SUFFIX}",
                hint="recreate the environment on this machine",
            )
        if any(abi in ("none", "abi3") for _, abi in matching_tags):
            continue
        supported = {
            (int(match[1]), int(match[2])) for _, abi in matching_tags if (match := _CPYTHON_TAG.fullmatch(abi))
        }
        if matching_tags and not supported:
            raise InvalidInput(
                f"packages: {name.removesuffix('.dist-info')} is for {matching_tags[0][1]}, which no sandbox here runs",
                hint="recreate the environment with an ordinary CPython",
            )
        if supported:
            versions[name] = supported
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
            except OSError:  # the file is missing or a link, so the tags are unknown
                continue
            yield name, [line[4:].strip() for line in text.splitlines() if line.startswith("Tag:")]
    finally:
        os.close(fd)


def _read_beneath(folder_fd: int, name: str, file: str) -> str:
    """Return the text of the regular file `name/file` in an open folder; empty for any other kind of file."""
    inner_fd = os.open(name, _FOLDER, dir_fd=folder_fd)
    try:
        fd = os.open(file, _READ, dir_fd=inner_fd)
    finally:
        os.close(inner_fd)
    try:
        data = os.read(fd, _MAX_TAGS_BYTES) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
    finally:
        os.close(fd)
    return data.decode("utf-8", "replace")


def _choose_version(folder: str, version: Version | None, versions: dict[str, set[Version]]) -> Version | None:
    """Return the newest version that the folder and all compiled packages support; None if every version works.

    Raises:
        InvalidInput: No version is supported by all of them.
    """
    candidates = None if version is None else {version}
    for name, supported in versions.items():
        shared = supported if candidates is None else candidates & supported
        if not shared:
            expected_name = _format_version(min(candidates or supported))
            actual_name = _format_version(min(supported))
            raise InvalidInput(
                f"packages: {name.removesuffix('.dist-info')} in {folder} is for {actual_name}, "
                f"but the other packages are for {expected_name}",
                hint=f"reinstall it with {expected_name}",
            )
        candidates = shared
    return None if not candidates else max(candidates)
