"""Which model answers where nobody names one: `models.default` of config.yaml, and the worker's own for its tasks."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from tests.journeys.conftest import Person

from bough.testing import OpenAIServer

Serve = Callable[..., OpenAIServer]

DEFAULT = """
models:
  default: {model: "openai:test", base_url: "%s", api_key: "${HOUSE_KEY}", settings: {temperature: 0.25}}
"""

LIBRARY = """
import asyncio, sys
from bough import AgentSpec, AsyncConversation

async def main():
    conversation = await AsyncConversation.create(AgentSpec(system_prompt="Be brief."))
    async with conversation:
        await conversation.send_message("one")
        print((await conversation.run()).output)
    async with await AsyncConversation.open(conversation.id) as again:
        await again.send_message("two")
        print((await again.run()).output)

asyncio.run(main())
"""


def configure(person: Person, text: str) -> None:
    home = person.home / ".bough"
    home.mkdir(exist_ok=True)
    (home / "config.yaml").write_text(text)


def test_the_default_model_of_the_home_answers_commands_programs_and_the_server(
    person: Person, openai_server: Serve
) -> None:
    server = openai_server(*["hello from the house"] * 6)
    configure(person, DEFAULT % server.url)
    person.environment["HOUSE_KEY"] = "sk-house"
    assert "openai:test (models.default of config.yaml)" in person.bough("doctor", code=0).output

    assert "hello from the house" in person.bough("run", "hello").stdout
    assert person.python(LIBRARY).stdout.splitlines() == ["hello from the house"] * 2
    with person.serve() as served, served.client() as client:
        print(client.post("/api/conversations", json={"agent": {"system_prompt": "Hi."}, "initial_message": "x"}).text)
        made = client.post("/api/conversations", json={"agent": {"system_prompt": "Hi."}, "initial_message": "x"})
        ran = client.post(f"/api/conversations/{made.json()['id']}/run", json={"wait": 60}).json()
    assert ran["output"] == "hello from the house"
    # The key is in no log, so that a conversation which is opened again finds it in the configuration
    assert {request.headers["authorization"] for request in server.received} == {"Bearer sk-house"}
    assert {request.body["temperature"] for request in server.received} == {0.25}


def test_the_key_of_the_default_model_goes_to_its_address_alone(person: Person, openai_server: Serve) -> None:
    house, elsewhere = openai_server("house"), openai_server("elsewhere")
    configure(person, DEFAULT % house.url)
    person.environment["HOUSE_KEY"] = "sk-house"
    answer = person.bough("run", "hello", "--model", "openai:test", "--base-url", elsewhere.url)
    assert "elsewhere" in answer.stdout
    assert elsewhere.received[0].headers["authorization"] != "Bearer sk-house"


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
    configure(person, DEFAULT % server.url)
    person.environment["HOUSE_KEY"] = "sk-house"
    assert "house" in person.bough("run", "hello").stdout


def test_a_mistake_in_the_homes_default_model_is_told_with_its_line(person: Person) -> None:
    configure(person, "agents:\n  a: {model: nothing-of-that-name}\nmodels:\n  other: {}\n")
    person.bough("run", "hello")  # mistakes elsewhere in the file do not matter here
    configure(person, "models:\n  default: {modl: 'openai:x'}\n")
    result = person.bough("run", "hello", code=2)
    assert "config.yaml:2" in result.stderr


SUBMIT = """
import asyncio
from bough import TaskBroker, TaskStoreSqlite

async def main():
    broker = TaskBroker(TaskStoreSqlite("sqlite:///tasks.db"))
    print(await broker.submit("hello", system_prompt="Be brief."))

asyncio.run(main())
"""


def test_a_task_that_names_no_model_has_that_of_its_worker(person: Person, openai_server: Serve) -> None:
    task = person.python(SUBMIT).stdout.strip()
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
    task = person.python(SUBMIT).stdout.strip()
    store = ("--store", "sqlite:///tasks.db")
    person.bough("worker", "--once", *store, "--model", "openai:test", "--base-url", other.url)
    assert person.bough("tasks", "show", task, *store, "--json").json()["task"]["result"] == "mine"


def test_another_model_needs_nothing_of_the_default_one(person: Person, openai_server: Serve) -> None:
    server = openai_server("other")
    configure(person, DEFAULT % "http://127.0.0.1:9/v1")  # the variable of its key is not set
    assert "other" in person.bough("run", "hello", "--model", "openai:test", "--base-url", server.url).stdout
    refused = person.bough("run", "hello", code=6)
    assert "HOUSE_KEY" in refused.stderr
