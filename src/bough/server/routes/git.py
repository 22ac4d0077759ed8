"""Git of a workspace: what has changed. Git itself runs in the sandbox, so a repository's own settings harm nothing."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from fastapi import Query, Request
from pydantic import BaseModel

from bough.errors import NotFound
from bough.execution.base import CodeExecutionResult
from bough.server.access import Access, FileReader
from bough.server.environment.commands import run_in_sandbox
from bough.server.requests.routing import workspace_router
from bough.server.routes.files import FilePath
from bough.server.routes.places import WorkspacePlace, find_place, on_tree

routes = workspace_router()

Ref = Annotated[str, Query(pattern=r"^[A-Za-z0-9_@][\w./@~^-]{0,199}$", description="What to compare with.")]
_GIT = "git --no-optional-locks -c safe.directory='*' -c core.hooksPath=/dev/null -c core.fsmonitor=false"
_SECONDS = 60.0
_STATUS = {"R": "MOVED", "D": "DELETED", "A": "ADDED", "?": "ADDED"}
_FILE_BYTES = 4 << 20


class GitChange(BaseModel):
    """A file that is not as it was."""

    status: Literal["MOVED", "ADDED", "DELETED", "UPDATED"]
    path: str


class GitDiff(BaseModel):
    """A file then and now; null where it was not there."""

    modified: str | None
    original: str | None


@routes.get("/git/changes")
async def list_changes(path: FilePath, request: Request, access: FileReader, ref: Ref = "HEAD") -> list[GitChange]:
    """Return the files of a repository that have changed; nothing where there is no repository."""
    place = await find_place(request, access)
    folder = place.resolve(path)
    listed = await _git(
        access, place, folder, f"diff --no-ext-diff --no-textconv --name-status -M -z {shlex.quote(ref)} --"
    )
    if not listed.ok:
        return []
    new = await _git(access, place, folder, "ls-files --others --exclude-standard -z")
    added = [GitChange(status="ADDED", path=name) for name in _names(new.stdout)]
    return sorted([*_changes(listed.stdout), *added], key=lambda change: change.path)


@routes.get("/git/diff")
async def show_diff(path: FilePath, request: Request, access: FileReader, ref: Ref = "HEAD") -> GitDiff:
    """Return a file's content now and at a revision."""
    place = await find_place(request, access)
    file = place.resolve(path)
    tree = place.open_tree(file, max_file_bytes=_FILE_BYTES)
    try:
        modified = (await on_tree(lambda: tree.read(str(file)))).decode("utf-8", "replace")
    except NotFound:
        modified = None
    original = await _read_original(access, place, file, ref)
    if modified is None and original is None:
        raise NotFound("there is no such file, neither in the workspace nor at that revision")
    return GitDiff(modified=modified, original=original)


async def _read_original(access: Access, place: WorkspacePlace, file: Path, ref: str) -> str | None:
    """Return a file as a revision has it; None where it has none.

    The `--` says that a revision is meant: git would else look for a file of that name, and a sandbox that forbids the
    look ends it.
    """
    folder = await asyncio.to_thread(_nearest_folder, file)
    name = shlex.quote(f"{ref}:./{file.relative_to(folder)}")
    output = await _git(access, place, folder, f"show --no-ext-diff --no-textconv {name} --")
    return output.stdout.decode("utf-8", "replace") if output.ok else None


def _nearest_folder(file: Path) -> Path:
    return next(folder for folder in file.parents if folder.is_dir())


async def _git(access: Access, place: WorkspacePlace, folder: Path, arguments: str) -> CodeExecutionResult:
    """Run git in a folder. The sandbox is given the whole workspace: the repository may begin above the folder."""
    root = place.root if folder.is_relative_to(place.root) else await asyncio.to_thread(_find_repository, folder)
    below = shlex.quote(str(folder.relative_to(root)))
    return await run_in_sandbox(access.services.executor(), root, f"{_GIT} -C {below} {arguments}", _SECONDS)


def _find_repository(folder: Path) -> Path:
    """Return the nearest folder above that begins a repository, for a user's own files; else the folder itself."""
    return next((parent for parent in (folder, *folder.parents) if (parent / ".git").exists()), folder)


def _names(output: bytes) -> list[str]:
    return [name.decode("utf-8", "replace") for name in output.split(b"\0") if name]


def _changes(output: bytes) -> Iterator[GitChange]:
    """Yield the changes of `git diff --name-status -z`: a status, then one name, or two of a file that moved."""
    fields = iter(_names(output))
    for status in fields:
        name = next(fields, "")
        if status[:1] in "RC":
            name = next(fields, name)
        kind = _STATUS.get(status[:1], "UPDATED")
        yield GitChange(status=kind, path=name)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
