"""Where files, commands and git of a request are: below the tenant's folder, or a conversation's own."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar
from uuid import UUID

from fastapi import Request

from bough.agents.workspace.tree import WorkspaceTree
from bough.errors import BoughError, InvalidInput, NotFound, PermissionDenied, TooLarge, Unavailable
from bough.server.access import Access
from bough.server.auth.caller import LOCAL
from bough.server.bounds.tenants import is_below

T = TypeVar("T")


class WorkspacePlace(NamedTuple):
    """A folder that a request works in.

    Attributes:
        root: Nothing outside of it is reached.
        base: Relative paths count from here.
        open: Absolute paths may lead anywhere: the caller is the person whose machine this is.
    """

    root: Path
    base: Path
    open: bool

    def resolve(self, path: str) -> Path:
        """Return the absolute path that a request names.

        Raises:
            PermissionDenied: It lies outside.
            InvalidInput: It is not a path.
        """
        if not path or "\0" in path or len(path) > 4096:
            raise InvalidInput("path: not a path", hint="absolute, or relative to the workspace")
        resolved = Path(os.path.normpath(self.base / path))
        if not self.open and resolved != self.root and self.root not in resolved.parents:
            raise PermissionDenied("path: it lies outside of the workspace", hint="name a path below it")
        return resolved

    def resolve_folder(self, path: str) -> Path:
        """Return the real path of a folder that commands are to run in.

        Raises:
            PermissionDenied: It lies outside, or a link leads there.
            InvalidInput: It is not a path.
        """
        folder = os.path.realpath(self.resolve(path))
        if not self.open and not is_below(folder, os.path.realpath(self.root)):
            raise PermissionDenied("cwd: it leads outside of the workspace", hint="name a folder below it")
        return Path(folder)

    def open_tree(self, path: Path, *, max_file_bytes: int) -> WorkspaceTree:
        """Return what reads and writes at a path and follows no link to anywhere else."""
        root = self.root if path == self.root or self.root in path.parents else path.parent
        return WorkspaceTree(str(root), str(root), max_file_bytes=max_file_bytes)


async def find_place(request: Request, access: Access) -> WorkspacePlace:
    """Return the place of a request: of the conversation in its path, else of the tenant.

    Raises:
        NotFound: The conversation is not there, or another tenant's.
        PermissionDenied: Its workspace has become a link that leads out of the tenant's folder.
    """
    services = access.services
    root = services.workspaces.root_for(access.caller)
    is_open = access.caller.tenant == LOCAL and access.caller.key is None
    if (id := request.path_params.get("id")) is None:
        return WorkspacePlace(root, root, is_open)
    try:
        record = await access.store.get(UUID(str(id)))
    except ValueError as error:
        raise InvalidInput("id: not a UUID", hint="the id of a conversation") from error
    folder = await asyncio.to_thread(
        services.workspaces.require_inside, access.caller, record.config.get("workspace", root)
    )
    return WorkspacePlace(folder, folder, is_open)


async def on_tree(do: Callable[[], T]) -> T:
    """Return what a function of the file system gives, run in a thread; the system's errors become ours.

    Raises:
        NotFound: There is no such file or folder.
        PermissionDenied: It is guarded, or leads outside.
        TooLarge: The file is longer than what is taken.
        InvalidInput: It is a folder where a file is needed, or the other way round.
        Unavailable: The disk is full.
    """
    try:
        return await asyncio.to_thread(do)
    except FileNotFoundError as error:
        raise NotFound("there is no such file") from error
    except (IsADirectoryError, NotADirectoryError, FileExistsError) as error:
        raise InvalidInput("path: not of that kind", hint="a file, not a folder, or the other way round") from error
    except PermissionError as error:
        raise PermissionDenied("the path is guarded, or leads outside of the workspace") from error
    except OSError as error:
        raise _of_system(error) from error


def _of_system(error: OSError) -> BoughError:
    if "large" in str(error).lower():
        return TooLarge("the file is longer than what is taken")
    if error.errno == errno.ENAMETOOLONG:
        return InvalidInput("path: longer than the file system takes", hint="a shorter name")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Unavailable("the disk is full, the file was not written", hint="delete files, or ask the operator")
    return PermissionDenied("the path cannot be used", hint="name a regular file below the workspace")
