"""Which skills a user message activates: keywords, task triggers, regular expressions and `/name`.

Untrusted skills that a message asks for are found too, so that the user is told about them.

All keywords are in one automaton, and all regular expressions in one RE2 set. So the time for a message depends on its
length and its matches, not on the number of skills.
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
from bough.skills.match.inputs import CODE, list_missing_inputs, parse_arguments, parse_pairs
from bough.skills.model import Diagnostic, Skill, SkillMetadata, TaskTrigger
from bough.skills.read.expressions import explain_bad_pattern

if TYPE_CHECKING:
    from bough.skills.registry import SkillRegistry

TriggerKind: TypeAlias = Literal["keyword", "task", "slash"]
MAX_MESSAGE = 1 << 20
_CALL = re.compile(r"(?<!\S)([/@])([^\s`]+)")
_PUNCTUATION = ".,;:!?"
_BLANKS = re.compile(r"\s{2,}|[^\S ]")
_WORD_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")
_UNSPACED_SCRIPTS = re.compile(  # scripts written without blanks between words
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
        keyword: The part of the message that matches.
        inputs: Values of the skill's inputs; `ARGUMENTS` is the text after `/name`.
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
        """Create a match; `inputs` is empty by default."""
        values = (skill, kind, keyword, {} if inputs is None else inputs, missing)
        return tuple.__new__(cls, values)  # pyright: ignore[reportUnknownMemberType]


class TriggerIndex:
    """Matches messages against the triggers of many skills. Safe for concurrent use once built.

    Args:
        skills: The skills to find. Each can be called by `/name`, with or without keywords.

    Attributes:
        diagnostics: Invalid and empty regular expressions.
    """

    def __init__(self, skills: Sequence[Skill | SkillMetadata]) -> None:
        self.diagnostics: list[Diagnostic] = []
        self._skills = {skill.name: skill for skill in skills}
        self._patterns: list[tuple[str, str]] = []
        names_by_word: dict[str, list[str]] = {}
        for skill in self._skills.values():
            self._add(skill, names_by_word)
        self._names_by_word_number = list(names_by_word.values())
        self._word_finder = _make_word_finder(list(names_by_word)) if names_by_word else None
        self._pattern_finder = self._make_pattern_finder() if self._patterns else None

    def _add(self, skill: Skill | SkillMetadata, names_by_word: dict[str, list[str]]) -> None:
        """Add the keywords of a skill to `names_by_word`, and its valid regular expressions to the index."""
        for trigger_word in list_trigger_words(skill.trigger):
            if trigger_word.startswith("re:"):
                source = trigger_word[3:].strip()
                if reason := explain_bad_pattern(source):
                    self.diagnostics.append(_make_pattern_diagnostic(skill.name, source, reason))
                else:
                    self._patterns.append((skill.name, source))
            elif folded := " ".join(fold(trigger_word).split()):
                names_by_word.setdefault(folded, []).append(skill.name)

    def match(self, text: str, active: Collection[str] = ()) -> list[TriggerMatch]:
        """Return the skills that `text` activates: those called by `/name` first, then by position in the text.

        Each skill is returned once, and skills in `active` are left out. O(length + hits). Only the first 1,048,576
        characters are searched.

        Args:
            text: A user message.
            active: Names of skills that are already active.
        """
        text = text[:MAX_MESSAGE]
        if not text.isascii():
            text = unicodedata.normalize("NFC", text)
        hits = [] if self._word_finder is None else self._find_word_hits(text, active, self._word_finder)
        if self._pattern_finder is not None:
            hits += _find_pattern_hits(text, active, self._pattern_finder)
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
        """Return a match for each `/name` and `@name` that starts a word outside code and names a skill. O(length)."""
        # Code is replaced with blanks, not removed, so that positions remain those of the original text.
        visible_text = CODE.sub(lambda code: " " * len(code[0]), text) if "`" in text or "~~~" in text else text
        matches: list[TriggerMatch] = []
        for call in _CALL.finditer(visible_text):
            skill = self._find_named(call[2]) or self._find_named(call[2].rstrip(_PUNCTUATION))
            if skill is None:
                continue
            keyword = f"{call[1]}{call[2].rstrip(_PUNCTUATION)}"
            # A call at the start of the message has all the text after it as arguments, any other call only its line.
            is_first = not text[: call.start()].strip()
            arguments = text[call.end() :] if is_first else text[call.end() :].partition("\n")[0]
            arguments = arguments.strip() if call[1] == "/" else ""
            inputs = parse_arguments(arguments, skill.inputs) | ({"ARGUMENTS": arguments} if arguments else {})
            matches.append(
                TriggerMatch(skill.name, "slash", keyword, inputs, list_missing_inputs(skill.inputs, inputs))
            )
        return matches

    def _find_named(self, name: str) -> Skill | SkillMetadata | None:
        return self._skills.get(name) or self._skills.get(name.lower())

    def _make_match(self, name: str, keyword: str, text: str) -> TriggerMatch:
        """Return the match of a keyword or expression; a task skill's inputs are parsed from the whole text."""
        skill = self._skills[name]
        if not isinstance(skill.trigger, TaskTrigger):
            return TriggerMatch(name, "keyword", keyword)
        inputs = parse_pairs(text, skill.inputs)
        return TriggerMatch(name, "task", keyword, inputs, list_missing_inputs(skill.inputs, inputs))

    def _find_word_hits(self, text: str, active: Collection[str], find_words: _WordFinder) -> list[_Hit]:
        """Return the first hit of each skill that is not active."""
        is_ascii = text.isascii()
        folded, offsets = squeeze_blanks(fold(text))
        hits: dict[str, _Hit] = {}
        for word_number, start, end in find_words(folded, overlapping=True):
            if is_whole_word(folded, start, end):
                for name in self._names_by_word_number[word_number]:
                    if name not in hits and name not in active:
                        original_start, original_end = offsets.restore(start), offsets.restore(end)
                        if not is_ascii:
                            original_start, original_end = _unfold(text, original_start, original_end)
                        hits[name] = (original_start, name, text[original_start:original_end])
        return list(hits.values())

    def _make_pattern_finder(self) -> _PatternFinder | None:
        """Return a function that finds the expressions that match a text; None if none can be compiled."""
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
                self.diagnostics.append(_make_pattern_diagnostic(name, source, str(error)))
            else:
                compiled.append((name, pattern))
        if not compiled:
            return None
        pattern_set.Compile()
        return lambda text: [compiled[i] for i in sorted(pattern_set.Match(text) or ())]


