"""`bough conv` and `bough fork`: what is listed, how conversations are named, what a fork shows."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bough.events import ConversationFilter
from bough.events.open import use_store
from bough.events.stores.sqlite import SqliteEventStore


@pytest.fixture(scope="module")
def forked_home(tmp_path_factory: pytest.TempPathFactory, new_cli: Any) -> Path:
    """A home with two conversations: a run, and a fork of it before its message."""
    folder = tmp_path_factory.mktemp("forked")
    cli = new_cli(folder, folder / "home")
    assert cli("run", "bake a cake").returncode == 0
    assert cli("fork", "-@1", "count the words of README.md").returncode == 0
    return folder / "home"


@pytest.fixture
def forked(cli: Any, forked_home: Path, bough_home: Path) -> tuple[str, str]:
    """The ids of a run and of a fork of it, which are in the store of `cli`."""
    shutil.copytree(forked_home, bough_home)
    fork, root = (each["id"] for each in cli.data("conv", "list", "--all")["conversations"])
    return root, fork


def test_an_empty_store_is_said_and_the_noun_alone_is_its_list(cli: Any) -> None:
    assert cli("conv").stdout == cli("conv", "list").stdout == "no conversations yet\n"
    assert cli.data("conv") == {"conversations": [], "next_cursor": None, "damaged": [], "hidden": 0}
    assert cli("conv", "--limit", "3").returncode == 0


def test_a_hyphen_is_the_latest_conversation_of_the_project(cli: Any, tmp_path: Path) -> None:
    """The nearest folder with a mark is the project; a project without conversations takes the latest of all."""
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    for folder in (first / "src", second, third):
        folder.mkdir(parents=True)
    (first / "bough.yaml").write_text("")
    for folder in (first, second):
        assert cli.having(folder)("run", f"bake {folder.name}").returncode == 0
    titles = {
        folder.name: cli.having(folder).data("conv", "show", "-")["conversation"]["title"]
        for folder in (first, first / "src", second, third)
    }
    assert titles == {"first": "bake first", "src": "bake first", "second": "bake second", "third": "bake second"}
    assert cli.having(first)("resume", "-", "bake more").returncode == 0
    assert cli.having(second).data("conv", "show", "-")["conversation"]["title"] == "bake second"


def test_the_list_is_that_of_the_project_and_says_how_many_there_are_elsewhere(cli: Any, tmp_path: Path) -> None:
    """A fork in a folder of its own belongs to its root's project; every page and filter keeps to the project."""
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    for folder in (first / "src", second, third):
        folder.mkdir(parents=True)
    (first / "bough.yaml").write_text("")
    for folder in (first, first / "src", second):
        assert cli.having(folder)("run", f"bake {folder.name}").returncode == 0
    assert cli.having(first / "src")("fork", "-", "--workspace", "copy", "--title", "copied").returncode == 0

    def list_titles(folder: Path, *arguments: str) -> list[str]:
        conversations = cli.having(folder).data("conv", "list", *arguments)["conversations"]
        return [conversation["title"] for conversation in conversations]

    assert list_titles(first) == list_titles(first / "src") == ["copied", "bake src", "bake first"]
    assert list_titles(second) == ["bake second"]
    assert list_titles(third) == []
    assert set(list_titles(third, "--all")) == {"copied", "bake src", "bake first", "bake second"}
    assert list_titles(first, "--search", "bake") == ["bake src", "bake first"]
    shown = cli.having(first)("conv", "list", "--search", "bake").stdout
    assert shown.endswith("1 more in other projects: --all\n")
    assert cli.having(third)("conv").stdout == "no conversations yet in this project\n4 more in other projects: --all\n"
    assert "other projects" not in cli.having(third)("conv", "list", "--all").stdout

    page = cli.having(first).data("conv", "list", "-n", "2")
    assert page["hidden"] == 1
    assert list_titles(first, "-n", "2", "--cursor", page["next_cursor"]) == ["bake first"]
    assert cli.having(first)("conv", "list", "-n", "2").stdout.endswith(
        "… more: raise --limit\n1 more in other projects: --all\n"
    )


