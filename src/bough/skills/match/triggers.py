"""Which skills a user message activates: keywords, task triggers, regular expressions and `/name`.

Untrusted skills that a message asks for are found as well, so that they are reported instead of silently ignored.

All keywords are in one automaton and all regular expressions in one RE2 set, so the work for a message depends on its
length and its hits, not on the number of skills.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from importlib import import_module
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, Self, TypeAlias

from bough.skills.find.search import SkillSearch, list_trigger_words
from bough.skills.match.inputs import CODE, missing_inputs, parse_arguments, parse_pairs
from bough.skills.model import Diagnostic, Skill, SkillMetadata, TaskTrigger
from bough.skills.read.expressions import explain_bad_pattern

if TYPE_CHECKING:
    from bough.skills.registry import SkillRegistry

TriggerKind: TypeAlias = Literal["keyword", "task", "slash"]
MAX_MESSAGE = 1 << 20
_CALL = re.compile(r"(?<!\S)([/@])([^\s`]+)")
_MARKS = ".,;:!?"
_RUN = re.compile(r"\s{2,}|[^\S ]")
_WORD = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")
_NO_SPACES = re.compile(  # scripts written without blanks between words
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3100-\u312f\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uac00-\ud7af\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff]"
)


class _TriggerMatch(NamedTuple):
    skill: str
    kind: TriggerKind
    keyword: str
    inputs: dict[str, str]
    missing: tuple[str, ...]


class TriggerMatch(_TriggerMatch):
    """A skill that a message activates, and why.

    Attributes:
        keyword: The matching part of the message.
        inputs: Values of the skill's inputs; after `/name`, `ARGUMENTS` is the rest of the message.
        missing: Required inputs without a value.
    """

    __slots__ = ()

    def __new__(
        cls,
        skill: str,
        kind: TriggerKind,
        keyword: str,
        inputs: dict[str, str] | None = None,
        missing: tuple[str, ...] = (),
    ) -> Self:
        """Create it; `inputs` defaults to none."""
        values = (skill, kind, keyword, {} if inputs is None else inputs, missing)
        return tuple.__new__(cls, values)  # pyright: ignore[reportUnknownMemberType]


class TriggerIndex:
    """Matches messages against the triggers of many skills. Safe for concurrent use once built.

    Args:
        skills: Skills without keywords can still be called by `/name`.

    Attributes:
        diagnostics: Invalid and empty regular expressions.
    """

    def __init__(self, skills: Sequence[Skill | SkillMetadata]) -> None:
        self.diagnostics: list[Diagnostic] = []
        self._skills = {skill.name: skill for skill in skills}
        self._patterns: list[tuple[str, str]] = []
        words: dict[str, list[str]] = {}
        for skill in self._skills.values():
            self._add(skill, words)
        self._names = list(words.values())
        self._find_words = _make_word_finder(list(words)) if words else None
        self._find_patterns = self._make_pattern_finder() if self._patterns else None

    def _add(self, skill: Skill | SkillMetadata, words: dict[str, list[str]]) -> None:
        for word in list_trigger_words(skill.trigger):
            if word.startswith("re:"):
                if reason := explain_bad_pattern(word[3:].strip()):
                    self.diagnostics.append(_bad_pattern(skill.name, word[3:].strip(), reason))
                else:
                    self._patterns.append((skill.name, word[3:].strip()))
            elif folded := " ".join(fold(word).split()):
                words.setdefault(folded, []).append(skill.name)

    def match(self, text: str, active: Collection[str] = ()) -> list[TriggerMatch]:
        """Return the skills that `text` activates, except those in `active`, in order of their position in the text.

        Each skill is returned once. O(length of the text + hits); only the first 1 MB of the text is searched.

        Args:
            text: A user message.
            active: Names of skills that are already active.
        """
        text = text[:MAX_MESSAGE]
        if not text.isascii():
            text = unicodedata.normalize("NFC", text)
        hits = [] if self._find_words is None else self._find_word_hits(text, active, self._find_words)
        if self._find_patterns is not None:
            hits += _find_pattern_hits(text, active, self._find_patterns)
        calls = self._find_calls(text) if "/" in text or "@" in text else []
        if not calls and not hits:
            return []
        # Reversed twice: the first call of each skill wins, and the skills are in the order of these calls.
        matches = {call.skill: call for call in reversed(calls) if call.skill not in active}
        matches = {name: matches[name] for name in reversed(matches)}
        if len(hits) > 1:
            hits.sort(key=itemgetter(0))
        for _, name, keyword in hits:
            if name not in matches:
                matches[name] = self._make_match(name, keyword, text)
        return list(matches.values())

    def _find_calls(self, text: str) -> list[TriggerMatch]:
        """Return the skills called by `/name` and `@name` at the start of a word, outside code. O(length)."""
        # Code is blanked, not removed: positions must remain those of the original text.
        visible_text = CODE.sub(lambda code: " " * len(code[0]), text) if "`" in text or "~~~" in text else text
        matches: list[TriggerMatch] = []
        for call in _CALL.finditer(visible_text):
            skill = self._find_named(call[2]) or self._find_named(call[2].rstrip(_MARKS))
            if skill is None:
                continue
            keyword = f"{call[1]}{call[2].rstrip(_MARKS)}"
            is_first = not text[: call.start()].strip()
            arguments = text[call.end() :] if is_first else text[call.end() :].partition("\n")[0]
            arguments = arguments.strip() if call[1] == "/" else ""
            inputs = parse_arguments(arguments, skill.inputs) | ({"ARGUMENTS": arguments} if arguments else {})
            matches.append(TriggerMatch(skill.name, "slash", keyword, inputs, missing_inputs(skill.inputs, inputs)))
        return matches

    def _find_named(self, name: str) -> Skill | SkillMetadata | None:
        return self._skills.get(name) or self._skills.get(name.lower())

    def _make_match(self, name: str, keyword: str, text: str) -> TriggerMatch:
        skill = self._skills[name]
        if not isinstance(skill.trigger, TaskTrigger):
            return TriggerMatch(name, "keyword", keyword)
        inputs = parse_pairs(text, skill.inputs)
        return TriggerMatch(name, "task", keyword, inputs, missing_inputs(skill.inputs, inputs))

    def _find_word_hits(self, text: str, active: Collection[str], find: _WordFinder) -> list[_Hit]:
        """Return the first hit of every skill that is not active yet."""
        folded = fold(text)
        is_plain = text.isascii()
        folded, offsets = squeeze_blanks(folded)
        hits: dict[str, _Hit] = {}
        for which, start, end in find(folded, overlapping=True):
            if is_whole_word(folded, start, end):
                for name in self._names[which]:
                    if name not in hits and name not in active:
                        first, last = offsets.restore(start), offsets.restore(end)
                        if not is_plain:
                            first, last = _unfold(text, first, last)
                        hits[name] = (first, name, text[first:last])
        return list(hits.values())

    def _make_pattern_finder(self) -> _PatternFinder | None:
        re2: Any = import_module("re2")  # it has no type hints
        options = re2.Options()
        options.case_sensitive = False
        options.log_errors = False
        options.max_mem = 64 << 20
        pattern_set = re2.Set.SearchSet(options)
        compiled: list[tuple[str, Any]] = []
        for name, source in self._patterns:
            try:
                pattern = re2.compile(source, options)
                pattern_set.Add(source)
            except re2.error as error:
                self.diagnostics.append(_bad_pattern(name, source, str(error)))
            else:
                compiled.append((name, pattern))
        if not compiled:
            return None
        pattern_set.Compile()
        return lambda text: [compiled[i] for i in sorted(pattern_set.Match(text) or ())]


_Hit: TypeAlias = tuple[int, str, str]
"""Position, skill, and the matching part of the text."""

_PatternFinder: TypeAlias = Callable[[str], list[tuple[str, Any]]]


class _WordFinder(Protocol):
    """Finds every occurrence of every word: (index of the word, start, end)."""

    def __call__(self, text: str, /, *, overlapping: bool) -> list[tuple[int, int, int]]: ...


def _make_word_finder(words: list[str]) -> _WordFinder:
    from ahocorasick_rs import AhoCorasick

    return AhoCorasick(words, store_patterns=False).find_matches_as_indexes


def _find_pattern_hits(text: str, active: Collection[str], find: _PatternFinder) -> list[_Hit]:
    searches = [(name, pattern.search(text)) for name, pattern in find(text) if name not in active]
    return [(hit.start(), name, hit.group()) for name, hit in searches if hit]


@dataclass(frozen=True)
class Offsets:
    """Maps positions in a squeezed text to positions in the original.

    Attributes:
        places: Positions in the squeezed text, ascending.
        removed: For each of them, how many characters were removed before it.
    """

    places: Sequence[int] = ()
    removed: Sequence[int] = ()

    def restore(self, place: int) -> int:
        """Return the position in the original text of the character at `place`. O(log of the runs)."""
        index = bisect_left(self.places, place)
        return place + (self.removed[index - 1] if index else 0)


def squeeze_blanks(text: str) -> tuple[str, Offsets]:
    """Return the text with each run of white space as one blank, so that keywords match across line breaks. O(n)."""
    if (text.isprintable() and "  " not in text) or _RUN.search(text) is None:  # the expression takes 100 times as long
        return text, Offsets()
    parts: list[str] = []
    places: list[int] = []
    removed: list[int] = []
    at = size = removed_count = 0
    for run in _RUN.finditer(text):
        parts += (text[at : run.start()], " ")
        size += run.start() - at + 1
        removed_count += run.end() - run.start() - 1
        places.append(size - 1)
        removed.append(removed_count)
        at = run.end()
    return "".join([*parts, text[at:]]), Offsets(places, removed)


def fold(text: str) -> str:
    """Return `text` normalized for caseless comparison: NFC, then Unicode case folding (`ß` becomes `ss`)."""
    return text.lower() if text.isascii() else unicodedata.normalize("NFC", text).casefold()


def is_whole_word(text: str, start: int, end: int) -> bool:
    """Whether `text[start:end]` is not part of a longer word at either end. O(1)."""
    return not (start and _are_joined(text[start - 1], text[start])) and not (
        end < len(text) and _are_joined(text[end - 1], text[end])
    )


def _are_joined(left: str, right: str) -> bool:
    if left.isascii() and right.isascii():
        return left in _WORD and right in _WORD
    return _is_word(left) and _is_word(right) and not (_NO_SPACES.match(left) or _NO_SPACES.match(right))


def _is_word(char: str) -> bool:
    return char.isalnum() or char == "_" or unicodedata.category(char)[0] == "M"


def _unfold(text: str, start: int, end: int) -> tuple[int, int]:
    """Return the positions in `text` of the characters `start:end` of its folded form."""
    first = last = at = 0
    for i, char in enumerate(text):
        at += len(char.casefold())
        if at <= start:
            first = i + 1
        if at >= end:
            last = i + 1
            break
    return first, last


def _bad_pattern(name: str, source: str, reason: str) -> Diagnostic:
    message = f"skill {name!r} has an invalid regular expression: re:{source[:80]} ({reason[:120]})"
    return Diagnostic("trigger-bad-regex", "warning", message, None, "use RE2 syntax: no lookaround, no backreferences")


def list_hidden(registry: SkillRegistry) -> list[SkillMetadata]:
    """Return the untrusted skills whose name no usable skill has."""
    return [skill for skill in registry.withheld if skill.name not in registry]


def match_withheld(registry: SkillRegistry, text: str) -> list[TriggerMatch]:
    """Return the untrusted skills that a message would activate if they were trusted. O(untrusted skills + length)."""
    hidden = list_hidden(registry)
    return TriggerIndex(hidden).match(text) if hidden else []


def find_withheld(registry: SkillRegistry, text: str) -> list[SkillMetadata]:
    """Return the untrusted skills that a message asks for by name, trigger or words.

    By words, that is the skill that matches the message better than every usable skill.
    """
    hidden = list_hidden(registry)
    names = {match.skill for match in match_withheld(registry, text)}
    if not names and hidden:
        names = {skill.name for skill in SkillSearch([*registry.list_all(), *hidden]).search(text, 1)}
    return [skill for skill in hidden if skill.name in names]
