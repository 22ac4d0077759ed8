#!/usr/bin/env python3
"""Shows bough at work on the example workspace: real runs, offline, in a folder of its own that is made anew."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parent
DEMO = EXAMPLES.parent / ".demo"

STEPS = (
    ("The skills that are there", ["skills"]),
    (
        "A prompt in plain words; the skill that fits runs its script in the sandbox",
        ["run", "profile sales.csv"],
    ),
    ("Another prompt, another skill", ["run", "find broken links in the notes folder"]),
    ("Everything that happened is an event in a log", ["conv", "show", "-"]),
    ("A branch after its first event, with a changed prompt", ["fork", "-@1", "how many words are in README.md"]),
    ("The tree that makes", ["conv", "tree"]),
    ("And all conversations", ["conv", "list"]),
)


def prepare() -> dict[str, str]:
    """Make the demo's folder anew and return the environment its commands run in."""
    shutil.rmtree(DEMO, ignore_errors=True)
    shutil.copytree(EXAMPLES / "workspace", DEMO / "workspace")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("BOUGH_")}
    return kept | {
        "BOUGH_HOME": str(DEMO / "home"),
        "BOUGH_SKILL_ROOTS": str(EXAMPLES / "skills"),
        "BOUGH_MODEL": "offline",
    }


def main() -> int:
    """Run the steps and return the exit code of the first that fails, else 0."""
    environment = prepare()
    bough = Path(sys.executable).with_name("bough")
    for what, args in STEPS:
        print(f"\n# {what}\n$ bough {shlex.join(args)}", flush=True)
        done = subprocess.run([bough, *args], cwd=DEMO / "workspace", env=environment, stdin=subprocess.DEVNULL)
        if done.returncode != 0:
            print(f"the demo stopped: exit code {done.returncode}", file=sys.stderr)
            return done.returncode
    print(f"\nAll of it is in {os.path.relpath(DEMO)}; continue with\n  cd {os.path.relpath(DEMO / 'workspace')}")
    print(f"  export BOUGH_HOME=$PWD/../home BOUGH_SKILL_ROOTS={shlex.quote(environment['BOUGH_SKILL_ROOTS'])}")
    print(f"  {os.path.relpath(bough, DEMO / 'workspace')} chat -")
    return 0


if __name__ == "__main__":
    sys.exit(main())
