"""What notebooks show: results, states and trees as Markdown, in which foreign text stays text."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from markdown_it import MarkdownIt

from bough.agents.spec import AgentSpec
from bough.conversation import AsyncConversation, Conversation
from bough.conversation.result import RunResult, WaitingCall
from bough.events import open_store
from bough.events.model import Usage
from bough.execution import CodeExecutionResult, File
from bough.markdown import MAX_BLOCK_CHARS, MAX_CELL_CHARS, escape, fence, plain, table
from bough.settings import Settings
from bough.skills.run.scripts import ScriptResult
from bough.testing import ScriptedModel

EVIL = [
    "<img src=x onerror=alert(1)>",
    "<script>alert(1)</script>",
    "[bill](https://evil.example)",
    "![](https://evil.example/pixel.png)",
    "<https://evil.example>",
    "a | b\n\n# heading\n- list",
    "```\n</code><b>bold</b>",
    "`` ` ``` ```` ~~~",
    "$$\\href{javascript:alert(1)}{x}$$ \\(x\\)",
    "&lt;b&gt; &#60;",
    "[ref]: https://evil.example\n[ref]",
    "1. one\n    indented\n\tcode",
    "\u202egnp.exe \u2066 \x1b[31mred\x00",
    "*a* _b_ ~~c~~ **d**",
]


def read_markdown(markdown: str) -> tuple[set[str], str]:
    """Return the kinds of inline tokens and blocks in a document, and the text that a reader sees."""
    tokens = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).parse(markdown)
    inline = [child for token in tokens for child in token.children or ()]
    text = [token.content for token in (*tokens, *inline) if token.type in ("fence", "text", "text_special")]
    return {token.type for token in (*tokens, *inline)}, "".join(text)


ALLOWED = {
    "fence", "inline", "text", "paragraph_open", "paragraph_close", "bullet_list_open", "bullet_list_close",
    "list_item_open", "list_item_close", "table_open", "table_close", "thead_open", "thead_close", "tbody_open",
    "tbody_close", "tr_open", "tr_close", "th_open", "th_close", "td_open", "td_close",
}  # fmt: skip


@pytest.mark.parametrize("text", EVIL)
def test_foreign_text_stays_text(text: str) -> None:
    for markdown in (escape(text), fence(text), table([("title", text), (text, "value")])):
        kinds, shown = read_markdown(markdown)
        assert kinds <= ALLOWED, markdown
        assert "\u202e" not in shown and "\x1b" not in shown
    assert read_markdown(escape(text))[1] == plain(text), "a reader sees what was written"
    assert "$" not in escape(text) and "\\" not in escape(text), "formulas are found in the source"
    assert "://" not in escape(text), "and so are bare links"


def test_long_texts_are_cut() -> None:
    assert len(plain("a" * 10**6)) == MAX_CELL_CHARS + 1
    block = fence("b" * 10**6)
    assert len(block) < MAX_BLOCK_CHARS + 100 and "characters left out" in block


@pytest.mark.parametrize("text", EVIL)
def test_results_of_runs_and_programs_are_shown_as_they_are(text: str) -> None:
    call = WaitingCall(id="1", tool=text, arguments={text: text}, kind="approval")
    run = RunResult(
        conversation=UUID(int=7), status="waiting_for_confirmation", output=text, steps=1, start=0, stop=1,
        usage=Usage(input_tokens=1200, output_tokens=34), reason=text, waiting=(call,), data={"a": text},
    )  # fmt: skip
    data = text.encode()
    execution = CodeExecutionResult(
        stdout=data, stderr=data, exit_code=1, output_files=(File(path=text, content=data),), killed_by="memory",
        output_skipped=((text, text),), state_lost=True, state_lost_reason="timeout",
    )  # fmt: skip
    script = ScriptResult(status="error", stdout=text, stderr=text, error=text, skill=text, script=text)
    for shown in (run, execution, script):
        kinds, seen = read_markdown(shown._repr_markdown_())  # pyright: ignore[reportPrivateUsage]
        assert kinds <= ALLOWED
        assert plain(text).split()[0] in seen


def test_a_result_is_short_in_a_log() -> None:
    run = RunResult(
        conversation=UUID(int=7), status="finished", output="x\n" * 5000, steps=3, start=0, stop=9, usage=Usage()
    )
    assert repr(run) == f"<RunResult 00000007, finished, '{'x ' * 30}…', 3 steps>"


def test_conversations_states_and_trees_say_what_they_are(tmp_path: Path) -> None:
    settings = Settings.load(home=tmp_path / "home", env={}, cwd=tmp_path)
    spec: AgentSpec[Any] = AgentSpec(model=ScriptedModel(["one", "two"]), skills=())
    url = f"sqlite:///{tmp_path / 'log.db'}"
    options: Any = {"workspace": tmp_path, "store": url, "settings": settings}
    with Conversation(spec, title="<b>sales</b>\n[x](y)", **options) as conversation:
        name = conversation.short_id
        assert (
            repr(conversation) == f"<Conversation {name} '<b>sales</b> [x](y)', idle, {conversation.state.head} events>"
        )
        conversation.send_message("go")
        conversation.run()
        kinds, seen = read_markdown(conversation.state._repr_markdown_())  # pyright: ignore[reportPrivateUsage]
        assert kinds <= ALLOWED and "<b>sales</b> [x](y)" in seen and "finished" in seen
        with conversation.fork(title="```\nwhat if") as fork:
            lineage = fork.lineage()
            kinds, seen = read_markdown(lineage._repr_markdown_())  # pyright: ignore[reportPrivateUsage]
            head = fork.state.base
            assert kinds == {"fence"} and [record.id for record in lineage] == [conversation.id, fork.id]
            first, second = seen.splitlines()
            assert first.startswith(f"{name}  finished  ") and first.endswith("<b>sales</b> [x](y)")
            assert second.startswith(f"└─ @{head} {fork.short_id}  ") and second.endswith("``` what if")
        page = Conversation.list(url, settings=settings)
        assert read_markdown(page._repr_markdown_())[1] == seen  # pyright: ignore[reportPrivateUsage]
    assert repr(conversation).startswith(f"<Conversation {name} ")
    assert repr(Conversation.__new__(Conversation)) == "<Conversation, not open>"


@pytest.mark.anyio
async def test_an_asynchronous_conversation_names_its_class(tmp_path: Path) -> None:
    settings = Settings.load(home=tmp_path / "home", env={}, cwd=tmp_path)
    store = await open_store("memory:")
    spec: AgentSpec[Any] = AgentSpec(model=ScriptedModel(["one"]), skills=())
    async with await AsyncConversation.create(spec, workspace=tmp_path, store=store, settings=settings) as conversation:
        head = conversation.state.head
        assert repr(conversation) == f"<AsyncConversation {conversation.short_id}, idle, {head} events>"
    await store.aclose()
