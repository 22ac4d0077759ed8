"""Each option of `bough run`, and each command of the README's table, as somebody types them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.journeys.conftest import ROOT, Person

from bough.testing import OpenAIServer
from bough.testing.openai_server import Answer, Received, Reply, ServerCall

SKILL = """---
name: shout
description: Prints a text in capital letters. Use it when someone wants a text shouted.
metadata:
  secrets: DB_PASSWORD
---
Run `scripts/shout.py TEXT`.
"""
SCRIPT = """import os
import sys
print(" ".join(sys.argv[1:]).upper(), len(os.environ.get("DB_PASSWORD", "")))
"""


def _run_skill(request: Received) -> Reply:
    arguments = {"skill_name": "shout", "script_path": "scripts/shout.py", "args": ["hello"]}
    return Answer(calls=(ServerCall(tool="run_skill_script", arguments=arguments),))


@pytest.fixture
def modelled(person: Person, openai_server: Callable[..., OpenAIServer]) -> Callable[..., OpenAIServer]:
    """Gives the person a model key; returns a function that starts the person's model with its answers."""
    person.environment["OPENAI_API_KEY"] = "k"

    def start(*steps: object) -> OpenAIServer:
        server = openai_server(*steps)
        person.environment |= {"BOUGH_MODEL": "openai:test", "BOUGH_BASE_URL": server.url}
        return server

    return start


def test_the_prompt_comes_from_an_argument_a_file_or_a_pipe(person: Person) -> None:
    person.write({"prompt.txt": "how many words are in notes.md", "notes.md": "one two three\n"})
    skills = ("--skills", ROOT / "examples" / "skills")
    assert "3" in person.bough("run", "how many words are in notes.md", *skills).stdout
    assert "3" in person.bough("run", "-f", "prompt.txt", *skills).stdout
    assert "3" in person.bough("run", *skills, input="how many words are in notes.md\n").stdout


def test_model_and_address_are_options(person: Person, openai_server: Callable[..., OpenAIServer]) -> None:
    server = openai_server("hello back")
    person.environment["OPENAI_API_KEY"] = "k"
    options = ("-m", "openai:test", "--base-url", server.url, "--title", "A greeting", "--tag", "team=blue")
    result = person.bough("run", "hello", *options, "--no-stream", "--check")
    assert result.stdout.strip() == "hello back"
    (record,) = person.bough("conv", "list", "--tag", "team=blue", "--json").json()["conversations"]
    assert record["title"] == "A greeting"


def test_skills_workspace_secrets_and_executor(person: Person, modelled: Callable[..., OpenAIServer]) -> None:
    person.write({"skills/shout/SKILL.md": SKILL, "skills/shout/scripts/shout.py": SCRIPT, "project/a.txt": "a"})
    person.environment["PASSWORD"] = "correct horse"
    server = modelled(_run_skill, "shouted")
    options = ("--skills", "skills", "--skill", "shout", "-C", "project", "--executor", "sandbox")
    person.bough(
        "run",
        "shout hello",
        *options,
        "--secret",
        "DB_PASSWORD=PASSWORD",
        "--script-timeout",
        "20",
        "--policy",
        "allow",
    )
    (result,) = [message for message in server.received[-1].body["messages"] if message["role"] == "tool"]
    assert "HELLO 13" in result["content"]
    assert "Prints a text in capital letters" in json.dumps(server.received[0].body)


def test_limits_end_a_run_with_5_and_it_can_be_resumed(person: Person, modelled: Callable[..., OpenAIServer]) -> None:
    person.write({"a.txt": "text of a"})
    read = Answer(calls=(ServerCall(tool="read_file", arguments={"path": "a.txt"}),))
    modelled(read, "read it", read, "read it again")
    assert "limit" in person.bough("run", "read a.txt", "--max-steps", "1", code=5).output
    assert "read it" in person.bough("resume", "-", "--max-steps", "5").stdout
    person.bough("run", "read a.txt", "--max-tokens", "1", code=5)


def test_a_run_that_takes_too_long_ends_with_124(person: Person, openai_server: Callable[..., OpenAIServer]) -> None:
    from bough.testing.openai_server import Hang

    server = openai_server(Hang())
    person.environment |= {"OPENAI_API_KEY": "k"}
    person.bough("run", "hello", "-m", "openai:test", "--base-url", server.url, "--timeout", "2", code=124)


def test_a_call_waits_for_approval_and_goes_on(person: Person, modelled: Callable[..., OpenAIServer]) -> None:
    write = Answer(calls=(ServerCall(tool="write_file", arguments={"path": "a.txt", "content": "hi"}),))
    modelled(write, "written")
    person.bough("run", "write a.txt", "--policy", "ask", code=4)
    assert not (person.folder / "a.txt").exists()
    assert "written" in person.bough("approve", "-").stdout
    assert (person.folder / "a.txt").read_text() == "hi"


def test_an_agent_of_a_file(person: Person, modelled: Callable[..., OpenAIServer]) -> None:
    person.write({"agent.yaml": "name: poet\nsystem_prompt: Answer in verse.\nworkspace_access: none\n"})
    server = modelled("roses are red")
    assert "roses" in person.bough("run", "hello", "--agent", "agent.yaml").stdout
    assert "Answer in verse." in json.dumps(server.received[0].body)
    assert not server.received[0].body.get("tools")


def test_a_detached_run_is_done_by_a_worker_once(person: Person, modelled: Callable[..., OpenAIServer]) -> None:
    server = modelled("done in the background")
    submit = ("run", "hello", "--detach", "--idempotency-key", "one", "--json")
    first, second = person.bough(*submit).json(), person.bough(*submit).json()
    assert first["task"] == second["task"]
    person.bough("worker", "--once")
    assert "done in the background" in person.bough("tasks", "show", first["task"]).stdout
    assert len(server.received) == 1


def test_json_has_an_event_a_line_and_the_result_last(person: Person, tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'other.db'}"
    result = person.bough("run", "hello", "--json", "--home", tmp_path / "home", "--store", store)
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert lines[-1]["command"] == "run"
    assert (tmp_path / "other.db").exists()
    assert not (person.home / ".bough").exists()


def test_the_commands_of_the_readme_s_table(person: Person, modelled: Callable[..., OpenAIServer]) -> None:
    modelled("first answer", "second answer")
    person.bough("run", "hello")
    person.bough("fork", "-@1", "hello again")
    for command in (
        ("conv", "list"),
        ("conv", "show", "-"),
        ("conv", "tree"),
        ("conv", "export", "-", "--format", "md"),
        ("conv", "export", "-", "-o", "talk.bough"),
        ("conv", "tag", "-", "team=blue"),
        ("replay", "-"),
        ("skills", "list"),
        ("skills", "show", "write-a-skill"),
        ("skills", "match", "write a new skill"),
        ("agents", "list"),
        ("agents", "check"),
        ("agents", "schema"),
        ("tasks", "list"),
        ("keys", "list"),
        ("eval", "list"),
        ("exec", "-c", "print(1)"),
        ("doctor",),
        ("conv", "delete", "-", "--dry-run"),
    ):
        person.bough(*command)
