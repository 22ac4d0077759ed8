"""Messages, help, docstrings, comments and documentation avoid phrases that no engineer of the field would use."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

WRONG = {
    r"(?<!\b[tT]here )\b(is|are) no (?!longer\b|more\b|such\b|less\b|weaker\b|way\b|matter\b)\w+": "is not a …",
    r"\bhow to mend\b|\bmend (it|the|that)\b": "fix",
    r"\bno [\w ]{1,30} is called [{'\"]": "no … named",
    r"\bgo(es)? on with\b|\bgoing on with\b": "continue with",
    r"\b(is|are) there already\b": "already exists",
    r"\bcannot be had\b|\bcould not be had\b": "is not available",
    r"\bfor want of\b": "for lack of",
    r"\bnobody is there to be asked\b": "no terminal to ask on",
    r"\bnobody knows how\b": "unknown",
    r"\bsay it in another way\b": "rephrase it",
    r"\ba fault in bough\b": "internal error",
    r"\bwait(s)? for your yes\b": "requires approval",
    r"\btake(s|n)? in others\b|\bwas taken in\b": "import, install",
    r"\bmake room\b": "free space",
    r"\bgave up waiting\b": "timed out",
    r"\b(names no|is no place in a) conversation\b": "invalid …",
    r"\bletterbox\b|\blogbook\b|\bsurroundings\b|\bshelf\b|\bgrave\b|\bbehind (the|a) wall\b": "the field's own term",
}


def read_texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the strings and comments of a Python file, or the lines of a text, each with its line."""
    source = path.read_text("utf-8")
    if path.suffix != ".py":
        yield from enumerate(source.splitlines(), 1)
        return
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.STRING, tokenize.COMMENT):
            yield token.start[0], token.string


@cache
def read_all() -> list[tuple[str, str]]:
    """Return every text of the project, each with its place."""
    places = [*(ROOT / "src").rglob("*.py"), *(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "AGENTS.md"]
    return [(f"{path.relative_to(ROOT)}:{line}", text) for path in places for line, text in read_texts(path)]


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_phrase_is_not_used(wrong: str) -> None:
    pattern = re.compile(wrong)
    found = [f"{place}: {match[0]!r}" for place, text in read_all() for match in pattern.finditer(text)]
    assert not found, f"write {WRONG[wrong]!r} instead: {found}"
