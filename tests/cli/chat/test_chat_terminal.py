"""The chat on a terminal: nothing that is typed is lost, nothing is approved by mistake, nothing is drawn twice."""

from __future__ import annotations

import json
import signal
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.chat.terminal import Terminal

from bough.testing import Answer, OpenAIServer, ServerCall

OpenChat = Callable[..., Terminal]
ANSWER = """# Report

The header has **a trailing blank**; two rows are `short`.

1. first thing, which is described in so many words that its line has to be broken at every width
2. second

```python
def total(rows):
    return sum(rows)  # all of them
```

```diff
-old
+new
```

| name | price | what it is |
|------|------:|---|
| pine | 12 | a tree that is green in winter |
"""


def writes(path: str, content: str = "x\n") -> Answer:
    return Answer(calls=(ServerCall(tool="write_file", arguments={"path": path, "content": content}),))


def with_model(cli: Any, server: OpenAIServer) -> Any:
    return cli.having(OPENAI_API_KEY="k", BOUGH_MODEL="openai:test", BOUGH_BASE_URL=server.url)


def events(cli: Any, conversation: str = "-") -> list[dict[str, Any]]:
    return cli.data("conv", "show", conversation, "--from", "0")["events"]


def sent(cli: Any, conversation: str = "-") -> list[str]:
    """The texts of the person's messages."""
    found = events(cli, conversation)
    return ["".join(part["text"] for part in event["content"]) for event in found if event["kind"] == "UserMessage"]


def asks(terminal: Terminal) -> bool:
    return terminal.has_row("allow? ")


def is_done(terminal: Terminal) -> bool:
    """Whether the latest turn has ended: its figures are the last thing above the input."""
    rows = [row for row in terminal.rows if row]
    inputs = [number for number, row in enumerate(rows) if row.startswith(">")]
    return bool(inputs) and " step" in rows[inputs[-1] - 1]


def leave(terminal: Terminal) -> int:
    terminal.send("\x04")
    return terminal.end()


def has_sent_all(shown: Terminal) -> bool:
    """Whether the last lines are drawn, which they are not while text is printed above, and none of them is queued."""
    status = next((row for row in reversed(shown.rows) if row), "")
    return shown.has_row("> not sent yet") and "policy" in status and "queued" not in status


def test_a_paste_is_one_message_and_fast_lines_are_all_sent(cli: Any, open_chat: OpenChat) -> None:
    pasted = "\n".join(f"pasted line {number}" for number in range(50))
    typed = [f"typed line {number}" for number in range(20)]
    with OpenAIServer(["fine"] * 40) as server:
        terminal = open_chat(with_model(cli, server))
        terminal.paste(pasted)
        terminal.wait("[pasted 50 lines]")
        terminal.send("\r")
        terminal.send("".join(f"{line}\r" for line in typed) + "not sent yet")
        terminal.wait(lambda shown: shown.has_row("> not sent yet") and "typed line 19" in shown.text)
        terminal.wait(lambda shown: is_done(shown) and has_sent_all(shown))
        terminal.send("\x15")
        assert leave(terminal) == 0
    assert sent(cli) == [pasted, *typed]


def test_a_paste_can_be_looked_at_and_lines_can_be_broken(cli: Any, open_chat: OpenChat) -> None:
    with OpenAIServer(["fine"]) as server:
        terminal = open_chat(with_model(cli, server))
        terminal.paste("\n".join(f"row {number}" for number in range(11)))
        terminal.wait("[pasted 11 lines]")
        terminal.send("\x0f")
        terminal.wait("row 10")
        terminal.send("\nby Ctrl+J\x1b\rby Alt+Enter\\\rby a backslash\r")
        terminal.wait(is_done)
        assert leave(terminal) == 0
    expected = [*(f"row {number}" for number in range(11)), "by Ctrl+J", "by Alt+Enter", "by a backslash"]
    assert sent(cli) == ["\n".join(expected)]


def test_what_is_typed_during_a_run_reaches_the_run_or_stays_in_the_input(
    slow_skill: Any, workspace: Path, open_chat: OpenChat
) -> None:
    terminal = open_chat(slow_skill)
    terminal.send("/wait-long\r")
    terminal.wait(workspace / "running")
    terminal.send("and this\r")
    terminal.wait("queued")
    terminal.send("/skills\r")
    terminal.wait("Wait for the file go.")
    terminal.send("/fork 1\rhalf a sentence")
    terminal.wait(lambda shown: shown.has_row("> half a sentence") and "1 queued" in shown.text)
    assert sent(slow_skill) == ["/wait-long", "and this"], "a message is in the log at once, for the next step"
    (workspace / "go").touch()
    terminal.wait("a branch; /back returns")
    terminal.wait(lambda shown: shown.has_row("> half a sentence"))
    terminal.send("\x15")
    assert leave(terminal) == 0
    assert [each["forked_at"] for each in slow_skill.data("conv", "tree")["conversations"]] == [None, 1]


