"""Which skill fits a prompt, and when none does."""

from __future__ import annotations

import sqlite3
from typing import Any

import pytest

from bough.agents.models.planner.prompt import clauses
from bough.agents.models.planner.rank import Job, RankedSkill, best_of, find_jobs

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


def best_fit(entries: list[RankedSkill], message: str) -> Job | None:
    return next(iter(find_jobs(entries, message)), None)


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
    job = best_fit(LIBRARY, message)
    assert (job.skill if job and not job.missing else None) == name


def test_a_lone_skill_is_judged_as_strictly_as_one_of_many() -> None:
    lone = [LIBRARY[1]]
    job = best_fit(lone, "how many words are in a.md")
    assert job is not None
    assert (job.skill, job.missing) == ("word-count", ())
    assert best_fit(lone, "what is the capital of France?") is None


def test_words_that_mean_something_to_the_query_language_are_words() -> None:
    entries = [RankedSkill(name="near-or-not", text='AND NOT "quoted" col:umn * ^')]
    job = best_fit(entries, "NEAR(quoted) AND col:umn")
    assert job is not None
    assert (job.skill, job.missing) == ("near-or-not", ())
    assert [need.text for need in job_of(entries, "NEAR(quoted) col*").missing] == ["*"]


def job_of(entries: list[RankedSkill], message: str) -> Job:
    job = best_fit(entries, message)
    assert job is not None
    return job


def test_what_the_best_skill_does_not_account_for_is_named() -> None:
    job = job_of(LIBRARY, "profile the columns of sales.csv tomorrow as JSON")
    assert (job.skill, [need.text for need in job.missing]) == ("csv-profile", ["tomorrow", "as json"])


def test_two_skills_that_fit_equally_well_are_both_named() -> None:
    twins = [
        RankedSkill(name="first-tally", text="Tallies words."),
        RankedSkill(name="second-tally", text="Tallies words."),
    ]
    job = job_of(twins, "tally the words in a.md")
    assert {job.skill, job.rival} == {"first-tally", "second-tally"}
    assert job_of([*twins, LIBRARY[3]], "find broken links in a.md").rival == ""


def test_a_message_is_planned_with_as_many_statements_for_200_skills_as_for_two(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def count_statements(entries: list[RankedSkill]) -> int:
        statements: list[str] = []
        connect = sqlite3.connect

        def traced(*args: Any) -> sqlite3.Connection:
            connection = connect(*args)
            connection.set_trace_callback(
                lambda sql: statements.append(sql) if sql.startswith("SELECT rowid") else None
            )
            return connection

        with monkeypatch.context() as patched:
            patched.setattr(sqlite3, "connect", traced)
            assert find_jobs(entries, "count the words of README.md and check the links in notes/ideas.md")
        return len(statements)

    many = [RankedSkill(name=f"form-{i}", text=f"Prepares form {i} for the tax office.") for i in range(198)]
    few = [LIBRARY[1], LIBRARY[3]]
    assert count_statements([*few, *many]) == count_statements(few) <= 20


def test_without_a_common_word_the_first_entry_is_the_best() -> None:
    entries = [RankedSkill(name="b"), RankedSkill(name="a")]
    assert best_of(entries, ["zebra"]) == entries[0]
    assert best_of(entries, []) == entries[0]


JOBS = [
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
        ("order a pizza and a cake", []),
        ("and then", []),
    ],
)
def test_each_clause_goes_to_its_skill_and_nothing_asked_is_passed_over(
    message: str, jobs: list[tuple[str, str]]
) -> None:
    found = find_jobs(JOBS, message)
    assert not any(job.missing for job in found)
    assert [(job.skill, " ".join(job.prompt.args)) for job in found] == jobs


@pytest.mark.parametrize(
    ("message", "skill", "missing"),
    [
        ("profile sales.csv and email it to Bob", "csv-profile", ["email it to Bob"]),
        ("email it to Bob. Then profile sales.csv", "csv-profile", ["email it to Bob"]),
        ("profile sales.csv and don't email it", "csv-profile", ["not email", "don't email it"]),
    ],
)
def test_the_clause_that_fits_nothing_is_named(message: str, skill: str, missing: list[str]) -> None:
    (job,) = find_jobs(JOBS, message)
    assert (job.skill, [need.text for need in job.missing]) == (skill, missing)


def test_clauses_leave_names_and_quotations_whole() -> None:
    assert clauses("See a.b.md, and then c. Also 'x and y'? brandy and sandy.") == [
        "See a.b.md", "c", "Also 'x and y'", "brandy", "sandy.",
    ]  # fmt: skip
