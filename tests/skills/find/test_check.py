"""Checking folders of skills, and the bounds of discovery."""

from __future__ import annotations

from pathlib import Path

import pytest

from bough.errors import NotFound
from bough.skills.find.check import check
from bough.skills.find.discover import MAX_DEPTH, Root, discover

GOOD = "---\nname: {0}\ndescription: x\n---\nx\n"


def put(root: Path, name: str, text: str = GOOD) -> Path:
    file = root / name / "SKILL.md"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text.format(Path(name).name))
    return file


def test_one_entry_for_every_file_found_loaded_or_not(tmp_path: Path) -> None:
    put(tmp_path, "good")
    put(tmp_path, "group/mended", "---\nname: mended\ndescription: a: b\n---\nx\n")
    put(tmp_path, "refused", "")
    found = {each.name: each for each in check(tmp_path, recursive=True)}
    assert {name: (each.loaded, [d.code for d in each.diagnostics]) for name, each in found.items()} == {
        "good": (True, []),
        "mended": (True, ["yaml-unquoted-colon"]),
        "refused": (False, ["empty"]),
    }
    assert found["refused"].has_errors and not found["mended"].has_errors
    assert found["good"].as_dict() == {
        "path": str(tmp_path / "good" / "SKILL.md"),
        "name": "good",
        "loaded": True,
        "diagnostics": [],
    }


def test_strict_refuses_what_lenient_mends(tmp_path: Path) -> None:
    put(tmp_path, "mended", "---\nname: Mended\ndescription: a: b\n---\nx\n")
    [strict] = check(tmp_path / "mended", mode="strict")
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


def test_discovery_goes_down_to_its_bound_and_says_so(tmp_path: Path) -> None:
    inside = "/".join(f"d{i}" for i in range(MAX_DEPTH - 1))
    put(tmp_path, f"{inside}/reached")
    put(tmp_path, f"{inside}/further/beyond")
    found = discover(Root(tmp_path))
    assert [skill.name for skill in found.skills] == ["reached"]
    assert [each.code for each in found.diagnostics] == ["too-deep"]


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
    assert [skill.path.parent.name for skill in discover(Root(root)).skills] == ["a"]
    inside = discover(Root(root, "project", within=tmp_path / "project"))
    assert inside.skills == []
    assert {each.code for each in inside.diagnostics} == {"link-out"}