_Hit: TypeAlias = tuple[int, str, str]
"""Position, skill name, and the part of the text that matches."""

_PatternFinder: TypeAlias = Callable[[str], list[tuple[str, Any]]]


class _WordFinder(Protocol):
    """Finds every occurrence of every word, as (index of the word, start, end)."""

    def __call__(self, text: str, /, *, overlapping: bool) -> list[tuple[int, int, int]]: ...


def _make_word_finder(words: list[str]) -> _WordFinder:
    from ahocorasick_rs import AhoCorasick

    return AhoCorasick(words, store_patterns=False).find_matches_as_indexes


def _find_pattern_hits(text: str, active: Collection[str], find_patterns: _PatternFinder) -> list[_Hit]:
    searches = [(name, pattern.search(text)) for name, pattern in find_patterns(text) if name not in active]
    return [(match.start(), name, match.group()) for name, match in searches if match]


@dataclass(frozen=True)
class Offsets:
    """Maps positions in a squeezed text to positions in the original text.

    Attributes:
        positions: Positions of the blanks in the squeezed text, ascending.
        removed: For each position, how many characters of the original text were removed up to it.
    """

    positions: Sequence[int] = ()
    removed: Sequence[int] = ()

    def restore(self, position: int) -> int:
        """Return the position in the original text of the character at `position`. O(log n) for n blanks."""
        index = bisect_left(self.positions, position)
        return position + (self.removed[index - 1] if index else 0)


