"""Finding skills by words: SQLite's FTS5 with bm25 over names, descriptions and keywords, in memory."""

from __future__ import annotations

import re
from collections.abc import Sequence

from bough.skills.model import KeywordTrigger, SkillMetadata, TaskTrigger, Trigger

_WORDS = re.compile(r"\w+")
_MAX_WORDS = 64
_MIN_TELLING = 2
"""From so many words on that say something, those that say nothing are left out."""

_STOP_WORDS = """
a about after all also am an and any are as at be because been before but by can could did do does
each for from get had has have he help her here him his how i if in into is it its just like make me
more my need no not now of on one or our out please she should so some such than that the their them
then there these they this those to up us use using want was we were what when where which who why
will with would you your
"""
"""Words of a request that say nothing about a skill."""


class SkillSearch:
    """A full-text index over skills; built once, O(text).

    Args:
        skills: What can be found.
    """

    def __init__(self, skills: Sequence[SkillMetadata]) -> None:
        import sqlite3

        self._skills = list(skills)
        self._stop_words = frozenset(_STOP_WORDS.split())
        self._connection = sqlite3.connect(":memory:", check_same_thread=False)
        self._connection.execute(
            "create virtual table skill using fts5(name, description, keywords, tokenize='porter unicode61')"
        )
        self._connection.executemany(
            "insert into skill(rowid, name, description, keywords) values (?, ?, ?, ?)",
            (
                (i, re.sub(r"[-_]", " ", s.name), s.description, " ".join(_keywords(s)))
                for i, s in enumerate(self._skills)
            ),
        )

    def search(self, query: str, limit: int = 5) -> list[SkillMetadata]:
        """Return the skills that fit `query` best, best first; words of the name count most. Any text is a query."""
        words = list(dict.fromkeys(_WORDS.findall(query.lower())))
        telling = [word for word in words if word not in self._stop_words]
        words = (telling if len(telling) >= _MIN_TELLING else words)[:_MAX_WORDS]
        if not words or limit <= 0:
            return []
        match = " OR ".join(f'"{word}"' for word in words)
        rows = self._connection.execute(
            "select rowid from skill where skill match ? order by bm25(skill, 8.0, 2.0, 4.0), rowid limit ?",
            (match, limit),
        )
        return [self._skills[rowid] for (rowid,) in rows]


def _keywords(skill: SkillMetadata) -> tuple[str, ...]:
    return skill.keywords + trigger_words(skill.trigger)


def trigger_words(trigger: Trigger | None) -> tuple[str, ...]:
    """The keywords of a trigger; none for one of paths."""
    match trigger:
        case KeywordTrigger(words) | TaskTrigger(words):
            return words
        case _:
            return ()
