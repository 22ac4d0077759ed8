"""What was acknowledged survives: writers are killed, and processes race for one conversation."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from bough.events.model import UserMessage
from bough.events.store import EventStore

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(240)]

KILLS = 50
RACE_SECONDS = 6


class Process:
    """The other side: commands go in, lines of JSON come out."""

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        self._popen = popen

    def tell(self, command: str) -> None:
        assert self._popen.stdin
        self._popen.stdin.write(command.encode() + b"\n")
        self._popen.stdin.flush()

    def hear(self) -> Any:
        assert self._popen.stdout
        line = self._popen.stdout.readline()
        assert line, "the process ended"
        return json.loads(line)

    def hear_until(self, key: str) -> list[Any]:
        found: list[Any] = []
        while key not in (said := self.hear()):
            found.append(said)
        return found


@contextmanager
def writer(url: str, schema: str) -> Iterator[Process]:
    script = Path(__file__).with_name("writer_process.py")
    command = [sys.executable, str(script), url, schema]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as popen:
        try:
            yield Process(popen)
        finally:
            popen.kill()


async def test_killed_writers_lose_nothing_they_acknowledged(place: Any) -> None:
    store = await place.open()
    chance = random.Random(7)
    acknowledged = 0
    with writer(*place) as process:
        for number in range(KILLS):
            process.tell(f"write {number}")
            pid = 0
            said = [process.hear() for _ in range(chance.randint(2, 40))]
            while not (pid := next((line["pid"] for line in said if "pid" in line), 0)):
                said.append(process.hear())
            os.kill(pid, signal.SIGKILL)
            process.tell("reap")
            said += process.hear_until("reaped")
            for line in said:
                acknowledged += await there(store, line)
    assert acknowledged > KILLS
    report = await store.check()
    assert report.findings == ()
    assert report.events >= acknowledged
    await store.append((await store.create()).id, [UserMessage.text("the next append works")])
    await store.aclose()


async def there(store: EventStore, line: dict[str, Any]) -> int:
    """Check that what a line acknowledges is in the store; return how many events it names."""
    for event, seq in line.get("events", {}).items():
        assert await store.locate(UUID(event)) == (UUID(line["cid"]), seq)
    if "fork" in line:
        fork = await store.get(UUID(line["fork"]))
        assert (str(fork.forked_from), fork.forked_at) == (line["source"], line["base"])
    return len(line.get("events", {}))


async def test_two_processes_share_one_conversation_fairly(place: Any) -> None:
    store = await place.open()
    cid = (await store.create()).id
    with ExitStack() as stack:
        sides = [stack.enter_context(writer(*place)) for _ in range(2)]
        for side in sides:
            side.tell(f"race {cid} {RACE_SECONDS}")
        for side in sides:
            side.hear_until("done")
        for side in sides:
            side.tell("finish")
        results = [side.hear() for side in sides]
    log = [stored.id async for stored in store.read(cid)]
    assert all(result["seen"] and result["head"] == len(log) for result in results)
    assert sum(result["appended"] for result in results) == len(log)
    work = [result["appended"] + len(result["forks"]) for result in results]
    assert min(work) * 4 >= sum(work), f"one side starved: {work}"
    forks = [fork for result in results for fork in result["forks"]]
    assert len(forks) == len(await store.children(cid))
    for fork, base in random.Random(1).sample(forks, 10):
        assert [stored.id async for stored in store.read(UUID(fork))] == log[:base]
    assert (await store.census()).events == len(log)
    await store.aclose()
