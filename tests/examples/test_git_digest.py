"""The git digest: its counts are those of a history that is made here."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

DIGEST = "git-digest/scripts/digest.py"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Three commits by two people on two days; one author uses two names."""
    history = [
        ("Ada", "ada@example.org", "2025-03-01", {"src/a.py": "1", "README.md": "x"}, "begin"),
        ("Ada Lovelace", "ADA@example.org", "2025-03-02", {"src/a.py": "2", "grün/b.txt": "1"}, "change, with | and ü"),
        ("Ben", "ben@example.org", "2025-03-02", {"docs/deep/c d.md": "1"}, "document"),
    ]
    folder = tmp_path / "repo"
    git(folder.parent, "init", "-q", "repo")
    for name, mail, day, files, subject in history:
        for path, text in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
        git(folder, "add", ".")
        git(folder, "commit", "-q", "-m", subject, name=name, mail=mail, day=day)
    return folder


def git(folder: Path, *args: str, name: str = "x", mail: str = "x@x", day: str = "2025-01-01") -> None:
    who = {
        f"GIT_{role}_{key}": value
        for role in ("AUTHOR", "COMMITTER")
        for key, value in (("NAME", name), ("EMAIL", mail), ("DATE", f"{day}T12:00:00Z"))
    }
    subprocess.run(["git", *args], cwd=folder, env=os.environ | who, check=True)


def rows(output: str, title: str) -> dict[str, int]:
    """A table of the report: name -> count."""
    part = next(part for part in output.split("\n\n") if part.startswith(title))
    return {line.rsplit(maxsplit=2)[0].strip(): int(line.split()[-2]) for line in part.splitlines()[1:]}


def test_commits_are_counted_by_author_day_and_folder(script: Any, repository: Path) -> None:
    done = script(DIGEST, repository)
    assert done.returncode == 0
    assert done.stdout.startswith("3 commits by 2 authors, 2025-03-01 to 2025-03-02\n")
    assert rows(done.stdout, "Commits per author") == {"Ada Lovelace <ada@example.org>": 2, "Ben <ben@example.org>": 1}
    assert rows(done.stdout, "Commits per day") == {"2025-03-02": 2, "2025-03-01": 1}
    assert rows(done.stdout, "Commits per folder") == {"src/": 2, ".": 1, "grün/": 1, "docs/": 1}
    assert done.stdout.splitlines()[-3].endswith("2025-03-02  document")


def test_time_and_length_can_be_limited(script: Any, repository: Path) -> None:
    limited = script(DIGEST, repository, "--until", "2025-03-01T23:00:00Z", "--top", "1").stdout
    assert limited.startswith("1 commit by 1 author")
    assert script(DIGEST, repository, "--since", "2026-01-01").stdout == "no commits in that time\n"


def test_it_works_on_a_repository_nobody_may_write_to_and_changes_nothing(script: Any, repository: Path) -> None:
    def state() -> dict[str, int]:
        return {str(path): path.lstat().st_mtime_ns for path in repository.rglob("*")}

    for path in [repository, *repository.rglob("*")]:
        path.chmod(path.stat().st_mode & ~0o222)
    before = state()
    try:
        assert script(DIGEST, repository).returncode == 0
        assert state() == before
    finally:
        for path in [repository, *repository.rglob("*")]:
            path.chmod(path.stat().st_mode | 0o200)


def test_no_repository_an_empty_one_and_no_folder_are_said_with_exit_code_1(script: Any, tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "empty")
    for folder, says in [
        (tmp_path, "not a git repository"),
        (tmp_path / "empty", "does not have any commits"),
        (tmp_path / "gone", "is not a folder"),
    ]:
        done = script(DIGEST, folder, GIT_CEILING_DIRECTORIES=str(tmp_path.parent))
        assert (done.returncode, done.stdout) == (1, "")
        assert says in done.stderr
        assert "Traceback" not in done.stderr
