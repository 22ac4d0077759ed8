"""Finds the commands in a command line, including those in substitutions, functions and here-documents.

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
from bough.guard.shell.words import MAX_VALUES, PRIVATE, Variables, Word, list_alternatives, list_words

MAX_BYTES = 64 << 10
MAX_NODES = 30_000


@dataclass(frozen=True)
class Redirect:
    """A redirection of a stream, with the operator as written (`>`, `>>`, `<`, `&>`, `>|`, …)."""

    operator: str
    target: Word


@dataclass(frozen=True)
class ShellCommand:
    """A simple command with its arguments, redirections and input.

    Attributes:
        words: The name and the arguments; empty for a redirection without a command.
        is_piped: Whether another command's output is its input.
        stdin: The texts of here-documents and here-strings, and an unknown word for each input file.
    """

    words: tuple[Word, ...]
    redirects: tuple[Redirect, ...] = ()
    is_piped: bool = False
    stdin: tuple[Word, ...] = ()

    @property
    def args(self) -> tuple[Word, ...]:
        """The arguments."""
        return self.words[1:]


@dataclass
class Script:
    """All commands of a text, in no particular order.

    Attributes:
        problem: Why the text could not be parsed completely, empty if it was. The parsed commands are listed anyway.
        assignments: The possible values of each variable that the text sets; None if unknown.
        functions: The names of functions that the text defines.
        is_fork_bomb: Whether a function calls itself more than once, or in the background.
    """

    commands: list[ShellCommand] = field(default_factory=list[ShellCommand])
    problem: str = ""
    assignments: dict[str, tuple[str, ...] | None] = field(default_factory=dict[str, "tuple[str, ...] | None"])
    functions: set[str] = field(default_factory=set[str])
    is_fork_bomb: bool = False


def parse_shell(text: str, variables: Variables | None = None) -> Script:
    """Return the commands of a text, including those in substitutions, pipelines, functions and here-documents.

    Never raises: errors are in `problem`. O(length) up to `MAX_BYTES`.

    Args:
        variables: The values of variables before the text is run.
    """
    script = Script()
    source = _join_lines(text).encode("utf-8", "replace")
    if len(source) > MAX_BYTES:
        script.problem = f"the command is longer than {MAX_BYTES} bytes"
    # The expansion of words uses the private characters for braces and blanks.
    elif "\0" in text or any(mark in text for mark in PRIVATE):
        script.problem = "the command contains characters that no shell command needs"
    else:
        _parse_source(source, script, dict(variables or {}))
    return script


def _join_lines(text: str) -> str:
    """Join lines that end with a backslash, because the grammar does not join them within a word."""
    return re.sub(r"\\(.)", lambda pair: "" if pair[1] == "\n" else pair[0], text, flags=re.DOTALL)


def _parse_source(source: bytes, script: Script, variables: dict[str, tuple[str, ...] | None]) -> None:
    """Parse a text, and add its commands, assignments and functions to the script."""
    root = Parser(Language(tree_sitter_bash.language())).parse(source).root_node
    if root.descendant_count > MAX_NODES:
        script.problem = "the command has too many parts"
        return
    nodes = list(_walk(root))
    # The commands are collected even after an error, because valid ones can raise the risk.
    if root.has_error or any(_splits_word(node, source) for node in nodes):
        script.problem = "parts of the command are not valid shell"
    variables.setdefault("IFS", (" ",))
    # All assignments are recorded before any command, because in a loop a later assignment affects an earlier command.
    for node in nodes:
        _record_definition(node, script, variables)
    for name in _list_runtime_variables(nodes):
        variables[name] = script.assignments[name] = None
    _Collector(script, variables).collect(root)


def _walk(root: Node) -> Iterator[Node]:
    """Yield all nodes in text order, parents first. Not recursive, so that any depth is possible."""
    stack = [root]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(reversed(node.children))


_WORD_TYPES = names(
    "command_name word number string raw_string ansi_c_string translated_string concatenation simple_expansion "
    "expansion command_substitution process_substitution brace_expression variable_assignment file_redirect command"
)
_SINGLE_WORD_TYPES = names(
    "concatenation string translated_string command_name expansion heredoc_body regex brace_expression"
)


def _splits_word(node: Node, source: bytes) -> bool:
    r"""Whether the grammar split one word: `'tr'\uncate` is `truncate`, but parsed as `tr uncate`."""
    if node.type in _SINGLE_WORD_TYPES or node.child_count < 2:
        return False
    neighbours = [
        (first, second)
        for first, second in pairwise(node.children)
        if first.type in _WORD_TYPES and second.type in _WORD_TYPES
    ]
    return any(not source[first.end_byte : second.start_byte].isspace() for first, second in neighbours)


def _record_definition(node: Node, script: Script, variables: dict[str, tuple[str, ...] | None]) -> None:
    """Record the variable or function that a node defines, if it defines one."""
    if node.type == "variable_assignment":
        name, values = _read_assignment(node, variables)
    elif node.type == "for_statement" and (variable := node.child_by_field_name("variable")):
        name, values = _read_source(variable), _list_texts(node.children_by_field_name("value"), variables)
    else:
        if node.type == "function_definition" and (name_node := node.child_by_field_name("name")):
            function = _read_source(name_node)
            script.functions.add(function)
            script.is_fork_bomb |= _is_fork_bomb(node, function)
        return
    # All assigned values are possible, because branches decide which assignment runs last. One unknown value makes the
    # variable unknown.
    earlier_values = variables.get(name, ()) if name in script.assignments else ()
    if values is None or earlier_values is None:
        all_values = None
    else:
        all_values = tuple(dict.fromkeys(earlier_values + values))[: MAX_VALUES + 1]
    variables[name] = script.assignments[name] = all_values


def _read_assignment(node: Node, variables: Variables) -> tuple[str, tuple[str, ...] | None]:
    """Return the name of an assigned variable, and its possible values; None if unknown."""
    name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
    text = _read_source(name) if name else ""
    # Appended values and arrays are not tracked.
    if b"+=" in (node.text or b"")[: len(text.encode()) + 2] or (value and value.type == "array"):
        return text.split("[")[0], None
    return text.split("[")[0], ("",) if value is None else _list_texts([value], variables)


def _list_texts(nodes: list[Node], variables: Variables) -> tuple[str, ...] | None:
    """Return all possible values of some nodes; None if one is unknown."""
    alternatives = [words for node in nodes for words in list_alternatives(node, variables)]
    if any(not word.is_known for words in alternatives for word in words):
        return None
    return tuple(" ".join(word.text for word in words) for words in alternatives)


_ASSIGNING_BUILTINS = frozenset({"read", "mapfile", "readarray", "getopts", "printf", "let"})


def _list_runtime_variables(nodes: list[Node]) -> Iterator[str]:
    """Yield the names of variables that builtins set at run time (`read x`, `printf -v x`)."""
    for node in nodes:
        name = node.child_by_field_name("name") if node.type == "command" else None
        if name is None or _read_source(name) not in _ASSIGNING_BUILTINS:
            continue
        for argument in node.children_by_field_name("argument"):
            match = re.fullmatch(r"-?v?([A-Za-z_]\w*)(\W.*)?", _read_source(argument), re.DOTALL)
            if match is not None:
                yield match[1]


def _is_fork_bomb(definition: Node, name: str) -> bool:
    """Whether a function calls itself twice, or once in a body with a background command."""
    calls = [node for node in _walk(definition) if node.type == "command_name" and _read_source(node) == name]
    body = definition.child_by_field_name("body")
    return len(calls) > 1 or bool(calls and body and b"&" in (body.text or b"").replace(b"&&", b""))


def _read_source(node: Node) -> str:
    return (node.text or b"").decode("utf-8", "replace")


class _Collector:
    """Adds the commands of a tree to a script. The input of a compound command is the input of every command in it."""

    def __init__(self, script: Script, variables: Variables) -> None:
        self._script = script
        self._variables = variables

    def collect(self, root: Node) -> None:
        """Add all commands below a node."""
        stack: list[tuple[Node, bool, tuple[Word, ...]]] = [(root, False, ())]
        while stack:
            node, is_piped, stdin = stack.pop()
            if node.type in ("command_substitution", "process_substitution"):
                is_piped, stdin = False, ()  # a substitution does not read the input of its command
            elif node.type == "redirected_statement":
                stdin += self._parse_input(node)
                self._add((), self._list_redirects(node))
            elif node.type == "command":
                self._add_command(node, is_piped, stdin)
            elif node.type == "unset_command":
                self._add(tuple(Word(_read_source(child)) for child in node.children), ())
            for position, child in enumerate(node.children):
                # What follows `<<E` on its line (`cat <<E | sh`) is a child of the here-document.
                has_input = (node.type == "pipeline" and position > 0) or node.type == "heredoc_redirect"
                stack.append((child, is_piped or has_input, stdin))

    def _add_command(self, node: Node, is_piped: bool, stdin: tuple[Word, ...]) -> None:
        """Add a command once for each possible value of its name, at most `MAX_VALUES` times."""
        name = node.child_by_field_name("name")
        if name is None:
            return self._add((), self._list_redirects(node))
        arguments = tuple(
            word
            for argument in node.children_by_field_name("argument")
            for word in list_words(argument, self._variables)
        )
        stdin, redirects = stdin + self._parse_input(node), self._list_redirects(node)
        for words in islice(list_alternatives(name, self._variables), MAX_VALUES):
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
        """Return the input of a node, as `ShellCommand.stdin` has it."""
        words: list[Word] = []
        for redirect in node.children_by_field_name("redirect"):
            for child in redirect.children:
                if redirect.type == "heredoc_redirect" and child.type == "heredoc_body":
                    words.append(Word(_read_source(child)))
                elif redirect.type == "herestring_redirect" and child.is_named:
                    words += list_words(child, self._variables)
        operators = [_read_operator(redirect) for redirect in _list_file_redirects(node)]
        words += [Word("", is_known=False)] * operators.count("<")
        return tuple(words)

    def _list_redirects(self, node: Node) -> tuple[Redirect, ...]:
        return tuple(
            Redirect(_read_operator(redirect), word)
            for redirect in _list_file_redirects(node)
            for target in redirect.children_by_field_name("destination")
            for word in list_words(target, self._variables)
        )


def _list_file_redirects(node: Node) -> Iterator[Node]:
    """Yield the redirections of a command from and to files."""
    for redirect in node.children_by_field_name("redirect"):
        if redirect.type == "file_redirect":
            yield redirect
        elif redirect.type == "heredoc_redirect":  # for `cat <<E > file`, the grammar puts `> file` here
            yield from (child for child in redirect.children if child.type == "file_redirect")


def _read_operator(redirect: Node) -> str:
    """Return the operator of a redirection, such as `>`."""
    return next((child.type for child in redirect.children if not child.is_named), ">")
