"""An installation that is killed leaves the old state or the new one, wherever it was."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bough.skills import SkillRegistry
from bough.skills.trust.lock import verify_lock

KILLED = """
import os, signal, sys
from pathlib import Path
from bough.skills.install.change import remove_skills, update_skills
from bough.skills.install.install import InstallRequest, install
from bough.errors import BoughError

source, home, moment = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
count = 0

def watch(event, args):
    global count
    if event in ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.chmod", "shutil.rmtree"):
        path = str(args[0])
        if path.startswith(str(home)):
            count += 1
            if count == moment:
                os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(watch)
target, staging = home / "installed", home / "staging"
install(InstallRequest(source=source, replace=True), target, staging=staging)
(Path(source) / "kit" / "SKILL.md").write_text((Path(source) / "kit" / "SKILL.md").read_text() + "Later.")
update_skills(target, staging=staging)
remove_skills(target, ["kit"])
print(count)
"""


def run(source: Path, home: Path, moment: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", KILLED, str(source), str(home), str(moment)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def write_source(source: Path) -> None:
    (source / "kit" / "scripts").mkdir(parents=True, exist_ok=True)
    (source / "kit" / "SKILL.md").write_text("---\nname: kit\ndescription: Does a thing.\n---\nFirst.\n")
    (source / "kit" / "scripts" / "a.sh").write_text("echo 1\n")
    (source / "kit" / "scripts" / "b.sh").write_text("echo 2\n")


@pytest.mark.slow
def test_killed_at_twenty_moments_nothing_half_installed_is_ever_found(tmp_path: Path) -> None:
    source, home = tmp_path / "source", tmp_path / "home"
    write_source(source)
    done = run(source, home, 0)
    assert done.returncode == 0, done.stderr
    total = int(done.stdout)
    assert total > 40
    for moment in sorted({1 + number * (total - 1) // 19 for number in range(20)}):
        write_source(source)
        assert run(source, home, moment).returncode == -9
        registry = SkillRegistry.open(tmp_path, home=home)
        found = [skill for skill in registry.list_all() if skill.scope == "installed"]
        if found:
            skill = registry.get("kit")
            assert skill.content.splitlines()[0] == "First."
            assert skill.resources.scripts == ("scripts/a.sh", "scripts/b.sh")
        if (home / "installed" / "skills.lock").exists():
            assert [fault.code for fault in verify_lock(home / "installed") if fault.code != "lock-unknown"] == []
    write_source(source)
    assert run(source, home, 0).returncode == 0
    assert not (home / "staging").exists()
    assert not [name for name in os.listdir(home / "installed") if len(name) == 12]
