"""One prompt in one call: its log stays, and whoever listens has heard everything when it returns."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import bough
from bough.conversation import AsyncConversation, Delta
from bough.errors import InvalidInput
from bough.events.record import StoredEvent
from bough.testing import tool_call


@pytest.mark.anyio
async def test_arun_answers_and_leaves_its_log(scripted: Any, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    heard: list[Any] = []

    async def listen(update: Any) -> None:
        await asyncio.sleep(0)
        heard.append(update)

    result = await bough.arun("hello", agent=scripted("hi"), workspace=tmp_path, store=url, on_event=listen)
    assert (result.output, result.status) == ("hi", "finished")
    page = await AsyncConversation.list(url)
    assert [record.title for record in page.items] == ["hello"]
    assert "".join(update.text for update in heard if isinstance(update, Delta)) == "hi"
    kinds = [update.kind for update in heard if isinstance(update, StoredEvent)]
    assert kinds[-2:] == ["ModelResponded", "StateChanged"], "all of the run was heard when it returned"


def test_run_gives_the_value_of_the_output_type(scripted: Any, tmp_path: Path) -> None:
    agent = scripted(lambda asked: [_call_output(asked, 7)], output_type=int)
    result = bough.run("how many?", agent=agent, workspace=tmp_path, store="memory:")
    assert result.data == 7


def _call_output(asked: Any, value: int) -> Any:
    (tool,) = asked.parameters.output_tools
    return tool_call(tool.name, response=value)


@pytest.mark.anyio
async def test_a_listener_that_raises_is_reported_and_the_run_goes_on(scripted: Any, tmp_path: Path) -> None:
    calls: list[Any] = []
    reported: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["exception"]))

    def fail(update: Any) -> None:
        calls.append(update)
        raise RuntimeError("no")

    result = await bough.arun("hello", agent=scripted("hi"), workspace=tmp_path, store="memory:", on_event=fail)
    assert result.output == "hi"
    assert len(calls) == 1
    assert [str(error) for error in reported] == ["no"]


@pytest.mark.anyio
async def test_an_empty_prompt_is_refused(scripted: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput):
        await bough.arun("  ", agent=scripted(), workspace=tmp_path, store="memory:")
