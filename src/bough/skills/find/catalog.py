"""The list of skills in a system prompt (tier 1), as escaped XML. The same skills and request give the same bytes.

If the descriptions exceed the budget, the skills that match the request best are listed with the most text. If even one
sentence for each skill exceeds it, the list says how many skills are missing and how to find them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from bough.skills.find.search import SkillSearch
from bough.skills.model import Scope, SkillMetadata

MAX_DESCRIPTION = 1_024
MAX_SENTENCE = 160
_DESCRIPTION_LENGTHS = (MAX_DESCRIPTION, 512, 256)
_SCOPE_RANKS: dict[Scope, int] = {"configured": 0, "code": 0, "project": 1, "user": 2, "installed": 3, "builtin": 4}
_ILLEGAL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_SENTENCE = re.compile(r"[.!?。！？](?=\s|$)|[。！？]")
_OPEN, _CLOSE = "<available_skills>\n", "</available_skills>"
_RESERVED_BYTES = 160
"""Reserved for the line that says how many skills are not listed."""


@dataclass(frozen=True, slots=True)
class Catalog:
    """A rendered catalog.

    Attributes:
        complete: Whether every skill is listed, with at least one sentence.
        shown: Names of the listed skills.
    """

    text: str
    complete: bool
    shown: frozenset[str] = frozenset()


def estimate_tokens(text: str) -> int:
    """Return an estimate of a text's length in tokens: one per four bytes, rounded up."""
    return (_count_bytes(text) + 3) // 4


def render_catalog(
    skills: Sequence[SkillMetadata], *, budget_tokens: int, schema_bytes: int = 0, request: str = ""
) -> Catalog:
    """Return the catalogue of the skills that a model may load; its text is empty if there are none. O(text).

    Args:
        budget_tokens: The limit for the catalogue and the tool schemas together.
        schema_bytes: Size of the tool schemas.
        request: The user's message. If not everything fits, the skills that match it best are preferred.
    """
    invocable = sorted((skill for skill in skills if skill.invocable), key=lambda skill: skill.name)
    if not invocable:
        return Catalog("", complete=True)
    bytes_left = 4 * budget_tokens - schema_bytes - len(_OPEN) - len(_CLOSE) - _RESERVED_BYTES
    full_lines = [_render_line(skill, MAX_DESCRIPTION) for skill in invocable]
    all_names = frozenset(skill.name for skill in invocable)
    if sum(map(_count_bytes, full_lines)) <= bytes_left:
        return Catalog(_render_list(full_lines), complete=True, shown=all_names)
    short_lines = {skill.name: _render_line(skill, 0) for skill in invocable}
    bytes_left -= sum(map(_count_bytes, short_lines.values()))
    ranking = rank(invocable, request)
    if bytes_left >= 0:
        _lengthen_descriptions(short_lines, ranking, bytes_left)
        return Catalog(_render_list([short_lines[skill.name] for skill in invocable]), complete=True, shown=all_names)
    bytes_left += sum(map(_count_bytes, short_lines.values()))
    shown_names: set[str] = set()
    for skill in ranking:
        size = _count_bytes(short_lines[skill.name])
        if size <= bytes_left:
            bytes_left -= size
            shown_names.add(skill.name)
    lines = [short_lines[skill.name] for skill in invocable if skill.name in shown_names]
    omitted = len(invocable) - len(shown_names)
    omission_line = f'<more count="{omitted}">search_skills finds them by words; list_skills lists them</more>\n'
    return Catalog(_render_list([*lines, omission_line]), complete=False, shown=frozenset(shown_names))


def rank(skills: Sequence[SkillMetadata], request: str) -> list[SkillMetadata]:
    """Return the skills sorted by how well they match the request, then by scope and name."""
    matches = SkillSearch(skills).search(request, len(skills))
    positions = {skill.name: position for position, skill in enumerate(matches)}

    def sort_key(skill: SkillMetadata) -> tuple[int, int, str]:
        return positions.get(skill.name, len(skills)), _SCOPE_RANKS.get(skill.scope, 5), skill.name

    return sorted(skills, key=sort_key)


def _lengthen_descriptions(lines: dict[str, str], ranking: Sequence[SkillMetadata], bytes_left: int) -> None:
    """Replace first sentences with longer descriptions while they fit, in the order of the ranking."""
    for skill in ranking:
        for length in _DESCRIPTION_LENGTHS:
            longer_line = _render_line(skill, length)
            added_bytes = _count_bytes(longer_line) - _count_bytes(lines[skill.name])
            if added_bytes <= bytes_left:
                lines[skill.name] = longer_line
                bytes_left -= added_bytes
                break


def extract_first_sentence(text: str) -> str:
    """Return the first sentence of a description, cut at 160 characters."""
    line = _clean(text)
    end = _SENTENCE.search(line)
    return cut(line if end is None else line[: end.end()], MAX_SENTENCE)


def cut(text: str, length: int) -> str:
    """Return a text cut to at most `length` characters, between words if possible, and ending with `…` if cut."""
    if len(text) <= length:
        return text
    head = text[: length - 1]
    complete_words = head.rpartition(" ")[0]
    shortened = complete_words if len(complete_words) > length // 2 else head
    return shortened.rstrip(" ,;:") + "…"


def _render_line(skill: SkillMetadata, length: int) -> str:
    """Return a skill's line with up to `length` characters of its description; 0: with the first sentence."""
    text = cut(_clean(skill.description), length) if length else extract_first_sentence(skill.description)
    return f'<skill name="{escape(_clean(skill.name))}">{escape(text, quote=False)}</skill>\n'


def _render_list(lines: list[str]) -> str:
    return f"{_OPEN}{''.join(lines)}{_CLOSE}"


def _count_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


def _clean(text: str) -> str:
    """Return a text on one line with single spaces; characters that XML forbids are replaced with U+FFFD."""
    if text.isprintable() and "  " not in text:  # the common case, three times as fast
        return text.strip(" ")
    return " ".join(_ILLEGAL.sub("\ufffd", text).split())
