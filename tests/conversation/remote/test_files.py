"""The files of a conversation at past events: each test runs with a store of this process, and with a server."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tests.conversation.remote.conftest import ServedModel

from bough.conversation import AsyncConversation, Conversation, Turn
from bough.conversation.remote.remote import RemoteConversation
from bough.errors import Conflict, InvalidInput, NotFound
from bough.events.model import FilesKept
from bough.testing import Answer, ServerCall

pytestmark = pytest.mark.anyio


def write(path: str, content: str) -> Answer:
    return Answer(calls=(ServerCall(tool="write_file", arguments={"path": path, "content": content}, id=uuid4().hex),))


@pytest.fixture(scope="module")
def served_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedModel]:
    served = ServedModel(tmp_path_factory.mktemp("served"), keep_files=True)
    with served.model, served.server:
        yield served


@pytest.fixture
def at_place(place: Any, tmp_path: Path) -> Any:
    """Return a function that starts a conversation in a folder of its own, and returns it with the folder."""

    async def start(at: Any) -> tuple[Any, Path]:
        (tmp_path / "work").mkdir(exist_ok=True)
        if at.server is None:
            where = {**at.where, "settings": replace(at.where["settings"], keep_files=True)}
            at = replace(at, where=where, new={**at.new, "workspace": tmp_path / "work"})
        conversation = await at.start()
        return conversation, Path(conversation.workspace)

    return place, start


@pytest.mark.parametrize("name", ["files", "diff", "restore", "redo", "apply"])
def test_the_same_arguments_everywhere(name: str) -> None:
    kinds = (AsyncConversation, Conversation, RemoteConversation)
    parameters = [inspect.signature(getattr(kind, name)).parameters for kind in kinds]
    described = [[(item.name, item.kind, item.default) for item in items.values()] for items in parameters]
    assert described[0] == described[1] == described[2]


async def test_files_are_read_compared_restored_and_brought_back(at_place: Any) -> None:
    place, start = at_place
    with place(
        write("a.txt", "one\n"), "made", write("a.txt", "two\nlines\n"), write("b\\x.txt", "b"), "changed"
    ) as at:
        conversation, folder = await start(at)
        async with conversation:
            for text in ("make", "change"):
                await conversation.send_message(text)
                await conversation.run()
            first = await conversation.files(Turn(1))
            assert ([(file.path, file.kind, file.size) for file in first.entries]) == [("a.txt", "file", 4)]
            now = await conversation.files()
            assert (now.paths, now.read("a.txt"), now.read("b\\x.txt")) == (
                ("a.txt", "b\\x.txt"),
                b"two\nlines\n",
                b"b",
            )
            assert first.read("a.txt") == b"one\n"
            with pytest.raises(NotFound):
                first.read("../a.txt")

            (folder / "mine.txt").write_text("mine\n")
            (folder / "a.txt").write_bytes(b"two\nlines\nmine\n")
            changes = await conversation.diff(Turn(1))
            assert [item.path for item in changes.changes] == ["a.txt", "b\\x.txt", "mine.txt"]
            own = await conversation.diff(Turn(1), own=True)
            assert [(item.path, item.lines_added, item.lines_removed) for item in own.changes] == [
                ("a.txt", 2, 1),
                ("b\\x.txt", 1, 0),
            ]
            assert own.patch.startswith("--- a/a.txt\n+++ b/a.txt\n@@ -1 +1,2 @@\n-one\n+two\n+lines\n--- /dev/null\n")
            assert (await conversation.diff(Turn(1), own=True, paths=["b\\x.txt"])).stat == {"added": 1}
            assert (await conversation.diff(0, Turn(0), own=True)).changes == ()

            with pytest.raises(Conflict) as caught:
                await conversation.restore(Turn(1))
            assert caught.value.details["paths"] == ["a.txt"]
            planned = await conversation.restore(Turn(1), conflicts="leave", dry_run=True)
            assert ([item.path for item in planned.changes], planned.skipped) == (["b\\x.txt"], ("a.txt",))
            assert (folder / "b\\x.txt").exists()
            await conversation.restore(Turn(1), conflicts="force", paths=["a.txt"])
            assert (folder / "a.txt").read_text() == "one\n"
            await conversation.redo()
            assert (folder / "a.txt").read_text() == "two\nlines\nmine\n"
            with pytest.raises(InvalidInput):
                await conversation.files(10_000)
            kept = [stored.event.by async for stored in conversation.events if isinstance(stored.event, FilesKept)]
            assert kept[-3:] == ["outside", "restore", "restore"]


async def test_a_fork_is_applied_to_its_source(at_place: Any) -> None:
    place, start = at_place
    with place(write("a.txt", "one\n"), "made", write("a.txt", "better\n"), "done") as at:
        conversation, folder = await start(at)
        async with conversation:
            await conversation.send_message("make")
            await conversation.run()
            async with await conversation.fork(workspace="copy") as fork:
                await fork.send_message("better")
                await fork.run()
                assert (folder / "a.txt").read_text() == "one\n"
                assert (await conversation.diff(Turn(1), other=fork)).stat == {"changed": 1}
                assert (await conversation.apply(fork, dry_run=True)).stat == {"changed": 1}
                assert (await conversation.apply(fork)).stat == {"changed": 1}
                assert (await conversation.apply(fork)).changes == ()
            assert (folder / "a.txt").read_text() == "better\n"
