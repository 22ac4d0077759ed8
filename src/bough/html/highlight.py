"""Code as HTML with a class for keywords, strings and comments. The classes are ours; none comes from the code."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from markupsafe import Markup, escape
from pygments.lexers import get_lexer_by_name  # pyright: ignore[reportUnknownVariableType]
from pygments.token import Token

from bough.html.invisible import show_block

MAX_CODE_BYTES: Final = 1 << 16
MAX_CODE_LINES: Final = 5000
"""Larger blocks are visible without highlighting."""

_CACHED_BLOCKS: Final = 128
_LANGUAGES: Final = {
    "bash": "bash", "sh": "bash", "shell": "bash", "c": "c", "h": "c", "cpp": "cpp", "cc": "cpp", "css": "css",
    "go": "go", "html": "html", "htm": "html", "ini": "ini", "cfg": "ini", "java": "java", "js": "javascript",
    "javascript": "javascript", "mjs": "javascript", "json": "json", "kt": "kotlin", "py": "python",
    "python": "python", "pyi": "python", "rb": "ruby", "rs": "rust", "rust": "rust", "sql": "sql", "toml": "toml",
    "ts": "typescript", "typescript": "typescript", "yaml": "yaml", "yml": "yaml",
}  # fmt: skip
"""The lexer for a language's name or a file's extension. Other languages are not highlighted."""


def find_language(name: str) -> str:
    """Return the lexer for the name of a language, or for a path by its extension; empty if there is none."""
    return _LANGUAGES.get(name.rpartition(".")[2].strip().lower(), "")


def highlight(text: str, language: str = "") -> Markup:
    """Return code for a `<pre>` as escaped HTML.

    Args:
        language: A result of `find_language`; empty for no highlighting.
    """
    visible = show_block(text)
    if not language or len(visible) > MAX_CODE_BYTES or visible.count("\n") >= MAX_CODE_LINES:
        return escape(visible)
    return _highlight(visible, language)


def highlight_lines(text: str, language: str = "") -> list[Markup]:
    """Return the lines of code as escaped HTML, each complete in itself."""
    return [Markup(line) for line in str(highlight(text, language)).split("\n")]  # noqa: S704 - escaped line by line


@lru_cache(maxsize=_CACHED_BLOCKS)
def _highlight(text: str, language: str) -> Markup:
    classes = {Token.Keyword: "k", Token.Literal.String: "s", Token.Comment: "c"}
    lexer = get_lexer_by_name(language, stripnl=False, ensurenl=False)
    pieces: list[Markup] = []
    for kind, value in lexer.get_tokens(text):
        name = next((name for token, name in classes.items() if kind in token), None)
        for number, line in enumerate(value.split("\n")):
            # A token of several lines becomes an element a line, so that lines can be taken apart.
            pieces.append(Markup("\n") if number else Markup())
            if line:
                pieces.append(escape(line) if name is None else Markup('<span class="{}">{}</span>').format(name, line))
    return Markup().join(pieces)
