"""The list of skills in a system prompt (tier 1): escaped XML, sorted, the same bytes for the same skills and request.

If the descriptions do not all fit, the skills that rank best for the request keep the most text. If not even a first
sentence of each fits, the list says how many skills are missing and how to find them.
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
_LEVELS = (MAX_DESCRIPTION, 512, 256)
_SCOPES: dict[Scope, int] = {"configured": 0, "code": 0, "project": 1, "user": 2, "installed": 3, "builtin": 4}
_ILLEGAL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_SENTENCE = re.compile(r"[.!?。！？](?=\s|$)|[。！？]")
_OPEN, _CLOSE = "<available_skills>\n", "</available_skills>"
_CLOSING_BYTES = 160
"""Reserved for the line that says how many more skills there are."""


@dataclass(frozen=True, slots=True)
class Catalog:
    """A rendered catalog.

    Attributes:
        complete: Whether every skill is listed, with at least a sentence; otherwise the others must be searched for.
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
    """Return the catalogue of the skills that a model may load; empty text if it may load no skill. O(text).

    Args:
        budget_tokens: For the catalogue and the tool schemas together.
        schema_bytes: Size of the tool schemas.
        request: What the user asked for. If space is short, the skills that match it best are preferred.
    """
    invocable = sorted((skill for skill in skills if skill.invocable), key=lambda skill: skill.name)
    if not invocable:
        return Catalog("", complete=True)
    bytes_left = 4 * budget_tokens - schema_bytes - len(_OPEN) - len(_CLOSE) - _CLOSING_BYTES
    full = [_render_line(skill, MAX_DESCRIPTION) for skill in invocable]
    everything = frozenset(skill.name for skill in invocable)
    if sum(map(_count_bytes, full)) <= bytes_left:
        return Catalog(_render_list(full), complete=True, shown=everything)
    short = {skill.name: _render_line(skill, 0) for skill in invocable}
    bytes_left -= sum(map(_count_bytes, short.values()))
    ranking = rank(invocable, request)
    if bytes_left >= 0:
        _lengthen_descriptions(short, ranking, bytes_left)
        return Catalog(_render_list([short[skill.name] for skill in invocable]), complete=True, shown=everything)
    bytes_left += sum(map(_count_bytes, short.values()))
    fitting: set[str] = set()
    for skill in ranking:
        size = _count_bytes(short[skill.name])
        if size <= bytes_left:
            bytes_left -= size
            fitting.add(skill.name)
    lines = [short[skill.name] for skill in invocable if skill.name in fitting]
    omitted = len(invocable) - len(fitting)
    more = f'<more count="{omitted}">search_skills finds them by words; list_skills lists them</more>\n'
    return Catalog(_render_list([*lines, more]), complete=False, shown=frozenset(fitting))


def rank(skills: Sequence[SkillMetadata], request: str) -> list[SkillMetadata]:
    """Return the skills, best match for the request first, then by scope and name."""
    places = {skill.name: place for place, skill in enumerate(SkillSearch(skills).search(request, len(skills)))}
    return sorted(
        skills, key=lambda skill: (places.get(skill.name, len(skills)), _SCOPES.get(skill.scope, 5), skill.name)
    )


def _lengthen_descriptions(lines: dict[str, str], ranking: Sequence[SkillMetadata], bytes_left: int) -> None:
    """Replace first sentences by longer descriptions, best-ranked skills first, as long as they fit."""
    for skill in ranking:
        for level in _LEVELS:
            longer = _render_line(skill, level)
            size = _count_bytes(longer) - _count_bytes(lines[skill.name])
            if size <= bytes_left:
                lines[skill.name] = longer
                bytes_left -= size
                break


def first_sentence(text: str) -> str:
    """Return the first sentence of a description, cut at 160 characters."""
    line = _clean(text)
    end = _SENTENCE.search(line)
    return cut(line if end is None else line[: end.end()], MAX_SENTENCE)


def cut(text: str, length: int) -> str:
    """Return at most `length` characters of a text, cut between words, with `…` where it was cut."""
    if len(text) <= length:
        return text
    head = text[: length - 1]
    whole = head.rpartition(" ")[0]
    return (whole if len(whole) > length // 2 else head).rstrip(" ,;:") + "…"


def _render_line(skill: SkillMetadata, length: int) -> str:
    """Return a skill's line with `length` characters of its description; 0: with its first sentence."""
    text = cut(_clean(skill.description), length) if length else first_sentence(skill.description)
    return f'<skill name="{escape(_clean(skill.name))}">{escape(text, quote=False)}</skill>\n'


def _render_list(lines: list[str]) -> str:
    return f"{_OPEN}{''.join(lines)}{_CLOSE}"


def _count_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


def _clean(text: str) -> str:
    """Return a text with single spaces; characters that XML forbids are replaced."""
    if text.isprintable() and "  " not in text:  # the common case, in a third of the time
        return text.strip(" ")
    return " ".join(_ILLEGAL.sub("\ufffd", text).split())
