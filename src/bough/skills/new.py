"""A new skill: a folder that passes the specification from the first moment."""

from __future__ import annotations

import json
from pathlib import Path

from bough.errors import Conflict, InvalidInput
from bough.skills.read.fields import MAX_DESCRIPTION, is_good_name

_BODY = """
# {title}

## When to use this skill

Say what a message looks like that this skill is for, and what it is not for.

## Steps

1. Say the first thing to do.
2. Run `scripts/{script}` where there is something to compute.
3. Say how to tell that the result is right.
"""

_SCRIPT = '''"""Say what this script does, what it takes and what it prints."""

import sys


def main(arguments: list[str]) -> int:
    """Print the arguments; return the exit code."""
    print(*arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
'''


def _write_evals(folder: Path, name: str, *, script: bool) -> None:
    """Write two cases and four trigger queries to begin with; what they say is to be replaced."""
    (folder / "evals").mkdir()
    used = ["tool: run_skill_script"] if script else []
    evals = [
        {
            "id": "usual",
            "prompt": "Replace this with a message that the skill is for",
            "expected_output": "Say in a sentence what a good result is.",
            "assertions": ["contains: a word that a good answer has", *used],
        },
        {
            "id": "edge",
            "prompt": "Replace this with a message that is hard for the skill",
            "expected_output": "Say in a sentence what a good result is.",
            "assertions": ["contains: a word that a good answer has", "not contains: a word that it must not have"],
        },
    ]
    queries = [
        {"query": "Replace this with a message that the skill is for", "should_trigger": True},
        {"query": "Replace this with another one, in other words", "should_trigger": True},
        {"query": "Replace this with a message that is near but not for it", "should_trigger": False},
        {"query": "Replace this with a message about something else", "should_trigger": False},
    ]
    for file, data in (("evals.json", {"skill_name": name, "evals": evals}), ("eval_queries.json", queries)):
        (folder / "evals" / file).write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")


def new_skill(root: Path, name: str, *, description: str, script: bool = False) -> Path:
    """Write a new skill with its first evals into `root / name` and return its file.

    Args:
        script: Whether it gets a script to begin with.

    Raises:
        InvalidInput: The name or the description is not one of the specification.
        Conflict: The folder already exists.
    """
    if not is_good_name(name):
        raise InvalidInput(
            f"{name[:80]!r} is not a name of a skill", hint="1 to 64 lower case letters, digits and single hyphens"
        )
    text = " ".join(description.split())
    if not text or len(text) > MAX_DESCRIPTION:
        raise InvalidInput(
            f"a description has 1 to {MAX_DESCRIPTION} characters", hint="say what it does and when to use it"
        )
    folder = root / name
    if folder.exists():
        raise Conflict(f"{folder} already exists", hint="choose another name")
    folder.mkdir(parents=True)
    quoted = json.dumps(text, ensure_ascii=False)  # a JSON text is a double-quoted YAML one
    body = _BODY.format(title=name.replace("-", " ").capitalize(), script="main.py")
    if script:
        (folder / "scripts").mkdir()
        (folder / "scripts" / "main.py").write_text(_SCRIPT, encoding="utf-8")
    else:
        body = "\n".join(line for line in body.split("\n") if "scripts/" not in line).replace("3. ", "2. ")
    _write_evals(folder, name, script=script)
    file = folder / "SKILL.md"
    file.write_text(f"---\nname: {name}\ndescription: {quoted}\n---\n{body}", encoding="utf-8")
    return file
