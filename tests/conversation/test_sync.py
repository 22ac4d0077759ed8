"""The twin without `await`: the same names, the same results, and one thread for all."""

from __future__ import annotations

import inspect
import threading
from pathlib import Path
from typing import Any, assert_type

import pytest

from bough.agents.spec import AgentSpec
from bough.conversation import AsyncConversation, Conversation, Delta
from bough.errors import BoughError, NotFound
from bough.events import open_store_sync
from bough.settings import Settings
from bough.testing import ScriptedModel


def test_a_whole_life(scripted: Any, settings: Settings, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    with Conversation(scripted("one", "two", "other"), workspace=tmp_path, store=url, settings=settings) as source:
        source.send_message("first")
        assert source.run().output == "one"
        with source.fork(title="branch") as branch:
            branch.send_message("second")
            updates = list(branch.run_stream())
            assert "".join(u.text for u in updates if isinstance(u, Delta)) == "two"
        assert [stored.seq for stored in source.events] == list(range(source.state.head))
    titles = [record.title for record in Conversation.list(url, settings=settings).items]
    assert titles == ["branch", "first"]
    with pytest.raises(NotFound):
        Conversation.open("deadbeef", store=url, settings=settings)
    loops = [thread for thread in threading.enumerate() if thread.name == "bough-loop"]
    assert len(loops) == 1, "one event loop serves all conversations of a process"
    assert all(thread.daemon for thread in threading.enumerate() if thread.name.startswith("bough-"))


def test_the_twins_have_the_same_methods_with_the_same_parameters() -> None:
    def public(cls: type) -> dict[str, Any]:
        return {name: member for name, member in inspect.getmembers(cls) if not name.startswith("_")}

    def parameters(member: Any, *omitted: str) -> list[tuple[str, Any, Any]]:
        parameters = inspect.signature(member).parameters.values() if callable(member) else ()
        return [(item.name, item.kind, item.default) for item in parameters if item.name not in omitted]

    twin, core = public(Conversation), public(AsyncConversation)
    assert core.keys() - twin.keys() == {"aclose", "create", "executor", "prepare_message", "store"}
    assert twin.keys() - core.keys() == {"close"}
    for name in twin.keys() & core.keys():
        # `on_node` is awaited on the event loop, which code without `await` has no coroutine for.
        assert parameters(twin[name], "self") == parameters(core[name], "self", "on_node"), name
    assert parameters(Conversation, "self") == parameters(AsyncConversation.create)


def test_what_an_agent_answers_with_is_known_to_a_type_checker(settings: Settings, tmp_path: Path) -> None:
    spec = AgentSpec(model=ScriptedModel(["no"]), output_type=int, skills=())
    with Conversation(spec, workspace=tmp_path, store="memory:", settings=settings) as conversation:
        assert_type(conversation, Conversation[int])
        assert_type(conversation.run().data, int | None)


def test_conversations_share_a_store_that_was_opened_once(settings: Settings, scripted: Any, tmp_path: Path) -> None:
    with open_store_sync(f"sqlite:///{tmp_path / 'log.db'}") as store:
        with Conversation(scripted("one"), store=store, workspace=tmp_path, settings=settings) as source:
            source.send_message("first")
            with source.fork() as fork:
                assert fork.state.head > source.state.head
        assert len(Conversation.list(store).items) == 2
    with pytest.raises(BoughError):
        Conversation.list(store)