def test_listing_a_project_is_one_statement_and_one_that_counts(cli: Any, bough_home: Path) -> None:
    """It reads as many pages of the database as the list of all projects does, and one row a conversation."""
    assert cli("run", "bake a cake").returncode == 0

    async def trace(filter: ConversationFilter) -> list[str]:
        async with use_store(f"sqlite:///{bough_home / 'bough.db'}") as store:
            assert isinstance(store, SqliteEventStore)
            await store.list()  # what opening a connection asks
            statements: list[str] = []
            await store._readers.run(lambda log: log.db.set_trace_callback(statements.append))
            assert len((await store.list(filter)).items) == 1
            return [statement for statement in statements if not statement.lower().startswith(("begin", "commit"))]

    for filter in (ConversationFilter(), ConversationFilter(folder="/")):
        assert len(asyncio.run(trace(filter))) == 1


def test_tail_names_the_command_that_shows_an_event_in_full(cli: Any) -> None:
    assert cli("run", "\n".join(f"line {number}" for number in range(40))).returncode == 0
    shown = cli("conv", "tail", "-").stdout
    hint, *_ = [row.split(": ", 1)[1] for row in shown.splitlines() if "more lines" in row]
    assert hint.startswith("bough conv show ")
    assert "line 39" not in shown
    assert "line 39" in cli(*hint.split()[1:]).stdout


def test_a_removed_working_folder_is_said(cli: Any, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    command = [sys.executable, "-c", "import os, sys; os.rmdir(os.getcwd()); os.execvp(sys.argv[1], sys.argv[1:])"]
    for arguments in (["conv", "list"], ["run", "hello"]):
        gone.mkdir(exist_ok=True)
        bough = str(Path(sys.executable).with_name("bough"))
        done = subprocess.run([*command, bough, *arguments], cwd=gone, capture_output=True, text=True)
        assert done.returncode == 2
        assert done.stderr == "error: the working folder no longer exists\nhint: change to another folder: `cd`\n"


def test_the_envelope_has_schema_version_command_data_and_next(cli: Any) -> None:
    envelope = json.loads(cli("conv", "--json").stdout)
    assert (envelope["schema_version"], envelope["command"]) == (1, "conv list")
    assert set(envelope) == {"schema_version", "command", "data", "next"}


def test_a_conversation_is_named_by_id_start_end_and_dash(cli: Any, forked: tuple[str, str]) -> None:
    root, fork = forked
    for name, meant in [(root, root), (root.replace("-", ""), root), (root[-8:], root), (fork[-6:].upper(), fork)]:
        assert cli.data("conv", "show", name)["conversation"]["id"] == meant
    assert cli.data("conv", "show", "-")["conversation"]["id"] == fork
    assert cli.data("conv", "show")["conversation"]["id"] == fork


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (["conv", "show", "00000000"], 3, "no conversation matches"),
        (["conv", "show", "zz"], 2, "not a conversation id"),
        (["conv", "show", "-@99"], 2, "events, not 99"),
        (["conv", "show", "-@x"], 2, "not a position in a conversation"),
        (["conv", "show", ""], 2, "not a conversation id"),
        (["fork", "-@99"], 2, "cannot cut at 99"),
        (["fork", "-", "--pending", "keep"], 2, "neither close nor drop"),
        (["conv", "list", "--status", "odd"], 2, "invalid status"),
        (["conv", "list", "--limit", "0"], 2, "--limit"),
        (["conv", "lst"], 2, "did you mean `bough conv list`?"),
    ],
)
def test_a_wrong_name_or_option_is_told(
    cli: Any, forked: tuple[str, str], args: list[str], code: int, says: str
) -> None:
    done = cli(*args)
    assert (done.returncode, done.stdout) == (code, "")
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_several_that_match_are_named(cli: Any, forked: tuple[str, str]) -> None:
    root, fork = forked
    common = root[:6]  # ids made within hours begin alike
    assert fork.startswith(common)
    error = json.loads(cli("conv", "show", common, "--json").stdout)["error"]
    assert set(error["details"]["matches"]) == {root, fork}
    assert root.replace("-", "")[-8:] in error["hint"]


