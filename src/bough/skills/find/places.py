"""The folders that are searched for skills, in order of precedence: the first skill of a name is used."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bough.skills.find.discover import Root

BUILTIN = Path(__file__).parent.with_name("builtin")

_PROJECT = (
    (".agents/skills", False),
    (".bough/skills", False),
    (".claude/skills", False),
    (".openhands/skills", True),
    (".openhands/microagents", True),
)
"""(folder in a project, whether every flat `*.md` in it is a skill)."""


def list_places(workspace: Path, *, home: Path, roots: Sequence[Path] = ()) -> list[Root]:
    """Return every folder to search, in this order: configured, project, user, installed, built-in.

    Args:
        workspace: The working folder. It and its parents up to the git root may contain project folders.
        home: bough's own folder (`Settings.home`).
        roots: Explicitly configured folders, which take precedence.
    """
    configured = [Root(path, "configured") for path in roots]
    user_roots = list(_list_user_places(home))
    # If the project is the home folder, the user's own skills are not project skills.
    user_folders = {root.path.absolute() for root in user_roots}
    project_roots = [root for root in list_project_places(workspace) if root.path not in user_folders]
    return [*configured, *project_roots, *user_roots, Root(home / "installed", "installed"), Root(BUILTIN, "builtin")]


def project_root(workspace: Path) -> Path:
    """Return the nearest folder with `.git` at or above `workspace`; `workspace` itself if there is none."""
    absolute = workspace.absolute()
    return next((folder for folder in (absolute, *absolute.parents) if os.path.exists(folder / ".git")), absolute)


def list_project_places(workspace: Path) -> Iterator[Root]:
    """Yield every folder that may contain skills of the workspace's project, nearest first."""
    top, absolute = project_root(workspace), workspace.absolute()
    for folder in (absolute, *absolute.parents):
        for subfolder, flat in _PROJECT:
            yield Root(folder / subfolder, "project", flat, within=top)
        if folder == top:
            return


def _list_user_places(home: Path) -> Iterator[Root]:
    user_home = home.parent if home.name == ".bough" else home
    for folder in (user_home / ".agents" / "skills", home / "skills", user_home / ".claude" / "skills"):
        yield Root(folder, "user")


DISABLED = "disabled.json"
"""File in bough's own folder that lists the disabled skills."""


def read_disabled(home: Path) -> list[str]:
    """Return the files of the disabled skills; empty if the list is missing or broken."""
    try:
        data: Any = json.loads((home / DISABLED).read_bytes())
        return [str(path) for path in data["skills"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return []
