"""A process that writes to a store until it is told to stop or killed, and says what was acknowledged.

`python writer_process.py URL SCHEMA` reads commands, one a line:
`write SEED`  forks a child that appends and forks as fast as it can; the pid is said, then a line an acknowledgement.
`reap`        waits for the child that was killed.
`race CID SECONDS`  appends to and forks one conversation for that long, with a live tail beside, and says what it did.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from pathlib import Path
from uuid import UUID

from bough.events import PostgresEventStore, SqliteEventStore, codec
from bough.events.model import UserMessage
from bough.events.store import EventStore

_ = codec  # imported before forking, so that a child starts at once


async def open_here(url: str, schema: str) -> EventStore:
    if url.startswith("sqlite:///"):
        return await SqliteEventStore.open(Path(url.removeprefix("sqlite:///")))
    return await PostgresEventStore.open(url, schema=schema)


def say(**fields: object) -> None:
    os.write(1, json.dumps(fields).encode() + b"\n")


async def write(url: str, schema: str, seed: int) -> None:
    store, chance = await open_here(url, schema), random.Random(seed)
    known = [(await store.create()).id]

    async def worker() -> None:
        while True:
            cid = chance.choice(known)
            if chance.random() < 0.3:
                fork = await store.fork(cid, events=[UserMessage.text("fork")] * chance.randint(0, 1))
                say(fork=str(fork.id), source=str(cid), base=fork.base)
                known.append(fork.id)
            else:
                events = [UserMessage.text(f"{seed} {i}") for i in range(chance.randint(1, 5))]
                head = await store.append(cid, events)
                first = head - len(events)
                say(cid=str(cid), events={str(event.id): first + i for i, event in enumerate(events)})

    await asyncio.gather(*(worker() for _ in range(4)))


async def race(url: str, schema: str, cid: UUID, seconds: float) -> None:
    store = await open_here(url, schema)
    loop, mine, forks, seen = asyncio.get_running_loop(), [], [], []
    end = loop.time() + seconds

    async def append() -> None:
        while loop.time() < end:
            event = UserMessage.text("race")
            await store.append(cid, [event])
            mine.append(str(event.id))

    async def fork() -> None:
        while loop.time() < end:
            made = await store.fork(cid)
            forks.append((str(made.id), made.base))

    async def tail() -> None:
        async for stored in store.subscribe(cid):
            seen.append(stored.seq)

    watching = asyncio.create_task(tail())
    await asyncio.gather(append(), append(), fork())
    say(done=True)
    await asyncio.to_thread(sys.stdin.readline)  # the other side has finished too: the log stands still
    head = (await store.get(cid)).head
    async with asyncio.timeout(30):
        while len(seen) < head and not watching.done():
            await asyncio.sleep(0.01)  # the tail is a task of this loop; it only needs its turns
    if watching.done():
        watching.result()
    watching.cancel()
    say(appended=len(mine), forks=forks, seen=seen == list(range(head)), head=head)
    await store.aclose()


def main(url: str, schema: str) -> None:
    child = 0
    for line in sys.stdin:
        match line.split():
            case ["write", seed]:
                child = os.fork()
                if child == 0:
                    asyncio.run(write(url, schema, int(seed)))
                say(pid=child)
            case ["reap"]:
                os.waitpid(child, 0)
                say(reaped=child)
            case ["race", cid, seconds]:
                asyncio.run(race(url, schema, UUID(cid), float(seconds)))
            case _:
                raise SystemExit(f"what is {line!r}?")


if __name__ == "__main__":
    main(*sys.argv[1:])
