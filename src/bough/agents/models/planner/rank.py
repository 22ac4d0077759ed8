"""Which entry of a small set fits a prompt: BM25 puts them in order, coverage says whether the best fits at all.

BM25 compares entries with each other; with four skills in a catalogue its numbers say nothing about whether any of
them is meant. So an entry fits only when it covers more than half of what the prompt asks for.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from bough.agents.models.planner.prompt import Prompt, normalise

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
        """Whether `entry` covers more than half of what the prompt asks for.

        General words ask for nothing, and a file type counts only where it is covered: `sales.csv` speaks for a skill
        about CSV, `notes.txt` against none. Where nothing else is asked, a general word or a file type is enough when
        it stands in the entry's name and something is named to work on: "count README.md".
        """
        covered = [word for word in prompt.strong if self._has(entry, word)]
        kinds = [kind for kind in prompt.kinds if self._has(entry, kind)]
        missed = [word for word in prompt.strong if word not in covered and word not in prompt.echoed]
        if missed and len(covered) + len(kinds) <= len(missed):
            return False
        if covered:
            return True
        named = (self._has(entry, word, column="name") for word in (*prompt.words, *kinds))
        return bool(prompt.args) and any(named)

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
