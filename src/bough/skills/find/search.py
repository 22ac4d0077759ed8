"""Finding skills by words: SQLite's FTS5 with bm25 over names, descriptions and keywords, in memory.

A request often uses another word than the skill's author. Authors list such words next to each other ("Use when the
user wants to shorten or condense a text"), so the skills themselves show which words are related: two words are related
if few skills have either word, and many of these skills have both.

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
"""For how many words of a query, from the first on, related words are added."""

_MAX_RELATED = 3
"""How many related words are added for each word of a query."""

_MAX_SAMPLE = 200
"""How many skills with a word are examined to find the words related to it."""

_MAX_CANDIDATES = 8
"""How many words are considered as related to a word of a query."""

_MIN_JOINT_COUNT = 2
"""How many skills must have both of two words for these words to count as related."""

_MIN_ASSOCIATION = 0.1
"""Minimum of `skills with both ** 2 / (skills with one * skills with the other)`; 1: no skill has only one of them."""

_MIN_LIFT = 2.0
"""How many times more often than by chance skills must have both words."""

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
        skills: The skills to search.
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
                    position,
                    re.sub(r"[-_]", " ", skill.name),
                    skill.description,
                    " ".join((*skill.keywords, *list_trigger_words(skill.trigger))),
                )
                for position, skill in enumerate(self._skills)
            ),
        )

    def search(self, query: str, limit: int = 5) -> list[SkillMetadata]:
        """Return the skills that match `query`, best match first; words in names count most. Any text is a valid query.

        Results for the query's own words alternate with results that include related words. So a skill is found even
        if its author used another word, and the best matches for the query itself stay in the list. O(matches), with a
        few SQL statements for each word.
        """
        words = self._choose_words(query)
        if not words or limit <= 0:
            return []
        rowids = self._rank(words, limit)
        related_words = self._find_related(words[:_MAX_EXPANDED])
        if related_words:
            alternating = chain.from_iterable(zip_longest(rowids, self._rank([*words, *related_words], limit)))
            rowids = list(dict.fromkeys(rowid for rowid in alternating if rowid is not None))[:limit]
        return [self._skills[rowid] for rowid in rowids]

    def _choose_words(self, query: str) -> list[str]:
        """Return the words to search for: without stop words, if enough others remain."""
        words = list(dict.fromkeys(_WORDS.findall(query.lower())))
        content_words = [word for word in words if word not in self._stop_words]
        return (content_words if len(content_words) >= _MIN_CONTENT_WORDS else words)[:_MAX_WORDS]

    def _rank(self, words: Sequence[str], limit: int) -> list[int]:
        """Return the positions of the skills that have any of the words, best match first."""
        rows = self._connection.execute(
            "select rowid from skill where skill match ? order by bm25(skill, 8.0, 2.0, 4.0), rowid limit ?",
            (_match_any(words), limit),
        )
        return [rowid for (rowid,) in rows]

    def _find_related(self, words: Sequence[str]) -> list[str]:
        """Return the words that are related to the words of a query, each once, without the query's own words."""
        stems = {_cut_inflection(word) for word in words}
        related_words: dict[str, None] = {}
        for word in words:
            sample = self._find_skills(word)
            scores = {
                other: score
                for other, count in self._list_candidates(sample, stems)
                if (score := self._score_relation(len(sample), other, count)) >= _MIN_ASSOCIATION
            }
            related_words |= dict.fromkeys(sorted(scores, key=lambda other: (-scores[other], other))[:_MAX_RELATED])
        return list(related_words)

    def _find_skills(self, word: str) -> list[int]:
        statement = "select rowid from skill where skill match ? limit ?"
        return [rowid for (rowid,) in self._connection.execute(statement, (_match_any([word]), _MAX_SAMPLE))]

    def _list_candidates(self, sample: Sequence[int], stems: set[str]) -> list[tuple[str, int]]:
        """Return the words most over-represented in a sample of skills, each with the number of skills that have it.

        Args:
            sample: Positions of the skills that have a word of the query.
            stems: Stems of the query's words, which are left out.
        """
        joint_counts = Counter(chain.from_iterable(self._list_words(rowid, stems) for rowid in sample))
        candidates = [(word, count) for word, count in joint_counts.items() if count >= _MIN_JOINT_COUNT]

        def rank_by_excess(candidate: tuple[str, int]) -> tuple[float, str]:
            word, count = candidate
            expected_count = len(sample) * self._usual_shares.get(word, 0.0)
            return expected_count - count, word

        return sorted(candidates, key=rank_by_excess)[:_MAX_CANDIDATES]

    @cached_property
    def _usual_shares(self) -> dict[str, float]:
        """The share of skills that have each word, estimated from evenly spaced skills, fewer than 400."""
        sample = range(0, len(self._skills), max(1, len(self._skills) // _MAX_SAMPLE))
        counts = Counter(chain.from_iterable(self._list_words(rowid, set()) for rowid in sample))
        return {word: count / len(sample) for word, count in counts.items()}

    def _list_words(self, rowid: int, stems: set[str]) -> set[str]:
        """Return the content words of a skill, except words with one of the stems."""
        skill = self._skills[rowid]
        words = _WORDS.findall(f"{skill.name.replace('_', ' ')} {skill.description}".lower())
        return {word for word in words if self._is_content(word) and _cut_inflection(word) not in stems}

    def _is_content(self, word: str) -> bool:
        return word not in self._stop_words and len(word) > 1 and not word.isdigit()

    def _score_relation(self, word_count: int, other: str, joint_count: int) -> float:
        """Return how closely two words are related, from 0 to 1.

        Args:
            word_count: How many skills have the first word.
            other: The second word.
            joint_count: How many skills have both words.
        """
        statement = "select count(*) from skill where skill match ?"
        ((other_count,),) = self._connection.execute(statement, (_match_any([other]),))
        is_chance = joint_count * len(self._skills) < _MIN_LIFT * word_count * other_count
        return 0.0 if is_chance else joint_count**2 / (word_count * other_count)


def _match_any(words: Iterable[str]) -> str:
    # Quoted, so that no word can be an operator of FTS5.
    return " OR ".join(f'"{word}"' for word in words)


def _cut_inflection(word: str) -> str:
    """Return a word without its English ending. Forms of a word with the same stem are not related words."""
    return _INFLECTION.sub("", word) if len(word) > 4 else word


def list_trigger_words(trigger: Trigger | None) -> tuple[str, ...]:
    """Return the keywords of a trigger; none for path patterns."""
    match trigger:
        case KeywordTrigger(words) | TaskTrigger(words):
            return words
        case _:
            return ()
