"""The README's table of commands: each of them, and each option of `bough run`, does what its line says."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.journeys.conftest import ROOT, Person
from tests.journeys.page import Page

from bough.testing import Answer, OpenAIServer, ServerCall

NOTES = f"short\n{'0' * 90}\n"


def write_file(name: str) -> Answer:
    """A response that calls the tool `write_file`."""
    return Answer(calls=(ServerCall(tool="write_file", arguments={"path": name, "content": "x"}),))


def use_model(person: Person, server: OpenAIServer) -> None:
    person.environment |= {"OPENAI_API_KEY": "k", "BOUGH_MODEL": "openai:test", "BOUGH_BASE_URL": server.url}


def with_skill(person: Person, root: str = "skills") -> None:
    files = Page("docs/how-to/write-a-skill.md").files
    person.write({f"{root}/{name}": text for name, text in files.items()} | {"notes.txt": NOTES})


def test_every_option_of_run(person: Person, openai_server: Callable[..., OpenAIServer]) -> None:
    with_skill(person)
    person.write({"prompt.txt": "notes.txt", "agent.yaml": "name: helper\nsystem_prompt: Be brief.\n"})
    person.environment["TOKEN"] = "secret-value"
    store, home = f"sqlite:///{person.folder}/own.db", str(person.folder / "own-home")
    rules = ["--policy", "rules", "--max-steps", "5", "--max-tokens", "9999", "--max-cost-usd", "1"]
    rules += ["--budget", "own=requests:9"]
    times = ["--timeout", "60", "--script-timeout", "10", "--secret", "KEY=TOKEN"]
    where = ["-C", ".", "--executor", "sandbox", "--store", store, "--home", home]
    words = ["--title", "Long lines", "--tag", "kind=check", "--no-stream", "--check", "--json"]
    skill = ["-f", "prompt.txt", "-m", "offline", "--skills", "skills", "--skill", "long-lines"]
    lines = person.bough("run", *skill, *where, *rules, *times, *words).stdout.splitlines()
    result = json.loads(lines[-1])
    assert (result["status"], result["output"].strip()) == ("finished", "2 90")
    (record,) = person.bough("conv", "list", "--store", store, "--json").json()["conversations"]
    assert (record["title"], record["tags"]["kind"]) == ("Long lines", "check")

    model = openai_server("brief", "from stdin")
    person.environment["OPENAI_API_KEY"] = "k"
    asked = ["--agent", "agent.yaml", "--model", "openai:test", "--base-url", model.url]
    assert "brief" in person.bough("run", "hello", *asked).stdout
    assert "Be brief." in json.dumps(model.received[0].body)
    assert "from stdin" in person.bough("run", *asked, input="hello").stdout

    detached = ["--detach", "--idempotency-key", "once", "-m", "offline"]
    first, second = (person.bough("run", "hello", *detached).stdout.split()[0] for _ in range(2))
    assert first == second, "the same key, the same task"


@pytest.mark.slow
def test_conversations_from_the_first_run_to_the_last(
    person: Person, openai_server: Callable[..., OpenAIServer]
) -> None:
    model = openai_server(
        write_file("a.txt"), "written", write_file("b.txt"), "as you like", "resumed", "forked", "bye"
    )
    use_model(person, model)
    person.bough("run", "write a", "--policy", "ask", code=4)
    assert "written" in person.bough("approve", "-").stdout and (person.folder / "a.txt").exists()
    person.bough("resume", "-", "write b", code=4)
    person.bough("reject", "-", "--reason", "not that one")
    assert not (person.folder / "b.txt").exists()
    assert "resumed" in person.bough("resume", "-", "go on").stdout
    (source,) = person.bough("conv", "list", "--json").json()["conversations"]
    id = source["id"]
    assert "forked" in person.bough("fork", f"{id}@1", "another way").stdout
    assert person.bough("conv", "tree", id).stdout.count("another way") == 1
    assert "written" in person.bough("conv", "show", id).stdout
    assert "resumed" in person.bough("conv", "turns", id).stdout
    assert "resumed" in person.bough("conv", "tail", id).stdout
    assert person.bough("conv", "diff", id, "-").stdout
    assert "another way" in person.bough("conv", "search", '"another way"').stdout
    person.bough("replay", "-")
    assert "bye" in person.bough("chat", id, input="so long\n").stdout

    person.bough("conv", "tag", id, "kind=first")
    person.bough("conv", "export", id, "-o", "talk.bough")
    person.bough("conv", "export", id, "--format", "md", "-o", "talk.md")
    assert "written" in (person.folder / "talk.md").read_text()
    elsewhere = ["--home", str(person.folder / "other")]
    person.bough("conv", "import", "talk.bough", "--accept-unknown", *elsewhere)
    person.bough("conv", "adopt", "-", "--yes", *elsewhere)
    assert person.bough("conv", "delete", id, "--dry-run").stdout
    person.bough("conv", "delete", id, "--yes")


def test_skills_from_a_template_to_an_installed_one(person: Person) -> None:
    with_skill(person, ".agents/skills")
    assert "long-lines" in person.bough("skills", "list").output
    person.bough("skills", "trust", "--yes")
    assert "line length" in person.bough("skills", "show", "long-lines").stdout
    assert "long-lines" in person.bough("skills", "match", "the line length").stdout
    sarif = json.loads(person.bough("skills", "check", ".agents/skills/long-lines", "--format", "sarif").stdout)
    assert sarif["runs"]
    assert "2 90" in person.bough("skills", "run", "long-lines", "find.py", "notes.txt").stdout
    person.bough("skills", "new", "my-skill", "--description", "Does a thing.")
    person.bough("skills", "add", ".agents/skills/long-lines", "--yes")
    person.bough("skills", "lock")


def test_tasks_agents_and_what_is_served(person: Person) -> None:
    person.bough("budgets", "change", "june", "--requests", "9")
    detached = ["--detach", "-m", "offline", "--budget", "june", "--json"]
    task = person.bough("run", "hello", *detached).json()["task"]
    person.bough("worker", "--once")
    assert person.bough("tasks", "wait", task, "--json").json()
    assert task in json.dumps(person.bough("tasks", "list", "--json").json())
    assert "june" in person.bough("budgets", "list").stdout
    assert person.bough("budgets", "show", "june", "--json").json()["spent"]["requests"] == 1
    second = person.bough("run", "hello", "--detach", "-m", "offline", "--json").json()["task"]
    person.bough("tasks", "cancel", second, "--yes")
    person.write({"config.yaml": "agents:\n  helper:\n    system_prompt: Be brief.\n    model: offline\n"})
    assert "helper" in person.bough("agents", "list").stdout
    assert "helper" in person.bough("agents", "show", "helper").stdout
    person.bough("agents", "check")
    assert json.loads(person.bough("agents", "schema").stdout)
    person.bough("keys", "create", "ci", "--tenant", "shop")
    assert "ci" in person.bough("keys", "list").stdout
    assert "shop" in person.bough("tenants", "list").stdout
    greeting = {"jsonrpc": "2.0", "id": 1, "method": "initialize"}
    versions = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    spoken = person.bough("mcp", input=json.dumps(greeting | {"params": versions}) + "\n").stdout
    assert json.loads(spoken.splitlines()[0])["result"]["serverInfo"]["name"]
    person.write({"sum.py": "print(1 + 2)\n"})
    assert person.bough("exec", "sum.py").stdout == "3\n"
    assert person.bough("exec", "-c", "raise SystemExit(3)", code=3).stdout == ""
    assert "store" in person.bough("doctor").stdout


ELSEWHERE = {
    "answer": "tests/cli/test_run.py, with an agent that asks",
    "demo": "tests/journeys/test_start.py",
    "init": "tests/journeys/test_start.py",
    "acp": "tests/server/acp",
    "bisect": "tests/cli/test_try.py",
    "schema": "tests/cli/test_schema.py",
    "try": "tests/cli/test_try.py",
    "serve": "the first hour, and the page about serving",
    "a2a serve": "journeys of A2A",
    **{
        f"eval {verb}": "journeys of evals"
        for verb in ["run", "skill", "data", "harbor", "score", "judge", "show", "compare", "report", "add"]
    },
}
"""Commands that other journeys run."""


def test_each_command_of_the_table_is_run_by_a_journey() -> None:
    table = re.findall(r"^\| (`bough .*?) \|(?= [a-z])", (ROOT / "README.md").read_text(), re.MULTILINE)
    named: set[str] = set()
    for cell in table:
        for command in re.findall(r"`bough ([^`]*)`", cell.replace("\\|", "|")):
            words = [word for word in command.split() if re.fullmatch(r"[a-z0-9|]+", word)]
            heads = words[0].split("|")
            named |= {f"{words[0]} {verb}" for verb in words[1].split("|")} if len(words) > 1 else set(heads)
    calls = [node for node in ast.walk(ast.parse(Path(__file__).read_text())) if isinstance(node, ast.Call)]
    run: set[str] = set()
    for call in calls:
        if isinstance(call.func, ast.Attribute) and call.func.attr == "bough":
            words = [str(each.value) for each in call.args[:2] if isinstance(each, ast.Constant)]
            run |= {words[0], " ".join(words)}
    assert len(named) > 40, "the table is read"
    assert named - run - ELSEWHERE.keys() == set()
