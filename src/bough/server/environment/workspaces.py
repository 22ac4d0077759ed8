"""The folders of tenants. The tools of a tenant's conversations work only below its folder."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import UUID

from bough.errors import InvalidInput, PermissionDenied
from bough.server.auth.caller import LOCAL, Caller
from bough.server.bounds.tenants import require_inside
from bough.server.settings import ServerSettings
from bough.settings import Settings


class Workspaces:
    """The folders of the tenants."""

    def __init__(self, settings: Settings, server: ServerSettings) -> None:
        self._settings = settings
        self._server = server

    def root_for(self, caller: Caller) -> Path:
        """Return the folder of all files of a tenant, and create it if it is missing."""
        root = self._server.folder_for(caller.tenant, self._settings.home)
        root.mkdir(parents=True, exist_ok=True)
        return Path(os.path.realpath(root))

    def require_inside(self, caller: Caller, folder: str | Path) -> Path:
        """Return the real path of a conversation's folder. Raises what `bounds.tenants.require_inside` raises."""
        home = self._settings.home
        root = self._server.folder_for(caller.tenant, home)
        return require_inside(folder, tenant=caller.tenant, root=root, home=home)

    def folder_for(self, caller: Caller, id: UUID, working_dir: str | None) -> Path:
        """Return the working folder of a new conversation; `creating` creates it if it is missing.

        Args:
            working_dir: Absolute, or relative to the tenant's folder; None gives the conversation its own folder.

        Raises:
            PermissionDenied: The folder lies outside of the tenant's folder.
            InvalidInput: The path, or a part of it, exists and is not a folder.
        """
        root = self.root_for(caller)
        if working_dir is None:
            return root / str(id)
        if "\0" in working_dir:
            raise InvalidInput("workspace.working_dir is not a path", hint="name a folder")
        folder = Path(os.path.realpath(root / working_dir))
        if caller.tenant == LOCAL and caller.key is None and folder.is_dir():
            return folder  # without keys, the caller owns this machine and may use any existing folder
        if folder != root and root not in folder.parents:
            raise PermissionDenied("workspace.working_dir lies outside of the tenant's folder", hint="leave it out")
        if any(path.exists() and not path.is_dir() for path in (folder, *folder.parents)):
            raise InvalidInput("workspace.working_dir is not a folder", hint="name another one")
        return folder

    @contextmanager
    def creating(self, folder: Path) -> Generator[None]:
        """Create the working folder of the conversation that the block starts. If the block fails, remove new folders.

        Raises:
            InvalidInput: The folder cannot be created.
            PermissionDenied: The path contains a link.
        """
        missing = [path for path in (folder, *folder.parents) if not path.exists()]
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidInput("workspace.working_dir is not a folder", hint="name another one") from error
        if os.path.realpath(folder) != str(folder):  # a part of it became a link after it was checked
            raise PermissionDenied("workspace.working_dir is a link", hint="name the folder itself")
        try:
            yield
        except BaseException:
            for path in missing:
                with suppress(OSError):  # another process has created files in it
                    path.rmdir()
            raise
