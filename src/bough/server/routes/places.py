"""The folder that a request for files, commands or git works in: the tenant's, or that of a conversation."""

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
        root: The folder that paths may not lead out of.
        base: The folder that relative paths start from.
        open: Whether paths may lead out of the root, because the caller is the local user.
    """

    root: Path
    base: Path
    open: bool

    def resolve(self, path: str) -> Path:
        """Return the absolute path for a path in a request.

        Raises:
            PermissionDenied: The path lies outside of the workspace.
            InvalidInput: The text is not a path.
        """
        if not path or "\0" in path or len(path) > 4096:
            raise InvalidInput("path: not a path", hint="use a path that is absolute, or relative to the workspace")
        resolved = Path(os.path.normpath(self.base / path))
        if not self.open and resolved != self.root and self.root not in resolved.parents:
            raise PermissionDenied("path: lies outside of the workspace", hint="use a path below the workspace")
        return resolved

    def resolve_folder(self, path: str) -> Path:
        """Return the real path of a folder to run commands in.

        Raises:
            PermissionDenied: The folder lies outside of the workspace, directly or through a link.
            InvalidInput: The text is not a path.
        """
        folder = os.path.realpath(self.resolve(path))
        if not self.open and not is_below(folder, os.path.realpath(self.root)):
            raise PermissionDenied("cwd: leads out of the workspace", hint="use a folder below the workspace")
        return Path(folder)

    def open_tree(self, path: Path, *, max_file_bytes: int) -> WorkspaceTree:
        """Return a tree that reads and writes a path, and follows no links out of the workspace."""
        root = self.root if path == self.root or self.root in path.parents else path.parent
        return WorkspaceTree(str(root), str(root), max_file_bytes=max_file_bytes)


async def find_place(request: Request, access: Access) -> WorkspacePlace:
    """Return the folder of a request: the workspace of the conversation in its URL, else the folder of the tenant.

    Raises:
        NotFound: The tenant has no such conversation.
        PermissionDenied: The workspace has become a link that leads out of the tenant's folder.
    """
    services = access.services
    root = services.workspaces.root_for(access.caller)
    is_open = access.caller.tenant == LOCAL and access.caller.key is None
    id = request.path_params.get("id")
    if id is None:
        return WorkspacePlace(root, root, is_open)
    try:
        record = await access.store.get(UUID(str(id)))
    except ValueError as error:
        raise InvalidInput("id: not a UUID", hint="use the id of a conversation") from error
    folder = await asyncio.to_thread(
        services.workspaces.require_inside, access.caller, record.config.get("workspace", root)
    )
    return WorkspacePlace(folder, folder, is_open)


async def on_tree(function: Callable[[], T]) -> T:
    """Run a function that uses the file system in a thread, and convert the system's errors.

    Raises:
        NotFound: There is no such file or folder.
        PermissionDenied: The path may not be used, or leads out of the workspace.
        TooLarge: The file is too large.
        InvalidInput: The path is a folder instead of a file, or a file instead of a folder.
        Unavailable: The disk is full.
    """
    try:
        return await asyncio.to_thread(function)
    except FileNotFoundError as error:
        raise NotFound("there is no such file") from error
    except (IsADirectoryError, NotADirectoryError, FileExistsError) as error:
        raise InvalidInput(
            "path: a folder instead of a file, or a file instead of a folder", hint="use another path"
        ) from error
    except PermissionError as error:
        raise PermissionDenied("the path is protected, or leads out of the workspace") from error
    except OSError as error:
        raise _convert_os_error(error) from error


def _convert_os_error(error: OSError) -> BoughError:
    if "large" in str(error).lower():
        return TooLarge("the file is too large")
    if error.errno == errno.ENAMETOOLONG:
        return InvalidInput("path: a name is too long for the file system", hint="use a shorter name")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Unavailable("the disk is full and the file was not written", hint="delete files, or ask the operator")
    return PermissionDenied("the path cannot be used", hint="use a regular file below the workspace")
