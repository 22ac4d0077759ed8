"""Which entry of a small set fits a prompt: BM25 puts them in order, coverage says whether the best fits at all.

BM25 compares entries with each other; with four skills in a catalogue its numbers say nothing about whether any of
them is meant. So an entry fits only when it covers more than half of what the prompt asks for.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bough.agents.models.planner.prompt import ACTIONS, Prompt, normalise

_NAME_WEIGHT = 4.0


@dataclass(frozen=True, kw_only=True)
class RankedSkill:
    """Something with a name that can be chosen: a skill, a script, a section."""

    name: str
    text: str = ""


class Index:
    """Entries in an in-memory FTS5 table, told apart by their place in the set; use it as a context manager."""

    def __init__(self, entries: Sequence[RankedSkill]) -> None:
        self._db = sqlite3.connect(":memory:")
        self._db.execute("CREATE VIRTUAL TABLE entry USING fts5(name, text, tokenize = 'porter unicode61')")
        rows = [(i, normalise(entry.name), normalise(entry.text)) for i, entry in enumerate(entries)]
        self._db.executemany("INSERT INTO entry (rowid, name, text) VALUES (?, ?, ?)", rows)

    def __enter__(self) -> Index:
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()

    def rank(self, words: Iterable[str]) -> list[int]:
        """Return the entries that share a word with `words`, best first; of equal ones the earlier first."""
        query = " OR ".join(f'"{word}"' for word in words)
        sql = f"SELECT rowid FROM entry WHERE entry MATCH ? ORDER BY bm25(entry, {_NAME_WEIGHT}, 1.0), rowid"  # noqa: S608
        return [row for (row,) in self._db.execute(sql, (query,))] if query else []

    def covers(self, words: Iterable[str], *, columns: str = "name text") -> dict[str, frozenset[int]]:
        """Return, for each word, the entries that hold it in `columns`."""
        sql = "SELECT rowid FROM entry WHERE entry MATCH ?"
        return {word: frozenset(r for (r,) in self._db.execute(sql, (f'{{{columns}}} : "{word}"',))) for word in words}


def best_fit(entries: Sequence[RankedSkill], prompt: Prompt) -> RankedSkill | None:
    """Return the best of the entries that cover more than half of what the prompt asks for, None when none does.

    General words ask for nothing, and a file type counts only where it is covered: `sales.csv` speaks for a skill about
    CSV, `notes.txt` against none. Where nothing else is asked, a general word or a file type is enough when it stands
    in the entry's name and something is named to work on: "count README.md". An entry that does not speak of an action
    that is asked for never fits. O(entries + words x matches).
    """
    words = (*prompt.words, *prompt.kinds)
    own = [word for word in prompt.words if word not in prompt.echoed]
    with Index(entries) as index:
        anywhere, in_name = index.covers(words), index.covers(words, columns="name")
        for row in dict.fromkeys([*index.rank(own), *index.rank(words)]):
            covered = [word for word in prompt.strong if row in anywhere[word]]
            kinds = [kind for kind in prompt.kinds if row in anywhere[kind]]
            missed = [word for word in own if word in prompt.strong and word not in covered]
            named = bool(prompt.args) and any(row in in_name[word] for word in words)
            most = not missed or len(covered) + len(kinds) > len(missed)
            if most and (covered or named) and ACTIONS.isdisjoint(missed):
                return entries[row]
    return None


def best_of(entries: Sequence[RankedSkill], words: Iterable[str]) -> RankedSkill:
    """Return the entry nearest to `words`, the first when none shares a word; `entries` must not be empty."""
    with Index(entries) as index:
        return entries[next(iter(index.rank(words)), 0)]
