"""Routes for changes in git. Git runs in the sandbox, where the settings of a repository can do no harm."""

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

Ref = Annotated[str, Query(pattern=r"^[A-Za-z0-9_@][\w./@~^-]{0,199}$", description="The revision to compare with.")]
_GIT = "git --no-optional-locks -c safe.directory='*' -c core.hooksPath=/dev/null -c core.fsmonitor=false"
_TIMEOUT_SECONDS = 60.0
_STATUS = {"R": "MOVED", "D": "DELETED", "A": "ADDED", "?": "ADDED"}
_MAX_FILE_BYTES = 4 << 20


class GitChange(BaseModel):
    """A changed file."""

    status: Literal["MOVED", "ADDED", "DELETED", "UPDATED"]
    path: str


class GitDiff(BaseModel):
    """The content of a file now and at a revision; null if the file does not exist."""

    modified: str | None
    original: str | None


@routes.get("/git/changes")
async def list_changes(path: FilePath, request: Request, access: FileReader, ref: Ref = "HEAD") -> list[GitChange]:
    """Return the changed files of a repository; an empty list if there is no repository."""
    place = await find_place(request, access)
    folder = place.resolve(path)
    diff = await _run_git(
        access, place, folder, f"diff --no-ext-diff --no-textconv --name-status -M -z {shlex.quote(ref)} --"
    )
    if not diff.ok:
        return []
    untracked = await _run_git(access, place, folder, "ls-files --others --exclude-standard -z")
    added = [GitChange(status="ADDED", path=name) for name in _parse_names(untracked.stdout)]
    return sorted([*_parse_changes(diff.stdout), *added], key=lambda change: change.path)


@routes.get("/git/diff")
async def show_diff(path: FilePath, request: Request, access: FileReader, ref: Ref = "HEAD") -> GitDiff:
    """Return a file's content now and at a revision."""
    place = await find_place(request, access)
    file = place.resolve(path)
    tree = place.open_tree(file, max_file_bytes=_MAX_FILE_BYTES)
    try:
        modified = (await on_tree(lambda: tree.read(str(file)))).decode("utf-8", "replace")
    except NotFound:
        modified = None
    original = await _read_original(access, place, file, ref)
    if modified is None and original is None:
        raise NotFound("the file exists neither in the workspace nor at this revision")
    return GitDiff(modified=modified, original=original)


async def _read_original(access: Access, place: WorkspacePlace, file: Path, ref: str) -> str | None:
    """Return the content of a file at a revision; None if the revision does not contain the file.

    The `--` marks the argument as a revision. Otherwise git would also look for a file with this name, and a sandbox
    that forbids the access kills git.
    """
    folder = await asyncio.to_thread(_find_nearest_folder, file)
    name = shlex.quote(f"{ref}:./{file.relative_to(folder)}")
    output = await _run_git(access, place, folder, f"show --no-ext-diff --no-textconv {name} --")
    return output.stdout.decode("utf-8", "replace") if output.ok else None


def _find_nearest_folder(file: Path) -> Path:
    return next(folder for folder in file.parents if folder.is_dir())


async def _run_git(access: Access, place: WorkspacePlace, folder: Path, arguments: str) -> CodeExecutionResult:
    """Run git in a folder. The sandbox gets the whole workspace, because the repository may begin above the folder."""
    root = place.root if folder.is_relative_to(place.root) else await asyncio.to_thread(_find_repository, folder)
    relative_folder = shlex.quote(str(folder.relative_to(root)))
    return await run_in_sandbox(
        access.services.executor(), root, f"{_GIT} -C {relative_folder} {arguments}", _TIMEOUT_SECONDS
    )


def _find_repository(folder: Path) -> Path:
    """Return the top folder of the repository that contains a folder; the folder itself if there is none."""
    return next((parent for parent in (folder, *folder.parents) if (parent / ".git").exists()), folder)


def _parse_names(output: bytes) -> list[str]:
    return [name.decode("utf-8", "replace") for name in output.split(b"\0") if name]


def _parse_changes(output: bytes) -> Iterator[GitChange]:
    """Yield the changes in the output of `git diff --name-status -z`.

    Each change is a status and one name, or two names if the file was moved or copied.
    """
    fields = iter(_parse_names(output))
    for status in fields:
        name = next(fields, "")
        if status[:1] in "RC":
            name = next(fields, name)
        kind = _STATUS.get(status[:1], "UPDATED")
        yield GitChange(status=kind, path=name)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
