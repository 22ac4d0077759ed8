"""`skills.lock`."""

from __future__ import annotations

from pathlib import Path

import pytest

from bough.errors import InvalidInput, NotFound
from bough.skills.trust.lock import NAME, lock_all, read_lock, verify_lock, write_lock


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("one", "two"):
        (tmp_path / name / "scripts").mkdir(parents=True)
        (tmp_path / name / "SKILL.md").write_text(f"---\nname: {name}\ndescription: x\n---\nx\n")
        (tmp_path / name / "scripts" / "a.py").write_text("print(1)\n")
    write_lock(tmp_path / NAME, lock_all(tmp_path, {"one": "from-here"}))
    return tmp_path


def test_what_is_unchanged_verifies_and_locks_to_the_same_bytes(root: Path) -> None:
    before = (root / NAME).read_bytes()
    assert verify_lock(root) == []
    write_lock(root / NAME, lock_all(root))
    assert (root / NAME).read_bytes() == before
    assert [(each.folder, each.source) for each in read_lock(root / NAME)] == [("one", "from-here"), ("two", "")]
    assert sorted(read_lock(root / NAME)[0].files) == ["SKILL.md", "scripts/a.py"]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda root: (root / "one/scripts/a.py").write_text("print(2)\n"), "lock-changed"),
        (lambda root: (root / "one/SKILL.md").write_bytes(b"x"), "lock-changed"),
        (lambda root: (root / "one/scripts/b.py").touch(), "lock-added"),
        (lambda root: (root / "one/scripts/a.py").unlink(), "lock-removed"),
        (lambda root: (root / "one").rename(root / "moved"), "lock-missing"),
        (lambda root: (root / "one").rename(root / "moved"), "lock-unknown"),
    ],
)
def test_any_changed_byte_is_found(root: Path, change: object, code: str) -> None:
    change(root)  # type: ignore[operator]
    faults = verify_lock(root)
    assert code in {each.code for each in faults}
    assert all(each.severity == "error" and each.path and each.fix for each in faults)


def test_the_digest_covers_names_and_contents(root: Path) -> None:
    first = read_lock(root / NAME)[0]
    (root / "one/scripts/a.py").rename(root / "one/scripts/c.py")
    assert lock_all(root)[0].digest != first.digest


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"version": 1}',
        '{"version": 9, "skills": []}',
        '{"version": 1, "skills": []}',
        '{"version": 2, "skills": [{"folder": "../x", "source": "", "files": {}, "digest": ""}]}',
        '{"version": 2, "skills": [{"folder": "/x", "source": "", "files": {}, "digest": ""}]}',
        '{"version": 2, "skills": [7]}',
        "[" * 100_000,
    ],
)
def test_what_is_no_lock_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / NAME).write_text(text)
    with pytest.raises(InvalidInput):
        verify_lock(tmp_path)


def test_without_a_lock_file_the_command_that_writes_one_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound) as caught:
        verify_lock(tmp_path)
    assert "bough skills lock" in caught.value.hint
