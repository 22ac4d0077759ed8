"""Finding skills by words: SQLite's FTS5 with bm25 over names, descriptions and keywords, in memory.

A request often uses another word than the skill's author. Authors list such words next to each other ("Use when the
user wants to shorten or condense a text"), so the library itself shows which words are related: those of which few
skills have either, and many of these have both.

Source: query expansion by association matrices (van Rijsbergen, Information Retrieval, 1979, chapter 6).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import chain, zip_longest

from bough.skills.model import KeywordTrigger, SkillMetadata, TaskTrigger, Trigger

_WORDS = re.compile(r"\w+")
_INFLECTION = re.compile(r"(?:ing|ed|es|s|e)$")
_MAX_WORDS = 64
_MAX_EXPANDED = 16
"""Related words are looked up for this many words of a query, the first ones."""

_MAX_RELATED = 3
"""How many related words are added for one word of a query."""

_MAX_SAMPLE = 200
"""How many of the skills with a word are read to find the words related to it."""

_MAX_CANDIDATES = 8
_MIN_JOINT_COUNT = 2
_MIN_ASSOCIATION = 0.1
"""Minimum of `skills with both ** 2 / (skills with one * skills with the other)`; 1: the words always come together."""

_MIN_LIFT = 2.0
"""How many times more often than by chance two words must come together."""

_MIN_CONTENT_WORDS = 2
"""A query with at least this many content words is searched without its stop words."""

_STOP_WORDS = """
a about after all also am an and any are as at be because been before but by can could did do does
each for from get had has have he help her here him his how i if in into is it its just like make me
more my need no not now of on one or our out please she should so some such than that the their them
then there these they this those to up us use using want was we were what when where which who why
will with would you your
"""


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
                (
                    i,
                    re.sub(r"[-_]", " ", s.name),
                    s.description,
                    " ".join((*s.keywords, *list_trigger_words(s.trigger))),
                )
                for i, s in enumerate(self._skills)
            ),
        )

    def search(self, query: str, limit: int = 5) -> list[SkillMetadata]:
        """Return the skills that match `query` best, best first; words in names count most. Any text is a query.

        Results for the query's own words alternate with results that include related words. So a skill is found even
        if its author used another word, and none that matches the query itself is displaced. O(matches), a few
        statements for each word.
        """
        words = self._choose_words(query)
        if not words or limit <= 0:
            return []
        rowids = self._rank(words, limit)
        related = self._find_related(words[:_MAX_EXPANDED])
        if related:
            both = chain.from_iterable(zip_longest(rowids, self._rank([*words, *related], limit)))
            rowids = list(dict.fromkeys(rowid for rowid in both if rowid is not None))[:limit]
        return [self._skills[rowid] for rowid in rowids]

    def _choose_words(self, query: str) -> list[str]:
        words = list(dict.fromkeys(_WORDS.findall(query.lower())))
        content = [word for word in words if word not in self._stop_words]
        return (content if len(content) >= _MIN_CONTENT_WORDS else words)[:_MAX_WORDS]

    def _rank(self, words: Sequence[str], limit: int) -> list[int]:
        """Return the positions of the skills that have any of the words, best match first."""
        rows = self._connection.execute(
            "select rowid from skill where skill match ? order by bm25(skill, 8.0, 2.0, 4.0), rowid limit ?",
            (_match_any(words), limit),
        )
        return [rowid for (rowid,) in rows]

    def _find_related(self, words: Sequence[str]) -> list[str]:
        """Return the words that skills use together with those of a query, each once, without the query's own."""
        stems = {_cut_inflection(word) for word in words}
        related: dict[str, None] = {}
        for word in words:
            sample = self._find_skills(word)
            scored = {
                other: score
                for other, count in self._list_candidates(sample, stems)
                if (score := self._score(len(sample), other, count)) >= _MIN_ASSOCIATION
            }
            related |= dict.fromkeys(sorted(scored, key=lambda other: (-scored[other], other))[:_MAX_RELATED])
        return list(related)

    def _find_skills(self, word: str) -> list[int]:
        statement = "select rowid from skill where skill match ? limit ?"
        return [rowid for (rowid,) in self._connection.execute(statement, (_match_any([word]), _MAX_SAMPLE))]

    def _list_candidates(self, sample: Sequence[int], stems: set[str]) -> list[tuple[str, int]]:
        """Return the words that the skills of a sample have more often than skills in general, with their counts."""
        joint_counts = Counter(chain.from_iterable(self._list_words(rowid, stems) for rowid in sample))
        candidates = [(word, count) for word, count in joint_counts.items() if count >= _MIN_JOINT_COUNT]
        candidates.sort(
            key=lambda candidate: (len(sample) * self._usual_shares.get(candidate[0], 0.0) - candidate[1], candidate[0])
        )
        return candidates[:_MAX_CANDIDATES]

    @cached_property
    def _usual_shares(self) -> dict[str, float]:
        """Each word's share of the skills, estimated from every n-th of them: at most 200 are read."""
        sample = range(0, len(self._skills), max(1, len(self._skills) // _MAX_SAMPLE))
        counts = Counter(chain.from_iterable(self._list_words(rowid, set()) for rowid in sample))
        return {word: count / len(sample) for word, count in counts.items()}

    def _list_words(self, rowid: int, stems: set[str]) -> set[str]:
        """Return the content words of a skill, without those that have one of the stems."""
        skill = self._skills[rowid]
        words = _WORDS.findall(f"{skill.name.replace('_', ' ')} {skill.description}".lower())
        return {word for word in words if self._is_content(word) and _cut_inflection(word) not in stems}

    def _is_content(self, word: str) -> bool:
        return word not in self._stop_words and len(word) > 1 and not word.isdigit()

    def _score(self, count: int, other: str, joint_count: int) -> float:
        """Return how closely a word of `count` skills is related to `other`, which `joint_count` of them have, or 0."""
        statement = "select count(*) from skill where skill match ?"
        ((others,),) = self._connection.execute(statement, (_match_any([other]),))
        is_chance = joint_count * len(self._skills) < _MIN_LIFT * count * others
        return 0.0 if is_chance else joint_count**2 / (count * others)


def _match_any(words: Iterable[str]) -> str:
    # Quoted, so that no word can be an operator of FTS5.
    return " OR ".join(f'"{word}"' for word in words)


def _cut_inflection(word: str) -> str:
    """Return a word without its English ending, so that a word's own forms do not count as related to it."""
    return _INFLECTION.sub("", word) if len(word) > 4 else word


def list_trigger_words(trigger: Trigger | None) -> tuple[str, ...]:
    """Return the keywords of a trigger; none for path patterns."""
    match trigger:
        case KeywordTrigger(words) | TaskTrigger(words):
            return words
        case _:
            return ()
