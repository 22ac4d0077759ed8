"""Which entry of a small set fits a prompt: BM25 puts them in order, coverage says whether the best fits at all.

BM25 compares entries with each other; with four skills in a catalogue its numbers say nothing about whether any of
them is meant. So an entry fits only when it covers more than half of what the prompt asks for.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from bough.agents.models.planner.prompt import Prompt, is_weak, normalise

_COVERAGE = 0.5
_WEAK_WEIGHT = 0.25
_NAME_WEIGHT = 4.0


@dataclass(frozen=True, kw_only=True)
class Entry:
    """Something with a name that can be chosen: a skill, a script, a section."""

    name: str
    text: str = ""


class Index:
    """Entries in an in-memory FTS5 table; close it, or use it as a context manager."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._entries = entries
        self._db = sqlite3.connect(":memory:")
        self._db.execute("CREATE VIRTUAL TABLE entry USING fts5(name, text, tokenize = 'porter unicode61')")
        rows = [(i, normalise(entry.name), normalise(entry.text)) for i, entry in enumerate(entries)]
        self._db.executemany("INSERT INTO entry (rowid, name, text) VALUES (?, ?, ?)", rows)

    def __enter__(self) -> Index:
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()

    def rank(self, words: Sequence[str]) -> list[Entry]:
        """Return the entries that share a word with `words`, best first; entries earlier in the set win a tie."""
        if not words:
            return []
        query = " OR ".join(f'"{word}"' for word in words)
        sql = f"SELECT rowid FROM entry WHERE entry MATCH ? ORDER BY bm25(entry, {_NAME_WEIGHT}, 1.0), rowid"  # noqa: S608
        return [self._entries[row] for (row,) in self._db.execute(sql, (query,))]

    def fits(self, entry: Entry, prompt: Prompt) -> bool:
        """Whether `entry` covers more than half of the prompt, and something in it that is not a commonplace.

        A general word counts a quarter. General words and file types count only where they are covered: `sales.csv`
        speaks for a skill about CSV, `notes.txt` against none.
        """
        covered = [word for word in prompt.words if self._has(entry, word)]
        kinds = [kind for kind in prompt.kinds if self._has(entry, kind)]
        weight = len(kinds) + sum(_WEAK_WEIGHT if is_weak(word) else 1.0 for word in covered)
        missed = sum(word not in covered for word in prompt.strong)
        if weight <= _COVERAGE * (weight + missed):
            return False
        if any(not is_weak(word) for word in covered):
            return True
        named = [word for word in (*covered, *kinds) if self._has(entry, word, column="name")]
        return bool(prompt.args and named)

    def _has(self, entry: Entry, word: str, *, column: str = "name text") -> bool:
        row = self._entries.index(entry)
        found = self._db.execute(
            "SELECT 1 FROM entry WHERE entry MATCH ? AND rowid = ?", (f'{{{column}}} : "{word}"', row)
        )
        return found.fetchone() is not None


def best_fit(entries: Sequence[Entry], prompt: Prompt) -> Entry | None:
    """Return the entry that fits `prompt` best, None when none fits. O(words x entries)."""
    with Index(entries) as index:
        ranked = index.rank((*prompt.words, *prompt.kinds))
        return next((entry for entry in ranked if index.fits(entry, prompt)), None)


def best_of(entries: Sequence[Entry], words: Sequence[str]) -> Entry:
    """Return the entry nearest to `words`, the first when none shares a word; `entries` must not be empty."""
    with Index(entries) as index:
        return next(iter(index.rank(words)), entries[0])
