"""How much of bough runs for five requests: calls, files, moves between files, and objects.

It counts the first entries of bough's named functions in any thread, at a warm request. A coroutine or a generator
counts once, however often it is resumed; comprehensions, lambdas and the checksum of a row do not count. Background
work, such as storing a state, may happen during a request or not, so the smallest of several requests is reported.

`--functions WALK` and `--objects WALK` list what a walk called and built, most often first. Objects are those whose
`__init__` or `__new__` is Python code.
"""

from __future__ import annotations

import argparse
import asyncio
import dis
import math
import shutil
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import httpx2

import bough
from bough import AgentSpec, AsyncConversation, LocalSandboxCodeExecutor, Settings, open_store
from bough.events.stores.sqlite import readers
from harness import ON_DISK, Figure
from server import serve_in_thread

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
PROMPT = "profile sales.csv"
PACKAGE = str(Path(bough.__file__).parent) + "/"
CHECKSUM = "events/stores/sqlite/connection.py:_compute_checksum"
"""The function that computes the checksum of a row."""

RESUME = dis.opmap["RESUME"]
AT_START = 0
"""The argument of `RESUME` where a function begins; a resumed coroutine or generator has another one."""


@dataclass
class Walk:
    """What ran between two moments.

    Attributes:
        calls: How often each function was entered, by `file:function`.
        moves: How often a function of one file called a function of another, by both files.
        objects: How many objects were built, by class.
    """

    calls: Counter[str] = field(default_factory=Counter[str])
    moves: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    objects: Counter[str] = field(default_factory=Counter[str])

    @property
    def size(self) -> int:
        """How many calls were made."""
        return self.calls.total()

    @property
    def files(self) -> set[str]:
        """The files with a function that ran."""
        return {function.partition(":")[0] for function in self.calls}


class Recorder:
    """Records what bough does in this thread and in every thread that is started later."""

    def __init__(self) -> None:
        self.walk: Walk | None = None
        self.least: dict[str, Walk] = {}
        sys.setprofile(self._on_event)
        threading.setprofile(self._on_event)

    @contextmanager
    def recording(self, name: str, *, is_warm: bool) -> Generator[None]:
        """Record the block, and keep the walk under its name if it is warm and the smallest so far."""
        self.walk = walk = Walk()
        try:
            yield
        finally:
            self.walk = None
        if is_warm and (name not in self.least or walk.size < self.least[name].size):
            self.least[name] = walk

    def _on_event(self, frame: FrameType, event: str, _: Any) -> None:
        walk = self.walk
        if walk is None or event != "call":
            return
        code = frame.f_code
        if code.co_name in ("__init__", "__new__"):
            record_object(walk, frame)
        if code.co_filename.startswith(PACKAGE) and code.co_name[0] != "<" and is_first_entry(code, frame.f_lasti):
            function = f"{find_file(code)}:{code.co_qualname}"
            if function == CHECKSUM:
                return
            walk.calls[function] += 1
            caller = frame.f_back.f_code if frame.f_back else None
            if caller and caller.co_filename.startswith(PACKAGE) and caller.co_filename != code.co_filename:
                walk.moves[find_file(caller), find_file(code)] += 1


def is_first_entry(code: CodeType, instruction: int) -> bool:
    """Return whether a call event is the first entry of its frame, not a resumption."""
    bytecode = code.co_code
    return bytecode[instruction] != RESUME or bytecode[instruction + 1] & 3 == AT_START


def find_file(code: CodeType) -> str:
    return code.co_filename.removeprefix(PACKAGE)


def record_object(walk: Walk, frame: FrameType) -> None:
    """Count an object of bough's whose constructor begins."""
    code, first = frame.f_code, first_argument(frame)
    cls = first if isinstance(first, type) else type(first)
    if not cls.__module__.startswith("bough"):
        return
    # A constructor that calls its base's is one object
    caller = frame.f_back
    base_call = caller is not None and caller.f_code.co_name == code.co_name and first_argument(caller) is first
    walk.objects[cls.__qualname__] += not base_call


