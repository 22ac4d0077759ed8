"""The tables of the performance page: what was measured, misses as misses, and nothing else of the page touched."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
PAGE = BENCHMARKS.parent / "docs" / "reference" / "performance.md"

FORK = "fork of 1000 events, to one insert in one thread"
APPEND = "append, durable, 64 producers, to raw SQLite in one thread"


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import page

    return page


@pytest.fixture
def figure(page: ModuleType) -> type:
    return page.Figure


def test_a_miss_is_shown_as_a_miss(page: ModuleType, figure: type) -> None:
    figures = [
        figure(FORK, 0.05, "ms", 0.04, 1.25, 7),
        figure("execution: cold", 50.0, "ms", 20.0, 2.5, 7),
        figure(APPEND, 69_000.0, "1/s", 100_000.0, 0.69, 7),
        figure("startup: import bough", 59.0, "ms", 12.0, 4.9, 7),
        figure("of no target", 1234.0, "MB", None, None, 5),
    ]
    text = page.own(figures, failed=["load"], loads=(0.1, 1.25))
    assert [line for line in text.splitlines() if line.startswith("|")][2:] == [
        f"| {FORK} | 50 us | 40 us | 1.25 | ≤ 2× | yes |",
        "| execution: cold | 50 ms | 20 ms | 2.50 | ≤ 2.2× | **no** |",
        f"| {APPEND} | 69,000/s | 100,000/s | 0.69 | ≥ 0.7× | **no** |",
        "| startup: import bough | 59 ms | 12 ms | 4.90 | ≤ 60 ms | yes |",
        "| of no target | 1,234 MB | – | – | – | – |",
    ]
    assert f"2 of {len(page.TARGETS)} targets were reached" in text
    assert "Load average 0.1 before, 1.2 after" in text
    assert "Came to no end: load." in text
    assert "Not measured, and not reached: fork of 10000 events" in text, "what is left out is not a success"


def test_a_target_in_another_unit_than_its_figure_is_refused(page: ModuleType, figure: type) -> None:
    for odd in (
        figure("startup: import bough", 0.05, "s", 0.01, 5.0, 7),
        figure("execution: cold", 1, "s", None, None, 7),
    ):
        with pytest.raises(ValueError, match=odd.name):
            page.reached(odd)


def test_only_the_part_is_rewritten(page: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "page.md"
    file.write_text("a\n<!-- begin x -->\nold\n<!-- end x -->\nb\n<!-- begin y -->\n<!-- end y -->\n")
    page.rewrite(file, "x", "new\n| row |")
    assert file.read_text() == (
        "a\n<!-- begin x -->\nnew\n| row |\n<!-- end x -->\nb\n<!-- begin y -->\n<!-- end y -->\n"
    )
    assert (page.part_of(file, "x"), page.part_of(file, "y")) == ("new\n| row |\n", "")
    with pytest.raises(ValueError, match="begin z"):
        page.rewrite(file, "z", "lost")


def test_the_peers_that_were_not_measured_again_keep_their_rows(page: ModuleType, figure: type) -> None:
    first = page.peers(
        [
            figure("fork of 1000 events, peer 1.2.3, plugin 3.1.0rc1, Conversation.fork", 8594.0, "ms", 2.9, 2963.4, 5),
            figure("fork of 1000 events, other 0.9.1, copy", 30.0, "ms", 20.0, 1.5, 5),
        ],
        "",
    )
    again = figure("fork of 1000 events, peer 2.0.0, plugin 4.0.0, Conversation.fork", 4000.0, "ms", 2.0, 2000.0, 5)
    second = page.peers([again], first).splitlines()
    assert len(second) == 4
    assert second[2].startswith(
        "| fork of 1000 events | peer 2.0.0, plugin 4.0.0, Conversation.fork | 4 s | 2 ms | 2,000 |"
    )
    assert second[3] == first.splitlines()[3]
    assert " | 30 ms | 20 ms | 1.5 | " in second[3]


def test_the_page_in_the_documentation_has_both_parts(page: ModuleType, tmp_path: Path) -> None:
    copy = tmp_path / "page.md"
    copy.write_text(PAGE.read_text("utf-8"), "utf-8")
    page.rewrite(copy, "own figures", "own")
    page.rewrite(copy, "peers", page.peers([], page.part_of(copy, "peers")))
    kept = PAGE.read_text("utf-8").split("<!-- begin peers -->")[1]
    assert copy.read_text("utf-8").split("<!-- begin peers -->")[1] == kept, "nothing measured, nothing changed"


def test_every_target_is_one_of_a_figure_that_is_taken(page: ModuleType) -> None:
    """A figure that is renamed loses its target otherwise, and nobody sees it missed until a page is written."""
    texts, templates = set[str](), set[str]()
    for path in BENCHMARKS.glob("*.py"):
        if path.name not in ("targets.py", "page.py", "peers.py"):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    texts.add(node.value)
                elif isinstance(node, ast.JoinedStr):
                    templates.add(template(node))

    def taken(name: str) -> bool:
        if name in texts:
            return True
        said, _, floor = name.partition(", to ")
        if floor:
            ended = {each.removesuffix(FLOOR) for each in templates if each.endswith(FLOOR)}
            if floor in texts and (said in texts or any(fits(each, said) for each in ended)):
                return True
        return name in texts or any(fits(each, name) for each in templates)

    assert [name for name in page.TARGETS if not taken(name)] == []


FLOOR = re.escape(", to ") + ".+"


def template(node: ast.JoinedStr) -> str:
    """A pattern for what an f-string becomes."""
    return "".join(re.escape(str(part.value)) if isinstance(part, ast.Constant) else ".+" for part in node.values)


def fits(pattern: str, name: str) -> bool:
    """Whether a name is what the pattern says, of which at least half has to stand for itself."""
    return bool(re.fullmatch(pattern, name)) and len(pattern.replace(".+", "").replace("\\", "")) * 2 > len(name)


def test_a_page_takes_all_benchmarks_and_peers_are_named_when_unknown() -> None:
    for command, said in (
        ([BENCHMARKS, "startup", "--page", PAGE], "takes no NAME"),
        ([BENCHMARKS / "peers.py", "nobody"], "langgraph"),
    ):
        done = subprocess.run([sys.executable, *command], capture_output=True, text=True)
        assert done.returncode == 2
        assert said in done.stderr