def test_without_any_conversation_dash_is_not_found(cli: Any) -> None:
    assert cli("conv", "show").returncode == 3
    assert cli("resume").returncode == 3


def test_a_fork_shares_its_start_keeps_the_source_and_shows_in_the_tree(cli: Any, forked: tuple[str, str]) -> None:
    root, fork = forked
    source, branch = cli.data("conv", "show", root), cli.data("conv", "show", fork)
    assert branch["events"][0] == source["events"][0]
    assert branch["events"][1]["kind"] == "ForkedFrom"
    assert source["conversation"]["title"] == "bake a cake"
    assert branch["conversation"]["title"] == "count the words of README.md"
    assert (branch["conversation"]["forked_from"], branch["conversation"]["forked_at"]) == (root, 1)
    lines = cli("conv", "tree", root).stdout.splitlines()
    assert lines[0].startswith(root[-8:])
    assert lines[0].endswith("←")
    assert lines[1].startswith(f"└─ @1 {fork[-8:]}")
    tree = cli.data("conv", "tree", fork)
    assert [(each["id"], each["depth"]) for each in tree["conversations"]] == [(root, 0), (fork, 1)]


def test_a_fork_without_a_prompt_runs_nothing_and_says_what_may_come_next(cli: Any, forked: tuple[str, str]) -> None:
    root, _ = forked
    done = cli("fork", f"{root}@2", "--title", "Again", "--reason", "to see")
    envelope = json.loads(cli("conv", "list", "--all", "--search", "again", "--json").stdout)
    (branch,) = envelope["data"]["conversations"]
    assert done.stdout == f"{branch['short_id']}  fork of {root[-8:]}@2\n"
    resumed = cli.lines("resume", branch["id"])
    assert resumed[-1]["output"].startswith("Nothing fits")


def test_a_point_in_a_conversation_shows_its_first_events_only(cli: Any, forked: tuple[str, str]) -> None:
    whole = cli.data("conv", "show")["events"]
    assert cli.data("conv", "show", "-@3")["events"] == whole[:3]
    assert cli.data("conv", "tail", "-n", "2")["events"] == whole[-2:]
    assert cli.data("conv", "tail", "-@3", "-n", "2")["events"] == whole[1:3]


def test_tail_follow_shows_what_another_process_appends_until_ctrl_c(cli: Any, forked: tuple[str, str]) -> None:
    _, fork = forked
    process = cli.start("conv", "tail", fork, "-f", "-n", "1", "--json")
    first = json.loads(process.stdout.readline())["event"]
    assert cli("resume", fork, "bake a cake").returncode == 0
    while (event := json.loads(process.stdout.readline())["event"])["kind"] != "UserMessage":
        pass
    assert event["content"][0]["text"] == "bake a cake"
    assert event["seq"] > first["seq"]
    process.send_signal(signal.SIGINT)
    assert process.communicate()[1] == ""
    assert process.returncode == 130


def test_a_page_goes_on_where_the_last_one_ended(cli: Any, forked: tuple[str, str]) -> None:
    first = cli.data("conv", "list", "--all", "--limit", "1")
    second = cli.data("conv", "list", "--all", "--limit", "1", "--cursor", first["next_cursor"])
    assert [each["id"] for each in first["conversations"] + second["conversations"]] == list(reversed(forked))
    assert second["next_cursor"] is None


@pytest.mark.parametrize(("args", "says"), [(["conv"], "hint:"), (["conv", "show"], "hint:"), (["doctor"], "broken")])
def test_a_store_that_cannot_be_used_ends_with_6(cli: Any, tmp_path: Path, args: list[str], says: str) -> None:
    (tmp_path / "file").write_text("this is not a database, whatever its name says\n" * 100)
    for url in (f"sqlite:///{tmp_path}/file", f"sqlite:///{tmp_path}/file/x.db"):
        done = cli(*args, "--store", url)
        assert done.returncode == 6
        assert says in done.stdout + done.stderr
        assert "Traceback" not in done.stderr


