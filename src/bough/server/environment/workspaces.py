"""The folders of tenants, below which the tools of their conversations work, whatever a request asks for."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import UUID

from bough.errors import InvalidInput, PermissionDenied
from bough.server.auth.caller import LOCAL, Caller
from bough.server.settings import ServerSettings
from bough.settings import Settings


class Workspaces:
    """The folders of the tenants."""

    def __init__(self, settings: Settings, server: ServerSettings) -> None:
        self._settings = settings
        self._server = server

    def root_for(self, caller: Caller) -> Path:
        """Return the folder of all files of a tenant; creates it if missing."""
        root = self._server.folder_for(caller.tenant, self._settings.home)
        root.mkdir(parents=True, exist_ok=True)
        return Path(os.path.realpath(root))

    def require_inside(self, caller: Caller, folder: str | Path) -> Path:
        """Return the real path of a conversation's folder. Raises what the function `require_inside` raises."""
        home = self._settings.home
        root = self._server.folder_for(caller.tenant, home)
        return require_inside(folder, tenant=caller.tenant, root=root, home=home)

    def folder_for(self, caller: Caller, id: UUID, working_dir: str | None) -> Path:
        """Return the working folder of a new conversation; `making` creates it if it is missing.

        Args:
            working_dir: Absolute, or relative to the tenant's folder; None is a separate folder of the conversation.

        Raises:
            PermissionDenied: It lies outside of the tenant's folder.
            InvalidInput: It exists and is not a folder.
        """
        root = self.root_for(caller)
        if working_dir is None:
            return root / str(id)
        if "\0" in working_dir:
            raise InvalidInput("workspace.working_dir is not a path", hint="name a folder")
        folder = Path(os.path.realpath(root / working_dir))
        if caller.tenant == LOCAL and caller.key is None and folder.is_dir():
            return folder  # the person's own machine: any folder that is there
        if folder != root and root not in folder.parents:
            raise PermissionDenied("workspace.working_dir lies outside of the tenant's folder", hint="leave it out")
        if any(place.exists() and not place.is_dir() for place in (folder, *folder.parents)):
            raise InvalidInput("workspace.working_dir is not a folder", hint="name another one")
        return folder

    @contextmanager
    def making(self, folder: Path) -> Generator[None]:
        """Make the working folder of a conversation that the block starts; if that fails, remove what was made.

        Raises:
            InvalidInput: It cannot be made.
            PermissionDenied: A link leads elsewhere.
        """
        missing = [place for place in (folder, *folder.parents) if not place.exists()]
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidInput("workspace.working_dir is not a folder", hint="name another one") from error
        if os.path.realpath(folder) != str(folder):  # it became a link after it was checked
            raise PermissionDenied("workspace.working_dir is a link", hint="name the folder itself")
        try:
            yield
        except BaseException:
            for place in missing:
                with suppress(OSError):  # somebody else put something there
                    place.rmdir()
            raise


def require_inside(folder: str | Path, *, tenant: str, root: Path, home: Path) -> Path:
    """Return the real path of a conversation's folder, which a program in it may have replaced by a link.

    Args:
        root: The folder of all files of the tenant.
        home: bough's own folder; its `workspaces` has the copies that forks work in.

    Raises:
        PermissionDenied: A link on the way leads out of the tenant's folder.
    """
    path, real, top = os.path.normpath(folder), os.path.realpath(folder), os.path.realpath(root)
    # A path without links is still the folder that was checked when the conversation was created.
    if is_below(real, top) or real == path:
        return Path(real)
    copies = os.path.realpath(home / "workspaces")
    # Here only links above `workspaces` may be followed, never the copy itself: its name must stay the last one.
    if os.path.realpath(os.path.dirname(path)) == copies and os.path.join(copies, os.path.basename(path)) == real:
        return Path(real)
    if tenant == LOCAL and not is_below(path, top) and not is_below(path, os.path.normpath(root)):
        return Path(real)  # the user's own folders, which the command line works in
    raise PermissionDenied(
        "the workspace of the conversation is a link that leads out of the tenant's folder",
        hint="replace the link by a folder, or start a conversation in another one",
    )


def is_below(path: str, top: str) -> bool:
    """Whether a normalized path is a folder or lies below it."""
    return path == top or path.startswith(top.rstrip(os.sep) + os.sep)
