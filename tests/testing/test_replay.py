"""A recorded conversation is a regression test: bundle, store or URL, in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bough.agents.spec import AgentSpec
from bough.conversation import AsyncConversation
from bough.errors import NotFound
from bough.events import open_store
from bough.testing import ScriptedModel, assert_replays, tool_call

pytestmark = pytest.mark.anyio


def agent(*, sign: int = 1) -> AgentSpec:
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + sign * b

    return AgentSpec(model=ScriptedModel([tool_call("add", a=1, b=2), "It is 3."]), tools=(add,), skills=())


@pytest.fixture
async def recorded(tmp_path: Path) -> Any:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    store = await open_store(url)
    async with await AsyncConversation.create(agent(), workspace=tmp_path, store=store) as conversation:
        await conversation.send_message("1 + 2?")
        await conversation.run()
        with (tmp_path / "sum.bough").open("wb") as file:
            await store.export(conversation.id, file)
    yield {"store": store, "url": url, "bundle": tmp_path / "sum.bough"}
    await store.aclose()


@pytest.mark.parametrize("form", ["store", "url", "bundle"])
async def test_it_passes_while_nothing_changed_and_fails_when_a_tool_did(
    recorded: Any, form: str, tmp_path: Path
) -> None:
    report = await assert_replays(recorded[form], agent(), workspace=tmp_path)
    assert (report.output, report.events) == ("It is 3.", 5)
    with pytest.raises(AssertionError, match="replays differently") as failure:
        await assert_replays(recorded[form], agent(sign=-1), workspace=tmp_path)
    assert '"result": -1' in str(failure.value)
    assert '"result": 3' in str(failure.value)


async def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no bundle"):
        await assert_replays(tmp_path / "none.bough", agent(), workspace=tmp_path)
