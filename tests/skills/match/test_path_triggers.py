"""Path triggers."""

from __future__ import annotations

import pytest

from bough.skills import PathTrigger, SkillMetadata
from bough.skills.match.path_triggers import PathIndex


@pytest.mark.parametrize(
    ("glob", "path", "matches"),
    [
        ("*.py", "a.py", True),
        ("*.py", "src/deep/a.py", True),
        ("*.py", "a.pyc", False),
        ("./*.py", "a.py", True),
        ("*.py", "./a.py", True),
        ("src/*.py", "src/a.py", True),
        ("src/*.py", "src/b/a.py", False),
        ("src/**/*.py", "src/a.py", True),
        ("src/**/*.py", "src/b/c/a.py", True),
        ("src/**", "src/x/y", True),
        ("src/**", "src", False),
        ("src/", "src/x", True),
        ("**/test_*.py", "a/b/test_x.py", True),
        ("**/test_*.py", "test_x.py", True),
        ("**", "anything/at/all", True),
        ("/top.md", "top.md", True),
        ("*.{ts,tsx}", "x/a.tsx", True),
        ("{src,lib}/**/*.{js,ts}", "lib/a/b.ts", True),
        ("{src,lib}/**/*.{js,ts}", "app/a/b.ts", False),
        ("a?.txt", "ab.txt", True),
        ("a?.txt", "a/.txt", False),
        ("[ab].txt", "b.txt", True),
        ("[!ab].txt", "b.txt", False),
        ("[!ab].txt", "c.txt", True),
        ("[z-a].txt", "b.txt", False),
        ("a[.txt", "a[.txt", True),
        ("x+(y).txt", "x+(y).txt", True),
        ("Makefile", "sub/Makefile", True),
        ("makefile", "Makefile", False),
        ("*", "../up", False),
        ("*", "/abs", False),
        ("日本*.md", "日本語.md", True),
        ("a\nb", "a\nb", True),
    ],
)
def test_a_glob_means_what_it_says(glob: str, path: str, matches: bool) -> None:
    index = PathIndex([SkillMetadata("s", "x", "/s.md", trigger=PathTrigger((glob,)))])
    assert index.match(path) == (["s"] if matches else [])


def test_several_skills_in_their_order_the_active_left_out() -> None:
    skills = [SkillMetadata(name, "x", "/s.md", trigger=PathTrigger(("*.py", "src/**"))) for name in "ab"]
    index = PathIndex([*skills, SkillMetadata("c", "x", "/s.md")])
    assert index.match("src/x.py") == ["a", "b"]
    assert index.match("src/x.py", active={"a"}) == ["b"]
    assert PathIndex([]).match("x") == []


@pytest.mark.parametrize("glob", ["{a,b}" * 20, "x" * 2_000, "\0"])
def test_patterns_beyond_bounds_are_diagnosed(glob: str) -> None:
    index = PathIndex([SkillMetadata("s", "x", "/s.md", trigger=PathTrigger((glob, "*.py")))])
    assert [each.code for each in index.diagnostics] == ["trigger-bad-glob"]
    assert index.match("a.py") == ["s"]
