"""`bough demo`: real commands on an example workspace, offline, in a folder of its own."""

from __future__ import annotations

import json as json_module
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

import bough
from bough.cli import options
from bough.cli.render import Report, renderer_for
from bough.cli.text import line
from bough.errors import Conflict, InvalidInput, SandboxUnavailable
from bough.types import JsonObject


class _Step(NamedTuple):
    """A command of the demo.

    Attributes:
        arguments_without_sandbox: The arguments on a machine on which no script can run; None to leave the step out.
    """

    title: str
    arguments: tuple[str, ...]
    arguments_without_sandbox: tuple[str, ...] | None


_NO_SANDBOX = SandboxUnavailable("").exit_code
_BRANCH = ("fork", "-@1")
_STEPS = (
    _Step("The skills that are there", ("skills",), ("skills",)),
    _Step(
        "A prompt in plain words; the skill that fits runs its script in the sandbox",
        ("run", "profile sales.csv"),
        None,
    ),
    _Step("Another prompt, another skill", ("run", "find broken links in the notes folder"), None),
    _Step("Everything that happened is an event in a log", ("conv", "show", "-"), ("conv", "show", "-")),
    _Step(
        "A branch after its first event, with a changed prompt",
        (*_BRANCH, "how many words are in README.md"),
        _BRANCH,
    ),
    _Step("The tree that makes", ("conv", "tree"), ("conv", "tree")),
    _Step("And all conversations", ("conv", "list"), ("conv", "list")),
)


def demo(
    directory: Annotated[Path, typer.Argument(metavar="[DIR]", help="Folder for its files.")] = Path("bough-demo"),
    json: options.Json = False,
) -> Report:
    """Show bough at work on example files, offline.

    The runs are real. The files go into DIR/workspace, the skills into DIR/skills and the conversations into DIR/home;
    nothing else is read or changed. Files that already exist are never overwritten. Without a sandbox, no script runs:
    the demo says so, shows the rest and exits with 6.
    """
    folder = directory.expanduser().absolute()
    workspace, home = folder / "workspace", _choose_home(folder)
    try:
        # Copied, because installers make hard links, and a skill with hard links is refused.
        _copy_examples({"workspace": workspace, "skills": folder / "skills"})
        home.mkdir()
        # In the file, not in the environment, so that the commands that a person types later need BOUGH_HOME only.
        roots = json_module.dumps([str(folder / "skills")])
        (home / "bough.yaml").write_text(f"skill_roots: {roots}\n", encoding="utf-8")
    except OSError as error:
        raise InvalidInput(
            f"cannot write to {folder}: {error.strerror}", hint="pass a folder that can be written: `bough demo DIR`"
        ) from error
    exit_code, steps = _run_steps(workspace, home, json=json)
    return Report(
        command="demo",
        data={"folder": str(folder), "home": str(home), "steps": steps},
        blocks=[]
        if exit_code not in (0, _NO_SANDBOX)
        else [
            line(),
            line(f"Everything is in {_relative(folder)}. To continue there:"),
            line(f"  cd {shlex.quote(_relative(workspace))}"),
            line(f"  export BOUGH_HOME={shlex.quote(str(home))}"),
            line(f"  {shlex.join([_find_command(), 'chat', '-'])}"),
            line("To start a project of your own: bough init"),
        ],
        exit_code=exit_code,
    )


def find_examples() -> Path:
    """Return the folder with the example skills and the example workspace."""
    package = Path(bough.__file__).parent
    installed = package / "examples"
    return installed if installed.is_dir() else package.parents[1] / "examples"  # of a checkout


def _choose_home(folder: Path) -> Path:
    """Return a home that does not exist yet: an existing one could hold settings or records of somebody else."""
    number = 1
    while os.path.lexists(home := folder / ("home" if number == 1 else f"home-{number}")):
        number += 1
    return home


def _copy_examples(targets: Mapping[str, Path]) -> None:
    """Write the example files that are missing.

    Args:
        targets: The folder to write to, by the name of the folder of examples.

    Raises:
        Conflict: A file exists with other contents, or a folder is a link; nothing was written.
    """
    missing: list[tuple[Path, bytes]] = []
    for name, folder in targets.items():
        source = find_examples() / name
        for file in sorted(file for file in source.rglob("*") if file.is_file() and "__pycache__" not in file.parts):
            target, content = folder / file.relative_to(source), file.read_bytes()
            links = [part for part in (target, *target.parents) if part.is_relative_to(folder) and part.is_symlink()]
            if links or (target.exists() and not (target.is_file() and target.read_bytes() == content)):
                raise Conflict(
                    f"{_relative(links[0] if links else target)} was not written by the demo, or has changed",
                    hint="choose another folder: `bough demo DIR`",
                )
            if not target.exists():
                missing.append((target, content))
    for folder in targets.values():
        folder.mkdir(parents=True, exist_ok=True)
    for target, content in missing:
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as out:  # `x`, because a file that has appeared since must not be overwritten
            out.write(content)


def _run_steps(workspace: Path, home: Path, *, json: bool) -> tuple[int, list[JsonObject]]:
    """Run the steps; return the exit code of the first failure, and a record of each step."""
    # Settings of the person's own would make it another demo, or ask a model that costs money.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("BOUGH_")}
    environment |= {"BOUGH_HOME": str(home), "BOUGH_MODEL": "offline"}
    renderer, steps, exit_code = renderer_for(json=json), list[JsonObject](), 0
    for step in _STEPS:
        arguments = step.arguments_without_sandbox if exit_code else step.arguments
        if arguments is None:
            continue
        command = shlex.join(["bough", *arguments])
        renderer.result(line())
        renderer.result(line((f"# {step.title}", "dim")))
        renderer.result(line((f"$ {command}", "strong")))
        # `-P`, because Python would otherwise import modules from the workspace.
        process = subprocess.run(  # noqa: S603 - the commands are those above
            [sys.executable, "-P", "-m", "bough.cli.main", *arguments],
            cwd=workspace,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if json else None,
            stderr=subprocess.DEVNULL if json else None,
            text=True,
        )
        steps.append({"command": command, "exit_code": process.returncode, "stdout": process.stdout or ""})
        if process.returncode == _NO_SANDBOX and not exit_code:
            exit_code = process.returncode
            renderer.note(line())
            renderer.note(line(("No sandbox works here, so scripts do not run. The demo shows the rest.", "warn")))
            renderer.note(line("`bough doctor` shows what is missing."))
        elif process.returncode:
            renderer.note(line((f"the demo stopped: exit code {process.returncode}", "bad")))
            return process.returncode, steps
    return exit_code, steps


def _relative(path: Path) -> str:
    """Return the path as seen from the working folder, if it is below it."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def _find_command() -> str:
    """Return `bough` if a shell finds it, else the path of this environment's command."""
    return "bough" if shutil.which("bough") else str(Path(sys.executable).with_name("bough"))
