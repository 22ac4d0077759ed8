"""`bough acp` as editors use it: the Python client of the protocol over the streams of a real process."""

from __future__ import annotations

import asyncio
import base64
import struct
import zlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from acp import embedded_text_resource, image_block, resource_block, text_block
from acp.exceptions import RequestError
from tests.server.acp.editor import ALLOWED, REJECTED, connect, connect_to

from bough.testing import OpenAIServer
from bough.testing.openai_server import Answer, Hang, Received, ServerCall

pytestmark = pytest.mark.anyio


def write_file(path: str, content: str = "x") -> Answer:
    return Answer(calls=(ServerCall(tool="write_file", arguments={"path": path, "content": content}),))


def make_png() -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0\0")) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def answer_with(*answers: dict[str, Any]) -> Callable[[Any], Awaitable[dict[str, Any]]]:
    remaining = iter(answers)

    async def decide(_: Any) -> dict[str, Any]:
        return next(remaining)

    return decide


async def refuse(request: Awaitable[Any]) -> RequestError:
    with pytest.raises(RequestError) as raised:
        await request
    return raised.value


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    skill = folder / ".agents" / "skills" / "greet"
    skill.mkdir(parents=True)
    (skill / "SKILL.md").write_text("---\nname: greet\ndescription: Greets people.\n---\nSay hello.\n")
    return folder


async def test_calls_are_decided_in_the_editor_and_the_session_is_loaded(folder: Path, bough_home: Path) -> None:
    edited = ALLOWED | {"_meta": {"bough": {"arguments": {"path": "c.txt", "content": "y"}}}}
    decide = answer_with(ALLOWED, REJECTED, edited)
    steps = [write_file("a.txt"), write_file("b.txt"), write_file("d.txt"), "written"]
    async with connect(folder, bough_home, steps, "--policy", "ask", decide=decide) as (editor, agent, _, model):
        created = await agent.new_session(cwd=str(folder))
        session = created.session_id
        assert created.modes is not None
        assert [mode.id for mode in created.modes.available_modes] == ["ask"], "--policy is the widest mode"
        image = image_block(base64.b64encode(make_png()).decode(), "image/png")
        notes = resource_block(embedded_text_resource("file:///notes.md", "the notes"))
        answer = await agent.prompt(session_id=session, prompt=[text_block("write"), image, notes])
        assert answer.stop_reason == "end_turn"
        assert answer.usage is not None
        assert answer.usage.total_tokens > 0
        assert editor.read_text(session) == "written"
        (asked, *_) = editor.asked
        assert (asked.title, asked.kind) == ("write_file a.txt", "edit")
        assert asked.raw_input == {"path": "a.txt", "content": "x"}
        started = editor.list_updates(session, "tool_call")
        assert [call.tool_call_id for call in started] == [call.tool_call_id for call in editor.asked]
        ends = [update.status for update in editor.list_updates(session, "tool_call_update")]
        assert ends == ["in_progress", "completed", "failed", "in_progress", "completed"]
        assert sorted(file.name for file in folder.iterdir()) == [".agents", "a.txt", "c.txt"]
        await editor.wait_for(lambda: bool(editor.list_updates(session, "available_commands_update")))
        (commands,) = editor.list_updates(session, "available_commands_update")
        assert "greet" in {command.name for command in commands.available_commands}
        sent = str(model.received[0].body)
        assert "the notes" in sent
        assert "image/png" in sent

        shown, editor.updates = editor.updates, []
        await agent.load_session(cwd=str(folder), session_id=session)
        (text, picture, file, *_) = editor.list_updates(session, "user_message_chunk")
        assert (text.content.text, picture.content.mime_type, file.content.text) == ("write", "image/png", "[notes.md]")
        assert answer.field_meta is not None
        assert text.message_id == answer.field_meta["bough"]["message"], "message ids are event ids"
        assert editor.read_text(session) == "written"
        ids = {update.message_id for _, update in shown if update.session_update == "agent_message_chunk"}
        assert {chunk.message_id for chunk in editor.list_updates(session, "agent_message_chunk")} == ids