def test_calls_are_approved_edited_and_rejected_only_by_what_says_so(
    cli: Any, workspace: Path, open_chat: OpenChat
) -> None:
    steps = [writes("a.txt"), writes("b.txt"), writes("c.txt"), writes("d.txt"), "ready"]
    with OpenAIServer(steps) as server:
        terminal = open_chat(with_model(cli, server), "--policy", "ask", rows=60)
        terminal.send("write\r")
        terminal.wait(asks)
        for mistake in ("yess", "no way", "use another name"):
            terminal.send(f"{mistake}\r")
            terminal.wait(f"not an answer: '{mistake}'")
        terminal.paste("y\n")
        terminal.send("y\r")
        terminal.wait(lambda shown: "write_file b.txt" in shown.text and asks(shown))
        terminal.send("e\r")
        terminal.wait('arguments: {"path": "b.txt"')
        terminal.send("\x15[1]\r")
        terminal.wait("nothing was approved")
        terminal.wait(asks)
        terminal.send("e\r")
        terminal.wait(lambda shown: shown.has_row("arguments: "))
        terminal.send('\x15{"path": "mine.txt", "content": "edited"}\r')
        terminal.wait(lambda shown: "write_file c.txt" in shown.text and asks(shown))
        terminal.send("n use another name\r")
        terminal.wait(lambda shown: "write_file d.txt" in shown.text and asks(shown))
        terminal.send("n\r")
        terminal.wait("ready")
        terminal.wait(lambda shown: shown.has_row("> y"))
        terminal.send("\x15\x7f")
        assert leave(terminal) == 0
    names = ("a.txt", "b.txt", "mine.txt", "c.txt", "d.txt")
    assert [name for name in names if (workspace / name).exists()] == ["a.txt", "mine.txt"]
    rejections = [(event["by"], event["reason"]) for event in events(cli) if event["kind"] == "ToolRejected"]
    assert rejections == [("user", "use another name"), ("user", "")]
    assert "use another name" in json.dumps(server.received[3].body)


def test_keys_before_the_question_belong_to_the_message(cli: Any, workspace: Path, open_chat: OpenChat) -> None:
    asked, typed = threading.Event(), threading.Event()

    def answer(_: Any) -> Answer:
        asked.set()
        assert typed.wait(60)
        return writes("early.txt")

    with OpenAIServer([answer, "as you wish", "fine"]) as server:
        terminal = open_chat(with_model(cli, server), "--policy", "ask")
        terminal.send("write\r")
        assert asked.wait(60)
        terminal.send("y")
        typed.set()
        terminal.wait(asks)
        assert not (workspace / "early.txt").exists()
        terminal.send("\x1b")
        terminal.wait("1 tool call waits")
        terminal.wait(lambda shown: shown.has_row("> y"))
        terminal.send("es, later\r")
        terminal.wait("as you wish")
        assert leave(terminal) == 0
    assert not (workspace / "early.txt").exists(), "a key that was pressed earlier approved a call nobody had seen"
    assert sent(cli) == ["write", "yes, later"]


def test_a_message_typed_while_calls_wait_is_sent_after_the_answers(
    cli: Any, workspace: Path, open_chat: OpenChat
) -> None:
    """Sent at once, it would reject the calls."""
    requested, typed = threading.Event(), threading.Event()

    def answer(_: Any) -> Answer:
        requested.set()
        assert typed.wait(60)
        return writes("later.txt")

    with OpenAIServer([answer, *["fine"] * 3]) as server:
        terminal = open_chat(with_model(cli, server), "--policy", "ask")
        terminal.send("write\r")
        assert requested.wait(60)
        terminal.send("one more thing\r")
        terminal.wait(lambda shown: "one more thing" in sent(cli))
        typed.set()
        terminal.wait(asks)
        terminal.send("y\r")
        terminal.wait(is_done)
        assert leave(terminal) == 0
    assert (workspace / "later.txt").exists()


