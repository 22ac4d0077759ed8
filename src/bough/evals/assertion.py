"""Assertions that code can decide: a closed list of forms. Every other text is a statement for the judge.

`contains: TEXT`, `matches: RE`, `file: GLOB`, `tool: NAME`, `check: SCRIPT ARGS`; `not ` before one negates it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal, TypeAlias, cast

CheckForm: TypeAlias = Literal["contains", "matches", "file", "tool", "check", "judge"]

FORMS = ("contains", "matches", "file", "tool", "check")
_FORM = re.compile(rf"(not )?({'|'.join(FORMS)}): *(\S.*)", re.DOTALL)
_LIKE_A_FORM = re.compile(r"(?:not\s+)?([A-Za-z]+)\s*:\s")


@dataclass(frozen=True, slots=True)
class AssertionCheck:
    """An assertion, read.

    Attributes:
        form: How it is decided; `judge` for a statement in words.
        argument: What stands behind the form; the whole text for the judge.
        negated: Whether it holds when the form does not.
    """

    text: str
    form: CheckForm
    argument: str
    negated: bool = False


def parse_check(text: str) -> AssertionCheck:
    """Return what an assertion asks."""
    found = _FORM.fullmatch(text.strip())
    if found is None:
        return AssertionCheck(text, "judge", text)
    return AssertionCheck(text, cast("CheckForm", found[2]), found[3].strip(), negated=bool(found[1]))


def mechanical_checks(texts: Sequence[str]) -> tuple[str, ...]:
    """Return the assertions that code can decide."""
    return tuple(text for text in texts if parse_check(text).form != "judge")


def misspelt_form(text: str) -> str | None:
    """Return the form that a statement for the judge seems to mean, None where it means none."""
    found = _LIKE_A_FORM.match(text.strip() + " ")
    if found is None or parse_check(text).form != "judge":
        return None
    near = get_close_matches(found[1].lower(), FORMS, 1, cutoff=0.75)
    return near[0] if near else None
