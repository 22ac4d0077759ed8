"""The list of skills in a system prompt (tier 1): XML, escaped, sorted, the same bytes for the same skills."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from bough.skills.model import SkillMetadata

_ILLEGAL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_OPEN, _CLOSE = "<available_skills>\n", "</available_skills>"


@dataclass(frozen=True, slots=True)
class Catalog:
    """A rendered catalog.

    Attributes:
        complete: Whether every skill is in it with its description; else skills have to be searched for.
    """

    text: str
    complete: bool


def tokens_of(text: str) -> int:
    """An estimate of a text's length in tokens: one for four bytes, rounded up."""
    return (len(text.encode("utf-8", "replace")) + 3) // 4


def render_catalog(skills: Sequence[SkillMetadata], *, budget_tokens: int) -> Catalog:
    """Return the catalog of the skills a model may load; empty text when there are none. O(text).

    With descriptions when that fits the budget, else names only, else as many names as fit.
    """
    shown = sorted((skill for skill in skills if skill.invocable), key=lambda skill: skill.name)
    if not shown:
        return Catalog("", complete=True)
    full = _frame([f"<skill name={_attribute(s.name)}>{_text(s.description)}</skill>\n" for s in shown])
    if tokens_of(full) <= budget_tokens:
        return Catalog(full, complete=True)
    names = [f"<skill name={_attribute(skill.name)}/>\n" for skill in shown]
    return Catalog(_frame(_fitting(names, budget_tokens)), complete=False)


def _fitting(lines: list[str], budget_tokens: int) -> list[str]:
    left = budget_tokens * 4 - len(_OPEN) - len(_CLOSE)
    fitting: list[str] = []
    for line in lines:
        left -= len(line.encode("utf-8", "replace"))
        if left < 0:
            break
        fitting.append(line)
    return fitting


def _frame(lines: list[str]) -> str:
    return f"{_OPEN}{''.join(lines)}{_CLOSE}"


def _text(text: str) -> str:
    return escape(_line(text), quote=False)


def _attribute(text: str) -> str:
    return f'"{escape(_line(text))}"'


def _line(text: str) -> str:
    """The words of a text with one blank between them; what XML forbids is replaced."""
    if text.isprintable() and "  " not in text:  # nearly always, and in a third of the time
        return text.strip(" ")
    return " ".join(_ILLEGAL.sub("\ufffd", text).split())