def first_argument(frame: FrameType) -> object:
    code = frame.f_code
    return frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None


CONVERSATION_WALKS = ("Conversation.fork()", "send_message", "run with a script")
REQUEST_WALKS = ("POST fork", "GET conversation")
WALKS = (*CONVERSATION_WALKS, *REQUEST_WALKS)
ROUNDS = 7
"""How often each request is made; the first one is not warm."""


async def record_conversation(recorder: Recorder, home: Path) -> None:
    """Record what a program's conversation does: one without skills, and a run that starts a script."""
    settings = Settings.load(home, env={}, cwd=home)
    store = await open_store(settings.store)
    executor = LocalSandboxCodeExecutor()
    plain = await AsyncConversation.create(
        AgentSpec(model="offline", skills=()), workspace=home, store=store, settings=settings
    )
    scripts = await AsyncConversation.create(
        AgentSpec(model="offline", skill_roots=(EXAMPLES / "skills",)),
        workspace=shutil.copytree(EXAMPLES / "workspace", home / "workspace"),
        store=store,
        executor=executor,
        settings=settings,
    )
    async with plain, scripts:
        for number in range(ROUNDS):
            with recorder.recording("send_message", is_warm=number > 0):
                await plain.send_message(PROMPT)
            with recorder.recording("Conversation.fork()", is_warm=number > 0):
                fork = await plain.fork()
            await fork.aclose()
            await scripts.send_message(PROMPT)
            with recorder.recording("run with a script", is_warm=number > 0):
                result = await scripts.run()
            if "180 rows" not in result.output:
                raise RuntimeError(result.output)
    await executor.aclose()
    await store.aclose()


def record_requests(recorder: Recorder, home: Path) -> None:
    """Record what a server in this process does for a request, until the client has its response."""
    settings = Settings.load(home, env={}, cwd=home)
    with serve_in_thread(settings) as url, httpx2.Client(base_url=url, timeout=60, trust_env=False) as client:
        response = client.post("/api/conversations", json={"agent": {"model": "offline"}})
        path = f"/api/conversations/{response.json()['id']}"
        client.post(f"{path}/events", json={"content": "hello"}).raise_for_status()
        for number in range(ROUNDS):
            with recorder.recording("POST fork", is_warm=number > 0):
                client.post(f"{path}/fork", json={}).raise_for_status()
            with recorder.recording("GET conversation", is_warm=number > 0):
                client.get(path).raise_for_status()


def record_walks() -> dict[str, Walk]:
    """Record all walks, each in a home of its own."""
    # After a slow query, the next reads would go to threads, and a busy machine would count more than a quiet one.
    readers.SLOW_SECONDS = math.inf
    recorder = Recorder()
    with tempfile.TemporaryDirectory(dir=ON_DISK) as own_home, tempfile.TemporaryDirectory(dir=ON_DISK) as server_home:
        asyncio.run(record_conversation(recorder, Path(own_home)))
        record_requests(recorder, Path(server_home))
    return recorder.least


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option in ("--functions", "--objects"):
        parser.add_argument(option, metavar="WALK", help=f"one of: {', '.join(WALKS)}")
    options = parser.parse_args()
    for name, walk in record_walks().items():
        report(name, walk)
        if name == options.functions:
            print_counts(walk.calls)
        if name == options.objects:
            print_counts(walk.objects)


def report(name: str, walk: Walk) -> None:
    """Print the four counts of a walk."""
    counts = {
        "calls": walk.size,
        "files": len(walk.files),
        "moves": walk.moves.total(),
        "objects": walk.objects.total(),
    }
    for unit, count in counts.items():
        Figure(f"walk: {unit} of {name}", count, unit, None, None, 1).report()


def print_counts(counter: Counter[str]) -> None:
    for name, count in counter.most_common():
        print(f"{count:6} {name}", file=sys.stderr)


if __name__ == "__main__":
    main()
