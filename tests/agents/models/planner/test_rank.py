"""Which skill fits a prompt, and when none does."""

from __future__ import annotations

import pytest

from bough.agents.models.planner.prompt import read_prompt
from bough.agents.models.planner.rank import RankedSkill, best_fit, best_of

LIBRARY = [
    RankedSkill(
        name="csv-profile", text="Profiles a CSV file: rows, columns, missing values, the mean of each column."
    ),
    RankedSkill(name="word-count", text="Counts words, lines and characters in text files."),
    RankedSkill(name="git-history", text="Digests the history of a git repository: commits by author, busiest files."),
    RankedSkill(name="link-check", text="Finds broken links in Markdown files and anchors without a heading."),
    RankedSkill(name="pdf-merge", text="Merges and splits PDF documents, page by page."),
    RankedSkill(name="sql-review", text="Reviews SQL migrations for locks and missing indexes."),
    RankedSkill(name="release-notes", text="Writes release notes from merged pull requests."),
    RankedSkill(name="image-resize", text="Resizes and crops PNG and JPEG images."),
]


@pytest.mark.parametrize(
    ("message", "name"),
    [
        ("profile sales.csv", "csv-profile"),
        ("what is in sales.csv?", "csv-profile"),
        ("which columns of data.csv have missing values", "csv-profile"),
        ("how many words are in README.md?", "word-count"),
        ("count README.md", "word-count"),
        ("who made the most commits?", "git-history"),
        ("are any links broken?", "link-check"),
        ("merge a.pdf and b.pdf", "pdf-merge"),
        ("split the pages of report.pdf", "pdf-merge"),
        ("review the migration in 0042.sql", "sql-review"),
        ("write the release notes", "release-notes"),
        ("resize logo.png", "image-resize"),
        ("what is the capital of France?", None),
        ("translate README.md to German", None),
        ("delete sales.csv", None),
        ("rename a.pdf to b.pdf", None),
        ("check my email", None),
        ("count to ten", None),
        ("the history of Rome", None),
        ("what can you do?", None),
        ("README.md", None),
        ("", None),
        ("!!! ??? 🎉", None),
        ("日本語で要約してください", None),
    ],
)
def test_the_skill_that_covers_most_of_what_is_asked_fits_or_none(message: str, name: str | None) -> None:
    found = best_fit(LIBRARY, read_prompt(message))
    assert (found.name if found else None) == name


def test_a_lone_skill_is_judged_as_strictly_as_one_of_many() -> None:
    lone = [LIBRARY[1]]
    assert best_fit(lone, read_prompt("how many words are in a.md")) == lone[0]
    assert best_fit(lone, read_prompt("what is the capital of France?")) is None


def test_words_that_mean_something_to_the_query_language_are_words() -> None:
    entries = [RankedSkill(name="near-or-not", text='AND NOT "quoted" col:umn * ^')]
    assert best_fit(entries, read_prompt('NEAR("quoted") AND col:umn*')) == entries[0]


def test_without_a_common_word_the_first_entry_is_the_best() -> None:
    entries = [RankedSkill(name="b"), RankedSkill(name="a")]
    assert best_of(entries, ["zebra"]) == entries[0]
    assert best_of(entries, []) == entries[0]
