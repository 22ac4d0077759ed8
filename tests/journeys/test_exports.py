"""Documents that a person exports and opens in a viewer: what a model or a tool wrote runs nothing there."""

from __future__ import annotations

from collections.abc import Callable

from markdown_it import MarkdownIt
from tests.journeys.conftest import Person

from bough.testing import Answer, OpenAIServer, ServerCall

_EVIL = "<img src=x onerror=alert(1)>"


def test_an_exported_document_has_no_html_of_a_model_or_a_tool(
    person: Person, openai_server: Callable[..., OpenAIServer]
) -> None:
    read = Answer(calls=(ServerCall(tool="read_file", arguments={"path": "page.html"}),))
    model = openai_server(read, f"It says {_EVIL}.\n\n```html\n<b>left open</b>")
    person.write({"page.html": f"{_EVIL}\n```\n{_EVIL}\n"})
    person.environment |= {"OPENAI_API_KEY": "k", "BOUGH_MODEL": "openai:test", "BOUGH_BASE_URL": model.url}
    person.bough("run", f"What does page.html say? {_EVIL}")
    document = person.bough("conv", "export", "-", "--format", "md").stdout
    tokens = MarkdownIt("commonmark", {"html": True}).parse(document)
    tokens += [child for token in tokens for child in token.children or []]
    assert [token.content for token in tokens if token.type.startswith("html")] == []
    blocks = [token.content for token in tokens if token.type == "fence"]
    assert "<b>left open</b>\n" in blocks, "code is as it was written"
    assert any(_EVIL in block for block in blocks), "what a tool returned stands in a fence"
    assert f"It says &lt;{_EVIL[1:]}." in document
