"""Journeys over HTTP: a fork with its own files runs the scripts of its own skills, trusted by their content."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.journeys.conftest import Person

from bough.testing import Answer, OpenAIServer, ServerCall

_SKILL = "---\nname: {}\ndescription: Says hello.\n---\nGreet.\n"
_SCRIPT = "import pathlib\nprint('hello from {}', pathlib.Path('mark.txt').read_text())\n"


def _run_skill(name: str) -> list[Any]:
    load = ServerCall(tool="load_skill", arguments={"skill_name": name}, id="load")
    run = ServerCall(tool="run_skill_script", arguments={"skill_name": name, "script_path": "scripts/hello.py"})
    return [Answer(calls=(load,)), Answer(calls=(run,)), "done"]


def _say(client: httpx2.Client, id: str, model: OpenAIServer, name: str) -> list[str]:
    """Ask for the script of a skill, and return the results of the two calls as the model was shown them."""
    before = len(model.received)
    sent = client.post(f"/api/conversations/{id}/events", json={"content": "Greet me."})
    assert sent.status_code == 200, sent.text
    ran = client.post(f"/api/conversations/{id}/run", json={"wait": 50})
    assert ran.json()["output"] == "done", ran.text
    assert len(model.received) - before == 3
    results = [message for message in model.received[-1].body["messages"] if message["role"] == "tool"]
    return [str(result["content"]) for result in results[-2:]]


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["copy", "worktree"])
def test_a_fork_over_http_runs_the_trusted_skills_of_its_copy(
    person: Person, openai_server: Callable[..., OpenAIServer], policy: str
) -> None:
    steps = [*_run_skill("greet"), *_run_skill("greet"), *_run_skill("other"), *_run_skill("greet")]
    model = openai_server(*steps, *_run_skill("greet"), *_run_skill("greet"))
    person.environment |= {"OPENAI_API_KEY": "k", "BOUGH_MODEL": "openai:test", "BOUGH_BASE_URL": model.url}
    project = person.home / ".bough" / "workspaces" / "red" / "project"
    for name in ("greet", "other"):
        scripts = project / ".agents" / "skills" / name / "scripts"
        scripts.mkdir(parents=True)
        (scripts.parent / "SKILL.md").write_text(_SKILL.format(name))
        (scripts / "hello.py").write_text(_SCRIPT.format(name))
    (project / "mark.txt").write_text("the source")
    for command in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "s"]):
        person.try_command(["git", "-C", project, *command])
    trusted = Person(person.home, project, person.environment).bough("skills", "trust", "--yes")
    assert "greet" in trusted.output
    (project / ".agents/skills/other/scripts/hello.py").write_text("print('changed after it was trusted')\n")
    key = person.bough("keys", "create", "k", "--tenant", "red", "--role", "write").stdout.strip()
    agent = {"name": "greeter", "workspace_access": "write"}
    with person.serve() as server, server.client(key) as client:
        made = client.post("/api/conversations", json={"agent": agent, "workspace": {"working_dir": "project"}})
        assert made.status_code == 201, made.text
        source = made.json()["id"]
        _, result = _say(client, source, model, "greet")
        assert "hello from greet the source" in result, result

        forked = client.post(f"/api/conversations/{source}/fork", json={"workspace": policy})
        assert forked.status_code == 201, forked.text
        fork, folder = forked.json()["id"], Path(forked.json()["workspace"]["working_dir"])
        assert folder != project
        (folder / "mark.txt").write_text("the copy")
        (project / ".agents/skills/greet/scripts/hello.py").write_text("print('changed in the source')\n")
        _, result = _say(client, fork, model, "greet")
        assert "hello from greet the copy" in result, result
        refused, _ = _say(client, fork, model, "other")
        assert "not trusted" in refused, "it was not trusted in the source as it is"
        assert "changed in the source" not in "".join(_say(client, source, model, "greet"))
    # Another process has the grants, too; what changes in the copy is trusted no longer.
    with person.serve() as server, server.client(key) as client:
        _, result = _say(client, fork, model, "greet")
        assert "hello from greet the copy" in result, result
        (folder / ".agents/skills/greet/scripts/hello.py").write_text("print('changed in the copy')\n")
        assert "changed in the copy" not in "".join(_say(client, fork, model, "greet"))
