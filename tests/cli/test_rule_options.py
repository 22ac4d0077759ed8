"""Rules of a run: policy and approvals, limits, hooks, secrets, agents from files; with a model that calls tools."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from typing import Any

import pytest

from bough import AgentSpec, AlwaysConfirm, Conversation, Settings
from bough.testing.openai_server import Answer, OpenAIServer, ServerCall

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")


def writes(*names: str) -> Answer:
    return Answer(calls=tuple(ServerCall(tool="write_file", arguments={"path": n, "content": "x"}) for n in names))


def with_model(cli: Any, server: OpenAIServer) -> Any:
    return cli.having(BOUGH_MODEL="openai:test", BOUGH_BASE_URL=server.url)


def test_calls_wait_are_approved_one_by_one_and_refused_with_a_reason(cli: Any, workspace: Path) -> None:
    with OpenAIServer([writes("a.txt", "b.txt"), "all said"]) as server:
        asking = with_model(cli, server)
        *_, result = asking.lines("run", "write", "--policy", "ask")
        assert (result["status"], result["error"]["code"]) == ("waiting_for_confirmation", "permission_denied")
        first, second = result["waiting"]
        name = result["conversation"]
        assert result["waiting"][first]["arguments"] == {"path": "a.txt", "content": "x"}
        still = asking("resume", name)
        assert still.returncode == 4
        assert f"bough approve {name.replace('-', '')[-8:]}" in still.stderr
        assert asking.data("approve", name, "--call", first, "--no-run")["waiting"].keys() == {second}
        assert asking("approve", name, "--call", "nope").returncode == 7
        done = asking("reject", name, "--reason", "not that one")
    assert (done.returncode, done.stdout) == (0, "all said\n")
    assert (workspace / "a.txt").read_text() == "x"
    assert not (workspace / "b.txt").exists()
    assert "not that one" in json.dumps(server.received[1].body)
    (workspace / "a.txt").unlink()
    assert asking("replay", name).stdout.startswith("same")
    assert (workspace / "a.txt").exists()
    assert not (workspace / "b.txt").exists(), "a call that was refused ran in a replay"


def test_on_a_terminal_each_call_is_shown_in_full_and_asked_about(cli: Any, workspace: Path) -> None:
    long = "y" * 300
    call = ServerCall(tool="write_file", arguments={"path": "c.txt", "content": long})
    with OpenAIServer([Answer(calls=(call,)), writes("d.txt"), "ready"]) as server:
        asked = "in this session): "
        typed = [(asked, b"y\r"), (asked, b"use another name\r"), (asked, b"n use another name\r")]
        code, screen = with_model(cli, server).on_terminal("run", "write", "--policy", "ask", typed=typed, columns=400)
    assert code == 0
    assert long in ESCAPES.sub("", screen)
    assert (workspace / "c.txt").read_text() == long
    assert not (workspace / "d.txt").exists()
    assert "not an answer: use another name" in ESCAPES.sub("", screen)
    assert "use another name" in json.dumps(server.received[2].body)


def test_what_was_typed_before_a_call_was_shown_does_not_approve_it(cli: Any, workspace: Path) -> None:
    asked, typed = workspace / "asked", threading.Event()

    def answer(_: Any) -> Answer:
        asked.touch()
        assert typed.wait(30)
        return writes("early.txt")

    def let_answer() -> bytes:
        typed.set()
        return b""

    with OpenAIServer([answer, "as you wish"]) as server:
        keys = [(asked, b"y\r"), ("y", let_answer), ("in this session): ", b"\x04")]
        code, screen = with_model(cli, server).on_terminal("run", "write", "--policy", "ask", typed=keys)
    assert code == 0
    assert "path" in screen
    assert not (workspace / "early.txt").exists(), "a key that was pressed earlier approved a call nobody had seen"


def test_always_approves_calls_of_that_shape_in_this_session(cli: Any, workspace: Path) -> None:
    (workspace / "deep").mkdir()
    steps = [writes("one.txt"), writes("two.txt"), writes("deep/three.txt"), "done"]
    with OpenAIServer(steps) as server:
        keys = [("in this session): ", b"a\r"), ("in this session): ", b"n\r")]
        code, screen = with_model(cli, server).on_terminal("run", "write", "--policy", "ask", typed=keys)
        conversation = with_model(cli, server).data("conv", "show", "-")
    assert code == 0
    assert screen.count("in this session): ") == 2, "the second call is of the first one's shape, the third one is not"
    assert (workspace / "two.txt").exists()
    assert not (workspace / "deep" / "three.txt").exists()
    reasons = [event.get("reason") or "" for event in conversation["events"] if event["kind"] == "StateChanged"]
    assert [reason for reason in reasons if "always: write_file: ." in reason] != []


def test_a_model_that_may_write_asks_about_risky_calls_unless_told_otherwise(cli: Any, workspace: Path) -> None:
    risky = Answer(calls=(ServerCall(tool="run_command", arguments={"command": "rm -rf notes"}),))
    with OpenAIServer([risky, "done"]) as server:
        done = with_model(cli, server)("run", "tidy up")
    assert done.returncode == 4
    assert "rm -rf notes" in done.stderr, "what waits is named with its command"
    assert (workspace / "notes").exists()


def test_arguments_are_changed_and_a_question_is_answered(cli: Any, workspace: Path, bough_home: Path) -> None:
    question = Answer(calls=(ServerCall(tool="ask", arguments={"question": "Which?", "choices": ["x", "y"]}),))
    with OpenAIServer([writes("a.txt"), question, "x it is"]) as server:
        spec = AgentSpec(model="openai:test", base_url=server.url, workspace_access="write", ask=True)
        settings = Settings.load(home=bough_home, env={}, cwd=workspace)
        with Conversation(spec, workspace=workspace, settings=settings, confirmation_policy=AlwaysConfirm()) as begun:
            begun.send_message("write")
            assert begun.run().status == "waiting_for_confirmation"
        edited = json.dumps({"path": "b.txt", "content": "mine"})
        asks = cli("approve", "--arguments", edited)
        assert (asks.returncode, "ask Which?" in asks.stderr) == (4, True)
        answering = cli("approve")
        assert (answering.returncode, "bough answer" in answering.stderr) == (4, True)
        assert cli("answer", "z").returncode == 2
        assert cli("answer", "x").stdout == "x it is\n"
    assert (workspace / "b.txt").read_text() == "mine"
    assert not (workspace / "a.txt").exists()


@pytest.mark.parametrize(
    ("options", "says"),
    [(["--max-steps", "1"], "1 of 1 steps"), (["--max-tokens", "5"], "of 5 tokens")],
)
def test_a_limit_ends_the_run_with_5(cli: Any, options: list[str], says: str) -> None:
    with OpenAIServer([writes("e.txt"), "never"]) as server:
        done = with_model(cli, server)("run", "write", *options)
        assert done.returncode == 5
        assert says in done.stderr
        assert len(server.received) == 1


def test_a_cost_bound_that_cannot_be_kept_is_refused(cli: Any) -> None:
    with OpenAIServer(["never"]) as server:
        done = with_model(cli, server)("run", "write", "--max-cost-usd", "1")
        assert done.returncode == 2
        assert "prices of test are unknown" in done.stderr
        assert "tokens" in done.stderr
        assert server.received == []
    assert cli.data("conv", "list")["conversations"] == []


def test_hooks_of_the_home_folder_are_asked(cli: Any, workspace: Path, bough_home: Path) -> None:
    bough_home.mkdir(parents=True)
    deny = {"type": "command", "command": "echo no writing >&2; exit 2"}
    hooks = {"hooks": {"PreToolUse": [{"matcher": "write_file", "hooks": [deny]}]}}
    (bough_home / "hooks.json").write_text(json.dumps(hooks))
    with OpenAIServer([writes("f.txt"), "ok", "again"]) as server:
        asked = with_model(cli, server)
        done = asked("run", "write")
        assert done.returncode == 0
        assert "no writing" in done.stderr
        assert not (workspace / "f.txt").exists()
        (bough_home / "hooks.json").unlink()
        gone = asked("resume", "-", "more")
    assert gone.returncode == 2
    assert "put them back into" in gone.stderr


@pytest.mark.parametrize("name", [".bough/hooks.json", ".openhands/hooks.json", ".claude/settings.json"])
def test_a_cloned_repository_s_hooks_never_run_by_themselves(cli: Any, workspace: Path, name: str) -> None:
    """Not at any moment, not before they are trusted as they are, and no longer once their program has changed."""
    ran, script = workspace / "ran", workspace / "tools" / "hook.sh"
    script.parent.mkdir()
    script.write_text('cat >> "$CLAUDE_PROJECT_DIR/ran"\n')
    kinds = ["SessionStart", "UserPromptSubmit", "PreToolUse", "PostToolUse", "Stop", "SessionEnd"]
    group = [{"matcher": "*", "hooks": [{"type": "command", "command": 'sh "$CLAUDE_PROJECT_DIR/tools/hook.sh"'}]}]
    (workspace / name).parent.mkdir(exist_ok=True)
    (workspace / name).write_text(json.dumps({"hooks": dict.fromkeys(kinds, group)}))
    with OpenAIServer([writes("g.txt"), "one", writes("h.txt"), "two", writes("i.txt"), "three", "four"]) as server:
        asked = with_model(cli, server)
        untrusted = asked("run", "write")
        assert untrusted.returncode == 0, untrusted.stderr
        assert untrusted.stderr.count("do not run: `bough skills trust`") == 1
        assert not ran.exists(), "it ran by itself"
        assert asked.data("skills", "trust", "--yes")["trusted"] == [name]
        trusted = asked("run", "write")
        assert (trusted.returncode, "do not run: `bough skills trust`" in trusted.stderr) == (0, False), trusted.stderr
        told = ran.read_text()
        assert all(f'"{kind}"' in told for kind in kinds)
        script.write_text('echo changed >> "$CLAUDE_PROJECT_DIR/ran"\n')
        ran.unlink()
        changed = asked("run", "write")
        assert changed.stderr.count("do not run: `bough skills trust`") == 1
        gone = asked("resume", trusted_conversation(asked), "more")
        assert (gone.returncode, "skills trust" in gone.stderr) == (2, True)
    assert not ran.exists(), "what changed ran without being trusted again"


def trusted_conversation(cli: Any) -> str:
    """The second of three conversations."""
    return cli.data("conv", "list")["conversations"][1]["id"]


def test_a_run_is_logged_as_json_where_a_file_is_named(cli: Any, tmp_path: Path) -> None:
    file = tmp_path / "run.log"
    with OpenAIServer([writes("j.txt"), "quiet words"]) as server:
        done = with_model(cli, server)("run", "write plum", BOUGH_LOG_JSON=str(file))
    assert done.returncode == 0
    told = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["event"] for line in told if line.get("tool") == "write_file"] == ["ToolCalled", "ToolReturned"]
    assert told[-1]["status"] == "finished"
    assert "plum" not in file.read_text()
    wrong = cli("conv", "list", BOUGH_LOG_JSON=str(tmp_path / "no" / "where"))
    assert (wrong.returncode, "cannot be written" in wrong.stderr) == (2, True)


def test_an_agent_file_sets_prompt_and_tools_and_a_skill_may_be_named(cli: Any, workspace: Path) -> None:
    (workspace / "agent.yaml").write_text("name: scribe\nsystem_prompt: Write in Latin.\nworkspace_access: read\n")
    with OpenAIServer(["salve"]) as server:
        done = with_model(cli, server)("run", "hi", "--agent", "agent.yaml", "--skill", "word-count")
    assert done.stdout == "salve\n"
    assert "agent scribe" in done.stderr
    body = json.dumps(server.received[0].body)
    assert "Write in Latin." in body
    tools = {tool["function"]["name"] for tool in server.received[0].body["tools"]}
    assert "read_file" in tools
    assert "write_file" not in tools
    assert "/word-count hi" in body


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (["--policy", "maybe"], 2, "no policy named"),
        (["--skill", "word-cuont"], 3, "word-count"),
        (["--agent", "gone.yaml"], 2, "cannot be read"),
        (["--agent", "bad.yaml"], 2, "did you mean `system_prompt`"),
        (["--secret", "NOT_SET_HERE"], 2, "NOT_SET_HERE is not set"),
    ],
)
def test_wrong_rules_leave_no_conversation(cli: Any, workspace: Path, args: list[str], code: int, says: str) -> None:
    (workspace / "bad.yaml").write_text("system_promt: x\ntools: [os.system]\n")
    done = cli("run", "x", *args)
    assert (done.returncode, done.stdout) == (code, "")
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert cli("conv").stdout == "no conversations yet\n"


def test_a_secret_is_named_in_the_log_and_its_value_nowhere(cli: Any, bough_home: Path) -> None:
    value = "s3cr3t-value-of-mine"
    done = cli("run", f"bake a cake {value}", "--secret", "TOKEN=MY_TOKEN", MY_TOKEN=value)
    assert done.returncode == 0
    assert value not in done.stdout + done.stderr
    assert all(value.encode() not in file.read_bytes() for file in bough_home.rglob("*") if file.is_file())
    assert "TOKEN" in json.dumps(cli.data("conv", "show")["events"])


def calls(tool: str, **arguments: Any) -> Answer:
    return Answer(calls=(ServerCall(tool=tool, arguments=arguments),))


def test_a_tool_that_does_not_exist_is_an_error_to_the_model_and_nobody_is_asked(cli: Any) -> None:
    with OpenAIServer([calls("delete_everything", sure=True), "there is no such tool"]) as server:
        done = with_model(cli, server)("run", "tidy up", "--policy", "ask")
    assert (done.returncode, done.stdout) == (0, "there is no such tool\n")
    assert "Unknown tool name" in json.dumps(server.received[1].body)


def test_python_code_is_asked_about_by_the_rule_of_commands(cli: Any) -> None:
    with OpenAIServer([calls("python", code="print(40 + 2)"), "ran"]) as server:
        assert with_model(cli, server)("run", "count").returncode == 0
    with OpenAIServer([calls("python", code="import shutil; shutil.rmtree('notes')"), "ran"]) as server:
        done = with_model(cli, server)("run", "tidy up")
    assert done.returncode == 4
    assert "shutil.rmtree" in done.stderr, "what waits is named with its code"


@pytest.mark.parametrize("filler", ["\n", "\u2800 \n", "# all is well\n"])
def test_a_command_behind_many_lines_is_in_sight_where_it_is_asked_about(cli: Any, filler: str) -> None:
    command = f"{filler * 200}rm -rf notes\n{filler * 200}"
    with OpenAIServer([calls("run_command", command=command), "as you wish"]) as server:
        code, screen = with_model(cli, server).on_terminal("run", "tidy up", typed=[("in this session): ", b"n\r")])
    assert code == 0
    shown = ESCAPES.sub("", screen).partition("allow it?")[0].splitlines()[-24:]
    assert any("rm -rf notes" in part for part in shown), shown
    assert any(part.startswith("run_command") for part in shown[-2:]), "what is asked about stands above the question"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (calls("python", code="1"), calls("python", code="2")),
        (
            calls("run_skill_script", skill_name="one", script_path="a.py"),
            calls("run_skill_script", skill_name="two", script_path="a.py"),
        ),
        (
            calls("run_skill_script", skill_name="one", script_path="a.py"),
            calls("run_skill_script", skill_name="one", script_path="b.py"),
        ),
    ],
)
def test_always_covers_no_other_code_and_no_other_script(cli: Any, first: Answer, second: Answer) -> None:
    with OpenAIServer([first, second, "done"]) as server:
        keys = [("in this session): ", b"a\r"), ("in this session): ", b"n\r")]
        code, screen = with_model(cli, server).on_terminal("run", "go", "--policy", "ask", typed=keys)
    assert code == 0
    assert screen.count("in this session): ") == 2
