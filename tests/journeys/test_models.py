"""Which model is asked where nobody names one: at the command line, in a program, on a server, by a worker."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from tests.journeys.conftest import Person

from bough.testing import AnthropicServer, Failure, OpenAIServer, RawAnswer

Serve = Callable[..., OpenAIServer]

_DEFAULT = """
models:
  default:
    model: openai:house-model
    base_url: {url}
    api_key: ${{HOUSE_KEY}}
"""

_ASK = """
from bough import AgentSpec, Conversation

with Conversation(AgentSpec(name="asker")) as conversation:
    conversation.send_message("hello")
    print(conversation.run().output)
"""

_CONTINUE = """
import sys
from bough import Conversation

with Conversation.open(sys.argv[1]) as conversation:
    conversation.send_message("and once more")
    print(conversation.run().output)
"""


def _configure(person: Person, url: str) -> None:
    person.environment["HOUSE_KEY"] = "in-house-key"
    folder = person.home / ".bough"
    folder.mkdir(exist_ok=True)
    (folder / "config.yaml").write_text(_DEFAULT.format(url=url))


def test_an_agent_without_a_model_has_that_of_models_default(person: Person, openai_server: Serve) -> None:
    house, public = openai_server("one", "two", "three"), openai_server("sent to somebody else")
    person.environment |= {"OPENAI_API_KEY": "public-key", "OPENAI_BASE_URL": public.url}
    _configure(person, house.url)
    started = json.loads(person.bough("run", "hello", "--json").stdout.splitlines()[-1])
    assert person.python(_ASK).stdout.strip() == "two"
    assert person.python(_CONTINUE, started["conversation"]).stdout.strip() == "three"
    assert [request.headers["authorization"] for request in house.received] == ["Bearer in-house-key"] * 3
    assert public.received == []
    [check] = [each for each in person.bough("doctor", "--json").json()["checks"] if each["name"] == "default"]
    assert "openai:house-model (models.default" in check["said"], check


def test_a_named_model_goes_before_models_default(person: Person, openai_server: Serve) -> None:
    house, other = openai_server("house"), openai_server("other")
    _configure(person, house.url)
    person.environment["OPENAI_API_KEY"] = "public-key"
    person.bough("run", "hello", "--model", "offline")
    person.bough("run", "hello", "--model", "openai:house-model", "--base-url", other.url)
    assert house.received == []
    assert [request.headers["authorization"] for request in other.received] == ["Bearer public-key"]


def test_the_key_of_models_default_stays_with_its_address(person: Person, openai_server: Serve) -> None:
    other = openai_server("other")
    (person.home / ".bough").mkdir()
    config = "models: {default: {model: 'openai:house-model', api_key: in-house-key}}"
    (person.home / ".bough/config.yaml").write_text(config)
    person.environment["BOUGH_BASE_URL"] = other.url
    person.bough("run", "hello")
    assert [request.headers["authorization"] for request in other.received] == ["Bearer none"]


def test_a_foreign_config_in_the_working_folder_breaks_nothing(person: Person, openai_server: Serve) -> None:
    house, evil = openai_server("one", "two"), openai_server("sent to somebody else")
    person.write({"config.yaml": "title: My blog\ntheme: minima\n"})
    person.bough("run", "hello")  # offline
    _configure(person, house.url)
    assert "one" in person.bough("run", "hello").stdout
    person.write({"config.yaml": _DEFAULT.format(url=evil.url)})  # not trusted: replaces nothing of the home
    assert person.python(_ASK).stdout.strip() == "two"
    (person.home / ".bough/config.yaml").write_text("# nothing yet\n")
    person.bough("run", "hello")  # not trusted to name an address: offline
    assert evil.received == []
    (person.home / ".bough/config.yaml").write_text("models: 5\n")
    assert "config.yaml:1" in person.bough("run", "hello", code=2).stderr


def test_the_default_agent_of_a_server_has_the_model_of_the_homes_config(person: Person, openai_server: Serve) -> None:
    house = openai_server("one", "two")
    _configure(person, house.url)
    person.write({"config.yaml": "models: {other: offline}\n"})
    with person.serve() as server, server.client() as client:
        for agent in ("default", {"name": "described", "system_prompt": "Be brief."}):
            id = client.post("/api/conversations", json={"agent": agent}).raise_for_status().json()["id"]
            client.post(f"/api/conversations/{id}/events", json={"content": "hello"}).raise_for_status()
            client.post(f"/api/conversations/{id}/run", json={"wait": 20}).raise_for_status()
    assert [request.headers["authorization"] for request in house.received] == ["Bearer in-house-key"] * 2


def test_a_detached_task_has_the_model_of_its_worker(person: Person, openai_server: Serve) -> None:
    model = openai_server("from the worker")
    submitted = person.bough("run", "hello", "--detach", "--json").json()
    assert "model ?" in person.bough("conv", "show", submitted["conversation"]).stdout
    assert "pending" in person.bough("tasks", "show", submitted["task"]).stdout
    person.environment["OPENAI_API_KEY"] = "worker-key"
    person.bough("worker", "--once", "--model", "openai:worker-model", "--base-url", model.url)
    assert "from the worker" in person.bough("tasks", "show", submitted["task"]).stdout
    assert "model openai:worker-model" in person.bough("conv", "show", submitted["conversation"]).stdout
    assert len(model.received) == 1


def test_a_detached_task_keeps_the_model_that_its_submission_names(person: Person, openai_server: Serve) -> None:
    model = openai_server()
    submitted = person.bough("run", "hello", "--detach", "--model", "offline", "--json").json()
    person.bough("worker", "--once", "--model", "openai:worker-model", "--base-url", model.url)
    assert "completed" in person.bough("tasks", "show", submitted["task"]).stdout
    assert model.received == []


@pytest.mark.parametrize(
    "text",
    [
        "models: {default: 'openai:their-model'}",
        "models: {default: {model: 'openai:x', base_url: 'http://127.0.0.1:9/v1'}}",
        "baseURL: https://example.org\ntheme: paper\nparams: [a]",
        "models: [",
        "extends: ../../elsewhere.yaml",
    ],
    ids=["a model", "an address", "another program's", "broken", "leads outside"],
)
def test_a_file_in_the_working_folder_chooses_no_model(person: Person, openai_server: Serve, text: str) -> None:
    person.write({"config.yaml": text})
    assert "offline" in person.bough("run", "hello", "--json").stdout
    server = openai_server("house")
    _configure(person, server.url)
    assert "house" in person.bough("run", "hello").stdout


def test_a_mistake_in_the_homes_default_model_is_told_with_its_line(person: Person) -> None:
    folder = person.home / ".bough"
    folder.mkdir()
    (folder / "config.yaml").write_text("agents:\n  a: {model: nothing-of-that-name}\nmodels:\n  other: {}\n")
    person.bough("run", "hello")  # mistakes elsewhere in the file do not matter here
    (folder / "config.yaml").write_text("models:\n  default: {modl: 'openai:x'}\n")
    result = person.bough("run", "hello", code=2)
    assert "config.yaml:2" in result.stderr


_SUBMIT = """
import asyncio
from bough import TaskBroker, TaskStoreSqlite