async def test_a_session_is_forked_at_any_message_and_listed(folder: Path, bough_home: Path) -> None:
    steps = ["one", "two", write_file("kept.txt"), "other", "branch", "again"]
    async with connect(folder, bough_home, steps) as (editor, agent, _, model):
        session = (await agent.new_session(cwd=str(folder))).session_id
        first = await agent.prompt(session_id=session, prompt=[text_block("first")])
        second = await agent.prompt(session_id=session, prompt=[text_block("second")])
        await agent.prompt(session_id=session, prompt=[text_block("third")])
        assert (folder / "kept.txt").exists()
        assert first.field_meta is not None
        assert second.field_meta is not None
        head, message = first.field_meta["bough"]["head"], second.field_meta["bough"]["message"]

        fork = await agent.fork_session(session_id=session, cwd=str(folder), bough={"at": head, "files": "copy"})
        assert fork.field_meta is not None
        workspace = Path(fork.field_meta["bough"]["workspace"])
        assert workspace != folder
        assert not (workspace / "kept.txt").exists(), "the files are those at the cut"
        await agent.prompt(session_id=fork.session_id, prompt=[text_block("else")])
        assert editor.read_text(fork.session_id) == "branch"
        assert read_texts(model.received[-1]) == ["first", "one", "else"]

        rewound = await agent.fork_session(session_id=session, cwd=str(folder), claudeCode={"rewindTo": message})
        assert rewound.field_meta is not None
        assert rewound.field_meta["bough"]["workspace"] == str(folder)
        await agent.prompt(session_id=rewound.session_id, prompt=[text_block("better")])
        assert read_texts(model.received[-1]) == ["first", "one", "better"]
        at_event = await agent.fork_session(session_id=session, cwd=str(folder), bough={"at": message})
        await agent.load_session(session_id=at_event.session_id, cwd=str(folder))
        chunks = editor.list_updates(at_event.session_id, "user_message_chunk")
        assert [chunk.content.text for chunk in chunks] == ["first", "second"], "the event is kept"

        listed = await agent.list_sessions(cwd=str(folder))
        ids = {info.session_id for info in listed.sessions}
        assert ids == {session, rewound.session_id, at_event.session_id}
        assert len((await agent.list_sessions()).sessions) == 4
        for meta in ({"at": str(session)}, {"at": 999}, {"at": True}, {"at": "x"}, {"files": "all"}):
            await refuse(agent.fork_session(session_id=session, cwd=str(folder), bough=meta))


def read_texts(request: Received) -> list[str]:
    """What people and the model said, in the request to a model."""
    messages = request.body["messages"]
    return [message["content"] for message in messages if message["role"] in ("user", "assistant")]


async def test_a_cancelled_prompt_ends_at_once_and_the_session_goes_on(folder: Path, bough_home: Path) -> None:
    asked = asyncio.Event()

    async def never_answer(_: Any) -> dict[str, Any]:
        asked.set()
        return await asyncio.Future()

    steps = [Hang(), "after", write_file("a.txt"), "later", Hang()]
    async with connect(folder, bough_home, steps, decide=never_answer) as (editor, agent, process, model):
        created = await agent.new_session(cwd=str(folder))
        session = created.session_id
        assert created.modes is not None
        assert created.modes.current_mode_id == "rules"
        prompt = asyncio.create_task(agent.prompt(session_id=session, prompt=[text_block("wait")]))
        while not model.received:
            await asyncio.sleep(0.02)
        error = await refuse(agent.prompt(session_id=session, prompt=[text_block("another")]))
        assert "is answering a prompt" in str(error)
        await agent.cancel(session_id=session)
        await agent.cancel(session_id=session)
        assert (await prompt).stop_reason == "cancelled"
        answer = await agent.prompt(session_id=session, prompt=[text_block("go on")])
        assert (answer.stop_reason, editor.read_text(session)) == ("end_turn", "after")

        await agent.set_session_mode(session_id=session, mode_id="ask")
        prompt = asyncio.create_task(agent.prompt(session_id=session, prompt=[text_block("write")]))
        await asked.wait()
        await agent.cancel(session_id=session)
        assert (await prompt).stop_reason == "cancelled", "a client may never answer"
        await agent.prompt(session_id=session, prompt=[text_block("no")])
        assert not (folder / "a.txt").exists()
        await agent.close_session(session_id=session)
        await agent.close_session(session_id=session)
        prompt = asyncio.create_task(agent.prompt(session_id=session, prompt=[text_block("wait")]))
        while len(model.received) < 5:
            await asyncio.sleep(0.02)
        assert process.stdin is not None
        process.stdin.close()
        assert (await prompt).stop_reason == "cancelled", "a client that goes interrupts its runs"
        assert await process.wait() == 0


async def test_a_session_goes_on_in_another_process_after_a_kill(folder: Path, bough_home: Path) -> None:
    with OpenAIServer(["one", Hang(), "three"]) as model:
        async with connect_to(model, folder, bough_home) as (_, agent, process, _):
            session = (await agent.new_session(cwd=str(folder))).session_id
            await agent.set_session_mode(session_id=session, mode_id="allow")
            await agent.prompt(session_id=session, prompt=[text_block("first")])
            prompt = asyncio.create_task(agent.prompt(session_id=session, prompt=[text_block("second")]))
            while len(model.received) < 2:
                await asyncio.sleep(0.02)
            process.kill()
            with pytest.raises(ConnectionError):
                await prompt
        async with connect_to(model, folder, bough_home) as (editor, agent, _, _):
            resumed = await agent.resume_session(session_id=session, cwd=str(folder))
            assert resumed.modes is not None
            assert resumed.modes.current_mode_id == "allow"
            assert editor.list_updates(session, "user_message_chunk") == [], "a resumed session is not sent again"
            await agent.prompt(session_id=session, prompt=[text_block("third")])
            assert editor.read_text(session) == "three"
            assert read_texts(model.received[-1]) == ["first", "one", "second", "third"]
