"""Conversations as files and from outside: export, import, diff, tag, delete, replay."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from markdown_it import MarkdownIt

EVIL = "<script>alert(1)</script> & `x` bake a cake"


@pytest.fixture(scope="module")
def made_home(tmp_path_factory: pytest.TempPathFactory, new_cli: Any) -> Path:
    """A home with a run whose message is HTML, and a fork of it that counts words."""
    folder = tmp_path_factory.mktemp("files")
    cli = new_cli(folder, folder / "home")
    assert cli("run", EVIL).returncode == 0
    assert cli("fork", "-@1", "count the words of README.md").returncode == 0
    return folder / "home"


@pytest.fixture
def made(cli: Any, made_home: Path, bough_home: Path) -> tuple[str, str]:
    """The ids of the run and of its fork, in the store of `cli`."""
    shutil.copytree(made_home, bough_home)
    fork, root = (each["id"] for each in cli.data("conv", "list", "--all")["conversations"])
    return root, fork


def test_a_bundle_brings_a_fork_into_another_store_whole(cli: Any, made: tuple[str, str], tmp_path: Path) -> None:
    _, fork = made
    assert cli("conv", "export", fork, "-o", tmp_path / "x.bundle").returncode == 0
    assert cli("conv", "export", fork, "-o", tmp_path / "x.bundle").returncode == 7
    other = cli.having(BOUGH_HOME=str(tmp_path / "other"))
    refused = other("conv", "import", tmp_path / "x.bundle")
    assert (refused.returncode, "--accept-unknown" in refused.stderr) == (4, True)
    assert other.data("conv", "import", tmp_path / "x.bundle", "--accept-unknown")["conversation"]["id"] == fork
    assert other.data("conv", "show", fork)["events"] == cli.data("conv", "show", fork)["events"]
    data = (tmp_path / "x.bundle").read_bytes()
    (tmp_path / "bad.bundle").write_bytes(data.replace(b"README.md", b"REBDME.md"))
    assert other("conv", "import", tmp_path / "bad.bundle").returncode == 2
    assert other("conv", "import", tmp_path / "x.bundle", "--signed-by", "00" * 32).returncode == 4


def test_what_was_imported_is_adopted_by_name_once(cli: Any, made: tuple[str, str], tmp_path: Path) -> None:
    _, fork = made
    assert cli("conv", "export", fork, "-o", tmp_path / "x.bundle").returncode == 0
    other = cli.having(BOUGH_HOME=str(tmp_path / "other"))
    own = (Path(cli.environment["BOUGH_HOME"]) / "signing.key").read_bytes()
    key = Ed25519PrivateKey.from_private_bytes(own).public_key().public_bytes_raw().hex()
    (tmp_path / "other" / "keys").mkdir(parents=True)
    (tmp_path / "other" / "keys" / "trusted").write_text(f"# friends\n{key} ann\n")
    assert other("conv", "import", tmp_path / "x.bundle").returncode == 0
    asked = other("conv", "adopt", fork)
    assert (asked.returncode, "--yes" in asked.stderr) == (2, True)
    adopted = other.data("conv", "adopt", fork, "--yes")
    assert adopted["signed_by"] == key
    assert other("conv", "adopt", fork, "--yes").returncode == 7
    events = other.data("conv", "show", fork)["events"]
    assert [each["kind"] for each in events if each["kind"] == "Imported"] == ["Imported"]


def test_documents_hold_every_event_and_html_runs_nothing(cli: Any, made: tuple[str, str], tmp_path: Path) -> None:
    root, _ = made
    events = cli.data("conv", "show", root)["events"]
    lines = cli("conv", "export", root, "--format", "jsonl").stdout.splitlines()
    assert [json.loads(each) for each in lines] == events
    assert cli("conv", "export", root, "-o", tmp_path / "x.html").returncode == 0
    page = (tmp_path / "x.html").read_text()
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "default-src 'none'" in page
    assert "http" not in page.replace("http-equiv", "")
    assert all(f' id="e{event["seq"]}"' in page for event in events)
    text = cli("conv", "export", f"{root}@3", "--format", "md").stdout
    assert text.startswith(f"# {EVIL.replace('<', '&lt;')}")
    tokens = MarkdownIt("commonmark", {"html": True}).parse(text)
    tokens += [child for token in tokens for child in token.children or []]
    assert not [token for token in tokens if token.type.startswith("html")]


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (["conv", "export", "-", "--format", "pdf"], 2, "invalid format"),
        (["conv", "export", "-@2"], 2, "whole conversation"),
        (["conv", "export", "-", "-o", "nowhere/x.md"], 6, "cannot be written"),
        (["conv", "import", "README.md"], 2, "not a valid bundle"),
        (["conv", "import", "gone"], 2, "cannot be read"),
        (["conv", "tag", "-", "gone-"], 2, "no tag"),
        (["conv", "delete", "-"], 2, "--yes"),
        (["conv", "delete", "-", "--json"], 2, ""),
        (["conv", "delete", "-", "--mode", "shred", "--yes"], 2, "invalid mode"),
        (["conv", "diff", "-@99"], 2, "events, not 99"),
        (["replay", "-@99"], 2, "events, not 99"),
    ],
)
def test_mistakes_are_told_and_change_nothing(
    cli: Any, made: tuple[str, str], args: list[str], code: int, says: str
) -> None:
    done = cli(*args)
    assert done.returncode == code
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_tags_are_set_and_taken_away_and_forks_go_with_cascade(cli: Any, made: tuple[str, str]) -> None:
    root, fork = made
    assert cli.data("conv", "tag", root, "a=1", "b=2")["conversation"]["tags"] == {"a": "1", "b": "2"}
    assert cli.data("conv", "tag", root, "c=3", "a-", "-k", "b")["conversation"]["tags"] == {"c": "3"}
    would = cli.data("conv", "delete", root, "--mode", "cascade", "--dry-run")["conversations"]
    assert {each["id"] for each in would} == {root, fork}
    assert len(cli.data("conv", "list", "--all")["conversations"]) == 2
    assert cli("conv", "delete", root, "--yes").returncode == 0
    assert cli.data("conv", "show", fork)["events"][0]["kind"] == "ConversationStarted"
    assert cli("conv", "delete", fork, "--mode", "cascade", "--yes").returncode == 0
    assert cli("conv").stdout == "no conversations yet\n"


def test_diff_shows_what_each_branch_did(cli: Any, made: tuple[str, str]) -> None:
    root, fork = made
    found = cli.data("conv", "diff", root, fork)
    assert found["common_events"] == 1
    assert [event["kind"] for event in found["b"]["events"]][:2] == ["ForkedFrom", "StateChanged"]
    lines = cli("conv", "diff", root, fork).stdout.splitlines()
    assert any(line.startswith("- ") and "bake a cake" in line for line in lines)
    assert any(line.startswith("+ ") and "scripts/count.sh" in line for line in lines)


def test_replay_is_the_same_until_what_a_script_reads_has_changed(cli: Any, workspace: Path) -> None:
    assert cli("run", "count the words of README.md").returncode == 0
    same = cli("replay")
    assert (same.returncode, same.stdout.startswith("same")) == (0, True), same
    with (workspace / "README.md").open("a") as file:
        file.write("two words\n")
    changed = cli("replay", "--json")
    assert changed.returncode == 1
    differences = json.loads(changed.stdout)["data"]["differences"]
    kinds = [(each["recorded"] or each["replayed"])["kind"] for each in differences]
    assert "ToolReturned" in kinds


def test_of_a_damaged_store_doctor_says_what_is_readable_and_export_saves_it(
    cli: Any, made: tuple[str, str], bough_home: Path
) -> None:
    root, _ = made
    whole = cli.data("conv", "show", root)["events"]
    db = sqlite3.connect(bough_home / "bough.db")
    assert db.execute("update event set kind = 'ModelResponded' where k & 4294967295 = 2").rowcount
    db.commit()
    db.close()
    doctor = cli("doctor")
    assert doctor.returncode == 6
    assert "readable: events" in doctor.stdout
    assert "--salvage" in doctor.stdout
    assert cli("conv", "export", root, "--format", "jsonl").returncode == 6
    saved = cli("conv", "export", root, "--format", "jsonl", "--salvage")
    assert [json.loads(line)["seq"] for line in saved.stdout.splitlines()] == [
        event["seq"] for event in whole if event["seq"] != 2
    ]


def test_home_and_store_may_stand_before_the_command(cli: Any, made: tuple[str, str], tmp_path: Path) -> None:
    assert cli.data("--home", tmp_path / "empty", "conv", "list")["conversations"] == []
    url = f"sqlite:///{tmp_path}/other.db"
    assert cli.data("--store", url, "conv")["conversations"] == []
    home = cli.environment["BOUGH_HOME"]
    nearer = cli.data("--store", url, "conv", "list", "--all", "--store", f"sqlite:///{home}/bough.db")
    assert len(nearer["conversations"]) == 2