async def main():
    broker = TaskBroker(TaskStoreSqlite("sqlite:///tasks.db"))
    print(await broker.submit("hello", system_prompt="Be brief."))

asyncio.run(main())
"""


def test_a_task_that_names_no_model_has_that_of_its_worker(person: Person, openai_server: Serve) -> None:
    task = person.python(_SUBMIT).stdout.strip()
    server = openai_server("the worker's model")
    store = ("--store", "sqlite:///tasks.db")
    assert person.bough("tasks", "show", task, *store, "--json").json()["task"]["state"] == "pending"
    assert person.bough("conv", "list", *store).code == 0
    person.bough("worker", "--once", *store, "--model", "openai:test", "--base-url", server.url)
    shown = person.bough("tasks", "show", task, *store, "--json").json()["task"]
    assert (shown["state"], shown["result"]) == ("completed", "the worker's model")
    # What it ran with is on record: another worker continues with the same
    exported = person.bough("conv", "show", shown["conversation"], *store, "--json")
    assert "openai:test" in json.dumps(exported.json())


def test_a_task_whose_submitter_names_a_model_keeps_it(person: Person, openai_server: Serve) -> None:
    mine, other = openai_server("mine"), openai_server("the worker's")
    person.environment |= {"BOUGH_MODEL": "openai:test", "BOUGH_BASE_URL": mine.url}
    task = person.python(_SUBMIT).stdout.strip()
    store = ("--store", "sqlite:///tasks.db")
    person.bough("worker", "--once", *store, "--model", "openai:test", "--base-url", other.url)
    assert person.bough("tasks", "show", task, *store, "--json").json()["task"]["result"] == "mine"


def test_another_model_needs_nothing_of_the_default_one(person: Person, openai_server: Serve) -> None:
    server = openai_server("other")
    _configure(person, "http://127.0.0.1:9/v1")
    del person.environment["HOUSE_KEY"]
    assert "other" in person.bough("run", "hello", "--model", "openai:test", "--base-url", server.url).stdout
    refused = person.bough("run", "hello", code=6)
    assert "HOUSE_KEY" in refused.stderr


_OTHER_PROVIDER = """
import asyncio, sys
from bough import AgentSpec, AsyncConversation

