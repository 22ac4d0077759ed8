"""`bough skills new` creates a skill; `bough skills lock` records and verifies digests."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bough.cli import options
from bough.cli.commands.skills.look import diagnostic_lines, require_folder
from bough.cli.render import Report
from bough.cli.text import line
from bough.errors import InvalidInput

if TYPE_CHECKING:
    from bough.skills import Diagnostic

PROJECT_SKILLS = Path(".agents") / "skills"


def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name: lowercase letters, digits and hyphens.")],
    description: Annotated[
        str | None, typer.Option("--description", "-d", metavar="TEXT", help="What it does and when to use it.")
    ] = None,
    script: Annotated[bool, typer.Option("--script", help="Add an example script.")] = False,
    root: Annotated[
        Path | None,
        typer.Option("--root", metavar="DIR", help="Parent folder. Default: .agents/skills in the workspace."),
    ] = None,
    workspace: options.Workspace = Path(),
    home: options.Home = None,
    store: options.Store = None,
    json: options.Json = False,
) -> Report:
    """Create a skill: a folder with a valid SKILL.md."""
    from bough.skills.new import new_skill

    if description is None:
        raise InvalidInput(
            "missing --description: a model sees nothing else of a skill before it loads it",
            hint='pass --description "what it does, and when to use it"',
        )
    folder = root if root is not None else require_folder(workspace) / PROJECT_SKILLS
    file = new_skill(folder, name, description=description, script=script)
    return Report(
        command="skills new",
        data={"name": name, "path": str(file)},
        blocks=[line((name, "id"), f"  {file}")],
        next=(f"bough skills check {file.parent}",),
    )


def lock(
    root: Annotated[
        Path | None, typer.Argument(metavar="[DIR]", help="Folder of skills. Default: <home>/installed.")
    ] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Only compare. Exit code 1 if anything differs.")] = False,
    home: options.Home = None,
    store: options.Store = None,
    json: options.Json = False,
) -> Report:
    """Record the digests of installed skills, or verify them.

    `skills.lock` holds the digest of every file; --verify compares the files with it.
    """
    from bough.skills.trust.lock import NAME, lock_all, verify_lock, write_lock

    folder = root or options.load_settings(home, store).home / "installed"
    if not folder.is_dir():
        raise InvalidInput(
            f"{folder} is not a folder of skills", hint="pass a folder of skills, or install a skill first"
        )
    if verify:
        return _report_verified(folder, verify_lock(folder))
    faults: list[Diagnostic] = []
    locked = lock_all(folder, faults=faults)
    write_lock(folder / NAME, locked)
    fault_lines = [output_line for fault in faults for output_line in diagnostic_lines(fault, with_path=True)]
    return Report(
        command="skills lock",
        data={
            "file": str(folder / NAME),
            "skills": [{"folder": skill.folder, "source": skill.source, "digest": skill.digest} for skill in locked],
            "diagnostics": [fault.as_dict() for fault in faults],
        },
        blocks=[
            *(line((skill.folder, "id"), (f"  {skill.digest[:16]}", "dim"), f"  {skill.source}") for skill in locked),
            *fault_lines,
        ],
        exit_code=1 if faults else 0,
    )


def _report_verified(folder: Path, faults: list[Diagnostic]) -> Report:
    blocks = [output_line for fault in faults for output_line in diagnostic_lines(fault, with_path=True)]
    return Report(
        command="skills lock",
        data={"folder": str(folder), "diagnostics": [fault.as_dict() for fault in faults]},
        blocks=blocks or [line(("ok  ", "good"), f"{folder} matches its lock file")],
        exit_code=1 if faults else 0,
    )
