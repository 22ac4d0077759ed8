"""Expands the words of a command line: quotes, escapes, braces and variables with known values.

A word may have several values (a loop variable, a variable that is set twice, braces); all of them are assessed. A word
whose value depends on more than the text keeps its source text and is marked as not known.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, product

from tree_sitter import Node

MAX_VALUES = 16
"""A word with more possible values than this is not known."""

_OPEN, _COMMA, _CLOSE, _BREAK = "\ue000", "\ue001", "\ue002", "\ue003"
PRIVATE = (_OPEN, _COMMA, _CLOSE, _BREAK)
"""Stand for unquoted braces and blanks during expansion. `parse_shell` refuses a text that contains them."""

SUBSTITUTED = "/dev/fd/63"
"""The argument in place of `<(…)`: a file whose content another command writes."""

Variables = Mapping[str, tuple[str, ...] | None]
"""Every value that a variable may have; None if not known."""


@dataclass(frozen=True)
class Word:
    """One value of one word.

    Attributes:
        is_known: Whether `text` is what the command receives.
        is_computed: Whether a command substitution is part of it.
        is_pattern: Whether it holds an unquoted `*`, `?` or `[`.
    """

    text: str
    is_known: bool = True
    is_computed: bool = False
    is_pattern: bool = False

    def __add__(self, other: Word) -> Word:
        return Word(
            self.text + other.text,
            self.is_known and other.is_known,
            self.is_computed or other.is_computed,
            self.is_pattern or other.is_pattern,
        )


def word_values(node: Node, variables: Variables) -> list[tuple[Word, ...]]:
    """Return the alternative expansions of a node, each a tuple of words."""
    return [tuple(_split(value)) for value in _limit_values(_values(node, variables, False, 0), node)]


def flat_words(node: Node, variables: Variables) -> tuple[Word, ...]:
    """Return the words of all alternatives together."""
    return tuple(word for alternative in word_values(node, variables) for word in alternative)


def _text(node: Node) -> str:
    return (node.text or b"").decode("utf-8", "replace")


def _unknown(node: Node, is_computed: bool = False) -> list[Word]:
    return [Word(_text(node), is_known=False, is_computed=is_computed)]


def _limit_values(values: Iterable[Word], node: Node) -> list[Word]:
    limited = list(islice(values, MAX_VALUES + 1))
    return limited if len(limited) <= MAX_VALUES else _unknown(node)


_QUOTES: Mapping[str, int] = {"command_name": 0, "concatenation": 0, "string": 1}
"""Nodes that join their children, and the width of their quotes at each end."""
_EXPANSIONS = ("simple_expansion", "expansion")
_PLAIN = ("word", "number", "string_content", "extglob_pattern")


def _values(node: Node, variables: Variables, quoted: bool, depth: int) -> list[Word]:
    if depth > 40:  # a crafted tree must not exhaust the stack of the interpreter
        return _unknown(node, is_computed=True)
    kind = node.type
    if kind in _QUOTES:
        return _join_children(node, _QUOTES[kind], variables, quoted or kind == "string", depth)
    if kind in _EXPANSIONS:
        return _variable(_text(node).strip("${}"), node, variables, quoted)
    if kind == "raw_string":
        return [Word(_text(node)[1:-1])]
    if kind == "ansi_c_string":
        return [Word(_ansi(_text(node)[2:-1]))]
    if kind in _PLAIN or not node.is_named:
        return [_plain(_text(node), quoted)]
    if kind == "process_substitution":
        return [Word(SUBSTITUTED, is_computed=True)]  # known as a path, but its content comes from a command
    return _unknown(node, is_computed=kind == "command_substitution")


def _join_children(node: Node, edge: int, variables: Variables, quoted: bool, depth: int) -> list[Word]:
    """Join the values of the children and the source text between them, for which the grammar has no nodes."""
    source, start = node.text or b"", node.start_byte
    parts: list[list[Word]] = []
    position = edge
    for child in node.named_children:
        begin = max(child.start_byte - start, position)
        parts += _between(source[position:begin], quoted)
        parts.append(_values(child, variables, quoted, depth + 1))
        position = child.end_byte - start
    parts += _between(source[position : len(source) - edge], quoted)
    if len(parts) == 1:
        return _limit_values(parts[0], node)
    return _limit_values((sum(combination, Word("")) for combination in product(*parts)), node)


def _between(source: bytes, quoted: bool) -> list[list[Word]]:
    return [[_plain(source.decode("utf-8", "replace"), quoted)]] if source else []


_SPECIAL = re.compile(r"[\\{},$\s*?\[]")
_MARKS = str.maketrans({"{": _OPEN, ",": _COMMA, "}": _CLOSE})


def _plain(text: str, quoted: bool) -> Word:
    if _SPECIAL.search(text) is None:
        return Word(text)
    if quoted:
        return Word(re.sub(r'\\([$`"\\\n])', r"\1", text))
    pieces = re.split(r"(\\.)", text, flags=re.DOTALL)
    plain = "".join(p[1:] if p.startswith("\\") and len(p) == 2 else p.translate(_MARKS) for p in pieces)
    # Only unescaped pieces count. `$"…"` and `{ {` reach this point because the grammar reads them wrongly.
    is_known = not re.search(r"[$\s]", "".join(pieces[::2]))
    return Word(plain, is_known, is_pattern=any(mark in piece for piece in pieces[::2] for mark in "*?["))


def _variable(name: str, node: Node, variables: Variables, quoted: bool) -> list[Word]:
    values = variables.get(name)
    if not values:
        return _unknown(node)
    if quoted:
        return [Word(text) for text in values]
    # Unquoted, the shell splits the value into words and matches patterns in it, so `x="rm -rf *"; $x` deletes.
    return [Word(re.sub(r"\s+", _BREAK, text), is_pattern=any(mark in text for mark in "*?[")) for text in values]


_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{1,2}|u[0-9a-fA-F]{1,4}|U[0-9a-fA-F]{1,8}|[0-7]{1,3}|c.|.)", re.DOTALL)
_SIMPLE = {
    **dict(zip("ntrabeEfv", "\n\t\r\a\b\x1b\x1b\f\v", strict=True)),
    **{mark: mark for mark in "\\'\"?"},
}


def _ansi(text: str) -> str:
    return _ESCAPE.sub(lambda match: _decode_escape(match[1]), text)


def _decode_escape(code: str) -> str:
    if code[0] in "xuU" and len(code) > 1:
        return chr(min(int(code[1:], 16), 0x10FFFF))
    if code[0] in "01234567":
        return chr(int(code, 8) & 0xFF)
    if code[0] == "c" and len(code) == 2:
        return chr(ord(code[1]) & 0x1F)
    return _SIMPLE.get(code, "\\" + code)


def _split(word: Word) -> Iterator[Word]:
    if _DIVIDED.search(word.text) is None:
        yield word
        return
    # Braces multiply: `{a,b}{a,b}{a,b}…` has 2^n values.
    texts = list(islice(_braces(word.text), MAX_VALUES * 4 + 1))
    if len(texts) > MAX_VALUES * 4:
        yield Word(_restore(word.text).replace(_BREAK, " "), is_known=False, is_computed=word.is_computed)
        return
    for text in texts:
        for piece in text.split(_BREAK):
            if piece or _BREAK not in text:
                yield Word(_restore(piece), word.is_known, word.is_computed, word.is_pattern)


_DIVIDED = re.compile(f"[{_OPEN}{_COMMA}{_CLOSE}{_BREAK}]")
_CHOICE = re.compile(f"{_OPEN}([^{_OPEN}{_CLOSE}]*{_COMMA}[^{_OPEN}{_CLOSE}]*){_CLOSE}")


def _braces(text: str) -> Iterator[str]:
    """Yield the expansions of unquoted braces, innermost first. Braces without a comma stay."""
    match = _CHOICE.search(text)
    if match is None:
        yield text
        return
    for choice in match[1].split(_COMMA):
        yield from _braces(text[: match.start()] + choice + text[match.end() :])


def _restore(text: str) -> str:
    return text.replace(_OPEN, "{").replace(_COMMA, ",").replace(_CLOSE, "}")