def test_the_editor_gets_the_arguments_as_yaml(cli: Any, workspace: Path, open_chat: OpenChat, tmp_path: Path) -> None:
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\ngrep -q \'path: a.txt\' "$1" && sed -i s/a.txt/b.txt/ "$1"\n')
    editor.chmod(0o755)
    with OpenAIServer([writes("a.txt"), "ready"]) as server:
        terminal = open_chat(with_model(cli, server), "--policy", "ask", EDITOR=str(editor))
        terminal.send("write\r")
        terminal.wait(asks)
        terminal.send("e\r")
        terminal.wait("ready")
        terminal.wait(is_done)
        assert leave(terminal) == 0
    assert [(workspace / name).exists() for name in ("a.txt", "b.txt")] == [False, True]


def test_an_edit_is_asked_about_as_a_diff_and_always_covers_the_like(
    cli: Any, workspace: Path, open_chat: OpenChat
) -> None:
    (workspace / "one.txt").write_text("first\nsecond\nthird\n")
    (workspace / "deep").mkdir()
    edit = ServerCall(tool="edit_file", arguments={"path": "one.txt", "old": "second", "new": "2nd"})
    steps = [Answer(calls=(edit,)), writes("new.txt"), writes("two.txt"), writes("deep/three.txt"), "ready"]
    with OpenAIServer(steps) as server:
        terminal = open_chat(with_model(cli, server), "--policy", "ask", rows=60)
        terminal.send("write\r")
        terminal.wait(lambda shown: asks(shown) and "-second" in shown.text and "+2nd" in shown.text)
        assert "     first" in terminal.text, "lines of the file around the change"
        terminal.send("y\r")
        terminal.wait(lambda shown: asks(shown) and "write_file new.txt" in shown.text)
        terminal.send("a\r")
        terminal.wait("approved: write_file: . (always in this session)")
        terminal.wait(lambda shown: asks(shown) and "three.txt" in shown.text)
        terminal.send("n\r")
        terminal.wait("ready")
        terminal.send("/policy\r")
        terminal.wait("always: write_file: .")
        assert leave(terminal) == 0
    assert (workspace / "two.txt").exists()
    assert not (workspace / "deep" / "three.txt").exists()


@pytest.mark.parametrize("key", ["\x1b", "\x03"])
def test_a_key_stops_the_run_and_queued_text_comes_back(
    slow_skill: Any, workspace: Path, open_chat: OpenChat, key: str
) -> None:
    terminal = open_chat(slow_skill)
    terminal.send("/wait-long\r")
    terminal.wait(workspace / "running")
    terminal.send("/fork 1\rdraft")
    terminal.wait(lambda shown: shown.has_row("> draft") and "1 queued" in shown.text)
    terminal.send(key)
    terminal.wait("stopped; a message continues")
    terminal.wait(lambda shown: shown.has_row("> /fork 1") and shown.has_row("  draft"))
    assert slow_skill.data("conv", "list")["conversations"][0]["status"] == "paused"
    terminal.send("\x03")
    terminal.wait(lambda shown: "Ctrl+C again leaves" in shown.text or not shown.has_row("> /fork"))
    terminal.send("\x03")
    assert terminal.end() == 0
    assert "Traceback" not in terminal.text


def test_sigterm_is_recorded_and_what_was_not_sent_is_printed(
    slow_skill: Any, workspace: Path, open_chat: OpenChat
) -> None:
    terminal = open_chat(slow_skill)
    terminal.send("/wait-long\r")
    terminal.wait(workspace / "running")
    terminal.send("never sent")
    terminal.wait(lambda shown: shown.has_row("> never sent"))
    terminal.process.kill(signal.SIGTERM)
    assert terminal.end() == 130
    assert "not sent: never sent" in terminal.text
    assert slow_skill.data("conv", "list")["conversations"][0]["status"] == "paused"


def test_a_resize_draws_the_bottom_lines_only(cli: Any, open_chat: OpenChat) -> None:
    streaming, resized = threading.Event(), threading.Event()

    def answer(_: Any) -> str:
        streaming.set()
        assert resized.wait(60)
        return "second answer"

    with OpenAIServer(["first answer\n\nwith a marker", answer]) as server:
        terminal = open_chat(with_model(cli, server))
        terminal.send("hello\r")
        terminal.wait(is_done)
        terminal.send("again\r")
        assert streaming.wait(60)
        terminal.wait("thinking")
        before = len(terminal.written)
        for columns in (120, 60, 100, 41):
            terminal.resize(columns)
            terminal.wait(lambda shown: len(shown.written) > before)
        resized.set()
        terminal.wait("second answer")
        terminal.wait(is_done)
        drawn = terminal.written[before:]
        assert leave(terminal) == 0
    assert terminal.text.count("with a marker") == 1
    for finished in (b"first answer", b"marker", b"hello"):
        assert finished not in drawn
    assert b"\x1b[?1049h" not in terminal.written, "the alternate screen has no scrollback"
    assert b"\x1b[2J" not in terminal.written


