"""What the operator has, over HTTP: skills with their files, runs of evals; and what a conversation says of skills."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from bough.agents.spec import AgentSpec
from bough.evals import CaseInput, EvalSet, SetCase, TurnInput, evaluate
from bough.settings import Settings
from bough.testing import Answer, ScriptedModel, ServerCall

SKILL = """---
name: tides
description: Says when the tide is high.
triggers: [tide, high water]
allowed-tools: read_file
---
Look into references/table.md.
"""


def write_skill(home: Path) -> None:
    folder = home / "skills" / "tides"
    (folder / "references").mkdir(parents=True)
    (folder / "SKILL.md").write_text(SKILL)
    (folder / "references" / "table.md").write_text("high at noon\n")


def test_skills_are_listed_shown_read_and_matched(serving: Any, settings: Settings) -> None:
    write_skill(settings.home)
    with serving() as server, server.client() as client:
        listed = {each["name"]: each for each in client.get("/api/skills").json()}
        assert listed["tides"]["trusted"]
        shown = client.get("/api/skills/tides").json()
        assert (shown["triggers"], shown["allowed_tools"]) == (["tide", "high water"], ["read_file"])
        assert shown["files"] == ["references/table.md"]
        assert "Look into" in shown["content"]
        assert str(settings.home) not in str(shown), "no path of the server is told"
        file = client.get("/api/skills/tides/files/references/table.md")
        assert (file.text, file.headers["content-type"]) == ("high at noon\n", "text/plain; charset=utf-8")
        assert client.get("/api/skills/tides/files/%2e%2e/%2e%2e/secret.key").status_code in (404, 422)
        assert client.get("/api/skills/tides/files/none.md").status_code == 404
        (found,) = client.post("/api/skills/match", json={"text": "when is high water?"}).json()
        assert (found["name"], found["keyword"]) == ("tides", "high water")
        assert client.post("/api/skills/match", json={"text": "nothing of it"}).json() == []
        id = client.post("/api/conversations", json={}).json()["id"]
        both = {"text": "a", "agent": "default", "conversation": id}
        assert client.post("/api/skills/match", json=both).status_code == 422
        assert client.post("/api/skills/match", json={"text": "tide", "conversation": id}).json()[0]["name"] == "tides"


CONFIG = """
agents:
  guide: {description: Shows the way., model: offline, sub_agents: [reader]}
  reader: {description: Reads., model: offline, system_prompt: Read slowly.}
