"""The words of a text, and what a query asks of them. The same on every database, since Python does it.

Words are runs of letters and digits, compared without case and accents. Scripts that are written without spaces
(Chinese, Japanese, Korean, Thai, Lao, Khmer, Burmese) and emoji have no such runs: each of their characters is a word,
and what a query has of them is a phrase, so that any part of such a text is found.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple
from unicodedata import normalize

from bough.errors import InvalidInput

MAX_QUERY_CHARS: Final = 2000
MAX_QUERY_WORDS: Final = 100
_WORD_CHARS: Final = 40
"""Longer words are compared by their first 40 characters. Postgres limits the bytes of a document's words."""

_SINGLE: Final = (
    "\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u3005-\u3007\u3040-\u318f\u31f0-\u31ff\u3400-\u4dbf"
    "\u4e00-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\U00020000-\U0003ffff"
    "\u2600-\u27bf\u2b00-\u2bff\U0001f000-\U0001faff"
)
_ACCENTS: Final = (
    "\u0300-\u036f\u0591-\u05c7\u0640\u064b-\u065f\u0670\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe00-\ufe2f"
)
_SIGNS: Final = "\u0900-\u0963\u0966-\u0dff\u0f71-\u0f84\u0f90-\u0fbc\u06d6-\u06ed\u200c\u200d"
"""Vowel signs and joiners inside words, which `\\w` does not contain."""

_RUN: Final = re.compile(f"[{_SINGLE}]|(?:[0-9A-Za-z_]+|(?![{_SINGLE}])[\\w{_ACCENTS}{_SIGNS}])+")
_ASCII_RUN: Final = re.compile(r"\w+", re.ASCII)
_IGNORED: Final = re.compile(f"[{_ACCENTS}\u200c\u200d]+")
_IS_SINGLE: Final = re.compile(f"[{_SINGLE}]")
_TERM: Final = re.compile(r'((?<!\S)-)?(?:"([^"]*)"|([^\s"]+))|"')


def list_words(text: str) -> list[str]:
    """Return the words of a text. O(characters)."""
    if text.isascii():
        return [word[:_WORD_CHARS] for word in _ASCII_RUN.findall(text.lower())]
    return [word for run in _RUN.findall(text) for word in _fold(run)]


def split_words(text: str) -> tuple[list[str], list[tuple[int, int]]]:
    """Return the words of a text, as `list_words` does, and the range of each. O(characters)."""
    if text.isascii():
        return list_words(text), [run.span() for run in _ASCII_RUN.finditer(text)]
    runs = [(word, run.span()) for run in _RUN.finditer(text) for word in _fold(run[0])]
    return [word for word, _ in runs], [span for _, span in runs]


def _fold(run: str) -> list[str]:
    """Return the words of a run of characters: one, unless the compatibility form of a character has several."""
    if run.isascii():
        return [run.lower()[:_WORD_CHARS]]
    folded = _IGNORED.sub("", normalize("NFKD", run).casefold())
    return [word[:_WORD_CHARS] for word in _RUN.findall(normalize("NFC", folded))]


@dataclass(frozen=True)
class Term:
    """One word or phrase of a query.

    Attributes:
        words: One word, or the words of a phrase in order.
        is_prefix: Whether the last word only has to begin like this.
    """

    words: tuple[str, ...]
    is_prefix: bool = False


@dataclass(frozen=True)
class Terms:
    """What a query asks: all of `required`, none of `excluded`."""

    required: tuple[Term, ...]
    excluded: tuple[Term, ...] = ()


def parse_query(text: str) -> Terms:
    """Return the terms of a query.

    Words are all required, quotes make a phrase, `-word` excludes, `word*` is a prefix. Everything else is text.

    Raises:
        InvalidInput: No word is required, or the query is too long.
    """
    if len(text) > MAX_QUERY_CHARS:
        raise InvalidInput(
            f"the query has {len(text)} characters, more than {MAX_QUERY_CHARS}", hint="search for a few words"
        )
    required, excluded = list[Term](), list[Term]()
    for minus, phrase, written in _TERM.findall(text):
        is_text = written.startswith("-")  # such as the option `--force`
        words = tuple(list_words(phrase or written))
        if words:
            is_prefix = written.endswith("*") and _IS_SINGLE.match(words[-1]) is None
            (excluded if minus and not is_text else required).append(Term(words, is_prefix))
    if not required:
        raise InvalidInput("the query has no word to look for", hint='for example: invoice "due date" -draft')
    count = sum(len(term.words) for term in (*required, *excluded))
    if count > MAX_QUERY_WORDS:
        raise InvalidInput(f"the query has {count} words, more than {MAX_QUERY_WORDS}", hint="search for a few words")
    return Terms(tuple(dict.fromkeys(required)), tuple(dict.fromkeys(excluded)))


