"""Results that are too long to be shown: their two ends are, alike in every rendering, and every character is read."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.messages import BinaryContent, ToolReturn, ToolReturnPart

from bough.conversation import AsyncConversation
from bough.testing import tool_call

pytestmark = pytest.mark.anyio

WHOLE = "".join(f"{number:08d}\n" for number in range(960_000 // 9))
BOUND = 4 * 8000


def large() -> str:
    """Return a lot."""
    return WHOLE


def table() -> list[dict[str, int]]:
    """Return a lot that is not text."""
    return [{"row": number} for number in range(20_000)]


def fail() -> str:
    """Fail at length."""
    raise ValueError(WHOLE)


def contents(messages: Any) -> list[str]:
    parts = [part for message in messages for part in message.parts if isinstance(part, ToolReturnPart)]
    return [part.content if isinstance(part.content, str) else part.model_response_str() for part in parts]


def named(text: str) -> str:
    found = re.search(r'read_result\("([0-9a-f]{32})", offset=(\d+)', text)
    assert found
    return found[1]


@pytest.mark.parametrize("tool", [large, table, fail])
async def test_the_model_is_shown_two_ends_and_how_to_read_on(tool: Any, scripted: Any, start: Any) -> None:
    spec = scripted(tool_call(tool.__name__), "done", tools=(tool,))
    async with await start(spec) as conversation:
        await conversation.send_message("go")
        await conversation.run()
        (shown,) = contents(spec.model.asked[1].messages)
        assert len(shown) <= BOUND
        assert len(shown) > 0.9 * BOUND
        (outcome,) = [e.event async for e in conversation.events if e.kind in ("ToolReturned", "ToolFailed")]
        assert named(shown) == outcome.id.hex
        if tool is fail:
            assert outcome.error == f"ValueError: {WHOLE}", "the log has all of it"
        else:
            assert outcome.result == tool(), "the log has all of it"


async def test_what_fits_is_shown_whole(scripted: Any, start: Any) -> None:
    fitting = "x" * BOUND

    def fit() -> str:
        return fitting

    spec = scripted(tool_call("fit"), "done", tools=(fit,))
    async with await start(spec) as conversation:
        await conversation.send_message("go")
        await conversation.run()
        assert contents(spec.model.asked[1].messages) == [fitting]


async def test_an_eighth_of_a_small_window_is_the_bound(scripted: Any, start: Any) -> None:
    spec = scripted(tool_call("large"), "done", tools=(large,))
    spec.model.profile["context_window"] = 16_000
    async with await start(spec) as conversation:
        await conversation.send_message("go")
        await conversation.run()
        (shown,) = contents(spec.model.asked[1].messages)
        assert 4 * 1800 < len(shown) <= 4 * 2000


async def test_every_character_is_reached_here_after_a_resume_and_in_a_fork(
    scripted: Any, start: Any, store: Any
) -> None:
    read: list[str] = []

    def ask_on(asked: Any) -> Any:
        latest = contents(asked.messages)[-1]
        if latest.startswith("[characters"):
            head, _, text = latest.partition("\n")
            read.append(text)
            stop, length = map(int, re.findall(r"to (\d+) of (\d+)", head)[0])
            if stop == length:
                return "read"
        else:
            stop = 0
        return tool_call("read_result", result=named(contents(asked.messages)[0]), offset=stop)

    spec = scripted(tool_call("large"), *[ask_on] * 40, tools=(large,))
    async with await start(spec) as conversation:
        await conversation.send_message("go")
        assert (await conversation.run()).output == "read"
        assert "".join(read) == WHOLE
        assert all(len(text) <= BOUND for text in contents(spec.model.asked[-1].messages))
        whole = [
            tool_call("read_result", result=named(contents(await conversation.messages())[0]), offset=959_990),
            "end",
        ]
        again = scripted(*whole, tools=(large,))
        resumed = await AsyncConversation.open(conversation.id, store=store, agent=again)
        fork = await resumed.fork(agent=scripted(*whole, tools=(large,)))
        for other in (resumed, fork):
            before = contents(await other.messages())
            assert before == contents(await conversation.messages()), "the cut is the same in every rendering"
            await other.send_message("the end of it?")
            await other.run()
            assert contents(await other.messages())[-1].endswith(WHOLE[959_990:])
            await other.aclose()


async def test_places_that_match_are_found_in_bounded_time_and_text(scripted: Any, start: Any) -> None:
    def search(pattern: str) -> Any:
        return lambda asked: tool_call("read_result", result=named(contents(asked.messages)[0]), pattern=pattern)

    patterns = ["0009999[01]", r"\d+", r"(\d+)+x(\d+)+y", "(", r"(\d)\1"]
    spec = scripted(tool_call("large"), *map(search, patterns), "done", tools=(large,))
    async with await start(spec) as conversation:
        await conversation.send_message("go")
        await conversation.run()
        found = contents(await conversation.messages())[1:]
    assert found[0].startswith("[2 matches]")
    assert f"\n{WHOLE.index('00099990')}: " in found[0]
    assert found[1].startswith("[the first 200 matches; more from offset=")
    assert found[2] == "[0 matches]", "a pattern that explodes elsewhere takes linear time"
    assert "invalid pattern" in found[3] and "invalid pattern" in found[4]


async def test_a_result_of_another_conversation_and_places_outside_are_errors(scripted: Any, start: Any) -> None:
    spec = scripted(tool_call("large"), "done", tools=(large,))
    async with await start(spec) as conversation:
        await conversation.send_message("go")
        await conversation.run()
        there = named(contents(await conversation.messages())[0])
        (prompt,) = [e.event.id.hex async for e in conversation.events if e.kind == "UserMessage"]
        wrong = [("nonsense", 0), ("0" * 32, 0), (prompt, 0), (there, -1), (there, 10_000_000)]
        calls = [tool_call("read_result", result=result, offset=offset) for result, offset in wrong]
        own = scripted(*calls, "done", tools=(large,))
        await (fork := await conversation.fork(agent=own)).send_message("read")
        await fork.run()
        said = contents(await fork.messages())[1:]
        assert ["no result" in text for text in said] == [True, True, True, False, False]
        assert all("invalid offset" in text for text in said[3:])
        other_spec = scripted(tool_call("read_result", result=there), "done", tools=(large,))
        async with await start(other_spec) as other:
            await other.send_message("read")
            await other.run()
            assert "no result" in contents(await other.messages())[0], "of another conversation"
        await fork.aclose()


def endless() -> Any:
    return itertools.count()


def nested() -> Any:
    return {"rows": (number for number in range(3))}


def vast() -> Any:
    return [b"x" * (1 << 20)] * 100


def circular() -> Any:
    rows: list[Any] = []
    rows.append(rows)
    return rows


def gigabyte() -> Any:
    return "x" * (1 << 30)


def binary() -> Any:
    return b"\xff\xfe\x00" * 20_000


def vast_binary() -> Any:
    return bytes(64 << 20)


def nan() -> Any:
    return [float("nan"), float("inf")]


@pytest.mark.parametrize(
    ("tool", "says"),
    [
        (endless, "iterator (count)"),
        (nested, "iterator (generator)"),
        (vast, "more than 64 MiB"),
        (circular, ""),
        (gigabyte, "characters left out"),
        (binary, "characters left out"),
        (vast_binary, "left out: at most"),
        (nan, "NaN"),
    ],
)
async def test_whatever_a_tool_returns_the_run_goes_on(tool: Any, says: str, scripted: Any, start: Any) -> None:
    spec = scripted(tool_call(tool.__name__), "done", tools=(tool,))
    async with await start(spec) as conversation:
        await conversation.send_message("go")
        assert (await conversation.run()).output == "done"
        (shown,) = contents(await conversation.messages())
        assert says in shown
        assert len(shown) <= BOUND


async def test_files_are_never_cut(scripted: Any, start: Any) -> None:
    def image() -> Any:
        return ["a picture", BinaryContent(data=b"\x89PNG" + bytes(100_000), media_type="image/png")]

    spec = scripted(tool_call("image"), "done", tools=(image,))
    async with await start(spec) as conversation:
        await conversation.send_message("go")
        await conversation.run()
        (outcome,) = [e.event async for e in conversation.events if e.kind == "ToolReturned"]
        assert outcome.shown is None


async def test_files_that_are_too_many_are_left_out_and_the_text_stays(scripted: Any, start: Any) -> None:
    """The model keeps the text and the images that fit; each other one is a note in its place."""

    def photos() -> Any:
        large = [BinaryContent(data=b"\x89PNG" + bytes(5 << 20), media_type="image/png") for _ in range(4)]
        return ["four photos of the bridge", *large]

    spec = scripted(tool_call("photos"), "done", tools=(photos,))
    async with await start(spec) as conversation:
        await conversation.send_message("go")
        await conversation.run()
        (outcome,) = [e.event async for e in conversation.events if e.kind == "ToolReturned"]
        assert outcome.result[0] == "four photos of the bridge"
        kinds = [part["kind"] if isinstance(part, dict) else part.partition(":")[0] for part in outcome.result[1:]]
        note = "[a file of 5242884 bytes (image/png) was left out"
        assert kinds == ["binary", "binary", note, note]
        (shown,) = contents(spec.model.asked[1].messages)
        assert "four photos of the bridge" in shown and note in shown


async def test_any_number_and_size_of_files_leaves_the_text(scripted: Any, start: Any) -> None:
    """Fifty pictures, of 75 MB: eight fit; eight notes and a line stand for the others."""
    large = bytes(1_500_002)

    def plots() -> Any:
        pictures = [BinaryContent(data=b"\x89PNG" + large, media_type="image/png") for _ in range(50)]
        return ToolReturn("sales rose", content=["a plot a day", *pictures])

    spec = scripted(tool_call("plots"), "done", tools=(plots,))
    async with await start(spec) as conversation:
        await conversation.send_message("go")
        assert (await conversation.run()).output == "done"
        (plotted,) = [e.event async for e in conversation.events if e.kind == "ToolReturned"]
        texts = [part for part in plotted.result if isinstance(part, str)]
        assert len(plotted.result) - len(texts) == 8
        note = "[a file of 1500006 bytes (image/png) was left out: at most 16777216 base64 are kept]"
        rest = "[34 more files of 51000204 bytes were left out: at most 16777216 base64 are kept]"
        assert texts == ["sales rose", "a plot a day", *[note] * 8, rest]
        (shown,) = [text for text in contents(spec.model.asked[1].messages) if "sales rose" in text]
        assert rest in shown


async def test_files_commands_and_resources_go_through_the_one_place(start: Any, scripted: Any, tmp_path: Path) -> None:
    folder = tmp_path / "skills" / "long-list"
    (folder / "references").mkdir(parents=True)
    (folder / "scripts").mkdir()
    text = "Do it step by step. " * 3000
    (folder / "SKILL.md").write_text(f"---\nname: long-list\ndescription: Lists.\n---\n{text}")
    (folder / "references" / "all.md").write_text(WHOLE)
    (folder / "scripts" / "all.py").write_text("print('x' * 200_000)")
    (tmp_path / "all.txt").write_text(WHOLE)
    calls = [
        tool_call("read_file", path="all.txt", max_lines=100_000),
        tool_call("run_command", command="cat all.txt"),
        tool_call("load_skill", skill_name="long-list"),
        tool_call("load_skill_resource", skill_name="long-list", path="references/all.md"),
        tool_call("run_skill_script", skill_name="long-list", script_path="scripts/all.py"),
    ]
    spec = scripted(*calls, "done").model_copy(
        update={"skills": None, "skill_roots": (tmp_path / "skills",), "workspace_access": "run"}
    )
    async with await start(spec) as conversation:
        await conversation.send_message("go")
        await conversation.run()
        shown = contents(await conversation.messages())
        cut = ["read_result(" in each for each in shown]
        assert cut == [True, True, False, True, True], "instructions of a skill are worth nothing in halves"
        assert all(len(each) <= BOUND for each, is_cut in zip(shown, cut, strict=True) if is_cut)
        assert text.strip() in json.dumps(shown[2]) or text.strip() in shown[2]


async def test_it_is_offered_from_the_first_step_to_agents_that_have_tools(scripted: Any, start: Any) -> None:
    for tools, there in (((large,), True), ((), False)):
        spec = scripted("done", tools=tools)
        async with await start(spec) as conversation:
            await conversation.send_message("go")
            await conversation.run()
        assert ("read_result" in spec.model.asked[0].tools) == there
