"""What it costs to start bough, against an empty interpreter and against the imports that a command cannot avoid."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from harness import Work, compare


def make_command(*argv: str, home: str) -> Work:
    """Return a function that runs a command, which must succeed."""
    environment = {"PATH": os.environ["PATH"], "HOME": home, "PYTHONDONTWRITEBYTECODE": ""}

    def run() -> None:
        subprocess.run(argv, env=environment, check=True, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)

    return run


def make_handshake(bough: str, home: str) -> Work:
    """Return a function that starts an agent for editors, and waits for its answer to `initialize`."""
    environment = {"PATH": os.environ["PATH"], "HOME": home, "PYTHONDONTWRITEBYTECODE": ""}
    request = b'{"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": 1}}\n'

    def run() -> None:
        with subprocess.Popen(
            [bough, "acp"], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(request)
            process.stdin.flush()
            assert process.stdout.readline()
            process.kill()

    return run


def main() -> None:
    """Print the figures."""
    bough = str(Path(sys.executable).with_name("bough"))
    with tempfile.TemporaryDirectory() as home:
        typer = make_command(sys.executable, "-c", "import typer", home=home)
        agent = make_command(sys.executable, "-c", "from pydantic_ai import Agent", home=home)
        run = make_command(bough, "run", "bake a cake", "-m", "offline", home=home)
        compare("startup: bough --help, to import typer", make_command(bough, "--help", home=home), typer)
        compare("startup: bough conv list, to import typer", make_command(bough, "conv", "list", home=home), typer)
        compare("startup: bough run offline, to import Agent", run, agent)
        floor = make_command(sys.executable, "-c", "pass", home=home)
        compare("startup: import bough", make_command(sys.executable, "-c", "import bough", home=home), floor)
        compare("startup: bough --version", make_command(bough, "--version", home=home), floor)
        compare("startup: bough conv list", make_command(bough, "conv", "list", home=home), floor)
        library = make_command(sys.executable, "-c", "import acp", home=home)
        compare("startup: bough acp, initialize", make_handshake(bough, home), library)


if __name__ == "__main__":
    main()
