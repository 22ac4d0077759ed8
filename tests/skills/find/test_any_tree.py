"""`bough skills check -r` answers for every `SKILL.md` of a tree, however it is laid out, in bounded memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

DEEP = "src/main/java/org/example/product/service/internal/impl/v2/client/model"
LIMIT_MB = 30

CHECKED = """
import json, sys
from bough.cli.main import run
def peak():  # not ru_maxrss, which begins with the peak of the parent process
    lines = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return int(lines["VmHWM"].split()[0]) / 1e3
def check(folder):
    return run(["skills", "check", folder, "--recursive", "--json"])
check(sys.argv[1])
before = peak()
code = check(sys.argv[2])
print(json.dumps({"code": code, "grown": peak() - before}))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read from /proc")
def test_ten_thousand_skills_deep_linked_doubled_and_broken_all_get_an_answer(tmp_path: Path) -> None:
    root = tmp_path / "library"
    written: list[str] = []
    for number in range(10_000):
        name = f"skill-{number % 9_000}"  # a thousand names are there twice
        above = (DEEP, "build", "dist", ".hidden/place", f"group-{number % 50}", "node_modules/x")[number % 6]
        folder = root / above / f"{number // 2_000}" / name
        folder.mkdir(parents=True)
        file = folder / ("SKILL.md", "skill.md", "Skill.md")[number % 3]
        file.write_text("" if number % 100 == 0 else f"---\nname: {name}\ndescription: x\n---\nDo it.\n")
        written.append(str(file))
    (root / "circle").symlink_to(root)
    (root / "dangling").symlink_to("nowhere")
    (root / "linked").symlink_to(Path(written[7]).parent)
    os.symlink("/etc", root / "out")

    command = [sys.executable, "-c", CHECKED, str(Path(written[1]).parent), str(root)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    _, listing, growth = done.stdout.splitlines()
    checked = {each["path"]: each for each in json.loads(listing)["data"]["skills"]}
    answers = Counter(each["path"] for each in json.loads(listing)["data"]["skills"])

    assert set(written) <= set(answers)
    assert {answers[file] for file in written} == {1}
    assert sum(checked[file]["loaded"] for file in written) == 9_900
    refused = [checked[file] for file in written if not checked[file]["loaded"]]
    assert {tuple(note["code"] for note in each["diagnostics"] if note["severity"] == "error") for each in refused} == {
        ("empty",)
    }
    others = {os.path.basename(path): each["diagnostics"][0]["code"] for path, each in checked.items()
              if path not in written}  # fmt: skip
    assert others["dangling"] == "link-dangling"
    assert json.loads(growth)["code"] == 1, "there are skills with errors"
    assert json.loads(growth)["grown"] < LIMIT_MB, growth
    assert done.stderr == ""