def test_no_finished_text_is_written_twice_while_an_answer_streams(cli: Any, open_chat: OpenChat) -> None:
    paragraphs = [f"paragraph{number} " + "word " * 30 for number in range(30)]
    with OpenAIServer(["\n\n".join(paragraphs)]) as server:
        terminal = open_chat(with_model(cli, server))
        terminal.send("tell\r")
        terminal.wait(is_done)
        assert leave(terminal) == 0
    shown = [line for line in terminal.scrollback if line.startswith("paragraph")]
    assert [line.split()[0] for line in shown] == [f"paragraph{number}" for number in range(30)]


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_answers_are_markdown_at_every_width(cli: Any, open_chat: OpenChat, columns: int) -> None:
    with OpenAIServer([ANSWER]) as server:
        terminal = open_chat(with_model(cli, server), columns=columns, rows=60)
        terminal.send("report\r")
        terminal.wait(is_done)
        colours = terminal.cell_colours
        assert leave(terminal) == 0
    text = terminal.text
    assert "**" not in text and "```" not in text and "| pine" not in text
    words = set(text.split())
    assert (
        set(["trailing", "blank;", "broken", "every", "sum(rows)", "-old", "+new", "pine", "12", "green", "winter"])
        <= words
    )
    prose = text.partition("The header")[2].partition("name")[0]
    assert max(len(row) for row in prose.splitlines()) <= min(columns, 100)
    assert {background for _, background in colours} == {"default"}
    assert {foreground for foreground, _ in colours} <= {"default", "red", "magenta"}
    assert "magenta" in {foreground for foreground, _ in colours}


def test_tool_calls_are_lines_and_failures_show_why(cli: Any, open_chat: OpenChat) -> None:
    listing = ServerCall(tool="run_command", arguments={"command": "echo wrong >&2; exit 3"})
    reading = ServerCall(tool="read_file", arguments={"path": "README.md"})
    with OpenAIServer([Answer(calls=(reading, listing)), "ready"]) as server:
        terminal = open_chat(with_model(cli, server), "--policy", "allow")
        terminal.send("look\r")
        terminal.wait(is_done)
        terminal.send("/show 9\r")
        terminal.wait("result")
        assert leave(terminal) == 0
    lines = [" ".join(row.split()) for row in terminal.scrollback]
    assert any(row.startswith("✓ read_file README.md") and row.split()[-3].replace(".", "").isdigit() for row in lines)
    assert any(row.startswith("✗ run_command echo wrong") and "exit code 3" in row for row in lines)
    assert "wrong" in lines


def test_a_terminal_of_words_gets_no_signs_and_no_colours(cli: Any, open_chat: OpenChat) -> None:
    terminal = open_chat(cli, NO_COLOR="1", BOUGH_PLAIN="1")
    terminal.send("count the words of README.md\r")
    terminal.wait(is_done)
    assert leave(terminal) == 0
    assert "  ok word-count" in terminal.text
    assert not {"✓", "✗"} & set(terminal.text)
    assert b"\x1b[35m" not in terminal.written and b"\x1b[31m" not in terminal.written


def test_history_is_private_of_one_folder_and_comes_back(
    cli: Any, open_chat: OpenChat, bough_home: Path, tmp_path: Path
) -> None:
    secret = "hunter2-hunter2"
    first = open_chat(cli, "--secret", "TOKEN", TOKEN=secret)
    for text in ("bake a cake", f"use {secret}", " not kept"):
        first.send(f"{text}\r")
        first.wait(lambda shown, text=text: f"> {text}" in shown.text and is_done(shown))
    assert leave(first) == 0
    (file,) = (bough_home / "history").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert secret not in file.read_text() and "not kept" not in file.read_text()

    second = open_chat(cli)
    second.send("\x1b[A\x1b[A")
    second.wait(lambda shown: shown.has_row("> bake a cake"))
    second.send("\x15")
    assert leave(second) == 0

    (tmp_path / "elsewhere").mkdir()
    third = open_chat(cli.having(tmp_path / "elsewhere"))
    third.send("\x1b[Aonly this")
    third.wait(lambda shown: shown.has_row("> only this"))
    third.send("\x15")
    assert leave(third) == 0


