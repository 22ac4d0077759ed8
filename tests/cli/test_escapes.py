"""What reading commands write into a pipe holds no control characters, whatever somebody put into names and texts.

A pipe often ends on a terminal: there ESC, U+009B and the carriage return move the cursor, hide text, or set a title.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bough.events import open_store
from bough.events.model import (
    ConversationStarted,
    ErrorRaised,
    Event,
    ModelResponded,
    ScriptRan,
    SkillActivated,
    SkillSkipped,
    StateChanged,
    TaskLinked,
    ToolCalled,
    ToolFailed,
    ToolInterrupted,
    ToolRejected,
    ToolReturned,
    UserMessage,
)

NASTY = "bake\x1b[2J\x1b]0;title\x07\r\x08\x9b31m\x85\x7f\u202e cake"
"""An erased screen, a title, a bell, carriage return, backspace, C1 commands, DEL, and text from right to left."""

RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]")
RAW_IN_JSON = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f]")

RUN_ALL = """
import json, os, sys
from bough.cli.main import run
for number, command in enumerate(json.load(open(sys.argv[1]))):
    sys.stdout.flush(), sys.stderr.flush()
    for stream, name in ((1, "out"), (2, "err")):
        file = os.open(f"{sys.argv[2]}/{number}.{name}", os.O_CREAT | os.O_WRONLY)
        os.dup2(file, stream)
    code = run(command)
    open(f"{sys.argv[2]}/{number}.code", "w").write(str(code))
