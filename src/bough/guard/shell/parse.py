"""From the text of a command line to the commands in it, wherever they hide.

Source: the grammar of tree-sitter-bash.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice, pairwise

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

from bough.guard.names import names
from bough.guard.shell.words import MAX_VALUES, PRIVATE, Variables, Word, flat_words, word_values

MAX_BYTES = 64 << 10
MAX_NODES = 30_000


@dataclass(frozen=True)
class Redirect:
    """Where a stream goes or comes from: `operator` as written (`>`, `>>`, `<`, `&>`, `>|`, …)."""

    operator: str
    target: Word


@dataclass(frozen=True)
class ShellCommand:
    """A simple command: its name and arguments, and what is known of its environment.

    Attributes:
        words: Name first; empty for a redirection on its own.
        piped: Whether another command's output is its input.
        stdin: Texts given to it as here-documents or here-strings; an unknown one for a file.
    """

    words: tuple[Word, ...]
    redirects: tuple[Redirect, ...] = ()
    piped: bool = False
    stdin: tuple[Word, ...] = ()

    @property
    def args(self) -> tuple[Word, ...]:
        """Everything after the name."""
        return self.words[1:]


@dataclass
class Script:
    """All commands of a text, in no particular order of execution.

    Attributes:
        problem: Why the text could not be read in full; what was read is there nevertheless.
        assigned: Variables that the text sets.
        fork_bomb: Whether a function starts itself again, more than once or in the background.
    """

    commands: list[ShellCommand] = field(default_factory=list[ShellCommand])
    problem: str = ""
    assigned: dict[str, tuple[str, ...] | None] = field(default_factory=dict[str, "tuple[str, ...] | None"])
    functions: set[str] = field(default_factory=set[str])
    fork_bomb: bool = False


def parse_shell(text: str, variables: Variables | None = None) -> Script:
    """Return the commands of a text, also those in substitutions, pipelines, functions and here-documents.

    Never raises: what cannot be read is named in `problem`. O(length), bounded by `MAX_BYTES`.

    Args:
        variables: Known from outside; the text's own assignments come on top.
    """
    script = Script()
    source = _join_lines(text).encode("utf-8", "replace")
    if len(source) > MAX_BYTES:
        script.problem = f"the command is longer than {MAX_BYTES} bytes"
    elif "\0" in text or any(mark in text for mark in PRIVATE):
        script.problem = "the command holds characters that no shell command needs"
    else:
        _read(source, script, dict(variables or {}))
    return script


def _join_lines(text: str) -> str:
    """A backslash before a line's end joins two lines, also in the middle of a word; the grammar does not know."""
    return re.sub(r"\\(.)", lambda pair: "" if pair[1] == "\n" else pair[0], text, flags=re.DOTALL)


def _read(source: bytes, script: Script, variables: dict[str, tuple[str, ...] | None]) -> None:
    root = Parser(Language(tree_sitter_bash.language())).parse(source).root_node
    if root.descendant_count > MAX_NODES:
        script.problem = "the command has too many parts"
        return
    nodes = list(_walk(root))
    if root.has_error or any(_torn(node, source) for node in nodes):
        script.problem = "the command could not be read as shell in full"
    variables.setdefault("IFS", (" ",))
    for node in nodes:
        _note_variable(node, script, variables)
    for name in _read_from_input(nodes):
        variables[name] = script.assigned[name] = None
    _Collector(script, variables).collect(root)


def _walk(root: Node) -> Iterator[Node]:
    """Every node, parents first, in the order of the text; not recursive, whatever the depth."""
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


def _torn(node: Node, source: bytes) -> bool:
    r"""Whether the grammar took one word for two: `'tr'\uncate` is `truncate`, but its tree says `tr uncate`."""
    if node.type in _WHOLE or node.child_count < 2:
        return False
    return any(
        before.type in _WORDS and after.type in _WORDS and not source[before.end_byte : after.start_byte].isspace()
        for before, after in pairwise(node.children)
    )


def _note_variable(node: Node, script: Script, variables: dict[str, tuple[str, ...] | None]) -> None:
    if node.type == "variable_assignment":
        name, values = _assignment(node, variables)
    elif node.type == "for_statement" and (variable := node.child_by_field_name("variable")):
        name, values = _source(variable), _all_texts(node.children_by_field_name("value"), variables)
    else:
        if node.type == "function_definition" and (name_node := node.child_by_field_name("name")):
            script.functions.add(_source(name_node))
            script.fork_bomb |= _starts_itself(node, _source(name_node))
        return
    before = variables.get(name, ()) if name in script.assigned else ()
    joined = None if values is None or before is None else tuple(dict.fromkeys(before + values))[: MAX_VALUES + 1]
    variables[name] = script.assigned[name] = joined


