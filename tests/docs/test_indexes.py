"""The two indexes are complete: `docs/README.md` links every page, `examples/README.md` every example."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS, EXAMPLES = ROOT / "docs", ROOT / "examples"


def read_links(index: Path) -> list[Path]:
    """Return the files and folders that a page links to, in the order of the page."""
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", index.read_text("utf-8"))
    return [(index.parent / target).resolve() for target in targets]


def read_title(page: Path) -> str:
    """Return the title of a page."""
    return page.read_text("utf-8").partition("\n")[0].removeprefix("# ")


def test_every_page_is_linked_from_the_index_of_its_folder() -> None:
    indexes = [DOCS / "README.md", DOCS / "decisions" / "README.md"]
    linked = {link for index in indexes for link in read_links(index)}
    pages = set(DOCS.rglob("*.md")) - {DOCS / "README.md"}
    assert sorted(str(page.relative_to(ROOT)) for page in pages - linked) == [], "link them from docs/README.md"


def test_the_index_goes_from_the_first_steps_to_the_reference() -> None:
    headings = re.findall(r"^## (.*)$", (DOCS / "README.md").read_text("utf-8"), re.MULTILINE)
    assert headings == ["Start here", "Tutorial", "How to", "Concepts", "Reference"]
    folders = [link.parent.name for link in read_links(DOCS / "README.md") if link.parent.parent == DOCS]
    ordered = [folder for folder in folders[1:] if folder != "decisions"]  # the first link is that to the words
    assert ordered == sorted(ordered, key=["tutorial", "how-to", "concepts", "reference"].index)


def test_links_to_pages_of_the_tutorial_and_how_to_have_their_titles() -> None:
    for title, target in re.findall(
        r"\[([^\]]+)\]\(((?:tutorial|how-to)/[^)]+)\)", (DOCS / "README.md").read_text("utf-8")
    ):
        assert title == read_title(DOCS / target)


def list_examples() -> list[Path]:
    """Return every program, notebook, skill and folder of examples."""
    patterns = ("*.py", "*/", "programs/*/", "api/*.py", "notebooks/*.ipynb", "skills/*/")
    examples = {path for pattern in patterns for path in EXAMPLES.glob(pattern) if "__pycache__" not in path.parts}
    return sorted(examples - {EXAMPLES / name for name in ("programs", "notebooks", "skills")})


@pytest.mark.parametrize("example", list_examples(), ids=lambda path: str(path.relative_to(EXAMPLES)))
def test_every_example_is_in_the_index_of_examples_once(example: Path) -> None:
    rows = [line for line in (EXAMPLES / "README.md").read_text("utf-8").splitlines() if line.startswith("| [")]
    name = example.relative_to(EXAMPLES)
    if name == Path("api"):
        assert f"]({name})" in (EXAMPLES / "README.md").read_text("utf-8")
        return
    (row,) = [row for row in rows if f"]({name})" in row]
    assert all(cell.strip() for cell in row.strip("|").split("|")), row


def test_the_commands_of_the_index_of_examples_name_files() -> None:
    text = (EXAMPLES / "README.md").read_text("utf-8")
    programs = re.findall(r"python (examples/[\w/]+\.py)", text)
    assert len(programs) > 5
    assert [program for program in programs if not (ROOT / program).is_file() and "NAME" not in program] == []


def test_the_readme_links_both_indexes() -> None:
    assert {DOCS / "README.md", EXAMPLES / "README.md"} <= set(read_links(ROOT / "README.md"))
