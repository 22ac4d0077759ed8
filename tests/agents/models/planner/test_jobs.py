"""Several jobs in one message: each clause goes to its skill, with its own arguments."""

from __future__ import annotations

import pytest

from bough.agents.models.planner.jobs import find_jobs
from bough.agents.models.planner.prompt import clauses
from bough.agents.models.planner.rank import RankedSkill

LIBRARY = [
    RankedSkill(name="csv-profile", text="Profiles a CSV file: rows, columns, missing values."),
    RankedSkill(name="word-count", text="Counts words, lines and characters in text files."),
    RankedSkill(name="link-check", text="Finds broken links in Markdown files."),
]


@pytest.mark.parametrize(
    ("message", "jobs"),
    [
        (
            "profile sales.csv and count the words in README.md",
            [("csv-profile", "sales.csv"), ("word-count", "README.md")],
        ),
        ("Count the words in a.md. Then check the links in b.md!", [("word-count", "a.md"), ("link-check", "b.md")]),
        ("count words and broken links in a.md", [("word-count", "a.md"), ("link-check", "a.md")]),
        ("count words in a.md and b.md and check links in c.md", [("word-count", "a.md b.md"), ("link-check", "c.md")]),
        ("count words in a.md and sales.csv", [("word-count", "a.md sales.csv")]),
        ("count the words, then the lines and the characters of a.md", [("word-count", "a.md")]),
        ('count words in "rock and roll.md"', [("word-count", "rock and roll.md")]),
        ("profile sales.csv and email it to Bob", []),
        ("profile sales.csv, count the words in a.md and then order a pizza", []),
        ("order a pizza and a cake", []),
        ("and then", []),
    ],
)
def test_each_clause_goes_to_its_skill_and_nothing_asked_is_passed_over(
    message: str, jobs: list[tuple[str, str]]
) -> None:
    assert [(job.skill, " ".join(job.prompt.args)) for job in find_jobs(LIBRARY, message)] == jobs


def test_clauses_leave_names_and_quotations_whole() -> None:
    assert clauses("See a.b.md, and then c. Also 'x and y'? brandy and sandy.") == [
        "See a.b.md", "c", "Also 'x and y'", "brandy", "sandy.",
    ]  # fmt: skip
