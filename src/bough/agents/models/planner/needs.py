"""What a message says that must be accounted for before a script runs, by the skill, its arguments or its options.

A word of a request is either in the data as one that asks for nothing, or a need. So a word, a number, a negation or a
direction that no rule knows is never passed over: nothing accounts for it, and nothing runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from bough.agents.models.planner.words import MARK, content_words, phrases, read_kind, read_marks, word_list

_PIECE = re.compile(rf"{MARK}|[^\W_]+|[^\w\s]")
_ENDS = frozenset(".,;:!?")
_BREAKS = _ENDS | {"and", "then"}
_PUNCTUATION = _ENDS | frozenset("&()'\"…-–—/’‘“”`[]\\")
_NUMBERS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")

FIXED = frozenset({"not", "role", "phrase", "file"})
"""Kinds of needs that no option of a script can account for."""


@dataclass(frozen=True, kw_only=True)
class Need:
    """Something in a message that must be accounted for before a script runs.

    Attributes:
        text: The words of the message.
        query: What a skill must match to account for it, in the language of FTS5; empty if no skill can.
        kind: `word` and `value` (a number, a time, a separator) may still be accounted for by an option of the script;
            `not` (a negation), `role` (a verb, a target), `file` (a type of file) and `phrase` may not. `pair` is a
            `name=value`, which an input of the skill accounts for.
    """

    text: str
    query: str = ""
    kind: str = "word"


@dataclass(frozen=True, kw_only=True)
class _Place:
    """A word where it stands: the piece before it, the pieces after it, and whether it may be the verb of a command."""

    word: str
    before: str
    after: Sequence[str]
    argument: str
    may_be_verb: bool

    @property
    def following(self) -> str:
        """The next word; empty before an argument or the end of a clause."""
        return self.after[0] if self.after and self.after[0].isalnum() else ""

    @property
    def text(self) -> str:
        """The word and the word or argument after it."""
        return f"{self.word} {self.argument or self.following}".strip()


def take_exclusions(text: str, names: list[str]) -> str:
    """Remove excluded arguments from `text` if plain files remain; a folder could contain an excluded file."""
    excluded = {name for match in phrases("exclusions").finditer(text) for name in read_marks(match[0], names)}
    remainder = phrases("exclusions").sub(" ", text)
    remainder = re.sub(MARK, lambda mark: "" if read_marks(mark[0], names)[0] in excluded else mark[0], remainder)
    remaining = read_marks(remainder, names)
    return remainder if remaining and all(read_kind(name) and "*" not in name for name in remaining) else text


def take_options(text: str, names: list[str], documented: Mapping[str, bool]) -> tuple[str, tuple[str, ...]]:
    """Take the documented options that are asked for off `text`, in the words that people have for them."""
    options: list[str] = []

    def take(name: str, ending: str = "") -> Callable[[re.Match[str]], str]:
        def replace(match: re.Match[str]) -> str:
            value = " ".join(filter(None, match.groups()))
            words = [str(_NUMBERS.index(word) + 1) if word in _NUMBERS else word for word in value.split()]
            options.extend(
                [f"--{name}", *(read_marks(value, names) or [" ".join(words) + ending])][: 1 + documented[name]]
            )
            return " "

        return replace

    common = word_list("stop") | word_list("prepositions") | word_list("targets") | word_list("negations")
    for name, takes_value in documented.items():
        # "in a.md" does not ask for the option --in, nor "check" for --check: these must be typed with their dashes.
        written = rf"--{name}\b" if name in common or not takes_value else rf"(?:--|\b){name}\b"
        value = rf"(?: of)?[ =]+{phrases('values').pattern}" if takes_value else r"(?!-)"
        text = re.sub(written + value, take(name), text)
    if documented.get("since"):
        text = phrases("periods").sub(take("since", " ago"), phrases("unnumbered").sub("1 ", text))
    if documented.get("top"):
        text = phrases("tops").sub(take("top"), text)
    return text, tuple(options)


def read_needs(text: str, names: list[str], *, is_path: Callable[[str], bool]) -> Iterator[Need]:
    """Yield what must be accounted for in `text`, a normalised message with a mark for each argument."""
    if match := phrases("comparisons").search(text):
        text = f"{text[: match.start(1)]} {text[match.end(1) :]}"
    yield from (Need(text=match[0].strip(), kind="phrase") for match in phrases("refused").finditer(text))
    pieces = _PIECE.findall(phrases("idioms").sub(" ", text))
    pieces = [piece for piece in pieces if piece not in _PUNCTUATION or piece in _ENDS]
    may_be_verb = True
    for i, piece in enumerate(pieces):
        after = pieces[i + 1 : i + 9]
        argument = "".join(read_marks(after[0], names)) if after else ""
        marked_names = read_marks("".join(takewhile(lambda other: other not in _BREAKS, after[:3])), names)
        place = _Place(
            word=piece, before=pieces[i - 1] if i else "", after=after, argument=argument, may_be_verb=may_be_verb
        )
        if marked := read_marks(piece, names):
            yield from _read_argument(marked[0], place, is_file=is_path(marked[0]), is_alone=len(names) == 1)
        elif piece not in _ENDS:
            needs = _read_value(place) or _read_role(place) or _read_plain(place)
            # In "the meeting notes notes/meeting.md" the words repeat what the argument says.
            yield from (
                need for need in needs if need.kind != "word" or need.text not in content_words(" ".join(marked_names))
            )
        may_be_verb = piece in _BREAKS or (may_be_verb and piece in word_list("lead"))


def _read_argument(name: str, place: _Place, *, is_file: bool, is_alone: bool) -> Iterator[Need]:
    """Yield the type of file that a skill must be for; a quotation is a file by its place: "words in 'my notes'"."""
    kind = read_kind(name)
    by_place = (is_alone and place.before in word_list("prepositions")) or not word_list("places").isdisjoint(
        (place.before, place.following)
    )
    if name.startswith(("http://", "https://")):
        yield Need(text=name, query=_any(*word_list("url", "formats")), kind="role")
    elif not kind and not is_file and not by_place:
        yield Need(text=f"'{name}'", kind="word" if re.search(r"\w", name) else "value")
    elif kind in word_list("names", "formats"):
        yield Need(text=name, query=f'formats : ("{kind}" OR "any")', kind="file")


def _read_value(place: _Place) -> list[Need]:
    """Return the need of a negation or a number, which only the same words in a skill account for."""
    kind = "not" if place.word in word_list("negations") else "value"
    if kind == "value" and place.word.isalpha() and place.word not in word_list("numbers"):
        return []
    is_phrase = place.word.isalpha() and place.following.isalpha()
    phrase = f"{place.word} {place.following}"
    return [Need(text=phrase if is_phrase else place.word, query=_any(phrase) if is_phrase else "", kind=kind)]


def _read_role(place: _Place) -> list[Need]:
    """Return the need of a word whose role counts: a target, a verb of making, a verb at the start, a "per"."""
    word, following = place.word, place.following
    if word in word_list("targets") and (place.argument or following):
        if not place.argument and word == "to" and following in word_list("stop") | word_list("general"):
            return []
        target = read_kind(place.argument) or following
        query = _any(*(f"{preposition} {target}" for preposition in word_list("targets"))) if target else ""
        verb = f'verbs : "{following}" OR ' if following and word == "to" else ""
        return [Need(text=place.text, query=verb + query, kind="role")] if not following.isdigit() else []
    if word in word_list("produce"):
        head = _find_head(place.after)
        is_report = head in word_list("general") - word_list("places")
        return (
            [] if is_report else [Need(text=place.text, query=f'verbs : ("{word}" OR "{head or word}")', kind="role")]
        )
    if word in {"each", "every", "per"} and (place.before in word_list("prepositions") or word == "per"):
        query = _any(*(f"{word_for_each} {following}" for word_for_each in ("each", "every", "per")))
        return [] if following in word_list("places") else [Need(text=place.text, query=query, kind="role")]
    starts = place.may_be_verb and bool(place.argument or following in word_list("determiners"))
    return [Need(text=word, query=f'verbs : "{word}"', kind="role")] if starts and not _is_free(word) else []


def _read_plain(place: _Place) -> list[Need]:
    """Return the need of a plain word; none for one that asks for nothing, or that a target before it names."""
    word = place.word
    if _is_free(word):
        names_part = place.before in word_list("determiners") and place.following in {"column", "field", "section"}
        return [Need(text=place.text)] if names_part else []
    if place.before in word_list("targets") or (place.argument and word in word_list("prepositions")):
        return []
    kind = "value" if word in word_list("times") else "word"
    return [Need(text=word, query=_any(word, *word_list(word, "synonyms")), kind=kind)]


def _is_free(word: str) -> bool:
    return word in word_list("stop") or word in word_list("general") or word in word_list("produce")


def _find_head(after: Sequence[str]) -> str:
    """Return the noun that a verb of making has: `digest` in "a git digest of the repository"."""
    head = ""
    for word in after:
        if not word.isalnum() or word in word_list("prepositions"):
            break
        head = head if word in word_list("stop") else word
    return head


def _any(*texts: str) -> str:
    return " OR ".join(f'"{text}"' for text in texts)
