"""The link check: every broken link is found, and nothing else is called broken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

CHECK = "link-check/scripts/check.py"
WORKSPACE = Path(__file__).parents[2] / "examples" / "workspace"


def problems(output: str) -> list[str]:
    return output.splitlines()[:-1]


def test_the_broken_links_of_the_example_workspace_are_found(script: Any) -> None:
    done = script(CHECK, WORKSPACE)
    assert done.returncode == 0
    assert [line.removeprefix(f"{WORKSPACE}/") for line in problems(done.stdout)] == [
        "notes/ideas.md:4: ../images/pine-shelf.svg: no such file",
        "notes/ideas.md:5: ../README.md#how-ratings-work: no such heading",
        "notes/meeting.md:13: ../prices-2026.csv: no such file",
    ]


@pytest.mark.parametrize(
    "good",
    [
        "[a](#the-title)",
        "[a](page.md#the-title) [b](./page.md 'with title') [c](<other page.md>)",
        "[a](other%20page.md) ![i](pic(1).png)",
        "[a](https://example.org/x) <a href='mailto:a@b.c'>b</a> [c](//host/x)",
        "`[a](gone.md)` and ``[a](gone.md) ` ``",
        "```\n[a](gone.md)\n```",
        "~~~~\n```\n[a](gone.md)\n~~~\n~~~~",
        "<!-- [a](gone.md)\n[b](gone.md) -->",
        "[a][Page]\n\n[page]: page.md",
        "[Page][]\n\n[PAGE]: page.md",
        "[a](sub) [b](sub/) [c](sub/#anything)",
        "[a](page.md#the-title-1) [b](page.md#under-lined) [c](page.md#own)",
        "[a](page.md#code--bold-here)",
        "[a](page.md#ÜBER-uns)",
    ],
)
def test_links_that_resolve_are_not_called_broken(script: Any, tmp_path: Path, good: str) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "pic(1).png").touch()
    (tmp_path / "other page.md").touch()
    (tmp_path / "page.md").write_text(
        "# The title\n## The title\nUnder lined\n---\n"
        "### `code` & **bold** [here](#own)!\n## Über uns\n<a id='own'></a>\n"
    )
    (tmp_path / "index.md").write_text(f"# The title\n\n{good}\n")
    assert problems(script(CHECK, "index.md").stdout) == []


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ("[a](gone.md)", "index.md:1: gone.md: no such file"),
        ("text\n\n[a](#gone)", "index.md:3: #gone: no such heading"),
        ("![a](gone.png 'x')", "index.md:1: gone.png: no such file"),
        ("[![img](there.md)](gone.md)", "index.md:1: gone.md: no such file"),
        ("[a][nowhere]", "index.md:1: [nowhere]: reference is not defined"),
        ("[a]: gone.md", "index.md:1: gone.md: no such file"),
        ("<img src='gone.png'>", "index.md:1: gone.png: no such file"),
        ("[a](/etc/hosts)", "index.md:1: /etc/hosts: absolute path"),
        ("```\nx\n```\n[a](gone.md)", "index.md:4: gone.md: no such file"),
    ],
)
def test_links_that_lead_nowhere_are_named_with_file_and_line(script: Any, tmp_path: Path, bad: str, says: str) -> None:
    (tmp_path / "there.md").touch()
    (tmp_path / "index.md").write_text(bad + "\n")
    assert problems(script(CHECK, "index.md").stdout) == [says]


def test_check_turns_a_broken_link_into_exit_code_1(script: Any, tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("[a](gone.md)")
    assert script(CHECK).returncode == 0
    assert script(CHECK, "--check").returncode == 1
    (tmp_path / "gone.md").touch()
    assert script(CHECK, "--check").returncode == 0


def test_hidden_folders_are_left_out_and_a_missing_path_is_said(script: Any, tmp_path: Path) -> None:
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "a.md").write_text("[a](gone.md)")
    assert script(CHECK).stdout.startswith("0 broken of 0 links in 0 files")
    done = script(CHECK, "nowhere")
    assert (done.returncode, done.stderr) == (1, "nowhere: no such file or folder\n")
