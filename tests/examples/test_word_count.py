"""The word count: below its heading it prints what wc prints, whatever the file is."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

COUNT = "word-count/scripts/count.sh"


def wc(folder: Path, *files: str) -> str:
    """What wc itself prints."""
    return subprocess.run(["wc", "-l", "-w", "-c", "--", *files], cwd=folder, capture_output=True, text=True).stdout


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.one_of(st.binary(max_size=300), st.text(max_size=200).map(lambda text: text.encode("utf-8"))))
def test_any_bytes_are_counted_as_wc_counts_them(script: Any, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    heading, _, rest = script(COUNT, "file").stdout.partition("\n")
    assert heading == "lines words bytes file"
    assert rest == wc(tmp_path, "file")
    assert rest.split()[2] == str(len(content))


def test_several_files_have_a_total_and_names_may_look_like_options(script: Any, tmp_path: Path) -> None:
    names = ["a b.txt", "-l", "empty"]
    for name, text in zip(names, ["one two\nthree", "four\n", ""], strict=True):
        (tmp_path / name).write_text(text)
    done = script(COUNT, *names)
    assert done.stdout.partition("\n")[2] == wc(tmp_path, *names)
    assert done.stdout.splitlines()[-1].split() == ["2", "4", "18", "total"]


def test_a_missing_file_is_named_and_the_others_are_still_counted(script: Any, tmp_path: Path) -> None:
    (tmp_path / "there").write_text("one\n")
    done = script(COUNT, "there", "gone")
    assert done.returncode == 1
    assert "gone" in done.stderr
    assert "there" in done.stdout


@pytest.mark.parametrize("args", [[]])
def test_without_a_file_it_says_how_and_does_not_wait_for_input(script: Any, args: list[str]) -> None:
    done = script(COUNT, *args)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("usage: ")
