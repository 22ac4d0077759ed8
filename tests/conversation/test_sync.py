"""The twin without `await`: the same names, the same results, and an end to its thread."""

from __future__ import annotations

import inspect
import threading
from pathlib import Path
from typing import Any

import pytest

from bough.config import Settings
from bough.conversation import AsyncConversation, Conversation, Delta
from bough.errors import NotFound


def test_a_whole_life(scripted: Any, settings: Settings, tmp_path: Path) -> None:
    threads = threading.active_count()
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
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and "AnyIO" not in thread.name:
            thread.join(5)
    assert threading.active_count() <= threads + 1, "the loop's thread ends with its last conversation"


def test_the_twins_have_the_same_names() -> None:
    def names(cls: type) -> set[str]:
        return {name for name, _ in inspect.getmembers(cls) if not name.startswith("_")}

    assert names(AsyncConversation) - names(Conversation) == {"aclose", "create", "executor", "store"}
    assert names(Conversation) - names(AsyncConversation) == {"close"}
