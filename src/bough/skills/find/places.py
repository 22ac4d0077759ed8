"""Where skills are searched for, in order of precedence: the first skill of a name wins."""

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
    """Return every folder to search: configured, project, user, installed, built-in.

    Args:
        workspace: The working folder; project folders are searched for in it and in every folder up to the git root.
        home: bough's own folder (`Settings.home`).
        roots: Explicitly configured folders, which take precedence.
    """
    configured = [Root(path, "configured") for path in roots]
    own = list(_user(home))
    mine = {root.path.absolute() for root in own}  # in the home folder, a user's own skills are not project skills
    project = [root for root in list_project_places(workspace) if root.path not in mine]
    return [*configured, *project, *own, Root(home / "installed", "installed"), Root(BUILTIN, "builtin")]


def project_root(workspace: Path) -> Path:
    """Return the folder with `.git` at or above `workspace`, else `workspace` itself."""
    absolute = workspace.absolute()
    return next((folder for folder in (absolute, *absolute.parents) if os.path.exists(folder / ".git")), absolute)


def list_project_places(workspace: Path) -> Iterator[Root]:
    """Yield every folder in which the project of a working folder may keep skills, nearest first."""
    top, absolute = project_root(workspace), workspace.absolute()
    for folder in (absolute, *absolute.parents):
        for place, flat in _PROJECT:
            yield Root(folder / place, "project", flat, within=top)
        if folder == top:
            return


def _user(home: Path) -> Iterator[Root]:
    person = home.parent if home.name == ".bough" else home
    for place in (person / ".agents" / "skills", home / "skills", person / ".claude" / "skills"):
        yield Root(place, "user")


DISABLED = "disabled.json"
"""File in bough's own folder that lists the disabled skills."""


def read_disabled(home: Path) -> list[str]:
    """Return the files of the disabled skills; empty if the list is missing or broken."""
    try:
        data: Any = json.loads((home / DISABLED).read_bytes())
        return [str(path) for path in data["skills"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return []