def find_ranges(text: str, terms: Sequence[Term]) -> list[tuple[int, int]]:
    """Return the ranges of a text that match any of some terms, in order and disjoint. O(characters x terms)."""
    words, spans = split_words(text)
    return _merge_ranges((spans[lo][0], spans[hi - 1][1]) for term in terms for lo, hi in _find_term(words, term))


def _merge_ranges(matches: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return ranges in order, with those that overlap merged."""
    ranges = list[tuple[int, int]]()
    for start, end in sorted(matches):
        if ranges and start < ranges[-1][1]:
            ranges[-1] = (ranges[-1][0], max(ranges[-1][1], end))
        else:
            ranges.append((start, end))
    return ranges


def _find_term(words: Sequence[str], term: Term) -> list[tuple[int, int]]:
    """Return the ranges of words that a term matches."""
    *before, last = term.words
    count = len(before)
    if term.is_prefix:
        ends = [index for index, word in enumerate(words) if word.startswith(last)]
    else:
        ends = [index for index, word in enumerate(words) if word == last]
    return [(end - count, end + 1) for end in ends if end >= count and list(words[end - count : end]) == before]


_SPACE: Final = re.compile(r"\s")
_OTHER_SPACE: Final = re.compile(r"[^\S ]")
_BEFORE_CHARS: Final = 60
_SNIPPET_CHARS: Final = 200


class Snippet(NamedTuple):
    """A part of a text on one line, and the ranges in it that match, in characters."""

    text: str
    matches: tuple[tuple[int, int], ...]


class SnippetCutter:
    """Cuts the snippets of the hits of one query."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms.required
        self._finders = [_AsciiFinder(term) for term in self._terms]

    def cut(self, text: str) -> Snippet:
        """Return the part of a text around its first match; its beginning if nothing matches."""
        if text.isascii():
            lowered = text.lower()
            finders = [(finder, span) for finder in self._finders if (span := finder.find(lowered, 0))]
            start, stop = _choose_part(text, min((span[0] for _, span in finders), default=0))
            ranges = [span for finder, span in finders for span in finder.iterate(lowered, span, stop)]
            ranges = ranges if len(ranges) < 2 else _merge_ranges(ranges)
        else:
            ranges = find_ranges(text, self._terms)
            start, stop = _choose_part(text, ranges[0][0] if ranges else 0)
        prefix, suffix = "…" if start else "", "…" if stop < len(text) else ""
        shift = len(prefix) - start
        matches = [(lo + shift, min(hi, stop) + shift) for lo, hi in ranges if start <= lo < stop]
        return Snippet(prefix + _OTHER_SPACE.sub(" ", text[start:stop]) + suffix, tuple(matches))


def _choose_part(text: str, first: int) -> tuple[int, int]:
    """Return the range of the snippet whose first match begins at `first`."""
    start = max(0, first - _BEFORE_CHARS)
    if start:  # at the beginning of a word, if one begins before the match
        space = _SPACE.search(text, start, first)
        start = start if space is None else space.end()
    return start, min(len(text), start + _SNIPPET_CHARS)


class _AsciiFinder:
    """Finds in ASCII texts what `_find_term` finds."""

    def __init__(self, term: Term) -> None:
        self._word = term.words[0]
        words = [f"{word}\\w*" if len(word) == _WORD_CHARS else word for word in term.words]
        phrase = r"\W+".join(words)
        end = r"\w*" if term.is_prefix else ""
        self._pattern = re.compile(rf"(?<!\w){phrase}{end}(?!\w)", re.ASCII)

    def find(self, lowered: str, start: int) -> tuple[int, int] | None:
        """Return the range of the first match from `start` on, in a text without capitals."""
        # `str.find` first: it skips the text before the word, which the pattern alone compares character by character.
        while (start := lowered.find(self._word, start)) >= 0:
            if match := self._pattern.match(lowered, start):
                return match.span()
            start += 1
        return None

    def iterate(self, lowered: str, span: tuple[int, int] | None, stop: int) -> Iterator[tuple[int, int]]:
        """Yield a match and those after it that begin before `stop`, overlapping ones too."""
        while span is not None and span[0] < stop:
            yield span
            span = self.find(lowered, span[0] + 1)
