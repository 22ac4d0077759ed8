"""Shared statements reach each database in its own dialect."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

from bough.events.queries import STORE, queries

PACKAGES = (
    STORE,
    "bough.events.blob",
    "bough.conversation.log.sql",
    "bough.conversation.log.usage",
    "bough.tasks.sql",
    "bough.server.sql",
    "bough.testing.side_tables.sql",
)


@pytest.mark.parametrize("package", PACKAGES)
def test_a_shared_statement_has_nothing_of_the_other_database(package: str) -> None:
    for name, sql in queries("sqlite", package).items():
        assert not re.search(r"%\(|::|uuid_send|json_array|skip locked", sql), f"{name}: {sql}"
    for name, sql in queries("postgres", package).items():
        assert not re.search(r"(?<!:):[a-z]|json_each|ifnull", sql), f"{name}: {sql}"
        assert not re.search(r"(?<!%)(%%)*%(?![%(])", sql), f"{name}: a percent sign is doubled: {sql}"


@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
def test_a_statement_has_one_text_for_each_database(package: str, dialect: str) -> None:
    folder = files(package)
    texts = [
        path.read_text("utf-8") for path in (folder / "queries.sql", folder / dialect / "queries.sql") if path.is_file()
    ]
    names = re.findall(r"^-- ((?:name|part): \w+)", "".join(texts), re.MULTILINE)
    assert names
    assert len(set(names)) == len(names)


def test_what_only_postgres_needs_is_left_out_for_sqlite() -> None:
    assert "limit 100) returning k" in queries("sqlite", "bough.tasks.sql")["make_ready"]
    assert "skip locked" in queries("postgres", "bough.tasks.sql")["make_ready"]
    around = queries("sqlite", "bough.tasks.sql")["around"]
    assert "select value from json_each(:cids)" in around