def squeeze_blanks(text: str) -> tuple[str, Offsets]:
    """Return the text with each run of white space as one blank, and the offsets. Keywords then match across lines."""
    if (text.isprintable() and "  " not in text) or _BLANKS.search(text) is None:  # the expression is 100 times as slow
        return text, Offsets()
    parts: list[str] = []
    positions: list[int] = []
    removed: list[int] = []
    copied_until = size = removed_count = 0
    for blanks in _BLANKS.finditer(text):
        parts += (text[copied_until : blanks.start()], " ")
        size += blanks.start() - copied_until + 1
        removed_count += blanks.end() - blanks.start() - 1
        positions.append(size - 1)
        removed.append(removed_count)
        copied_until = blanks.end()
    return "".join([*parts, text[copied_until:]]), Offsets(positions, removed)


def fold(text: str) -> str:
    """Return `text` normalized for caseless comparison: NFC, then Unicode case folding (`ß` becomes `ss`)."""
    return text.lower() if text.isascii() else unicodedata.normalize("NFC", text).casefold()


def is_whole_word(text: str, start: int, end: int) -> bool:
    """Whether `text[start:end]` is not part of a longer word. O(1)."""
    return not (start and _are_joined(text[start - 1], text[start])) and not (
        end < len(text) and _are_joined(text[end - 1], text[end])
    )


def _are_joined(left: str, right: str) -> bool:
    """Whether two adjacent characters belong to the same word."""
    if left.isascii() and right.isascii():
        return left in _WORD_CHARACTERS and right in _WORD_CHARACTERS
    return _is_word(left) and _is_word(right) and not (_UNSPACED_SCRIPTS.match(left) or _UNSPACED_SCRIPTS.match(right))


def _is_word(char: str) -> bool:
    return char.isalnum() or char == "_" or unicodedata.category(char)[0] == "M"


def _unfold(text: str, start: int, end: int) -> tuple[int, int]:
    """Return the positions in `text` that correspond to `start` and `end` in its folded form."""
    original_start = original_end = folded_length = 0
    for position, char in enumerate(text):
        folded_length += len(char.casefold())
        if folded_length <= start:
            original_start = position + 1
        if folded_length >= end:
            original_end = position + 1
            break
    return original_start, original_end


def _make_pattern_diagnostic(name: str, source: str, reason: str) -> Diagnostic:
    message = f"skill {name!r} has an invalid regular expression: re:{source[:80]} ({reason[:120]})"
    return Diagnostic("trigger-bad-regex", "warning", message, None, "use RE2 syntax: no lookaround, no backreferences")


def list_hidden(registry: SkillRegistry) -> list[SkillMetadata]:
    """Return the untrusted skills, except those with the name of a usable skill."""
    return [skill for skill in registry.withheld if skill.name not in registry]


def match_withheld(registry: SkillRegistry, text: str) -> list[TriggerMatch]:
    """Return the untrusted skills that a message would activate if they were trusted. O(untrusted skills + length)."""
    hidden = list_hidden(registry)
    return TriggerIndex(hidden).match(text) if hidden else []


def find_withheld(registry: SkillRegistry, text: str) -> list[SkillMetadata]:
    """Return the untrusted skills that a message asks for by name, by trigger or by words.

    Words count only if neither a name nor a trigger matches, and only for a skill that matches them better than every
    usable skill.
    """
    hidden = list_hidden(registry)
    names = {match.skill for match in match_withheld(registry, text)}
    if not names and hidden:
        names = {skill.name for skill in SkillSearch([*registry.list_all(), *hidden]).search(text, 1)}
    return [skill for skill in hidden if skill.name in names]