"""


def test_agents_of_the_homes_configuration_are_served_by_name(
    serving: Any, settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settings.home.mkdir(parents=True, exist_ok=True)
    (settings.home / "config.yaml").write_text(CONFIG)
    (tmp_path / "config.yaml").write_text("agents: {stray: {model: offline}}")
    monkeypatch.chdir(tmp_path)  # a project's file says nothing of what is served
    with serving() as server, server.client() as client:
        listed = {each["name"]: each for each in client.get("/api/agents").json()}
        assert set(listed) == {"default", "guide", "reader"}
        assert listed["reader"]["system_prompt"] == "Read slowly."
        for name in ("guide", "reader"):
            made = client.post("/api/conversations", json={"agent": name, "initial_message": "hello"}).json()
            ran = client.post(f"/api/conversations/{made['id']}/run", json={"wait": 60}).json()
            assert (made["spec"]["name"], ran["status"]) == (name, "finished")
        assert client.post("/api/conversations", json={"agent": "stray"}).status_code == 422
        assert client.get("/a2a/guide/.well-known/agent-card.json").json()["description"] == "Shows the way."


def test_a_conversation_says_which_skills_came_in_and_since_when_it_waits(serving: Any, settings: Settings) -> None:
    write_skill(settings.home)
    load = Answer(calls=(ServerCall(tool="load_skill", arguments={"skill_name": "tides"}, id="c1"),))
    agent = {"model": "openai:test", "discover_skills": True, "workspace_access": "write"}
    write = Answer(calls=(ServerCall(tool="write_file", arguments={"path": "a", "content": "b"}, id="c2"),))
    with serving(load, "noon", "again", write, tools="write") as server, server.client() as client:
        agent["base_url"] = server.model_url
        for message, triggered, invoked in (("when?", [], ["tides"]), ("the tide?", ["tides"], [])):
            body = {"agent": agent, "initial_message": message}
            id = client.post("/api/conversations", json=body).json()["id"]
            client.post(f"/api/conversations/{id}/run", json={"wait": 60})
            info = client.get(f"/api/conversations/{id}").json()
            assert (info["activated_knowledge_skills"], info["invoked_skills"]) == (triggered, invoked), info
            assert (info["parent_conversation_id"], info["sub_conversation_ids"]) == (None, [])
        asking = {"policy": {"kind": "AlwaysConfirm"}}
        client.post(f"/api/conversations/{id}/confirmation_policy", json=asking)
        client.post(f"/api/conversations/{id}/events", json={"content": "write it"})
        client.post(f"/api/conversations/{id}/run", json={"wait": 60})
        info = client.get(f"/api/conversations/{id}").json()
        assert info["execution_status"] == "waiting_for_confirmation"
        client.patch(f"/api/conversations/{id}", json={"title": "another"})
        (waiting,) = client.get(f"/api/conversations/{id}").json()["waiting"]
        (asked,) = client.get("/api/approvals").json()["items"]
        assert waiting["since"] == asked["since"] == info["waiting"][0]["since"], "another title changes nothing of it"


def test_runs_of_evals_are_the_operators(serving: Any, settings: Settings, new_key: Any) -> None:
    cases = tuple(SetCase(id=name, input=CaseInput(turns=(TurnInput(user=name, reference="yes"),))) for name in "ab")
    found = EvalSet(name="demo", cases=cases)
    runs: list[str] = []
    for answers in (["yes", "yes"], ["yes", "no"]):
        agent = AgentSpec(name="a", model=ScriptedModel(answers), skills=())
        ran = evaluate(found, agent, settings=settings, jobs=1, metrics={"output_correctness_score": 1.0})
        runs.append(asyncio.run(ran).run)
    red = new_key(tenant="red", role="admin")
    own = new_key(role="read", scopes=["evals"])
    narrow = new_key(role="admin", scopes=["conversations"])
    with serving() as server, server.client(own.text) as client:
        page = client.get("/api/evals", params={"limit": 1}).json()
        rest = client.get("/api/evals", params={"page_id": page["next_page_id"]}).json()
        listed = [*page["items"], *rest["items"]]
        assert sorted(each["run"] for each in listed) == sorted(runs) and rest["next_page_id"] is None
        assert {each["run"]: each["pass_rate"] for each in listed} == dict(zip(runs, (1.0, 0.5), strict=True))
        shown = client.get(f"/api/evals/{runs[0]}").json()
        assert (shown["record"]["set"]["name"], shown["report"]["summary"]["passed"]) == ("demo", 2)
        (result,) = client.get(f"/api/evals/{runs[1]}/cases/b").json()
        assert (result["status"], len(result["conversation"])) == ("failed", 36)
        assert client.get(f"/api/evals/{runs[1]}/cases/c").status_code == 404
        compared = client.get(f"/api/evals/{runs[0]}/compare/{runs[1]}").json()
        assert [each["case"] for each in compared["worse"]] == ["b"]
        assert client.get("/api/evals/20200101-000000-abcdef").status_code == 404
        assert client.get("/api/evals/-").status_code == 404, "names of the command line are none here"
        for key in (red.text, narrow.text):
            with server.client(key) as other:
                for path in ("/api/evals", f"/api/evals/{runs[0]}", f"/api/evals/{runs[0]}/cases/a"):
                    assert other.get(path).status_code == 403
