"""Which skill fits a message: the best of those that account for everything the message says.

BM25 compares skills with each other; with four skills in a catalogue its numbers say nothing about whether any of them
is meant. So it only puts in order what accounts for the message.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from bough.agents.models.planner.needs import FIXED, Need
from bough.agents.models.planner.prompt import Prompt, clauses, read_prompt
from bough.agents.models.planner.words import normalise, word_list

_NAME_WEIGHT = 4.0
_RIVAL = 0.9
_ADVICE = re.compile(
    r"\buse (?=to\b)|\b(?:use )?(?:this |it )?(?:when|if|whenever) asked\b(?: for| about| to)?|\buse (?:when|if)\b"
)
_VERBS = re.compile(r"(?:^|[.;!?]\s+(?:to )?|\bto )(\w+(?:(?:, | or | and |, or |, and )\w+)*)")


@dataclass(frozen=True, kw_only=True)
class RankedSkill:
    """Something with a name that can be chosen: a skill, a script, a section."""

    name: str
    text: str = ""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A skill, and the part of the message that asks for it.

    Attributes:
        missing: What the skill's description does not account for.
        rival: Another skill that fits as well.
    """

    skill: str
    message: str
    prompt: Prompt
    missing: tuple[Need, ...] = ()
    rival: str = ""


class Index:
    """Entries in an in-memory FTS5 table, told apart by their place in the set; use it as a context manager."""

    def __init__(self, entries: Sequence[RankedSkill]) -> None:
        self._db = sqlite3.connect(":memory:")
        self._matched: dict[str, frozenset[int]] = {}
        self._db.execute(
            "CREATE VIRTUAL TABLE entry USING fts5(name, text, verbs, formats, tokenize = 'porter unicode61')"
        )
        rows = ((i, *_read_columns(entry)) for i, entry in enumerate(entries))
        self._db.executemany("INSERT INTO entry (rowid, name, text, verbs, formats) VALUES (?, ?, ?, ?, ?)", rows)

    def __enter__(self) -> Index:
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()

    def rank(self, words: Iterable[str]) -> dict[int, float]:
        """Return the entries that share a word with `words` and their scores, best first."""
        query = " OR ".join(f'{{name text}} : "{word}"' for word in words)
        score = f"-bm25(entry, {_NAME_WEIGHT}, 1.0, 0, 0)"
        sql = f"SELECT rowid, {score} FROM entry WHERE entry MATCH ? ORDER BY 2 DESC, 1"  # noqa: S608 - constants
        return dict(self._db.execute(sql, (query,))) if query else {}

    def match(self, query: str, columns: str = "name text") -> frozenset[int]:
        """Return the entries that match `query`, which may name its columns; a query is one statement, once."""
        whole = query if " : " in query or not query else f"{{{columns}}} : ({query})"
        if whole not in self._matched:
            rows = self._db.execute("SELECT rowid FROM entry WHERE entry MATCH ?", (whole,)) if whole else ()
            self._matched[whole] = frozenset(row for (row,) in rows)
        return self._matched[whole]

    def count(self, row: int, words: Iterable[str], columns: str = "name text") -> int:
        """Return how many of `words` the entry at `row` has in `columns`."""
        return sum(row in self.match(f'"{word}"', columns) for word in words)


def find_jobs(entries: Sequence[RankedSkill], message: str) -> list[Job]:
    """Return the jobs of `message` in order; none when nothing fits. No part that asks for something is passed over."""
    with Index(entries) as index:
        whole = _find_job(index, entries, message)
        if whole and not whole.missing:
            return [whole]
        several = list(_split(index, entries, message))
        is_refused = whole is None or any(need.kind in FIXED for need in whole.missing)
        in_part = _find_in_part(index, entries, message) if is_refused and not several else None
    if len(several) > 1:
        args = read_prompt(message).args
        return [
            job if job.prompt.args or job.missing else replace(job, prompt=replace(job.prompt, args=args))
            for job in several
        ]
    job = in_part or whole
    return [job] if job else []


