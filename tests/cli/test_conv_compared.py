"""What a comparison overlooks, and what a deletion must not end: logs that a program made, seen by the command line."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from bough.agents.spec import AgentSpec
from bough.conversation import AsyncConversation, Turn
from bough.events import open_store
from bough.events.lease import hold_lease
from bough.testing import ScriptedModel, tool_call

LONG = "\n".join(f"line {number}" for number in range(60))


def note(text: str) -> str:
    """Write a note."""
    return "noted"


async def make_forks(url: str, folder: Path) -> tuple[str, str]:
    """Two forks whose answers differ in their last line, and whose calls differ behind the 500th character."""
    ids: list[str] = []
    spec = AgentSpec(model=ScriptedModel([]), tools=(note,), skills=())
    async with await AsyncConversation.create(spec, workspace=folder, store=url) as source:
        for end in ("red", "blue"):
            model = ScriptedModel([tool_call("note", text="x" * 500 + end), f"{LONG}\n{end}"])
            async with await source.fork(agent=spec.model_copy(update={"model": model})) as fork:
                await fork.send_message("go")
                await fork.run()
                ids.append(str(fork.id))
    return ids[0], ids[1]


def test_a_diff_compares_whole_texts_and_arguments(cli: Any, bough_home: Path, tmp_path: Path) -> None:
    bough_home.mkdir(exist_ok=True)
    one, other = asyncio.run(make_forks(f"sqlite:///{bough_home / 'bough.db'}", tmp_path))
    lines = cli("conv", "diff", one, other).stdout.splitlines()
    for mark in ("- ", "+ "):
        marked = [line for line in lines[2:] if line.startswith(mark)]
        assert any("call" in line or "note" in line for line in marked), lines
        assert any("line 0" in line for line in marked), "a text that differs behind what is shown differs"
    assert any("user" in line and line.startswith("  ") for line in lines), "what is the same is not a difference"
    same = cli("conv", "diff", one, one).stdout.splitlines()
    assert not [line for line in same[2:] if line.startswith(("- ", "+ "))]


def test_the_latest_conversation_is_compared_with_its_source(cli: Any) -> None:
    assert cli("run", "bake a cake").returncode == 0
    alone = cli("conv", "diff", "-")
    assert (alone.returncode, alone.stdout) == (2, "")
    assert "is the latest conversation and no fork" in alone.stderr
    assert cli("fork", "-", "bake bread").returncode == 0
    data = cli.data("conv", "diff", "-")
    assert (data["a"]["conversation"]["title"], data["b"]["conversation"]["title"]) == ("bake a cake", "bake bread")
    source = data["a"]["conversation"]["short_id"]
    assert cli.data("conv", "diff", source)["a"] == data["a"], "another one is compared with the latest"
    assert cli("conv", "diff", "-", "-").returncode == 0
    fork = data["b"]["conversation"]["short_id"]
    assert cli("run", "a cake again").returncode == 0
    assert cli.data("conv", "diff", fork) == data, "a fork is compared with its source, also when it is not the latest"


def test_a_diff_can_end_with_a_turn(cli: Any, bough_home: Path, tmp_path: Path) -> None:
    bough_home.mkdir(exist_ok=True)

    async def make() -> tuple[str, str]:
        spec = AgentSpec(model=ScriptedModel(["one", "two", "three", "other two"]), skills=())
        url = f"sqlite:///{bough_home / 'bough.db'}"
        async with await AsyncConversation.create(spec, workspace=tmp_path, store=url) as source:
            for text in ("first", "second", "third"):
                await source.send_message(text)
                await source.run()
            async with await source.fork(at=Turn(1)) as fork:
                await fork.repeat((await source.turns())[1])
                await fork.run()
                return str(source.id), str(fork.id)

    source, fork = asyncio.run(make())
    assert "third" in cli("conv", "diff", source, fork).stdout
    bounded = cli("conv", "diff", source, fork, "--until", "2").stdout
    assert "third" not in bounded
    assert "other two" in bounded
    refused = cli("conv", "diff", source, fork, "--until", "4")
    assert refused.returncode == 2
    assert "there is no turn 4" in refused.stderr


def test_what_is_being_run_is_not_deleted(cli: Any, bough_home: Path, tmp_path: Path) -> None:
    bough_home.mkdir(exist_ok=True)
    url = f"sqlite:///{bough_home / 'bough.db'}"
    one, other = asyncio.run(make_forks(url, tmp_path))

    async def delete_while_it_runs() -> Any:
        store = await open_store(url)
        try:
            async with hold_lease(store, await store.resolve(one)):
                return await asyncio.to_thread(cli, "conv", "delete", one, "--yes")
        finally:
            await store.aclose()

    refused = asyncio.run(delete_while_it_runs())
    assert refused.returncode == 7, refused
    assert "is running" in refused.stderr
    listed = {each["id"] for each in cli.data("conv", "list", "--all")["conversations"]}
    assert {one, other} <= listed
    assert cli("conv", "delete", one, "--yes").returncode == 0, "once it has ended"


def test_with_force_its_run_is_interrupted_first(cli: Any, bough_home: Path, tmp_path: Path) -> None:
    bough_home.mkdir(exist_ok=True)
    url = f"sqlite:///{bough_home / 'bough.db'}"

    async def delete_while_it_runs() -> tuple[Any, Any]:
        asked, never = asyncio.Event(), asyncio.Event()

        async def hang(_: object) -> str:
            asked.set()
            await never.wait()
            return "never"

        spec = AgentSpec(model=ScriptedModel([hang]), skills=())
        async with await AsyncConversation.create(spec, workspace=tmp_path, store=url) as conversation:
            await conversation.send_message("go")
            run = asyncio.create_task(conversation.run())
            await asked.wait()
            deleted = await asyncio.to_thread(cli, "conv", "delete", str(conversation.id), "--yes", "--force")
            return deleted, await run

    deleted, result = asyncio.run(delete_while_it_runs())
    assert deleted.returncode == 0, deleted
    assert (result.status, result.reason) == ("paused", "interrupted")
    assert cli.data("conv", "list")["conversations"] == []
