"""`trust.json` and `skills.lock` that cannot be used: nothing is trusted, nothing is lost, and it is said."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bough.errors import InvalidInput, StoreError
from bough.skills import SkillRegistry, TrustStore
from bough.skills.install.install import InstallRequest, install
from bough.skills.trust.lock import read_lock, verify_lock

UNUSABLE: dict[str, Callable[[Path], object]] = {
    "a folder": lambda file: file.mkdir(),
    "an empty file": lambda file: file.write_bytes(b""),
    "a newer version": lambda file: file.write_text('{"version": 3, "projects": {}, "skills": []}'),
    "not UTF-8": lambda file: file.write_bytes(b"\xff\xfe{}"),
}


def write_skill(folder: Path) -> Path:
    (folder / "scripts").mkdir(parents=True)
    (folder / "SKILL.md").write_text(f"---\nname: {folder.name}\ndescription: Does a thing.\n---\nRun it.\n")
    (folder / "scripts" / "run.sh").write_text("echo 1\n")
    return folder


@pytest.mark.parametrize("name", UNUSABLE)
def test_an_unusable_trust_file_trusts_nothing_and_is_kept(tmp_path: Path, name: str) -> None:
    project, home = tmp_path / "project", tmp_path / "home"
    home.mkdir()
    write_skill(project / ".agents" / "skills" / "kit")
    UNUSABLE[name](home / "trust.json")
    assert [skill.name for skill in SkillRegistry.open(project, home=home).withheld] == ["kit"]
    with pytest.raises(StoreError) as caught:
        TrustStore(home).trust(project)
    assert caught.value.hint
    assert [skill.name for skill in SkillRegistry.open(project, home=home).withheld] == ["kit"]


@pytest.mark.parametrize("name", UNUSABLE)
def test_an_unusable_lock_file_installs_and_finds_nothing(tmp_path: Path, name: str) -> None:
    home, source = tmp_path / "home", write_skill(tmp_path / "source" / "kit")
    install(InstallRequest(source=str(source)), home / "installed")
    (home / "installed" / "skills.lock").unlink()
    UNUSABLE[name](home / "installed" / "skills.lock")
    registry = SkillRegistry.open(tmp_path, home=home)
    assert "kit" not in registry
    assert [note.code for note in registry.diagnostics] == ["lock-unusable"]
    with pytest.raises(InvalidInput):
        verify_lock(home / "installed")
    with pytest.raises(InvalidInput):
        install(InstallRequest(source=str(source), replace=True), home / "installed")


def test_two_installations_at_once_both_count(tmp_path: Path) -> None:
    sources = [write_skill(tmp_path / "source" / f"kit-{number}") for number in range(6)]
    target = tmp_path / "home" / "installed"
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda source: install(InstallRequest(source=str(source)), target), sources))
    assert sorted(each.name for each in read_lock(target / "skills.lock")) == [f"kit-{n}" for n in range(6)]
    assert verify_lock(target) == []


def test_a_skill_that_vanishes_after_it_was_listed_is_refused_alone(tmp_path: Path) -> None:
    gone = write_skill(tmp_path / "skills" / "gone")
    write_skill(tmp_path / "skills" / "stays")
    registry = SkillRegistry()
    registry.discover([tmp_path / "skills"])
    (gone / "SKILL.md").unlink()
    with pytest.raises(InvalidInput, match="cannot be read"):
        registry.get("gone")
    assert registry.get("stays").content == "Run it."