"""


def events() -> Iterator[Event]:
    call = {"tool_call_id": "c1", "tool": NASTY}
    parts = [
        {"part_kind": "text", "content": f"{NASTY}\n{NASTY}"},
        {"part_kind": "tool-call", "tool_name": NASTY, "tool_call_id": "c1", "args": json.dumps({NASTY: NASTY})},
    ]
    yield UserMessage.text(f"{NASTY}\n{NASTY}", sender=NASTY)
    yield ModelResponded(response={"kind": "response", "parts": parts}, model=NASTY)
    yield ToolCalled(**call, arguments={NASTY: NASTY})
    yield ToolReturned(**call, result={"stdout": NASTY, "stderr": NASTY, "status": NASTY})
    yield ToolReturned(**call, result=[NASTY])
    yield ToolFailed(**call, error=NASTY)
    yield ToolRejected(**call, by=NASTY, reason=NASTY)
    yield ToolInterrupted(**call, reason=NASTY)
    yield SkillActivated(name=NASTY, content_hash="0" * 64, trigger="keyword", keyword=NASTY, rendered=NASTY)
    yield SkillSkipped(name=NASTY, code="invalid_input", message=NASTY, hint=NASTY)
    yield ScriptRan(skill=NASTY, script=NASTY, argv=(NASTY,), status="error", error=NASTY)
    yield ErrorRaised(code="internal", message=NASTY, hint=NASTY)
    yield TaskLinked(task_id=NASTY, agent=NASTY)
    yield StateChanged(changes={"title": NASTY, "tags": {NASTY: NASTY}, "agent": {"name": NASTY, "model": NASTY}})


async def write_log(url: str, folder: Path) -> None:
    """Write a conversation in which everything that may hold text holds the characters, and a fork of it."""
    store = await open_store(url)
    started = ConversationStarted(agent={"name": NASTY, "model": NASTY}, workspace=str(folder), instructions=NASTY)
    made = await store.create(events=[started, *events()])
    await store.fork(made.id, title=NASTY, tags={NASTY: NASTY}, config={"agent": NASTY, "model": NASTY})
    await store.append(made.id, list(events()))
    await store.aclose()


def write_skill(root: Path) -> None:
    (root / "odd").mkdir(parents=True)
    described = json.dumps(NASTY, ensure_ascii=True)
    (root / "odd" / "SKILL.md").write_text(f"---\nname: odd\ndescription: {described}\n---\nDo {NASTY}.\n", newline="")


def write_set(path: Path) -> Path:
    turn = {"user_content": {"parts": [{"text": NASTY}]}, "final_response": {"parts": [{"text": NASTY}]}}
    path.write_text(json.dumps({"eval_set_id": "odd", "eval_cases": [{"eval_id": "a", "conversation": [turn]}]}))
    return path


SHOWN = [
    ["conv", "show", "-"],
    ["conv", "show", "-", "--full"],
    ["conv", "show", "-", "--all", "--full"],
    ["conv", "list"],
    ["conv", "list", "--tag", f"{NASTY}={NASTY}"],
    ["conv", "tree", "-"],
    ["conv", "turns", "-"],
    ["conv", "tail", "-"],
    ["conv", "diff", "-@3", "-", "--full"],
    ["tasks", "list"],
    ["tasks", "show"],
    ["tasks", "logs"],
    ["eval", "list"],
    ["eval", "show", "-"],
    ["eval", "show", "-", "a"],
    ["skills", "list"],
    ["skills", "show", "odd"],
    ["skills", "show", NASTY],
]
WRITTEN = [
    ["conv", "export", "-", "--format", "md"],
    ["conv", "export", "-", "--format", "html"],
    ["conv", "export", "-", "--format", "jsonl"],
    ["conv", "export", "-"],
    ["eval", "report", "-", "--format", "json"],
    ["eval", "report", "-", "--format", "md"],
    ["eval", "report", "-", "--format", "junit"],
]


@pytest.fixture
def place(tmp_path: Path, bough_home: Path) -> tuple[Path, dict[str, str]]:
    """A folder to work in, and the environment of a home with skills."""
    (tmp_path / "work").mkdir()
    write_skill(tmp_path / "skills")
    return tmp_path / "work", os.environ | {
        "BOUGH_HOME": str(bough_home),
        "BOUGH_STORE": f"sqlite:///{tmp_path / 'log.db'}",
        "BOUGH_SKILL_ROOTS": str(tmp_path / "skills"),
    }


def use(place: tuple[Path, dict[str, str]], commands: list[list[str]]) -> list[tuple[str, str, int]]:
    """Run commands in one process, and return what each wrote to stdout and stderr, and its exit code."""
    folder, environment = place
    output = folder.parent / f"output-{len(list(folder.parent.iterdir()))}"
    output.mkdir()
    (output / "commands.json").write_text(json.dumps(commands))
    driver = [sys.executable, "-c", RUN_ALL, str(output / "commands.json"), str(output)]
    done = subprocess.run(driver, cwd=folder, env=environment, stdin=subprocess.DEVNULL, check=False)
    assert done.returncode == 0
    return [
        (
            (output / f"{number}.out").read_bytes().decode(),
            (output / f"{number}.err").read_bytes().decode(),
            int((output / f"{number}.code").read_text()),
        )
        for number in range(len(commands))
    ]


def test_no_reading_command_writes_a_control_character(place: Any, tmp_path: Path) -> None:
    made = [
        ["run", "--detach", NASTY, "--title", NASTY],
        ["tasks", "wait", "--run"],
        ["eval", "run", str(write_set(tmp_path / "set.json")), "-m", "offline"],
    ]
    codes = [code for _, _, code in use(place, made)]
    assert codes[:2] == [0, 0]
    asyncio.run(write_log(place[1]["BOUGH_STORE"], place[0]))
    commands = [*SHOWN, *([*command, "--json"] for command in SHOWN), *WRITTEN]
    told = 0
    for command, (out, err, code) in zip(commands, use(place, commands), strict=True):
        is_json = "--json" in command or command[-1] in ("json", "jsonl") or command == ["conv", "export", "-"]
        raw = RAW_IN_JSON if is_json else RAW
        assert not raw.search(out), (command, raw.search(out))
        assert not RAW.search(err), (command, RAW.search(err))
        assert code == (3 if command[2:3] == [NASTY] else 0), (command, out, err)
        told += "31m" in out
    assert told > len(commands) // 2, "the texts themselves are shown"


def test_a_pipe_loses_nothing(place: Any) -> None:
    """Characters are written out; as JSON they are what they were."""
    asyncio.run(write_log(place[1]["BOUGH_STORE"], place[0]))
    shown, data, lines, bundle = (
        out
        for out, _, _ in use(
            place,
            [
                ["conv", "show", "-", "--full"],
                ["conv", "show", "-", "--json"],
                ["conv", "export", "-", "--format", "jsonl"],
                ["conv", "export", "-"],
            ],
        )
    )
    assert r"bake\x1b[2J\x1b]0;title\x07" in shown
    assert r"\x9b31m" in shown
    assert json.loads(data)["data"]["conversation"]["title"] == NASTY
    assert NASTY in [
        event["result"][0]
        for event in map(json.loads, lines.splitlines())
        if event["kind"] == "ToolReturned" and isinstance(event["result"], list)
    ]
    payloads = [json.loads(line).get("data", "") for line in bundle.splitlines()]
    assert any("\x9b31m" in payload for payload in payloads), "payloads travel as they are"
