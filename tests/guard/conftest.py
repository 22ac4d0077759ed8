"""A workspace with the files and links that rules look at."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bough.guard import ToolRequest


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A folder with a few files, and with links that lead out of it."""
    folder = tmp_path / "workspace"
    (folder / "src").mkdir(parents=True)
    (folder / "links").mkdir()
    for name in ("a.txt", "b.txt", "src/main.py"):
        (folder / name).write_text("text\n")
    (tmp_path / "outside.txt").write_text("not yours\n")
    (folder / "door").symlink_to(tmp_path / "outside.txt")
    (folder / "links" / "passwd").symlink_to("/etc/passwd")
    (folder / "inner").symlink_to("a.txt")
    return folder


@pytest.fixture
def request_of(workspace: Path) -> Callable[..., ToolRequest]:
    """Makes a tool request in the workspace."""

    def make(tool: str, **arguments: Any) -> ToolRequest:
        return ToolRequest(id="call-1", tool=tool, arguments=arguments, workspace=workspace)

    return make
