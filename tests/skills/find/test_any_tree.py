"""`check -r` answers for every `SKILL.md` of a tree, however it is laid out."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from bough.skills.find.check import iter_check

DEEP = "src/main/java/org/example/product/service/internal/impl/v2/client/model"


@pytest.mark.slow
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

    answers = Counter(each.file for each in iter_check(root, recursive=True))
    loaded = sum(each.loaded for each in iter_check(root, recursive=True))

    assert set(written) <= set(answers)
    assert {answers[file] for file in written} == {1}
    assert loaded == 9_900
    assert "dangling" in {os.path.basename(file) for file in answers}
