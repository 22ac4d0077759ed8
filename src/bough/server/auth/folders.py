"""The folder of a conversation stays the tenant's: what runs in it may replace a folder by a link to anywhere."""

from __future__ import annotations

import os
from pathlib import Path

from bough.errors import PermissionDenied
from bough.server.auth.caller import LOCAL


def require_inside(folder: str | Path, *, tenant: str, root: Path, home: Path) -> Path:
    """Return the real path of a conversation's folder.

    Args:
        root: Holds the files of the tenant.
        home: Its `workspaces` hold copies that forks work in.

    Raises:
        PermissionDenied: A link on the way leads out of the tenant's folder.
    """
    path, real, top = os.path.normpath(folder), os.path.realpath(folder), os.path.realpath(root)
    if is_below(real, top) or real == path:  # without links it is where it was when the conversation began
        return Path(real)
    made_folder = os.path.realpath(home / "workspaces")
    if (
        os.path.realpath(os.path.dirname(path)) == made_folder
        and os.path.join(made_folder, os.path.basename(path)) == real
    ):
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
