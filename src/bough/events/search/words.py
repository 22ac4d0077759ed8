"""The words of a text, and what a query asks of them. The same on every database, since Python does it.

Words are runs of letters and digits, compared without case and accents. Scripts that are written without spaces
(Chinese, Japanese, Korean, Thai, Lao, Khmer, Burmese) and emoji have no such runs: each of their characters is a word,
and what a query has of them is a phrase, so that any part of such a text is found.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
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
_ACCENTS: Final = "\u0300-\u036f\u0591-\u05c7\u0640\u064b-\u065f\u0670\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe00-\ufe2f"
_SIGNS: Final = "\u0900-\u0963\u0966-\u0dff\u0f71-\u0f84\u0f90-\u0fbc\u06d6-\u06ed\u200c\u200d"
"""Vowel signs and joiners inside words, which `\\w` does not contain."""

_RUN: Final = re.compile(f"[{_SINGLE}]|(?:(?![{_SINGLE}])[\\w{_ACCENTS}{_SIGNS}])+")
_IGNORED: Final = re.compile(f"[{_ACCENTS}\u200c\u200d]+")
_IS_SINGLE: Final = re.compile(f"[{_SINGLE}]")
_TERM: Final = re.compile(r'((?<!\S)-)?(?:"([^"]*)"|([^\s"]+))|"')


class Word(NamedTuple):
    """A word as the index has it, and its range in the text."""

    word: str
    start: int
    end: int


def split_words(text: str) -> Iterator[Word]:
    """Iterate over the words of a text. O(characters)."""
    for run in _RUN.finditer(text):
        start, end = run.span()
        if (written := run[0]).isascii():
            yield Word(written.lower()[:_WORD_CHARS], start, end)
            continue
        folded = _IGNORED.sub("", normalize("NFKD", written).casefold())
        # Split once more: the compatibility form of one character may be several words, or have parentheses.
        for part in _RUN.finditer(normalize("NFC", folded)):
            yield Word(part[0][:_WORD_CHARS], start, end)


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
        words = tuple(word.word for word in split_words(phrase or written))
        if words:
            is_prefix = written.endswith("*") and _IS_SINGLE.match(words[-1]) is None
            (excluded if minus and not is_text else required).append(Term(words, is_prefix))
    if not required:
        raise InvalidInput("the query has no word to look for", hint='for example: invoice "due date" -draft')
    count = sum(len(term.words) for term in (*required, *excluded))
    if count > MAX_QUERY_WORDS:
        raise InvalidInput(f"the query has {count} words, more than {MAX_QUERY_WORDS}", hint="search for a few words")
    return Terms(tuple(dict.fromkeys(required)), tuple(dict.fromkeys(excluded)))


def find_ranges(words: Sequence[Word], terms: Sequence[Term]) -> list[tuple[int, int]]:
    """Return the ranges of a text that match any of some terms, in order and disjoint. O(words x terms)."""
    ranges = list[tuple[int, int]]()
    for index, word in enumerate(words):
        ends = [words[index + len(term.words) - 1].end for term in terms if _is_at(words, index, term)]
        if ends and (not ranges or word.start >= ranges[-1][1]):
            ranges.append((word.start, max(ends)))
        elif ends:
            ranges[-1] = (ranges[-1][0], max(ranges[-1][1], *ends))
    return ranges


def _is_at(words: Sequence[Word], index: int, term: Term) -> bool:
    *before, last = term.words
    final = index + len(before)
    if final >= len(words):
        return False
    ending = words[final].word
    is_last = ending.startswith(last) if term.is_prefix else ending == last
    return is_last and all(words[index + offset].word == word for offset, word in enumerate(before))


_BEFORE_CHARS: Final = 60
_SNIPPET_CHARS: Final = 200


class Snippet(NamedTuple):
    """A part of a text on one line, and the ranges in it that match, in characters."""

    text: str
    matches: tuple[tuple[int, int], ...]


def cut_snippet(text: str, terms: Terms) -> Snippet:
    """Return the part of a text around its first match; its beginning if nothing matches."""
    ranges = find_ranges(list(split_words(text)), terms.required)
    first = ranges[0][0] if ranges else 0
    start = max(0, first - _BEFORE_CHARS)
    if start:  # at the beginning of a word, if one begins before the match
        start = next((match.end() for match in re.finditer(r"\s", text[start:first])), 0) + start
    stop = min(len(text), start + _SNIPPET_CHARS)
    before, after = "…" if start else "", "…" if stop < len(text) else ""
    shift = len(before) - start
    matches = [(lo + shift, min(hi, stop) + shift) for lo, hi in ranges if start <= lo < stop]
    return Snippet(before + re.sub(r"\s", " ", text[start:stop]) + after, tuple(matches))
