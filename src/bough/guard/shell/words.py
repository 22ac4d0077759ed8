"""Expands the words of a command line: quotes, escapes, braces and variables with known values.

A word may have several values (a loop variable, a variable that is set twice, braces), and all of them are assessed. If
a value depends on more than the text, the word has its source text as its value, and is marked as not known.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, product

from tree_sitter import Node

MAX_VALUES = 16
"""Maximum number of values of a word. A word with more is not known."""

_OPEN, _COMMA, _CLOSE, _BREAK = "\ue000", "\ue001", "\ue002", "\ue003"
PRIVATE = (_OPEN, _COMMA, _CLOSE, _BREAK)
"""They replace unquoted braces, commas and spaces during expansion. `parse_shell` refuses a text that contains one."""

SUBSTITUTED = "/dev/fd/63"
"""The value of `<(…)`: a path with content that another command writes."""

Variables = Mapping[str, tuple[str, ...] | None]
"""The possible values of each variable; None if unknown."""


@dataclass(frozen=True)
class Word:
    """One value of one word.

    Attributes:
        is_known: Whether the command receives `text` as its argument.
        is_computed: Whether a command computes a part of the word, as in `$(…)`.
        is_pattern: Whether the word has an unquoted `*`, `?` or `[`.
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


def list_alternatives(node: Node, variables: Variables) -> list[tuple[Word, ...]]:
    """Return the alternative expansions of a node, each a tuple of words."""
    return [tuple(_split_word(value)) for value in _limit_values(_expand_node(node, variables, False, 0), node)]


def list_words(node: Node, variables: Variables) -> tuple[Word, ...]:
    """Return the words of all alternative expansions of a node."""
    return tuple(word for alternative in list_alternatives(node, variables) for word in alternative)


def _read_source(node: Node) -> str:
    return (node.text or b"").decode("utf-8", "replace")


def _make_unknown(node: Node, is_computed: bool = False) -> list[Word]:
    return [Word(_read_source(node), is_known=False, is_computed=is_computed)]


def _limit_values(values: Iterable[Word], node: Node) -> list[Word]:
    """Return the values of a node; one unknown word if there are more than `MAX_VALUES`."""
    limited = list(islice(values, MAX_VALUES + 1))
    return limited if len(limited) <= MAX_VALUES else _make_unknown(node)


_JOINED_TYPES: Mapping[str, int] = {"command_name": 0, "concatenation": 0, "string": 1}
"""Types of nodes that join their children, with the width of the quotes at each end."""
_EXPANSION_TYPES = ("simple_expansion", "expansion")
_PLAIN_TYPES = ("word", "number", "string_content", "extglob_pattern")


def _expand_node(node: Node, variables: Variables, quoted: bool, depth: int) -> list[Word]:
    """Return the values of a node, with private characters in place of braces and of spaces that split words."""
    if depth > 40:  # a deep tree must not exhaust the stack of the interpreter
        return _make_unknown(node, is_computed=True)
    kind = node.type
    if kind in _JOINED_TYPES:
        return _join_children(node, _JOINED_TYPES[kind], variables, quoted or kind == "string", depth)
    if kind in _EXPANSION_TYPES:
        return _expand_variable(_read_source(node).strip("${}"), node, variables, quoted)
    if kind == "raw_string":
        return [Word(_read_source(node)[1:-1])]
    if kind == "ansi_c_string":
        return [Word(_decode_escapes(_read_source(node)[2:-1]))]
    if kind in _PLAIN_TYPES or not node.is_named:
        return [_parse_plain(_read_source(node), quoted)]
    if kind == "process_substitution":
        return [Word(SUBSTITUTED, is_computed=True)]  # known as a path, but its content comes from a command
    return _make_unknown(node, is_computed=kind == "command_substitution")


def _join_children(node: Node, quote_width: int, variables: Variables, quoted: bool, depth: int) -> list[Word]:
    """Join the values of the children and the source text between them, for which the grammar has no nodes."""
    source, start = node.text or b"", node.start_byte
    parts: list[list[Word]] = []
    position = quote_width
    for child in node.named_children:
        begin = max(child.start_byte - start, position)
        parts += _parse_gap(source[position:begin], quoted)
        parts.append(_expand_node(child, variables, quoted, depth + 1))
        position = child.end_byte - start
    parts += _parse_gap(source[position : len(source) - quote_width], quoted)
    if len(parts) == 1:
        return _limit_values(parts[0], node)
    return _limit_values((sum(combination, Word("")) for combination in product(*parts)), node)


