"""One command as the rules see it: its options, its operands, and where its paths lead."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bough.guard.paths import path_findings, pattern_findings
from bough.guard.risk import Risk, RiskFinding
from bough.guard.shell.parse import ShellCommand
from bough.guard.shell.words import Variables, Word


class TooMuchError(Exception):
    """A text asks for more looking than any sensible one; what was found until then counts."""


@dataclass
class Work:
    """How much may still be looked at; texts that make rules call each other over and over end here."""

    left: int = 4_000

    def spend(self, amount: int = 1) -> None:
        """Take it off.

        Raises:
            TooMuchError: Nothing is left.
        """
        self.left -= amount
        if self.left < 0:
            raise TooMuchError


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What holds for every command of a text.

    Attributes:
        bases: Folders that `cd` may have gone to; relative paths start from any of them.
        functions: Names the text defines itself.
        work: Shared by everything that one assessment does.
        depth: How many texts lie around this one (`sh -c` in `sh -c`).
        nested: Assesses a text that a command would run, one level deeper.
        command: Assesses a command that a command would run.
    """

    workspace: Path
    bases: tuple[Path, ...]
    variables: Variables
    functions: frozenset[str]
    depth: int
    work: Work
    nested: Callable[[str, Setting], Iterator[RiskFinding]]
    command: Callable[[ShellCommand, Setting], Iterator[RiskFinding]]


@dataclass(frozen=True, kw_only=True)
class ShellCall:
    """A command with a known name.

    Attributes:
        name: Without its folder.
        args: Everything after the name.
    """

    name: str
    args: tuple[Word, ...]
    command: ShellCommand
    setting: Setting

    @property
    def letters(self) -> frozenset[str]:
        """Letters of short options, clusters taken apart."""
        clusters = (word.text[1:] for word in self.args if re.match(r"-[A-Za-z0-9]", word.text))
        return frozenset(letter for cluster in clusters for letter in cluster)

    def has(self, letters: str = "", *names: str) -> bool:
        """Whether one of the short options or long options (abbreviated or not) is given."""
        return bool(self.letters & set(letters)) or any(self._long(name) for name in names)

    def _long(self, name: str) -> bool:
        long_options = (word.text[2:].split("=")[0] for word in self.args if word.text.startswith("--"))
        return any(option and name.startswith(option) for option in long_options)

    @property
    def operands(self) -> tuple[Word, ...]:
        """Arguments that are not options; all of them after `--`. Values of options count as operands."""
        texts = [word.text for word in self.args]
        end = texts.index("--") if "--" in texts else len(texts)
        before = tuple(word for word in self.args[:end] if word.text == "-" or not word.text.startswith("-"))
        return before + self.args[end + 1 :]

    @property
    def values(self) -> tuple[Word, ...]:
        """Operands, and what hangs on options: `--file=X`, `-fX` where X looks like a path, `if=X`."""
        return (*self.operands, *(word for argument in self.args for word in _split_attached(argument)))

    def unknown(self, words: Iterable[Word] | None = None) -> Iterator[RiskFinding]:
        """Yield an UNKNOWN finding for the first word whose value cannot be told."""
        for word in self.args if words is None else words:
            if not word.known:
                yield RiskFinding(Risk.UNKNOWN, f"what `{self.name}` is given depends on {_short(word.text)}")
                return

    def reads(self, words: Iterable[Word] | None = None) -> Iterator[RiskFinding]:
        """Yield findings for paths that are read."""
        yield from self._paths(self.values if words is None else tuple(words), write=False)

    def writes(self, words: Iterable[Word] | None = None) -> Iterator[RiskFinding]:
        """Yield findings for paths that are made, changed or deleted."""
        yield from self._paths(self.operands if words is None else tuple(words), write=True)

    def _paths(self, words: tuple[Word, ...], *, write: bool) -> Iterator[RiskFinding]:
        yield from self.unknown(words)
        for word in words:
            yield from word_findings(word, self.setting, write=write)


def word_findings(word: Word, setting: Setting, *, write: bool) -> Iterator[RiskFinding]:
    """Yield findings for a word that is a path; addresses on the network are none."""
    if not word.known or "://" in word.text:
        return
    setting.work.spend(len(setting.bases))
    yield from path_findings(word.text, workspace=setting.workspace, bases=setting.bases, write=write)
    if word.pattern:
        setting.work.spend(50)
        yield from pattern_findings(word.text, workspace=setting.workspace, write=write)


def _split_attached(word: Word) -> Iterator[Word]:
    option, equals, value = word.text.partition("=")
    if equals and value:
        yield Word(value, word.known, word.computed, word.pattern)
    elif word.text.startswith("-") and re.match(r"-[A-Za-z](~|/|\.\./|.*/\.\./)", word.text):
        yield Word(option[2:], word.known, word.computed, word.pattern)
    if re.match(r"\w*@.", word.text):  # curl's `@file`
        yield Word(word.text.split("@", 1)[1], word.known, word.computed, word.pattern)


def base_name(word: Word) -> str:
    """The name of a command without its folder."""
    return os.path.basename(word.text.rstrip("/"))


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "…")
