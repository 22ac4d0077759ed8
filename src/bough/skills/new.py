"""Creating a skill that conforms to the specification."""

from __future__ import annotations

import json
from pathlib import Path

from bough.errors import Conflict, InvalidInput
from bough.skills.read.fields import MAX_DESCRIPTION, normalize_name

_BODY = """
# {title}

## When to use this skill

Describe the requests that this skill handles, and those that it does not.

## Steps

1. Describe the first step.
2. Run `scripts/{script}` for anything that must be computed.
3. Describe how to check the result.
"""

_SCRIPT = '''"""Describe what this script does, its arguments and its output."""

import sys


def main(arguments: list[str]) -> int:
    """Print the arguments; return the exit code."""
    print(*arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
'''


def _write_evals(folder: Path, name: str, *, script: bool) -> None:
    """Write two example cases and four example trigger queries, which the author replaces."""
    (folder / "evals").mkdir()
    tool_assertions = ["tool: run_skill_script"] if script else []
    evals = [
        {
            "id": "usual",
            "prompt": "Replace this with a request that the skill handles",
            "expected_output": "Describe a good result in one sentence.",
            "assertions": ["contains: a word that a good answer has", *tool_assertions],
        },
        {
            "id": "edge",
            "prompt": "Replace this with a difficult request",
            "expected_output": "Describe a good result in one sentence.",
            "assertions": ["contains: a word that a good answer has", "not contains: a word that it must not have"],
        },
    ]
    queries = [
        {"query": "Replace this with a request that the skill handles", "should_trigger": True},
        {"query": "Replace this with another one, worded differently", "should_trigger": True},
        {"query": "Replace this with a similar request that it does not handle", "should_trigger": False},
        {"query": "Replace this with an unrelated request", "should_trigger": False},
    ]
    for file, data in (("evals.json", {"skill_name": name, "evals": evals}), ("eval_queries.json", queries)):
        (folder / "evals" / file).write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")


def new_skill(root: Path, name: str, *, description: str, script: bool = False) -> Path:
    """Create a skill with example evals in `root / name` and return its `SKILL.md`.

    Args:
        script: Whether to add an example script.

    Raises:
        InvalidInput: The name or the description violates the specification.
        Conflict: The folder already exists.
    """
    valid_name = normalize_name(name)
    if valid_name is None:
        raise InvalidInput(
            f"invalid skill name {name[:80]!r}", hint="use 1 to 64 lowercase letters, digits and single hyphens"
        )
    name = valid_name
    description_text = " ".join(description.split())
    if not description_text or len(description_text) > MAX_DESCRIPTION:
        raise InvalidInput(
            f"invalid description: expected 1 to {MAX_DESCRIPTION} characters",
            hint="say what the skill does and when to use it",
        )
    folder = root / name
    if folder.exists():
        raise Conflict(f"{folder} already exists", hint="choose another name")
    folder.mkdir(parents=True)
    # A JSON string is also a double-quoted YAML string.
    quoted_description = json.dumps(description_text, ensure_ascii=False)
    body = _BODY.format(title=name.replace("-", " ").capitalize(), script="main.py")
    if script:
        (folder / "scripts").mkdir()
        (folder / "scripts" / "main.py").write_text(_SCRIPT, encoding="utf-8")
    else:
        body = "\n".join(line for line in body.split("\n") if "scripts/" not in line).replace("3. ", "2. ")
    _write_evals(folder, name, script=script)
    file = folder / "SKILL.md"
    file.write_text(f"---\nname: {name}\ndescription: {quoted_description}\n---\n{body}", encoding="utf-8")
    return file