def test_words_are_completed(cli: Any, workspace: Path, open_chat: OpenChat) -> None:
    (workspace / "notes" / "long-name-of-a-file.txt").write_text("x")
    terminal = open_chat(cli)
    terminal.send("/unc\x15/und\t")
    terminal.wait(lambda shown: shown.has_row("> /undo"))
    terminal.send("\x15/word\t")
    terminal.wait(lambda shown: shown.has_row("> /word-count"))
    terminal.send("\x15look at @lonamefi\t")
    terminal.wait(lambda shown: shown.has_row("> look at @notes/long-name-of-a-file.txt"))
    terminal.send("\x15")
    assert leave(terminal) == 0


def test_commands_are_never_sent_and_unknown_ones_name_the_nearest(cli: Any, open_chat: OpenChat) -> None:
    with OpenAIServer(["one", "two", "three"]) as server:
        terminal = open_chat(with_model(cli, server))
        terminal.send("/frok 3\r")
        terminal.wait("no command '/frok'; did you mean /fork?")
        terminal.send("//frok 3\r")
        terminal.wait("one")
        terminal.wait(is_done)
        terminal.send("/retry\r")
        terminal.wait("two")
        terminal.wait(is_done)
        terminal.send("/undo\r")
        terminal.wait("files stay as they are")
        terminal.wait(lambda shown: shown.has_row("> /frok 3"))
        terminal.send("\x15/back\r/model nope\r")
        terminal.wait("unknown model 'nope'")
        terminal.send("/exit\r")
        assert terminal.end() == 0
        assert len(server.received) == 2
    assert "returns to this conversation" in terminal.text
    assert [sent(cli, each["id"]) for each in cli.data("conv", "tree")["conversations"]].count(["/frok 3"]) == 2


def test_a_chat_returns_to_its_question(cli: Any, workspace: Path, open_chat: OpenChat) -> None:
    with OpenAIServer([writes("a.txt"), "ready"]) as server:
        assert with_model(cli, server)("run", "write", "--policy", "ask").returncode == 4
        terminal = open_chat(with_model(cli, server), "-", ready="allow? ")
        terminal.send("y\r")
        terminal.wait("ready")
        terminal.wait(is_done)
        assert leave(terminal) == 0
    assert (workspace / "a.txt").exists()


def test_what_is_typed_before_the_input_is_drawn_is_sent_and_the_rest_stays(cli: Any, open_chat: OpenChat) -> None:
    with OpenAIServer(["fine", "fine"]) as server:
        terminal = open_chat(with_model(cli, server), early="first\rsecond\rnot yet")
        terminal.wait(lambda shown: shown.has_row("> not yet") and len(server.received) > 0 and is_done(shown))
        terminal.send("\x15")
        assert leave(terminal) == 0
    assert sent(cli) == ["first", "second"]


def test_the_last_message_is_edited_in_a_branch(cli: Any, open_chat: OpenChat) -> None:
    with OpenAIServer(["one", "two", "three"]) as server:
        terminal = open_chat(with_model(cli, server))
        terminal.send("/fork msg:x\r")
        terminal.wait("'msg:x' is not a position")
        for turns, text in enumerate(("a tree", "a large tree"), 1):
            terminal.send(f"{text}\r")
            terminal.wait(lambda shown, turns=turns: shown.text.count(" step ") == turns and is_done(shown))
        terminal.send("\x1b\x1b")
        terminal.wait(lambda shown: shown.has_row("> /fork msg:2 a large tree"))
        terminal.send("\x7f" * 4 + "house\r")
        terminal.wait("three")
        terminal.wait(is_done)
        assert leave(terminal) == 0
        asked = json.dumps(server.received[2].body)
    assert "a large house" in asked and "a large tree" not in asked
    branches = cli.data("conv", "tree")["conversations"]
    assert [sent(cli, each["id"]) for each in branches] == [["a tree", "a large tree"], ["a tree", "a large house"]]


def test_what_to_keep_is_told_to_the_model_that_condenses(cli: Any, open_chat: OpenChat) -> None:
    with OpenAIServer([*["fine"] * 6, "a summary"]) as server:
        terminal = open_chat(with_model(cli, server), early="".join(f"message {number}\r" for number in range(6)))
        terminal.wait(lambda shown: len(server.received) > 0 and is_done(shown) and has_sent(cli, 6))
        count = len(server.received)
        terminal.send("/compact the names of all files\r")
        terminal.wait("condensed")
        assert leave(terminal) == 0
        assert "keep in particular: the names of all files" in json.dumps(server.received[count].body)


def has_sent(cli: Any, count: int) -> bool:
    return len(sent(cli)) == count
