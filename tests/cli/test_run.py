"""`bough run`: what it prints where, what it records, and how it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bough.testing import OpenAIServer


def scripts_run(records: list[Any]) -> list[Any]:
    return [each["event"] for each in records if each["type"] == "event" and each["event"]["kind"] == "ScriptRan"]


def test_a_slash_command_gives_the_number_that_wc_gives_and_the_same_events_are_there_afterwards(
    cli: Any, workspace: Path
) -> None:
    *events, result = cli.lines("run", "/word-count README.md", "--model", "offline")
    words = subprocess.run(["wc", "-w", "README.md"], cwd=workspace, capture_output=True, text=True).stdout.split()[0]
    assert result["type"] == "result"
    assert result["status"] == "finished"
    assert words in result["output"].split()
    assert [each["type"] for each in events] == ["event"] * len(events)
    shown = cli.data("conv", "show", "-")
    assert shown["events"] == [each["event"] for each in events]
    assert shown["conversation"]["id"] == result["conversation"]


@pytest.mark.parametrize(
    ("prompt", "script", "argv"),
    [
        ("profile sales.csv", "scripts/profile.py", ["sales.csv"]),
        ("how many words are in README.md", "scripts/count.sh", ["README.md"]),
        ("check the links in notes", "scripts/check.py", ["notes"]),
    ],
)
def test_a_prompt_in_plain_words_picks_the_right_skill(cli: Any, prompt: str, script: str, argv: list[str]) -> None:
    (ran,) = scripts_run(cli.lines("run", prompt))
    assert (ran["script"], ran["argv"], ran["status"]) == (script, argv, "success")
    assert ran["isolation"] in ("namespaces", "landlock")


def test_the_git_digest_works_in_the_sandbox_on_a_repository(cli: Any, workspace: Path) -> None:
    for args in (["init", "-q"], ["add", "."], ["-c", "user.name=Ada", "-c", "user.email=a@b", "commit", "-qm", "one"]):
        subprocess.run(["git", *args], cwd=workspace, check=True)
    assert "1 commit by 1 author" in cli("run", "who committed what in this repository").stdout


def test_a_prompt_that_fits_nothing_is_answered_honestly(cli: Any) -> None:
    done = cli("run", "bake a cake")
    assert done.returncode == 0
    assert done.stdout.startswith("Nothing fits")
    assert scripts_run(cli.lines("run", "bake a cake")) == []


def test_stdout_is_the_result_and_stderr_the_progress_both_without_colour(cli: Any) -> None:
    done = cli("run", "count the words of README.md")
    assert done.stdout.startswith("lines words bytes file\n")
    notes = done.stderr.splitlines()
    assert "no key set" in notes[0]
    assert notes[1].startswith("conv ")
    assert "agent default  model offline  executor sandbox (" in notes[1]
    assert notes[-1].startswith("done ")
    assert "\x1b" not in done.stdout + done.stderr


def test_a_model_named_offline_needs_no_note(cli: Any) -> None:
    assert cli("run", "bake a cake", "-m", "offline").stderr.startswith("conv ")


def test_the_prompt_may_come_from_stdin_or_a_file(cli: Any, workspace: Path) -> None:
    (workspace / "prompt.txt").write_text("bake a cake\n")
    assert cli("run", stdin="bake a cake").stdout.startswith("Nothing fits")
    assert cli("run", "-f", "prompt.txt").stdout.startswith("Nothing fits")


def test_piped_text_and_a_file_go_to_the_model_beside_the_prompt(cli: Any, workspace: Path) -> None:
    (workspace / "notes.txt").write_text("from a file")
    with OpenAIServer(["one", "two", "three", "four"]) as server:
        model = {"OPENAI_API_KEY": "k", "BOUGH_MODEL": "openai:test", "BOUGH_BASE_URL": server.url}
        assert cli("run", "sum it up", stdin="from a pipe", **model).stdout == "one\n"
        assert cli("run", "sum it up", "-f", "notes.txt", **model).stdout == "two\n"
        assert cli("run", "-f", "notes.txt", stdin="from a pipe", **model).stdout == "three\n"
        assert cli("run", "-", stdin="the prompt", **model).stdout == "four\n"
        asked = [json.dumps(request.body["messages"][-1]) for request in server.received]
    assert ["sum it up" in text for text in asked] == [True, True, False, False]
    assert ["from a pipe" in text for text in asked] == [True, False, True, False]
    assert ["from a file" in text for text in asked] == [False, True, True, False]
    assert "the prompt" in asked[3]
    first = cli.data("conv", "list")["conversations"][-1]["short_id"]
    (message,) = [event for event in cli.data("conv", "show", first)["events"] if event["kind"] == "UserMessage"]
    assert message["content"][1]["name"] == "stdin.txt"


def test_text_that_nothing_would_read_is_refused(cli: Any, workspace: Path) -> None:
    """The planner reads no files, and would take what a text says for requests."""
    refused = cli("run", "summarise this", stdin="profile sales.csv")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "the offline planner cannot read stdin" in refused.stderr
    detached = cli("run", "--detach", "summarise this", stdin="text")
    assert detached.returncode == 2
    assert "--detach takes a prompt only" in detached.stderr
    too_long = cli("run", "summarise this", stdin="x" * (1 << 20 | 1), BOUGH_MODEL="openai:x", OPENAI_API_KEY="k")
    assert "stdin has more than 1048576 characters" in too_long.stderr
    assert cli.data("conv", "list")["conversations"] == []


def test_a_pipe_that_stays_open_and_silent_is_not_waited_for(cli: Any) -> None:
    reader, writer = os.pipe()
    try:
        done = subprocess.run(
            [Path(sys.executable).with_name("bough"), "run", "bake a cake"],
            cwd=cli.folder, env=cli.env(), stdin=reader, capture_output=True, text=True,
        )  # fmt: skip
    finally:
        os.close(reader)
        os.close(writer)
    assert done.stdout.startswith("Nothing fits")


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        ([], 2, "the prompt is empty"),
        ([" "], 2, "the prompt is empty"),
        (["x", "-f", "README.md"], 2, "the offline planner cannot read README.md"),
        (["-", "-f", "-"], 2, "stdin is named twice"),
        (["-f", "gone.txt"], 2, "cannot be read"),
        (["x", "-C", "nowhere"], 2, "is not a folder"),
        (["x", "--skills", "nowhere"], 2, "is not a folder of skills"),
        (["x", "--model", "opnai:gpt"], 2, "unknown provider"),
        (["x", "--model", "openai:gpt-5"], 6, "needs OPENAI_API_KEY, which is not set"),
        (["x", "--executor", "docker"], 2, "executor"),
        (["x", "--tag", "novalue"], 2, "KEY=VALUE"),
        (["x", "--base-url", "localhost"], 2, "not a base URL"),
        (["x", "--store", "mongodb://x"], 2, "invalid store URL"),
        (["x", "--store", "sqlite:////proc/none/x.db"], 6, "hint:"),
        (["x", "--timeout", "-1"], 2, "--timeout"),
        (["x", "--timeout", "nan"], 2, "not a number"),
        (["x", "--policy", ""], 2, "no policy named"),
    ],
)
def test_a_mistake_is_told_with_its_exit_code_and_leaves_no_conversation(
    cli: Any, args: list[str], code: int, says: str
) -> None:
    done = cli("run", *args)
    assert (done.returncode, done.stdout) == (code, "")
    assert says in done.stderr
    assert "error: " in done.stderr
    assert "hint: " in done.stderr
    assert "Traceback" not in done.stderr
    assert cli.data("conv", "list")["conversations"] == []


def test_with_json_a_mistake_is_an_error_object_and_stderr_is_empty(cli: Any) -> None:
    for args, code in ((["x", "--model", "opnai:gpt"], "invalid_input"), (["x", "--timeout", "-1"], "invalid_input")):
        done = cli("run", *args, "--json")
        error = json.loads(done.stdout)["error"]
        assert (done.returncode, done.stderr) == (2, "")
        assert error["code"] == code
        assert error["message"]
        assert error["hint"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("model: [", "not valid YAML"),
        ("- a", "key: value"),
        ("modle: offline", "did you mean `model`"),
        ("executor: unsafe", "may not set `executor`"),
    ],
)
def test_a_bad_project_file_is_named_and_may_widen_nothing(cli: Any, workspace: Path, text: str, says: str) -> None:
    (workspace / "bough.yaml").write_text(text)
    done = cli("run", "x")
    assert done.returncode == 2
    assert "bough.yaml" in done.stderr
    assert says in done.stderr


def test_an_unknown_skill_is_said_with_the_nearest(cli: Any) -> None:
    done = cli("run", "/word-cuont README.md")
    assert "word-count" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_a_script_that_fails_is_told_and_the_run_still_ends_well(cli: Any) -> None:
    done = cli("run", "/csv-profile gone.csv")
    assert done.returncode == 1
    assert "No such file" in done.stdout
    assert "exit code 1" in done.stderr


def test_a_title_and_tags_are_kept(cli: Any) -> None:
    cli("run", "bake a cake", "--title", "Cake", "--tag", "kind=test")
    (found,) = cli.data("conv", "list", "--tag", "kind=test")["conversations"]
    assert (found["title"], found["tags"]) == ("Cake", {"kind": "test"})
    assert cli.data("conv", "list", "--tag", "kind=other")["conversations"] == []


def test_skills_that_were_named_are_there_for_whoever_goes_on(cli: Any, workspace: Path) -> None:
    """They are recorded with the agent; else a fork or a resumed run had less than the conversation began with."""
    skills = os.path.relpath(Path(__file__).parents[2] / "examples" / "skills", workspace)
    (workspace / "notes.md").write_text("one two three\n")
    bare = {"BOUGH_SKILL_ROOTS": ""}
    started = cli("run", "how many words are in notes.md", "--skills", skills, **bare)
    assert (started.returncode, "3" in started.stdout) == (0, True)
    (workspace / "more.md").write_text("one two three four five\n")
    for command in (("fork", "-@1"), ("resume", "-")):
        done = cli(*command, "how many words are in more.md", **bare)
        assert (done.returncode, done.stderr.count("word-count")) == (0, 1), done.stderr
        assert "5" in done.stdout


def test_check_tells_programs_that_nothing_fits(cli: Any) -> None:
    assert cli("run", "bake a cake").returncode == 0
    *_, result = cli.lines("run", "bake a cake", "--check")
    assert (result["reason"], result["status"]) == ("nothing_fits", "finished")
    assert cli("run", "bake a cake", "--check").returncode == 1
    assert cli("run", "count the words of README.md", "--check").returncode == 0