def _assignment(node: Node, variables: Variables) -> tuple[str, tuple[str, ...] | None]:
    name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
    text = _source(name) if name else ""
    if b"+=" in (node.text or b"")[: len(text.encode()) + 2] or (value and value.type == "array"):
        return text.split("[")[0], None
    return text.split("[")[0], ("",) if value is None else _all_texts([value], variables)


def _all_texts(nodes: list[Node], variables: Variables) -> tuple[str, ...] | None:
    """Return every value the nodes may have; None as soon as one cannot be known."""
    alternatives = [words for node in nodes for words in word_values(node, variables)]
    if any(not word.known for words in alternatives for word in words):
        return None
    return tuple(" ".join(word.text for word in words) for words in alternatives)


_READERS = frozenset({"read", "mapfile", "readarray", "getopts", "printf", "let"})


def _read_from_input(nodes: list[Node]) -> Iterator[str]:
    """Names of variables that builtins set at run time (`read x`, `printf -v x`)."""
    for node in nodes:
        if node.type == "command" and (name := node.child_by_field_name("name")) and _source(name) in _READERS:
            for argument in node.children_by_field_name("argument"):
                if match := re.fullmatch(r"-?v?([A-Za-z_]\w*)(\W.*)?", _source(argument), re.DOTALL):
                    yield match[1]


def _starts_itself(definition: Node, name: str) -> bool:
    calls = [node for node in _walk(definition) if node.type == "command_name" and _source(node) == name]
    body = definition.child_by_field_name("body")
    return len(calls) > 1 or bool(calls and body and b"&" in (body.text or b"").replace(b"&&", b""))


def _source(node: Node) -> str:
    return (node.text or b"").decode("utf-8", "replace")


class _Collector:
    """Walks a tree and notes its commands; input given to a compound belongs to every command in it."""

    def __init__(self, script: Script, variables: Variables) -> None:
        self._script = script
        self._variables = variables

    def collect(self, root: Node) -> None:
        stack: list[tuple[Node, bool, tuple[Word, ...]]] = [(root, False, ())]
        while stack:
            node, piped, stdin = stack.pop()
            if node.type in ("command_substitution", "process_substitution"):
                piped, stdin = False, ()
            elif node.type == "redirected_statement":
                stdin += self._parse_input(node)
                self._add((), self._redirects(node))
            elif node.type == "command":
                self._command(node, piped, stdin)
            elif node.type == "unset_command":
                self._add(tuple(Word(_source(child)) for child in node.children), ())
            later = False
            for child in node.children:
                fed = (node.type == "pipeline" and later) or node.type == "heredoc_redirect"
                stack.append((child, piped or fed, stdin))
                later = True

    def _command(self, node: Node, piped: bool, stdin: tuple[Word, ...]) -> None:
        name = node.child_by_field_name("name")
        if name is None:
            return self._add((), self._redirects(node))
        arguments = tuple(
            word
            for argument in node.children_by_field_name("argument")
            for word in flat_words(argument, self._variables)
        )
        fed, redirects = stdin + self._parse_input(node), self._redirects(node)
        for words in islice(word_values(name, self._variables), MAX_VALUES):
            self._add((*words, *arguments), redirects, piped, fed)
        return None

    def _add(
        self,
        words: tuple[Word, ...],
        redirects: tuple[Redirect, ...],
        piped: bool = False,
        stdin: tuple[Word, ...] = (),
    ) -> None:
        if words or redirects:
            self._script.commands.append(ShellCommand(words, redirects, piped, stdin))

    def _parse_input(self, node: Node) -> tuple[Word, ...]:
        """What a node's input is: the texts of here-documents and here-strings, and files, which are not known."""
        words: list[Word] = []
        for redirect in node.children_by_field_name("redirect"):
            for child in redirect.children:
                if redirect.type == "heredoc_redirect" and child.type == "heredoc_body":
                    words.append(Word(_source(child)))
                elif redirect.type == "herestring_redirect" and child.is_named:
                    words += flat_words(child, self._variables)
        words += [Word("", known=False) for redirect in _file_redirects(node) if _operator(redirect) == "<"]
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
