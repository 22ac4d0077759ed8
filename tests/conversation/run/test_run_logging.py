"""Who collects logs gets a run's fields on every record, and nothing of what was said."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bough.errors import ModelError
from bough.guard import EnvSecret, Secrets
from bough.log import json_to_file
from bough.testing import tool_call

pytestmark = pytest.mark.anyio


@pytest.fixture
def lines(tmp_path: Path) -> Iterator[Any]:
    """Collect what bough logs in a file, and return a function that reads it."""
    log, file = logging.getLogger("bough"), tmp_path / "bough.log"
    level, handler = log.level, json_to_file(file)
    yield lambda: [json.loads(line) for line in file.read_text().splitlines()]
    log.removeHandler(handler)
    log.setLevel(level)
    handler.close()


def reveal(word: str) -> str:
    """Say a word."""
    return f"{word} and hunter2-in-full"


async def test_a_run_is_told_with_its_fields(start: Any, scripted: Any, lines: Any) -> None:
    conversation = await start(scripted(tool_call("reveal", word="plum"), "plum it is", tools=(reveal,)))
    await conversation.send_message("say plum")
    await conversation.run()
    told = lines()
    assert {line["conversation"] for line in told} == {str(conversation.id)}
    assert len({line["run"] for line in told}) == 1
    assert {line["logger"] for line in told} == {"bough.run"}
    assert (told[0]["message"], told[0]["agent"]) == ("run started", "tester")
    assert (told[-1]["message"], told[-1]["status"], told[-1]["steps"]) == ("run ended", "finished", 2)
    assert told[-1]["duration_seconds"] > 0
    events = [(line["seq"], line["event"]) for line in told if "seq" in line]
    first = events[0][0]
    assert events == [(stored.seq, stored.kind) async for stored in conversation.store.read(conversation.id, first)]
    (returned,) = [line for line in told if line.get("event") == "ToolReturned"]
    assert returned["tool"] == "reveal"
    assert returned["duration_seconds"] >= 0


async def test_nothing_of_what_was_said_is_logged(
    start: Any, scripted: Any, lines: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PASSWORD_OF_TEST", "hunter2-in-full")
    secrets = Secrets({"PASSWORD": EnvSecret("PASSWORD_OF_TEST")})
    failing = ModelError("no route to plum, hunter2-in-full")
    conversation = await start(scripted(tool_call("reveal", word="plum"), failing, tools=(reveal,)), secrets=secrets)
    await conversation.send_message("say plum: hunter2-in-full")
    with pytest.raises(ModelError):
        await conversation.run()
    told = lines()
    assert (told[-1]["status"], told[-1]["code"]) == ("error", "model_error")
    assert "plum" not in json.dumps(told)
    assert "hunter2" not in json.dumps(told)


async def test_without_a_collector_no_listener_is_added(start: Any, scripted: Any) -> None:
    def look(_: Any) -> str:
        seen.append(len(conversation._journal.listeners))
        return "done"

    seen: list[int] = []
    conversation = await start(scripted(look))
    await conversation.send_message("go")
    await conversation.run()
    assert seen == [0]
