"""Checking folders of skills, and the bounds of discovery."""

from __future__ import annotations

from pathlib import Path

import pytest

from bough.errors import NotFound
from bough.skills.find.check import check
from bough.skills.find.discover import Root, WalkLimits, discover, find_skill_files
from bough.skills.model import Diagnostic

GOOD = "---\nname: {0}\ndescription: x\n---\nx\n"


def put(root: Path, name: str, text: str = GOOD) -> Path:
    file = root / name / "SKILL.md"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text.format(Path(name).name))
    return file


def test_one_entry_for_every_file_found_loaded_or_not(tmp_path: Path) -> None:
    put(tmp_path, "good")
    put(tmp_path, "group/fixed", "---\nname: fixed\ndescription: a: b\n---\nx\n")
    put(tmp_path, "refused", "")
    found = {each.name: each for each in check(tmp_path, recursive=True)}
    assert {name: (each.loaded, [d.code for d in each.diagnostics]) for name, each in found.items()} == {
        "good": (True, []),
        "fixed": (True, ["yaml-unquoted-colon"]),
        "refused": (False, ["empty"]),
    }
    assert found["refused"].has_errors and not found["fixed"].has_errors
    assert found["good"].as_dict() == {
        "path": str(tmp_path / "good" / "SKILL.md"),
        "name": "good",
        "loaded": True,
        "diagnostics": [],
    }


def test_strict_refuses_what_lenient_mends(tmp_path: Path) -> None:
    put(tmp_path, "fixed", "---\nname: Mended\ndescription: a: b\n---\nx\n")
    [strict] = check(tmp_path / "fixed", mode="strict")
    assert not strict.loaded
    assert {"yaml-invalid", "name-case", "name-folder"} <= {each.code for each in strict.diagnostics}


def test_a_file_a_folder_or_a_flat_skill_can_be_named(tmp_path: Path) -> None:
    file = put(tmp_path, "one")
    flat = tmp_path / "flat.md"
    flat.write_text("---\ntriggers: [a]\n---\nFlat.\n")
    assert [each.name for each in check(file)] == [each.name for each in check(file.parent)] == ["one"]
    assert [each.name for each in check(flat)] == ["flat"]


@pytest.mark.parametrize("name", ["absent", "empty"])
def test_nothing_to_check_is_an_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotFound):
        check(tmp_path / name)


def test_no_depth_is_lost_and_a_bound_says_what_was_not_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = "/".join(f"d{i}" for i in range(40))
    put(tmp_path, f"{inside}/deep")
    put(tmp_path, "near")
    found = discover(Root(tmp_path))
    assert ([skill.name for skill in found.skills], found.diagnostics) == (["near", "deep"], [])
    notes: list[Diagnostic] = []
    paths = [path for path, _ in find_skill_files(Root(tmp_path), notes, limits=WalkLimits(names=10))]
    assert [Path(path).parent.name for path in paths] == ["near"]
    assert [note.code for note in notes] == ["bound-files"]
    assert "search stopped after 10 names; folders skipped: 1, starting with d0/d1" in notes[0].message
    notes.clear()
    assert list(find_skill_files(Root(tmp_path), notes, limits=WalkLimits(seconds=-1.0))) == []
    assert [note.code for note in notes] == ["bound-seconds"]


def test_folders_named_build_or_dist_and_files_in_any_case_are_found(tmp_path: Path) -> None:
    for name in ("build", "dist", "target", "venv", "node_modules"):
        put(tmp_path, name)
    put(tmp_path, "outer")
    put(tmp_path, "outer/extra/inner")
    put(tmp_path, "outer/scripts/part")
    put(tmp_path, ".hidden/secret")
    for number, name in enumerate(("skill.md", "Skill.md", "SKILL.MD")):
        (tmp_path / f"case-{number}").mkdir()
        (tmp_path / f"case-{number}" / name).write_text(GOOD.format(f"case-{number}"))
    (tmp_path / "outer" / "skill.md").write_text("other")
    found = discover(Root(tmp_path))
    names = {skill.name for skill in found.skills}
    assert {"build", "dist", "target", "venv", "node_modules", "outer", "inner"} <= names
    assert len([name for name in names if name.startswith("case-")]) == 3
    assert names.isdisjoint({"part", "secret"})
    assert {note.code for note in found.diagnostics} == {"skill-in-skill", "duplicate-skill-file", "name-characters"}
    checked = {each.name: [note.code for note in each.diagnostics] for each in check(tmp_path, recursive=True)}
    assert checked["secret"] == ["hidden"] and checked["part"] == ["skill-in-skill"]


def test_a_skill_in_a_skill_is_a_part_of_it(tmp_path: Path) -> None:
    put(tmp_path, "outer")
    put(tmp_path, "outer/assets/inner")
    put(tmp_path, "node_modules/theirs")
    assert [skill.name for skill in discover(Root(tmp_path)).skills] == ["outer"]
    assert [skill.name for skill in discover(Root(tmp_path / "outer")).skills] == ["outer"]


def test_flat_files_count_when_they_begin_with_frontmatter_or_all_do_there(tmp_path: Path) -> None:
    (tmp_path / "one.md").write_text("---\ntriggers: [a]\n---\nOne.\n")
    (tmp_path / "two.md").write_text("Two.\n")
    (tmp_path / "README.md").write_text("---\nx: y\n---\nNo.\n")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "three.md").write_text("---\nx: y\n---\nNo.\n")
    assert [skill.name for skill in discover(Root(tmp_path)).skills] == ["one"]
    assert [skill.name for skill in discover(Root(tmp_path, flat=True)).skills] == ["one", "two"]


def test_links_to_skill_folders_are_followed_once_but_not_out_of_a_project(tmp_path: Path) -> None:
    put(tmp_path / "store", "shared")
    root = tmp_path / "project" / "skills"
    root.mkdir(parents=True)
    (root / "a").symlink_to(tmp_path / "store" / "shared")
    (root / "b").symlink_to(tmp_path / "store" / "shared")
    (root / "circle").symlink_to(root)
    (root / "dangling").symlink_to(tmp_path / "nowhere")
    outside = discover(Root(root))
    assert [skill.path.parent.name for skill in outside.skills] == ["a"]
    assert {each.code for each in outside.diagnostics} == {"link-dangling", "name-folder"}
    inside = discover(Root(root, "project", within=tmp_path / "project"))
    assert inside.skills == []
    assert {each.code for each in inside.diagnostics} == {"link-out", "link-dangling"}
