"""Pictures of what commands write on a terminal: the contents are checked, and `make pictures` writes the files."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from tests.cli.chat.terminal import Terminal
from tests.cli.pictures.svg import draw

from bough.testing import Answer, OpenAIServer, ServerCall

BOUGH = Path(sys.executable).with_name("bough")
FOLDER = os.environ.get("PICTURES", "")
"""Where the pictures are written; empty: nowhere."""
MAX_BYTES = 100_000
OPEN_TEXT = "and the mean of `amount` is"
REPORT = f"""The file is **complete**. Two things to know:

1. `region` has four values; *north* is the most frequent
2. `amount` has no missing value

| column | type | missing |
|---|---|---:|
| region | text | 0 |
| amount | number | 0 |

```python
rows = list(csv.DictReader(open("sales.csv")))
```

Next I compare it with `prices.csv`, {OPEN_TEXT}"""
READ = ServerCall(tool="read_file", arguments={"path": "sales.csv"})
EDIT = ServerCall(
    tool="edit_file", arguments={"path": "README.md", "old": "# Example workspace", "new": "# The workspace"}
)


@pytest.fixture
def show() -> Iterator[Callable[..., Terminal]]:
    """Start a command of `bough` on a terminal."""
    with ExitStack() as terminals:

        def start(cli: Any, *args: str, columns: int = 80, rows: int = 50) -> Terminal:
            env = cli.env(EDITOR="", VISUAL="", NO_COLOR="")
            return terminals.enter_context(
                Terminal([str(BOUGH), *args], cwd=cli.folder, env=env, columns=columns, rows=rows)
            )

        yield start


def keep(terminal: Terminal, name: str, columns: int, title: str, command: str = "") -> None:
    """Check the picture of a screen, and write it if pictures are wanted."""
    assert max(len(row) for row in terminal.rows) <= columns
    picture = draw(terminal.cells, columns, title=title, command=command)
    assert len(picture.encode()) < MAX_BYTES
    root = ElementTree.fromstring(picture)
    drawn = "".join("".join(root.itertext()).split())
    for word in command.split() or [row.split()[0] for row in terminal.rows if row.strip()][:3]:
        assert word in drawn
    if not FOLDER:
        return
    file = Path(FOLDER).absolute() / f"{name}.svg"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(picture, encoding="utf-8")
    if chromium := shutil.which("chromium"):
        for scheme in ("light", "dark"):
            photograph(chromium, file, root, scheme)


def photograph(chromium: str, file: Path, root: ElementTree.Element, scheme: str) -> None:
    """Write a picture as PNG in a colour scheme."""
    width, height = (int(float(root.attrib[side])) + 1 for side in ("width", "height"))
    flags = ["--force-dark-mode", "--blink-settings=preferredColorScheme=0"] if scheme == "dark" else []
    subprocess.run(
        [
            chromium, "--headless", "--no-sandbox", "--hide-scrollbars", f"--window-size={width},{height}", *flags,
            f"--screenshot={file.with_name(f'{file.stem}-{scheme}.png')}", file.as_uri(),
        ],
        check=True,
        capture_output=True,
        timeout=60,
    )  # fmt: skip


def with_model(cli: Any, server: OpenAIServer) -> Any:
    return cli.having(OPENAI_API_KEY="k", BOUGH_MODEL="openai:gpt-5", BOUGH_BASE_URL=server.url)


def is_ready(terminal: Terminal) -> bool:
    return terminal.has_row("> ")


def leave(terminal: Terminal) -> None:
    terminal.send("\x15\x04")
    assert terminal.end() == 0


def wait_for_end(terminal: Terminal) -> None:
    rows: list[str] = []

    def has_ended(shown: Terminal) -> bool:
        rows[:] = [row for row in shown.rows if row]
        return any(" steps · " in row for row in rows) and bool(rows) and shown.has_row(">")

    terminal.wait(has_ended)


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_a_chat_while_an_answer_streams(cli: Any, show: Callable[..., Terminal], columns: int) -> None:
    answer = Answer(text=f"{REPORT} 42.", stall_after_chars=len(REPORT))
    with OpenAIServer([Answer(text="I look at the file first.", calls=(READ,)), answer]) as server:
        terminal = show(with_model(cli, server), "chat", columns=columns)
        terminal.wait(is_ready)
        terminal.send("what is in sales.csv?\r")
        terminal.wait(lambda shown: "is" in shown.text and "`amount`" in shown.text and "mean" in shown.text)
        terminal.send("and prices")
        terminal.wait(lambda shown: shown.has_row("> and prices"))
        keep(terminal, f"chat-streaming-{columns}", columns, "A chat while the answer arrives", "bough chat")
        text = " ".join(terminal.text.split())
        assert "✓ read_file sales.csv" in text
        assert "The file is complete." in text and "**" not in text
        assert "region" in text and "|---" not in text
        terminal.send("\x1b")
        terminal.wait("stopped; a message continues")
        leave(terminal)


@pytest.mark.parametrize("columns", [40, 80])
def test_a_chat_that_asks_for_an_approval(cli: Any, show: Callable[..., Terminal], columns: int) -> None:
    with OpenAIServer([Answer(text="I change the heading.", calls=(EDIT,)), "Done."]) as server:
        terminal = show(with_model(cli, server), "chat", "--policy", "ask", columns=columns)
        terminal.wait(is_ready)
        terminal.send("give README.md a shorter heading\r")
        terminal.wait(lambda shown: shown.has_row("allow? "))
        terminal.send("n keep it")
        terminal.wait(lambda shown: shown.has_row("allow? n keep it"))
        keep(
            terminal,
            f"chat-approval-{columns}",
            columns,
            "A chat asks before it edits a file",
            "bough chat --policy ask",
        )
        assert "-# Example workspace" in terminal.text and "+# The workspace" in terminal.text
        terminal.send("\r")
        terminal.wait("rejected: keep it")
        wait_for_end(terminal)
        leave(terminal)


def test_a_paste_and_a_message_during_a_run(cli: Any, show: Callable[..., Terminal]) -> None:
    asked, typed = threading.Event(), threading.Event()

    def answer(_: Any) -> str:
        asked.set()
        assert typed.wait(60)
        return "Fifty lines."

    with OpenAIServer([answer, *["As you wish."] * 3]) as server:
        terminal = show(with_model(cli, server), "chat")
        terminal.wait(is_ready)
        terminal.paste("\n".join(f"2026-11-{day:02} pine {day * 3}" for day in range(1, 51)))
        terminal.send(" how many lines are these?\r")
        assert asked.wait(60)
        terminal.send("answer in one sentence\r")
        terminal.paste("\n".join(f"line {number}" for number in range(12)))
        terminal.wait(lambda shown: shown.has_row("> [pasted 12 lines]"))
        keep(
            terminal,
            "chat-paste-80",
            80,
            "A long paste is one message, and typing continues during a run",
            "bough chat",
        )
        assert "more lines" in terminal.text and "answer in one sentence" in terminal.text
        typed.set()
        terminal.wait(lambda shown: "As you wish." in shown.text or "Fifty lines." in shown.text)
        terminal.wait(lambda shown: shown.has_row("> [pasted 12 lines]"))
        leave(terminal)


def test_a_chat_that_is_resized(cli: Any, show: Callable[..., Terminal]) -> None:
    with OpenAIServer([REPORT + " 42.", "And once more."]) as server:
        terminal = show(with_model(cli, server), "chat", columns=80)
        terminal.wait(is_ready)
        terminal.send("what is in sales.csv?\r")
        terminal.wait(lambda shown: " step · " in shown.text and is_ready(shown))
        terminal.send("once more")
        for columns in (40, 200, 80):
            terminal.resize(columns, 50)
            terminal.wait(lambda shown: shown.has_row("> once more"))
            before = len(terminal.written)
            terminal.wait(lambda shown, before=before: len(shown.written) > before)
            terminal.wait(lambda shown: shown.has_row("> once more"))
            keep(terminal, f"chat-resized-{columns}", columns, f"A chat after a resize to {columns} columns")
        assert sum("The file is" in row for row in terminal.scrollback) == 1
        leave(terminal)


SOURCE, FORK = "SOURCE", "FORK"
"""Stand for the ids of a conversation and of its latest fork."""
COMMANDS = {
    "run": (("run", "count the words of README.md and check the links in notes"), ("README.md", "to try again")),
    "first-screen": ((), ("Run and talk", "bough help")),
    "help-run": (("run", "--help"), ("Examples", "--max-steps")),
    "list": (("conv", "list"), ("profile sales.csv", "finished")),
    "show": (("conv", "show", FORK), ("fork of", "word-count", "result")),
    "tree": (("conv", "tree", FORK), ("├─", "└─", "@1")),
    "diff": (("conv", "diff", SOURCE, FORK), ("README.md", "profile sales.csv")),
    "doctor": (("doctor",), ("bubblewrap", "GEMINI_API_KEY", "--all", "bough works here")),
}


@pytest.fixture(scope="module")
def project(
    tmp_path_factory: pytest.TempPathFactory, new_cli: Callable[[Path, Path], Any]
) -> tuple[Any, dict[str, str]]:
    """A project in which a conversation was forked twice, and the ids."""
    folder = tmp_path_factory.mktemp("pictures")
    cli = new_cli(folder, folder / "home")
    fork = ""
    first = cli.lines("run", "profile sales.csv")[-1]["conversation"]
    for prompt in ("profile prices.csv", "how many words are in README.md"):
        fork = cli.lines("fork", f"{first}@1", prompt)[-1]["conversation"][-8:]
    return cli, {SOURCE: first[-8:], FORK: fork}


@pytest.mark.parametrize(
    ("name", "columns"), [*((name, 80) for name in COMMANDS), ("list", 40), ("tree", 40), ("run", 40)]
)
def test_a_command(project: tuple[Any, dict[str, str]], show: Callable[..., Terminal], name: str, columns: int) -> None:
    template, texts = COMMANDS[name]
    cli, ids = project
    args = [ids.get(word, word) for word in template]
    terminal = show(cli, *args, columns=columns, rows=80)
    assert terminal.end() == 0
    command = " ".join(["bough", *(f'"{word}"' if " " in word else word for word in args)])
    keep(terminal, f"{name}-{columns}", columns, f"The output of {command}", command)
    shown = " ".join(terminal.text.split())
    for text in texts if columns == 80 else texts[:1]:
        assert text in shown
