"""Words and phrases of requests as data (`words.toml`), and the one spelling in which they are compared."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

_NOT = re.compile(r"\b(do|does|did|is|are|was|were|ca|wo|should|could|would|must|need|has|have|had|ai|sha)n'?t\b")
_IS = re.compile(r"\b(what|who|that|it|there|how|where)'s\b")
_ENDING = re.compile(r"'(?:s|d|m|re|ll|ve)\b")
_SPELLING = re.compile(r"(?<=\w\w\w)([iy])s(?=(?:e|ed|es|er|ers|ing|ation|ations)\b)")
_WORD = re.compile(r"[^\W_]+")
_FIRST_MARK = 0xF0000
MARK = "[\U000f0000-\U0010ffff]"
"""The characters that stand for the arguments of a message, in order, while its words are read; as a pattern."""


@cache
def _read_data() -> Mapping[str, Any]:
    return tomllib.loads(files("bough.agents.models.planner").joinpath("words.toml").read_text(encoding="utf-8"))


@cache
def word_list(name: str, table: str = "lists") -> frozenset[str]:
    """Return a list of `words.toml`; empty where it has none."""
    return frozenset(_read_data()[table].get(name, "").split())


@cache
def phrases(name: str) -> re.Pattern[str]:
    """Return a pattern of `words.toml` for normalised text."""
    text = "|".join(_read_data()["phrases"][name])
    for part, pattern in (("MARK", MARK), *_read_data()["parts"].items()):
        text = text.replace(f"<{part}>", pattern)
    return re.compile(text)


def normalise(text: str) -> str:
    """Return `text` in lower case with one spelling of `-ise` and `-yse`, of `n't` and of `'s`."""
    text = text.casefold().replace("’", "'").replace("cannot", "can not")
    if "'" in text or "nt" in text:
        text = _ENDING.sub("", _IS.sub(r"\1 is", _NOT.sub(r"\1 not", text)))
    return _SPELLING.sub(r"\1z", text)


def content_words(text: str) -> tuple[str, ...]:
    """Return the words of `text` that are not stop words: lower case, one spelling, each once, in order."""
    words = _WORD.findall(normalise(text))
    return tuple(dict.fromkeys(word for word in words if word not in word_list("stop") and len(word) > 1))


def make_mark(number: int) -> str:
    """Return the character that stands for an argument."""
    return chr(_FIRST_MARK + number)


def read_marks(text: str, names: list[str]) -> list[str]:
    """Return the arguments whose marks are in `text`, in order."""
    return [names[ord(mark) - _FIRST_MARK] for mark in re.findall(MARK, text)]


def read_kind(name: str) -> str:
    """Return the type of a file by its ending, as skills call it; empty without one."""
    stem, _, extension = re.split(r"[/\\]", name)[-1].rpartition(".")
    if not stem or not re.fullmatch(r"[A-Za-z][A-Za-z0-9]{0,9}", extension):
        return ""
    return str(_read_data()["kinds"].get(extension.lower(), extension.lower()))
