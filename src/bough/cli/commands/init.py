"""`bough init`: the files of a small project that runs at once."""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from bough.cli import options
from bough.cli.render import Report
from bough.cli.text import Line, line
from bough.errors import Conflict, InvalidInput

_SKILL = ".agents/skills/count-lines"
_SKILL_FILES: Mapping[str, str] = {
    "SKILL.md": """\
---
name: count-lines
description: "Count the lines of text files and find their longest line. Use it when someone asks how many lines a file has, or how long its lines are."
---
# Count lines

Run `scripts/count.py FILE...`. It prints, for each file, the number of lines and the length of the longest one.

A file that cannot be read is named on standard error, and the exit code is 1.
""",  # noqa: E501 - YAML without folding, as people write it
    "scripts/count.py": '''\
"""Print the number of lines of each file, and the length of its longest line."""

import sys


def main(names: list[str]) -> int:
    """Print one line for each file; return the exit code."""
    if not names:
        print("usage: count.py FILE...", file=sys.stderr)
        return 2
    exit_code = 0
    for name in names:
        try:
            with open(name, encoding="utf-8", errors="replace") as file:
                lengths = [len(text.rstrip("\\n")) for text in file]
        except OSError as error:
            print(f"{name}: {error.strerror}", file=sys.stderr)
            exit_code = 1
        else:
            print(f"{name}: {len(lengths)} lines, the longest has {max(lengths, default=0)} characters")
    return exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
''',
}
_FILES: Mapping[str, str] = {
    "AGENTS.md": """\
# Notes for agents

Agents read this file before they start. Write down what a new colleague would ask:

- what this project is for
- how to build and test it
- what must not be changed
""",
    "agent.yaml": """\
# An agent of this project: bough run --agent agent.yaml "…"
name: helper
system_prompt: |
  You help with the files of this project. Be brief. Say so when you do not know something.

# What its tools may do in the working folder: none, read, write or run (write, and run commands in the sandbox).
workspace_access: read

# Without a model, bough takes the one whose key is set, else the offline planner.
# model: openai:gpt-5
""",
    "bough.yaml": """\
# Settings of this project. Options and BOUGH_* variables take precedence.
# Settings that could permit more, such as the executor, are read from bough.yaml in bough's home only.

# model: openai:gpt-5
# timeout_seconds: 60
""",
    **{f"{_SKILL}/{name}": text for name, text in _SKILL_FILES.items()},
}


def init(
    directory: Annotated[
        Path, typer.Argument(metavar="[DIR]", help="Folder of the project; created if it is missing. Default: here.")
    ] = Path(),
    force: Annotated[bool, typer.Option("--force", help="Overwrite the files of these names.")] = False,
    home: options.Home = None,
    store: options.Store = None,
    json: options.Json = False,
) -> Report:
    """Start a project with an agent and a skill.

    Also writes settings and notes for agents. Trusts the skill that it writes, and nothing else in the folder. Exits
    with 7 if a file exists, and writes nothing.
    """
    settings = options.load_settings(home, store)
    folder = Path(os.path.realpath(directory.expanduser()))
    if folder == Path.home().resolve():
        raise InvalidInput("a project cannot be your home folder", hint="pass another one: `bough init my-project`")
    try:
        _write_files(folder, overwrite=force)
    except OSError as error:
        raise InvalidInput(
            f"cannot write to {folder}: {error.strerror}", hint="pass a folder that can be written: `bough init DIR`"
        ) from error
    is_trusted = _trust_skill(folder, settings.home)
    return Report(
        command="init",
        data={"folder": str(folder), "files": list(_FILES), "trusted": is_trusted},
        blocks=[
            *(line((name, "id")) for name in _FILES),
            *([] if is_trusted else _explain_distrust()),
            line(),
            line("To try it:"),
            *([line(f"  cd {shlex.quote(str(directory))}")] if folder != Path.cwd() else []),
            line('  bough run "how many lines are in AGENTS.md"'),
            line("  bough skills show count-lines"),
            line('  bough run --agent agent.yaml "how long are the lines of AGENTS.md"'),
        ],
    )


def _write_files(folder: Path, *, overwrite: bool) -> None:
    """Write the project's files.

    Raises:
        Conflict: A file exists, or a folder of its path is a link; nothing was written.
    """
    targets = {folder / name: text for name, text in _FILES.items()}
    linked = sorted(
        {
            parent
            for target in targets
            for parent in target.parents
            if parent != folder and parent.is_relative_to(folder)
        }
    )
    for parent in linked:
        if parent.is_symlink() or (parent.exists() and not parent.is_dir()):
            raise Conflict(f"{parent} is not a folder", hint="move it away, or choose another folder")
    existing = [target for target in targets if os.path.lexists(target)]
    unwritable = [target for target in existing if target.is_dir() and not target.is_symlink()]
    if unwritable or (existing and not overwrite):
        names = ", ".join(str(target.relative_to(folder)) for target in unwritable or existing)
        hint = "move them away" if unwritable else "choose another folder, or overwrite them with --force"
        raise Conflict(f"these already exist: {names}", hint=hint, details={"files": [str(file) for file in existing]})
    for target, text in targets.items():
        target.parent.mkdir(parents=True, exist_ok=True)
        # Replaced, not opened: a link in this place must not lead to a file outside the project.
        handle, staged = tempfile.mkstemp(dir=target.parent, prefix=".bough-init-")
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            out.write(text)
        os.chmod(staged, 0o644)
        os.replace(staged, target)


def _trust_skill(folder: Path, home: Path) -> bool:
    """Trust the skill if its folder holds exactly what was written; return whether it does."""
    from bough.skills import TrustStore
    from bough.skills.trust.snapshot import SnapshotStore
    from bough.skills.trust.trust import SkillGrant, name_in_project, read_skill_tree

    skill = folder / _SKILL
    with tempfile.TemporaryDirectory() as staging:
        for name, text in _SKILL_FILES.items():
            path = Path(staging, Path(_SKILL).name, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            path.chmod(0o644)
        digest = read_skill_tree(Path(staging, Path(_SKILL).name, "SKILL.md")).digest
    # Copied before trust is recorded, because a skill with a trusted digest runs only from its copy.
    if (
        read_skill_tree(skill / "SKILL.md").digest != digest
        or SnapshotStore(home / "snapshots").take(skill).digest != digest
    ):
        return False
    TrustStore(home).trust(folder, skills={name_in_project(skill / "SKILL.md", folder): SkillGrant(digest)})
    return True


def _explain_distrust() -> list[Line]:
    return [
        line((f"{_SKILL} has other files, so the skill is not trusted", "warn")),
        line("review it with `bough skills trust --dry-run`, then trust it with `bough skills trust`"),
    ]
