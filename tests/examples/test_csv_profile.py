"""The CSV profile: what it says of a table is what is in the table."""

from __future__ import annotations

import csv
import statistics
from pathlib import Path
from typing import Any

import pytest

PROFILE = "csv-profile/scripts/profile.py"
SALES = Path(__file__).parents[2] / "examples" / "workspace" / "sales.csv"


def block(output: str, column: str) -> str:
    """The lines about one column, joined."""
    return next(part for part in output.split("\n\n") if part.startswith(f"{column}: "))


def test_numbers_of_the_example_are_those_computed_here_by_other_means(script: Any) -> None:
    with SALES.open(newline="") as file:
        rows = list(csv.DictReader(file))
    revenue = [float(row["revenue"]) for row in rows]
    done = script(PROFILE, SALES)
    assert done.returncode == 0
    assert f": {len(rows)} rows, {len(rows[0])} columns" in done.stdout.splitlines()[0]
    about = block(done.stdout, "revenue")
    assert f"max {max(revenue):.0f}," in about
    assert f"mean {statistics.fmean(revenue):.4f}" in about
    assert f"missing {sum(row['region'] == '' for row in rows)}," in block(done.stdout, "region")
    assert f"missing {sum(row['rating'] == 'n/a' for row in rows)}," in block(done.stdout, "rating")


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        (["1", "-2", "+3"], "integer"),
        (["1", "2.5", "1e3"], "number"),
        (["2025-01-31", "2024-02-29T10:00:00"], "date"),
        (["2025-13-31"], "text"),
        (["true", "No"], "boolean"),
        (["1", "one"], "text"),
        (["1_000"], "text"),
        (["inf", "nan"], "text"),
        (["", "NA", "-"], "empty"),
    ],
)
def test_the_type_is_the_narrowest_that_fits_every_cell(
    script: Any, tmp_path: Path, cells: list[str], kind: str
) -> None:
    (tmp_path / "t.csv").write_text("id,value\n" + "".join(f"{i},{cell}\n" for i, cell in enumerate(cells)))
    assert f"\nvalue: {kind}\n" in script(PROFILE, "t.csv").stdout


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_the_delimiter_is_told_even_with_decimal_commas_and_quoted_cells(
    script: Any, tmp_path: Path, delimiter: str
) -> None:
    with (tmp_path / "t.csv").open("w", newline="") as file:
        csv.writer(file, delimiter=delimiter).writerows([["name", "price"], ["a, b; c", "1,50"], ["d\te|f", "2,50"]])
    assert "2 rows, 2 columns" in script(PROFILE, "t.csv").stdout


def test_ragged_rows_repeated_and_empty_headers_are_said_and_nothing_is_lost(script: Any, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,a,\n1,2\n1,2,3,4\n\n5,6,7\n")
    out = script(PROFILE, "t.csv").stdout
    assert "3 rows, 3 columns" in out
    assert "with too few or too many cells: 2 rows" in out
    assert "\na (2): integer\n" in out
    assert "missing 1" in block(out, "column 3")


def test_a_mark_and_utf_16_are_understood(script: Any, tmp_path: Path) -> None:
    for encoding in ("utf-8-sig", "utf-16"):
        (tmp_path / "t.csv").write_text("größe,b\n1,ü\n", encoding=encoding)
        assert "\ngröße: integer\n" in script(PROFILE, "t.csv", PYTHONIOENCODING="utf-8").stdout


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "No such file"),
        (b"", "is empty"),
        (b"\n \n", "is empty"),
        (b"a,b\n\0\0\n", "binary"),
        (b"a,b\n1,\xff\n", "is not UTF-8"),
    ],
)
def test_what_cannot_be_profiled_is_said_in_one_line_with_exit_code_1(
    script: Any, tmp_path: Path, content: bytes | None, says: str
) -> None:
    if content is not None:
        (tmp_path / "t.csv").write_bytes(content)
    done = script(PROFILE, "t.csv")
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert says in done.stderr


@pytest.mark.parametrize("args", [[], ["t.csv", "--top", "0"], ["t.csv", "--delimiter", "ab"], ["a", "b"]])
def test_wrong_arguments_give_the_usage_and_exit_code_2(script: Any, args: list[str]) -> None:
    done = script(PROFILE, *args)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: ")
