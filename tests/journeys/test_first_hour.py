"""What a person does in the first hour: a run, a fork, a server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.journeys.conftest import Person

from bough.testing import OpenAIServer


@pytest.fixture
def person(person: Person) -> Person:
    """A person whose every command starts an interpreter, as it does for everybody."""
    return replace(person, preloaded=None)


def test_a_run_with_a_model_of_ones_own(person: Person, openai_server: Callable[..., OpenAIServer]) -> None:
    model = openai_server("hello back", "hello again")
    person.environment |= {"OPENAI_API_KEY": "k", "BOUGH_MODEL": "openai:test", "BOUGH_BASE_URL": model.url}
    assert "hello back" in person.bough("run", "hello").stdout
    assert "hello again" in person.bough("fork", "-", "once more").stdout
    assert len(person.bough("conv", "list", "--json").json()["conversations"]) == 2


def test_a_server_answers_without_any_set_up(person: Person) -> None:
    with person.serve() as server, server.client() as client:
        created = client.post("/api/conversations", json={})
        assert created.status_code == 201, created.text
