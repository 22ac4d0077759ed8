"""Markdown in exported documents: shown by a viewer that renders HTML, nothing in it is a tag."""

from __future__ import annotations

import random
from urllib.parse import unquote

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from bough.cli.transcript import escape_html

EVIL = "<script>alert(1)</script>"


def parse(text: str) -> list[Token]:
    """Return all tokens as a viewer that allows HTML and any address of a link has them."""
    viewer = MarkdownIt("commonmark", {"html": True}).enable("table").enable("strikethrough")
    viewer.validateLink = lambda url: True  # type: ignore[method-assign]
    tokens = viewer.parse(text)
    return [*tokens, *(child for token in tokens for child in token.children or [])]


def find_active(text: str) -> list[str]:
    """Return what a viewer would run or offer to run."""
    tokens = parse(text)
    tags = [token.content for token in tokens if token.type in ("html_block", "html_inline")]
    links = [str(token.attrs.get("href") or token.attrs.get("src") or "") for token in tokens]
    bare = ("".join(char for char in unquote(link).lower() if char > " ") for link in links)  # as browsers read them
    return tags + [link for link in bare if link.startswith(("javascript:", "vbscript:"))]


def read_code(text: str) -> list[str]:
    """Return the contents of fenced blocks and code spans."""
    return [token.content.rstrip("\n") for token in parse(text) if token.type in ("fence", "code_inline")]


@pytest.mark.parametrize(
    "text",
    [
        EVIL,
        f"a {EVIL} b",
        "<!-- hidden",
        f"```\ncode\n```\n{EVIL}",
        f"- ~~~\n  ```\n  ~~~\n  {EVIL}\n  ```",
        f"  ~~~\n```\n~~~\n{EVIL}\n```",
        f"~~~ a`b\n```\n~~~\n{EVIL}\n```",
        f"1. item\n   ```\n{EVIL}\n   ```",
        f"> ```\n{EVIL}\n> ```",
        f"a `\nb ` {EVIL} `",
        f"\\` {EVIL} `",
        f"| a | b | c |\n|---|---|---|\n| ` | {EVIL} | ` |",
        "[a](javascript:alert(1))",
        "[a](java&#115;cript:alert(1))",
        "[a](javascript\\:alert(1))",
        "[a](<&#106;avascript:alert(1)>)",
        "[a](< javascript:alert(1)>)",
        "[a](\njavascript:alert(1))",
        "[a](\n[a](javascript:alert(1))",
        f"[a](<{'&Tab;' * 100}javascript:alert(1)>)",
        "> [a](\n> javascript:alert(1))",
        "[a]\n\n[a]: JavaScript:alert(1)",
        "<javascript:alert(1)>",
        "![a](vbscript:x)",
    ],
)
def test_nothing_is_a_tag_or_an_address_that_runs(text: str) -> None:
    assert find_active(text), "a viewer would run the text as it is"
    assert find_active(escape_html(text)) == []


def test_an_open_block_ends_with_its_text() -> None:
    assert find_active(f"```\nopen\n\n```\n{EVIL}\n```")
    assert find_active(f"{escape_html('```' + chr(10) + 'open')}\n\n```\n{EVIL}\n```") == []


def test_text_and_code_stay_readable() -> None:
    text = (
        "Compare a < b, write `<b>` or `a<T>`:\n\n1. First:\n   ```html\n   <p>\n     x\n   ```\n2. Then\n\n"
        "~~~~\n```\n<i>\n~~~~\n\n[site](https://example.org/?a=<b) and [file](notes/a.md) **bold** <em>\n"
    )
    escaped = escape_html(text)
    assert read_code(escaped) == ["<p>\n  x", "```\n<i>", "<b>", "a<T>"]
    assert "Compare a < b" in escaped
    assert "```html" in escaped
    assert "[file](notes/a.md) **bold** &lt;em>" in escaped
    assert escape_html("plain\n\n- a list\n") == "plain\n\n- a list\n"


def test_no_mixture_of_blocks_gets_a_tag_through() -> None:
    pieces = [
        "```", "````", "~~~", "~~~~", "~~~ a`b", "``` py", "  ```", "   ~~~", "    ```", "\t~~~", "- ```", "> ~~~",
        "- ", "> ", "1. x", "  y", "     z", "", "", "`", "``", "a ` b", "` | `", "\\`", "|---|", "| a | b |",
        "# h", "---", EVIL, f"`{EVIL}`", f"` {EVIL}", f"{EVIL} ``", f"    {EVIL}", f"  {EVIL}", f"> {EVIL}",
        f"- {EVIL}",
        "[a](javascript:b)", "[a](", "javascript:b)", "[a]: javascript:b", "<!--", "-->", "<a\nb>", "</pre>",
    ]  # fmt: skip
    draw = random.Random(7)
    for _ in range(4_000):
        text = "\n".join(draw.choices(pieces, k=draw.randint(1, 9)))
        assert find_active(escape_html(text)) == [], text
