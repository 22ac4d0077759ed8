"""One peer in a process and an interpreter of its own: answers requests on its input with the seconds they took.

Run by `benchmarks/peers.py` with the interpreter of the peer's virtual environment. A request is a JSON line
`[operation, argument]`, an answer `{"seconds": ...}` or, where something fails, `{"lacks": ...}`. The peers are
imported by name because they are not installed where this file is checked.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Any

TEXT = "x" * 200
"""What every message says, in each peer and in bough."""

Operation = Callable[[Any], object]


def timed(work: Callable[[], object]) -> float:
    start = perf_counter()
    work()
    return perf_counter() - start


def expect(found: int, wanted: int) -> None:
    """Raise unless the peer really did what is being timed."""
    if found != wanted:
        raise AssertionError(f"{found} where {wanted} were due")


def unchanged(state: dict[str, Any]) -> dict[str, Any]:
    """Be a step of a graph that adds nothing."""
    return {}


class OpenHands:
    """Persisted local conversations, an event in a file each; skills from a folder."""

    packages = ("openhands-sdk",)

    def __init__(self, folder: Path) -> None:
        os.environ |= {"OPENHANDS_SUPPRESS_BANNER": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LOG_LEVEL": "ERROR"}
        self.folder = folder
        self.sdk = import_module("openhands.sdk")
        self.load = import_module("openhands.sdk.skills").load_skills_from_dir
        self.sources: dict[int, Any] = {}
        self.operations: dict[str, Operation] = {"prepare": self.prepare, "fork": self.fork, "skills": self.skills}

    def prepare(self, size: int) -> None:
        """Send as many messages as make the log `size` events long; no model is asked."""
        agent = self.sdk.Agent(llm=self.sdk.LLM(model="openai/none", api_key="none"), tools=[])
        work, log = self.folder / "workspace", self.folder / "log"
        source = self.sdk.Conversation(agent, workspace=str(work), persistence_dir=str(log), visualizer=None)
        while len(source.state.events) < size:
            source.send_message(TEXT)
        self.sources[size] = source

    def fork(self, size: int) -> float:
        """Return the seconds of one fork of everything."""
        made: list[Any] = []
        seconds = timed(lambda: made.append(self.sources[size].fork()))
        expect(len(made[0].state.events), size)
        made[0].close()
        return seconds

    def skills(self, folder: str) -> float:
        """Return the seconds of loading every skill under `folder`."""
        found: list[Any] = []
        seconds = timed(lambda: found.extend(self.load(folder)))
        expect(sum(len(kind) for kind in found), len(os.listdir(folder)))
        return seconds


class LangGraph:
    """Threads of a `SqliteSaver`: a fork is a new checkpoint beside the old one, with the whole state in it."""

    packages = ("langgraph", "langgraph-checkpoint-sqlite")

    def __init__(self, folder: Path) -> None:
        os.environ |= {"LANGSMITH_TRACING": "false"}
        graph = import_module("langgraph.graph")
        self.message = import_module("langchain_core.messages").HumanMessage
        self.db = sqlite3.connect(folder / "checkpoints.db", check_same_thread=False)
        builder = graph.StateGraph(graph.MessagesState)
        builder.add_node("talk", unchanged)
        builder.add_edge(graph.START, "talk")
        self.graph = builder.compile(checkpointer=import_module("langgraph.checkpoint.sqlite").SqliteSaver(self.db))
        self.sources: dict[int, Any] = {}
        self.operations: dict[str, Operation] = {
            "prepare": self.prepare,
            "fork": lambda size: self.update(size, {"messages": [self.message(TEXT)]}, "talk", size + 1),
            "copy": lambda size: self.update(size, None, "__copy__", size),
        }

    def prepare(self, size: int) -> None:
        """Make a thread of `size` messages."""
        # All messages in one step: a checkpoint a message would store size² / 2 of them and fork no faster.
        thread = {"configurable": {"thread_id": str(size)}}
        messages = [self.message(TEXT) for _ in range(size)]
        self.sources[size] = self.graph.update_state(thread, {"messages": messages}, as_node="talk")

    def update(self, size: int, values: object, as_node: str, wanted: int) -> float:
        """Return the seconds of one new checkpoint on the source, and check that it holds `wanted` messages."""
        made: list[Any] = []
        source = self.sources[size]
        seconds = timed(lambda: made.append(self.graph.update_state(source, values, as_node=as_node)))
        expect(len(self.graph.get_state(made[0]).values["messages"]), wanted)
        return seconds


class OpenAIAgents:
    """`AdvancedSQLiteSession`: a branch repeats a row of structure for each message, the messages stay shared."""

    packages = ("openai-agents",)

    def __init__(self, folder: Path) -> None:
        self.file = folder / "sessions.db"
        self.session = import_module("agents.extensions.memory").AdvancedSQLiteSession
        self.sources: dict[int, Any] = {}
        self.operations: dict[str, Operation] = {
            "prepare": lambda size: asyncio.run(self.prepare(size)),
            "fork": lambda size: asyncio.run(self.fork(size)),
        }

    async def prepare(self, size: int) -> None:
        """Make a session of `size` messages and one more."""
        session = self.session(session_id=str(size), db_path=self.file, create_tables=True)
        items = [{"role": ("user", "assistant")[number % 2], "content": TEXT} for number in range(size)]
        # A branch ends before a message of the user's: this one is left out and all of `size` are copied.
        await session.add_items([*items, {"role": "user", "content": TEXT}])
        self.sources[size] = session

    async def fork(self, size: int) -> float:
        """Return the seconds of a branch with `size` messages; go back to the main one afterwards."""
        session = self.sources[size]
        start = perf_counter()
        branch = await session.create_branch_from_turn(size // 2 + 1)
        seconds = perf_counter() - start
        expect(len(await session.get_items(branch_id=branch)), size)
        await session.switch_to_branch("main")
        return seconds


PEERS = {"openhands": OpenHands, "langgraph": LangGraph, "openai-agents": OpenAIAgents}


def answer(work: Callable[[], object]) -> dict[str, object]:
    try:
        return {"seconds": work()}
    except Exception as error:  # noqa: BLE001 - the parent says what a peer lacks, and continues
        return {"lacks": f"{type(error).__name__}: {error}"[:300]}


def main(name: str, folder: str) -> None:
    """Say which versions are here, then answer until the input ends."""
    # Peers print; what they print must not pass for an answer.
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    kind = PEERS[name]
    made: list[Any] = []
    started = answer(lambda: made.append(kind(Path(folder))))
    versions = ", ".join(f"{package} {version(package)}" for package in kind.packages)
    print(json.dumps(started | {"versions": versions}), file=out)
    for line in sys.stdin:
        operation, argument = json.loads(line)
        print(json.dumps(answer(partial(made[0].operations[operation], argument))), file=out)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
