"""Finds the commands in a command line: also in substitutions, functions and here-documents.

Source: the grammar of tree-sitter-bash.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice, pairwise

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

from bough.guard.risk import names
from bough.guard.shell.words import MAX_VALUES, PRIVATE, Variables, Word, flat_words, word_values

MAX_BYTES = 64 << 10
MAX_NODES = 30_000


@dataclass(frozen=True)
class Redirect:
    """A redirection of a stream, with the operator as written (`>`, `>>`, `<`, `&>`, `>|`, …)."""

    operator: str
    target: Word


@dataclass(frozen=True)
class ShellCommand:
    """A simple command: its name and arguments, and where its input comes from.

    Attributes:
        words: The name first; empty for a redirection without a command.
        is_piped: Whether another command's output is its input.
        stdin: Texts of here-documents and here-strings; an unknown word for a file.
    """

    words: tuple[Word, ...]
    redirects: tuple[Redirect, ...] = ()
    is_piped: bool = False
    stdin: tuple[Word, ...] = ()

    @property
    def args(self) -> tuple[Word, ...]:
        """Everything after the name."""
        return self.words[1:]


@dataclass
class Script:
    """All commands of a text, in no particular order.

    Attributes:
        problem: Why the text could not be parsed completely; the commands that were parsed are still listed.
        assignments: Variables that the text sets, with their values; None for unknown values.
        is_fork_bomb: Whether a function calls itself more than once, or in the background.
    """

    commands: list[ShellCommand] = field(default_factory=list[ShellCommand])
    problem: str = ""
    assignments: dict[str, tuple[str, ...] | None] = field(default_factory=dict[str, "tuple[str, ...] | None"])
    functions: set[str] = field(default_factory=set[str])
    is_fork_bomb: bool = False


def parse_shell(text: str, variables: Variables | None = None) -> Script:
    """Return the commands of a text, including those in substitutions, pipelines, functions and here-documents.

    Never raises: `problem` names what could not be parsed. O(length), bounded by `MAX_BYTES`.

    Args:
        variables: Values from outside; assignments in the text add to them.
    """
    script = Script()
    source = _join_lines(text).encode("utf-8", "replace")
    if len(source) > MAX_BYTES:
        script.problem = f"the command is longer than {MAX_BYTES} bytes"
    # The private characters would be taken for expanded braces and blanks.
    elif "\0" in text or any(mark in text for mark in PRIVATE):
        script.problem = "the command holds characters that no shell command needs"
    else:
        _read(source, script, dict(variables or {}))
    return script


def _join_lines(text: str) -> str:
    """Join lines that end with a backslash. The grammar does not join them in the middle of a word."""
    return re.sub(r"\\(.)", lambda pair: "" if pair[1] == "\n" else pair[0], text, flags=re.DOTALL)


def _read(source: bytes, script: Script, variables: dict[str, tuple[str, ...] | None]) -> None:
    root = Parser(Language(tree_sitter_bash.language())).parse(source).root_node
    if root.descendant_count > MAX_NODES:
        script.problem = "the command has too many parts"
        return
    nodes = list(_walk(root))
    # Before the commands are collected, not instead: those around an error still raise the risk.
    if root.has_error or any(_is_torn(node, source) for node in nodes):
        script.problem = "the command could not be read as shell in full"
    variables.setdefault("IFS", (" ",))
    # All assignments before the first command: in a loop, a later assignment changes an earlier command.
    for node in nodes:
        _record_variable(node, script, variables)
    for name in _list_runtime_variables(nodes):
        variables[name] = script.assignments[name] = None
    _Collector(script, variables).collect(root)


def _walk(root: Node) -> Iterator[Node]:
    """Yield all nodes in text order, parents first. Not recursive, so depth is not bounded by the stack."""
    stack = [root]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(reversed(node.children))


_WORDS = names(
    "command_name word number string raw_string ansi_c_string translated_string concatenation simple_expansion "
    "expansion command_substitution process_substitution brace_expression variable_assignment file_redirect command"
)
_WHOLE = names("concatenation string translated_string command_name expansion heredoc_body regex brace_expression")


def _is_torn(node: Node, source: bytes) -> bool:
    r"""Whether the grammar split one word: `'tr'\uncate` is `truncate`, but parsed as `tr uncate`."""
    if node.type in _WHOLE or node.child_count < 2:
        return False
    return any(
        first.type in _WORDS and second.type in _WORDS and not source[first.end_byte : second.start_byte].isspace()
        for first, second in pairwise(node.children)
    )


def _record_variable(node: Node, script: Script, variables: dict[str, tuple[str, ...] | None]) -> None:
    if node.type == "variable_assignment":
        name, values = _read_assignment(node, variables)
    elif node.type == "for_statement" and (variable := node.child_by_field_name("variable")):
        name, values = _source(variable), _all_texts(node.children_by_field_name("value"), variables)
    else:
        if node.type == "function_definition" and (name_node := node.child_by_field_name("name")):
            script.functions.add(_source(name_node))
            script.is_fork_bomb |= _is_fork_bomb(node, _source(name_node))
        return
    # Values add up: which assignment runs last depends on branches. One that is not known makes the variable unknown.
    earlier = variables.get(name, ()) if name in script.assignments else ()
    joined = None if values is None or earlier is None else tuple(dict.fromkeys(earlier + values))[: MAX_VALUES + 1]
    variables[name] = script.assignments[name] = joined


def _read_assignment(node: Node, variables: Variables) -> tuple[str, tuple[str, ...] | None]:
    name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
    text = _source(name) if name else ""
    # Appended values and arrays are not tracked, so they are unknown.
    if b"+=" in (node.text or b"")[: len(text.encode()) + 2] or (value and value.type == "array"):
        return text.split("[")[0], None
    return text.split("[")[0], ("",) if value is None else _all_texts([value], variables)


def _all_texts(nodes: list[Node], variables: Variables) -> tuple[str, ...] | None:
    """Return every value that the nodes may have; None if one is not known."""
    alternatives = [words for node in nodes for words in word_values(node, variables)]
    if any(not word.is_known for words in alternatives for word in words):
        return None
    return tuple(" ".join(word.text for word in words) for words in alternatives)


_READERS = frozenset({"read", "mapfile", "readarray", "getopts", "printf", "let"})


def _list_runtime_variables(nodes: list[Node]) -> Iterator[str]:
    """Yield the names of variables that builtins set at run time (`read x`, `printf -v x`)."""
    for node in nodes:
        if node.type == "command" and (name := node.child_by_field_name("name")) and _source(name) in _READERS:
            for argument in node.children_by_field_name("argument"):
                if match := re.fullmatch(r"-?v?([A-Za-z_]\w*)(\W.*)?", _source(argument), re.DOTALL):
                    yield match[1]


def _is_fork_bomb(definition: Node, name: str) -> bool:
    calls = [node for node in _walk(definition) if node.type == "command_name" and _source(node) == name]
    body = definition.child_by_field_name("body")
    return len(calls) > 1 or bool(calls and body and b"&" in (body.text or b"").replace(b"&&", b""))


def _source(node: Node) -> str:
    return (node.text or b"").decode("utf-8", "replace")


class _Collector:
    """Collects the commands of a tree. The input of a compound command counts for every command in it."""

    def __init__(self, script: Script, variables: Variables) -> None:
        self._script = script
        self._variables = variables

    def collect(self, root: Node) -> None:
        stack: list[tuple[Node, bool, tuple[Word, ...]]] = [(root, False, ())]
        while stack:
            node, is_piped, stdin = stack.pop()
            if node.type in ("command_substitution", "process_substitution"):
                is_piped, stdin = False, ()  # a substitution does not read the input of the command around it
            elif node.type == "redirected_statement":
                stdin += self._parse_input(node)
                self._add((), self._redirects(node))
            elif node.type == "command":
                self._command(node, is_piped, stdin)
            elif node.type == "unset_command":
                self._add(tuple(Word(_source(child)) for child in node.children), ())
            for position, child in enumerate(node.children):
                # The rest of the line after `<<E` (`cat <<E | sh`) is a child of the here-document.
                has_input = (node.type == "pipeline" and position > 0) or node.type == "heredoc_redirect"
                stack.append((child, is_piped or has_input, stdin))

    def _command(self, node: Node, is_piped: bool, stdin: tuple[Word, ...]) -> None:
        name = node.child_by_field_name("name")
        if name is None:
            return self._add((), self._redirects(node))
        arguments = tuple(
            word
            for argument in node.children_by_field_name("argument")
            for word in flat_words(argument, self._variables)
        )
        stdin, redirects = stdin + self._parse_input(node), self._redirects(node)
        for words in islice(word_values(name, self._variables), MAX_VALUES):
            self._add((*words, *arguments), redirects, is_piped, stdin)
        return None

    def _add(
        self,
        words: tuple[Word, ...],
        redirects: tuple[Redirect, ...],
        is_piped: bool = False,
        stdin: tuple[Word, ...] = (),
    ) -> None:
        if words or redirects:
            self._script.commands.append(ShellCommand(words, redirects, is_piped, stdin))

    def _parse_input(self, node: Node) -> tuple[Word, ...]:
        """Return the input of a node: texts of here-documents and here-strings, and an unknown word for each file."""
        words: list[Word] = []
        for redirect in node.children_by_field_name("redirect"):
            for child in redirect.children:
                if redirect.type == "heredoc_redirect" and child.type == "heredoc_body":
                    words.append(Word(_source(child)))
                elif redirect.type == "herestring_redirect" and child.is_named:
                    words += flat_words(child, self._variables)
        words += [Word("", is_known=False) for redirect in _file_redirects(node) if _operator(redirect) == "<"]
        return tuple(words)

    def _redirects(self, node: Node) -> tuple[Redirect, ...]:
        return tuple(
            Redirect(_operator(redirect), word)
            for redirect in _file_redirects(node)
            for target in redirect.children_by_field_name("destination")
            for word in flat_words(target, self._variables)
        )


def _file_redirects(node: Node) -> Iterator[Node]:
    for redirect in node.children_by_field_name("redirect"):
        if redirect.type == "file_redirect":
            yield redirect
        elif redirect.type == "heredoc_redirect":  # `cat <<E > file`: the grammar puts the rest of the line inside
            yield from (child for child in redirect.children if child.type == "file_redirect")


def _operator(redirect: Node) -> str:
    return next((child.type for child in redirect.children if not child.is_named), ">")
