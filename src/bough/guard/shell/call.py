"""A command as the rules use it: options, operands, and findings about paths."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bough.guard.paths import assess_path, assess_pattern
from bough.guard.risk import Risk, RiskFinding
from bough.guard.shell.parse import ShellCommand
from bough.guard.shell.words import Variables, Word

MAX_DEPTH = 6
"""Commands nested deeper than this (`sh -c "sh -c …"`, `nice nice …`) are UNKNOWN."""


class BudgetExceededError(Exception):
    """The work budget of an assessment is used up. Earlier findings still count."""


@dataclass
class WorkBudget:
    """The remaining work of one assessment.

    It bounds nested commands, for which rules call each other many times; `parse.MAX_BYTES` bounds only the text.
    """

    remaining: int = 4_000

    def spend(self, amount: int = 1) -> None:
        """Subtract an amount of work.

        Raises:
            BudgetExceededError: The budget is used up.
        """
        self.remaining -= amount
        if self.remaining < 0:
            raise BudgetExceededError


@dataclass(frozen=True, kw_only=True)
class ShellContext:
    """The context that all commands of a text share.

    Attributes:
        bases: Folders that relative paths may start from: the workspace, and folders that `cd` may have entered.
        functions: Names of functions that the text defines.
        budget: Shared by the whole assessment, nested texts included.
        depth: The number of commands that enclose the text: 1 for the inner text of `sh -c '…'`.
        assess_text: Assesses a command line that a command runs, one level deeper.
        assess_command: Assesses a command that another command runs.
    """

    workspace: Path
    bases: tuple[Path, ...]
    variables: Variables
    functions: frozenset[str]
    depth: int
    budget: WorkBudget
    assess_text: Callable[[str, ShellContext], Iterator[RiskFinding]]
    assess_command: Callable[[ShellCommand, ShellContext], Iterator[RiskFinding]]


@dataclass(frozen=True, kw_only=True)
class ShellCall:
    """A command with a known name.

    Attributes:
        name: The name without its folder.
        args: All words after the name.
    """

    name: str
    args: tuple[Word, ...]
    command: ShellCommand
    context: ShellContext

    @property
    def letters(self) -> frozenset[str]:
        """Letters of short options: `r` and `f` for `-rf`."""
        clusters = (word.text[1:] for word in self.args if re.match(r"-[A-Za-z0-9]", word.text))
        return frozenset(letter for cluster in clusters for letter in cluster)

    def has(self, letters: str = "", *names: str) -> bool:
        """Whether one of these options is present. Long options may be abbreviated.

        Args:
            letters: Short options.
            names: Long options.
        """
        return bool(self.letters & set(letters)) or any(self._has_long(name) for name in names)

    def _has_long(self, name: str) -> bool:
        long_options = (word.text[2:].split("=")[0] for word in self.args if word.text.startswith("--"))
        return any(option and name.startswith(option) for option in long_options)

    @property
    def operands(self) -> tuple[Word, ...]:
        """Arguments that are not options, and everything after `--`. Values of options count as operands.

        A value that is wrongly taken for a path costs a false alarm. A path taken for a value would not be checked.
        """
        texts = [word.text for word in self.args]
        end = texts.index("--") if "--" in texts else len(texts)
        operands = tuple(word for word in self.args[:end] if word.text == "-" or not word.text.startswith("-"))
        return operands + self.args[end + 1 :]

    @property
    def values(self) -> tuple[Word, ...]:
        """Operands, and values attached to options: `--file=X`, `if=X`, and `-fX` if X looks like a path."""
        return (*self.operands, *(word for argument in self.args for word in _split_attached(argument)))

    def assess_unknown_words(self, words: Iterable[Word] | None = None) -> Iterator[RiskFinding]:
        """Yield an UNKNOWN finding for the first word without a known value."""
        for word in self.args if words is None else words:
            if not word.is_known:
                yield RiskFinding(Risk.UNKNOWN, f"the arguments of `{self.name}` depend on {_shorten(word.text)}")
                return

    def assess_reads(self, words: Iterable[Word] | None = None) -> Iterator[RiskFinding]:
        """Yield the findings about reading these words as paths; by default all values."""
        yield from self._list_path_findings(self.values if words is None else tuple(words), write=False)

    def assess_writes(self, words: Iterable[Word] | None = None) -> Iterator[RiskFinding]:
        """Yield the findings about creating, changing or deleting these words as paths; by default all operands."""
        yield from self._list_path_findings(self.operands if words is None else tuple(words), write=True)

    def _list_path_findings(self, words: tuple[Word, ...], *, write: bool) -> Iterator[RiskFinding]:
        yield from self.assess_unknown_words(words)
        for word in words:
            yield from assess_path_word(word, self.context, write=write)


def assess_path_word(word: Word, context: ShellContext, *, write: bool) -> Iterator[RiskFinding]:
    """Yield the findings about a word as a path; none for a URL or an unknown word."""
    if not word.is_known or "://" in word.text:
        return
    context.budget.spend(len(context.bases))  # each base costs one `realpath`
    yield from assess_path(word.text, workspace=context.workspace, bases=context.bases, write=write)
    if word.is_pattern:
        context.budget.spend(50)  # the cost of listing a folder
        yield from assess_pattern(word.text, workspace=context.workspace, write=write)


def _split_attached(word: Word) -> Iterator[Word]:
    """Yield the values that are attached to an option or a key."""
    option, equals, value = word.text.partition("=")
    if equals and value:
        yield Word(value, word.is_known, word.is_computed, word.is_pattern)
    elif word.text.startswith("-") and re.match(r"-[A-Za-z](~|/|\.\./|.*/\.\./)", word.text):
        yield Word(option[2:], word.is_known, word.is_computed, word.is_pattern)
    if re.match(r"\w*@.", word.text):  # `curl -d @file`, `-F name=@file`
        yield Word(word.text.split("@", 1)[1], word.is_known, word.is_computed, word.is_pattern)


def base_name(word: Word) -> str:
    """Return the name of a command without its folder."""
    return os.path.basename(word.text.rstrip("/"))


def _shorten(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "…")