OTHER = "anthropic:claude-opus-4-5"

async def main(url):
    agent = AgentSpec(model="openai:test", base_url=url, api_key="sk-of-openai", fallback=(OTHER,))
    async with await AsyncConversation.create(agent) as conversation:
        await conversation.send_message("one")
        print((await conversation.run()).output)
        await conversation.set_model(OTHER)
        await conversation.send_message("two")
        print((await conversation.run()).output)

asyncio.run(main(sys.argv[1]))
"""


def test_the_key_of_an_agent_is_sent_to_its_own_provider_alone(person: Person, openai_server: Serve) -> None:
    server = openai_server(Failure(status=404))
    with AnthropicServer(["of the fallback", "of the next model"]) as other:
        person.environment |= {"ANTHROPIC_API_KEY": "sk-of-anthropic", "ANTHROPIC_BASE_URL": other.url}
        lines = person.python(_OTHER_PROVIDER, server.url).stdout.splitlines()
    assert lines == ["of the fallback", "of the next model"]
    assert {request.headers["authorization"] for request in other.received} == {"Bearer sk-of-anthropic"}
    assert [request.headers["authorization"] for request in server.received] == ["Bearer sk-of-openai"]


def test_a_conversation_with_a_wrong_address_is_continued_at_the_right_one(
    person: Person, openai_server: Serve
) -> None:
    right = openai_server("resumed", "forked", "chatted")
    wrong = openai_server(*[RawAnswer()] * 9)
    person.environment |= {"OPENAI_API_KEY": "k", "BOUGH_MODEL": "openai:test"}
    begun = person.bough("run", "hello", "--base-url", wrong.url, code=1)
    assert f"the answer of {wrong.url} is not an OpenAI-format answer" in begun.stderr
    resumed = person.bough("resume", "-", "--base-url", right.url)
    assert resumed.stdout.strip() == "resumed", resumed
    assert f"requests now go to {right.url}" in resumed.stderr
    forked = person.bough("fork", "-@2", "again", "--base-url", right.url)
    assert forked.stdout.strip() == "forked", forked
    chatted = person.bough("chat", "-", "--base-url", right.url, input="and again\n")
    assert chatted.stdout.strip() == "chatted", chatted
    assert len(wrong.received) == 1
    refused = person.bough("resume", "-", "--base-url", right.url, "--model", "offline", code=2)
    assert "--base-url is for openai: models" in refused.stderr