def _parse_gap(source: bytes, quoted: bool) -> list[list[Word]]:
    return [[_parse_plain(source.decode("utf-8", "replace"), quoted)]] if source else []


_SPECIAL = re.compile(r"[\\{},$\s*?\[]")
_MARKS = str.maketrans({"{": _OPEN, ",": _COMMA, "}": _CLOSE})


def _parse_plain(text: str, quoted: bool) -> Word:
    """Return the value of a text without expansions: escapes removed, unquoted braces as private characters."""
    if _SPECIAL.search(text) is None:
        return Word(text)
    if quoted:
        return Word(re.sub(r'\\([$`"\\\n])', r"\1", text))
    pieces = re.split(r"(\\.)", text, flags=re.DOTALL)
    plain = "".join(
        piece[1:] if piece.startswith("\\") and len(piece) == 2 else piece.translate(_MARKS) for piece in pieces
    )
    # Only unescaped pieces count. The grammar wrongly parses `$"…"` and `{ {` as plain text.
    is_known = not re.search(r"[$\s]", "".join(pieces[::2]))
    return Word(plain, is_known, is_pattern=any(mark in piece for piece in pieces[::2] for mark in "*?["))


def _expand_variable(name: str, node: Node, variables: Variables, quoted: bool) -> list[Word]:
    """Return the possible values of a variable."""
    values = variables.get(name)
    if not values:
        return _make_unknown(node)
    if quoted:
        return [Word(text) for text in values]
    # The shell splits an unquoted value into words and matches its patterns, so `x="rm -rf *"; $x` deletes files.
    return [Word(re.sub(r"\s+", _BREAK, text), is_pattern=any(mark in text for mark in "*?[")) for text in values]


_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{1,2}|u[0-9a-fA-F]{1,4}|U[0-9a-fA-F]{1,8}|[0-7]{1,3}|c.|.)", re.DOTALL)
_SIMPLE_ESCAPES = {
    **dict(zip("ntrabeEfv", "\n\t\r\a\b\x1b\x1b\f\v", strict=True)),
    **{mark: mark for mark in "\\'\"?"},
}


def _decode_escapes(text: str) -> str:
    return _ESCAPE.sub(lambda match: _decode_escape(match[1]), text)


def _decode_escape(code: str) -> str:
    if code[0] in "xuU" and len(code) > 1:
        return chr(min(int(code[1:], 16), 0x10FFFF))
    if code[0] in "01234567":
        return chr(int(code, 8) & 0xFF)
    if code[0] == "c" and len(code) == 2:
        return chr(ord(code[1]) & 0x1F)
    return _SIMPLE_ESCAPES.get(code, "\\" + code)


def _split_word(word: Word) -> Iterator[Word]:
    """Yield the words that one value becomes after brace expansion and word splitting."""
    if _PRIVATE_CHARACTER.search(word.text) is None:
        yield word
        return
    texts = list(islice(_expand_braces(word.text), _MAX_BRACE_VALUES + 1))
    if len(texts) > _MAX_BRACE_VALUES:
        yield Word(_restore_braces(word.text).replace(_BREAK, " "), is_known=False, is_computed=word.is_computed)
        return
    for text in texts:
        for piece in text.split(_BREAK):
            if piece or _BREAK not in text:
                yield Word(_restore_braces(piece), word.is_known, word.is_computed, word.is_pattern)


_MAX_BRACE_VALUES = MAX_VALUES * 4
"""`{a,b}{a,b}{a,b}…` has 2^n values, so a word with more is not known."""

_PRIVATE_CHARACTER = re.compile(f"[{_OPEN}{_COMMA}{_CLOSE}{_BREAK}]")
_BRACE_CHOICE = re.compile(f"{_OPEN}([^{_OPEN}{_CLOSE}]*{_COMMA}[^{_OPEN}{_CLOSE}]*){_CLOSE}")


def _expand_braces(text: str) -> Iterator[str]:
    """Yield the expansions of unquoted braces, innermost first. Braces without a comma are not expanded."""
    match = _BRACE_CHOICE.search(text)
    if match is None:
        yield text
        return
    for choice in match[1].split(_COMMA):
        yield from _expand_braces(text[: match.start()] + choice + text[match.end() :])


def _restore_braces(text: str) -> str:
    return text.replace(_OPEN, "{").replace(_COMMA, ",").replace(_CLOSE, "}")