def _find_in_part(index: Index, entries: Sequence[RankedSkill], message: str) -> Job | None:
    """Return the job of the first clause that is understood, which lacks the clauses that fit no skill.

    None unless there are both: a clause that a skill accounts for, and one that asks for something else.
    """
    jobs = {clause: _find_job(index, entries, clause) for clause in clauses(message)}
    understood = next((job for job in jobs.values() if job and not job.missing), None)
    # A clause without a content word, such as "thanks", asks for nothing.
    others = [clause for clause, job in jobs.items() if job is None and read_prompt(clause).strong]
    if understood is None or not others:
        return None
    forbidden = [need for clause in others for need in read_prompt(clause).needs if need.kind == "not"]
    return replace(understood, missing=(*forbidden, *(Need(text=clause, kind="phrase") for clause in others)))


def _split(index: Index, entries: Sequence[RankedSkill], message: str) -> Iterator[Job]:
    """Yield one job a skill; none when a clause asks for what fits nothing, or the first asks for nothing."""
    parts: dict[str, list[str]] = {}
    skill = ""
    for clause in clauses(message):
        job = _find_job(index, entries, clause)
        if job is None and read_prompt(clause).strong:
            return
        skill = job.skill if job else skill
        parts.setdefault(skill, []).append(clause)
    jobs = [_find_job(index, entries, " ; ".join(part)) for part in parts.values()]
    if [job.skill for job in jobs if job] == list(parts):
        yield from filter(None, jobs)


def _find_job(index: Index, entries: Sequence[RankedSkill], message: str) -> Job | None:
    """Return the best entry for `message`: one that accounts for all of it, else for more than half of its words.

    General words ask for nothing. Where nothing else is asked, a general word or a file type is enough when it stands
    in the entry's name and something is named to work on: "count README.md". O(entries + words x matches).
    """
    prompt = read_prompt(message)
    words = [word for word in (*prompt.words, *prompt.kinds) if word not in prompt.echoed or word in prompt.kinds]
    strong = [word for word in (*prompt.strong, *prompt.kinds) if word not in word_list("questions")]
    similar = [other for word in words for other in word_list(word, "synonyms")]
    matched = {need: index.match(need.query) for need in prompt.needs}
    fits: list[tuple[float, Job]] = []
    half: Job | None = None
    for row, score in index.rank([*words, *similar]).items():
        missing = tuple(need for need in prompt.needs if row not in matched[need])
        requested = [need.text for need in prompt.needs if need.kind in {"word", "role"} and row in matched[need]]
        name_matches = index.count(row, words, "name")
        says_what = bool(requested) and (bool(prompt.args) or not word_list("qualities").issuperset(requested))
        acts = word_list("acts").intersection(words)
        is_named = bool(prompt.args) and name_matches > 0 and index.count(row, acts) == len(acts)
        job = Job(skill=entries[row].name, message=message, prompt=prompt, missing=missing)
        if not missing and (says_what or is_named):
            fits.append((score, job))
        elif half is None and missing and requested:
            general = word_list("general").intersection(words)
            covered = index.count(row, strong) + index.count(row, general, "name")
            half = job if covered > sum(need.kind in {"word", "role"} for need in missing) else None
    if len(fits) > 1 and fits[1][0] >= _RIVAL * fits[0][0]:
        return replace(fits[0][1], rival=fits[1][1].skill)
    return fits[0][1] if fits else half


def find_missing(prompt: Prompt, entry: RankedSkill) -> tuple[Need, ...]:
    """Return what `entry` does not account for in `prompt`."""
    with Index([entry]) as index:
        return tuple(need for need in prompt.needs if not index.match(need.query))


def best_of(entries: Sequence[RankedSkill], words: Iterable[str]) -> RankedSkill:
    """Return the entry nearest to `words`, the first when none shares a word; `entries` must not be empty."""
    with Index(entries) as index:
        return entries[next(iter(index.rank(words)), 0)]


@lru_cache(maxsize=2_000)  # a turn plans after each call, and reading the texts costs more than indexing them
def _read_columns(entry: RankedSkill) -> tuple[str, str, str, str]:
    """Return the name and the text of `entry`, the verbs of what it does, and the formats of files it is for."""
    name, text = normalise(entry.name), _ADVICE.sub(" ", normalise(entry.text))
    verbs = [*re.split(r"[-_]", name)[-1:], *_VERBS.findall(text)]
    formats = word_list("names", "formats").intersection(re.split(r"\W+", text))
    return name, text, " ".join(verbs), " ".join(sorted(formats) or ["any"])
