"""`docs/reference/errors.md` has each error code, with its class, HTTP status and exit code."""

from __future__ import annotations

from pathlib import Path

from bough.errors import OUTCOMES, BoughError

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "errors.md").read_text("utf-8")
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line.startswith("| `")]


def list_classes(parent: type[BoughError]) -> list[type[BoughError]]:
    """Return a class of errors and all its subclasses in `bough.errors`."""
    children = [child for child in parent.__subclasses__() if child.__module__ == "bough.errors"]
    return [parent, *(descendant for child in children for descendant in list_classes(child))]


def test_every_code_has_a_row_with_its_class_and_its_outcome() -> None:
    classes = {kind.code: kind.__name__ for kind in list_classes(BoughError)}
    expected = {
        code: [f"`{classes.get(code, 'BoughError')}`", str(outcome.http_status), str(outcome.exit_code)]
        for code, outcome in OUTCOMES.items()
    }
    assert {row[0].strip("`"): row[1:4] for row in ROWS} == expected
    assert len(ROWS) == len(OUTCOMES), "a code has two rows"


def test_every_row_says_what_happened_and_what_to_do() -> None:
    assert [row for row in ROWS if len(row) != 6 or not all(row)] == []


def test_the_page_names_every_subclass_of_an_error_class() -> None:
    text = " ".join(PAGE.split())
    for parent in list_classes(BoughError)[1:]:
        children = [f"`{child.__name__}`" for child in list_classes(parent)[1:]]
        if children:
            assert f"`{parent.__name__}` catches {' and '.join(children)}" in text