def test_store_and_home_are_taken_from_the_options(cli: Any, tmp_path: Path) -> None:
    cli("run", "bake a cake", "--store", f"sqlite:///{tmp_path}/other.db")
    assert cli.data("conv", "list")["conversations"] == []
    assert len(cli.data("conv", "list", "--store", f"sqlite:///{tmp_path}/other.db")["conversations"]) == 1
    assert cli.data("conv", "list", "--home", tmp_path / "elsewhere")["conversations"] == []
    assert not (tmp_path / "elsewhere").exists(), "what only reads makes nothing"


def test_a_reader_that_goes_away_is_no_traceback(cli: Any, forked: tuple[str, str]) -> None:
    process = cli.start("conv", "show")
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait() == 141
    process.stderr.close()


def test_search_finds_messages_in_all_conversations(cli: Any, forked: tuple[str, str]) -> None:
    root, fork = forked
    found = cli.data("conv", "search", "bake")
    assert found["next_cursor"] is None
    (hit,) = found["hits"]
    assert hit.pop("when").endswith("+00:00")
    assert hit == {
        "conversation": root, "short_id": root[-8:], "title": "bake a cake", "seq": 1, "who": "user",
        "snippet": "bake a cake", "matches": [[0, 4]],
    }  # fmt: skip
    envelope = json.loads(cli("conv", "search", "bake", "--json").stdout)
    assert (envelope["command"], envelope["next"]) == ("conv search", [f"bough conv show {root[-8:]} --from 1"])
    head, row, more = cli("conv", "search", '"count the words"', "--limit", "1").stdout.splitlines()
    assert more.startswith("… more: --cursor ")
    (second,) = cli.data("conv", "search", '"count the words"', "--cursor", more.split()[-1])["hits"]
    assert [second["short_id"], str(second["seq"])] != row.split()[:2]
    assert head.split() == ["id", "seq", "who", "title", "text", "when"]
    assert row.split()[0] == fork[-8:]
    assert cli("conv", "search", "bake", "--tag", "a=b").stdout == "no message matches\n"
    assert len(cli.data("conv", "search", "bake", "--since", "7d")["hits"]) == 1
    assert cli.data("conv", "search", "bake", "--since", "2999-01-01")["hits"] == []


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ([""], "no word to look for"),
        (["--", "-draft"], "no word to look for"),
        (["word " * 10_000], "more than"),
        (["word", "--since", "soon"], "not a time"),
        (["word", "--since", "999999w"], "not a time"),
        (["word", "--cursor", "%%"], "invalid cursor"),
    ],
)
def test_a_bad_search_is_refused_with_a_hint(cli: Any, args: list[str], says: str) -> None:
    done = cli("conv", "search", *args)
    assert done.returncode == 2
    assert says in done.stderr
    assert "hint: " in done.stderr


def test_a_conversation_is_erased_with_its_forks(cli: Any, forked: tuple[str, str], bough_home: Path) -> None:
    root, fork = forked
    for args, hint in (
        (["--forks"], "--mode cascade deletes the forks"),
        (["--erase", "--mode", "cascade"], "--erase --forks"),
    ):
        refused = cli("conv", "delete", root, *args)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert hint in refused.stderr
    would = cli.data("conv", "delete", root, "--erase", "--forks", "--dry-run")
    assert [record["id"] for record in would["conversations"]] == [root, fork]
    receipt = cli.data("conv", "delete", root, "--erase", "--forks", "--yes")["erasure"]
    assert (receipt["conversations"], receipt["forks"]) == ([fork], [])
    assert cli.data("conv", "list")["conversations"] == []
    files = [file for file in bough_home.rglob("*") if file.is_file()]
    assert files and not [file for file in files if b"bake a cake" in file.read_bytes()]
