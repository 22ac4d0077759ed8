"""Reading frontmatter as YAML with text, lists and mappings only. Types and tags are ignored; the size is limited.

A frontmatter that is not valid YAML is read entry by entry, so an invalid value affects only its own key. An invalid
value is read as plain text, with a diagnostic that says what to write instead.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, cast

import yaml

from bough.skills.model import Notes
from bough.skills.read.plain import load_plain

MAX_NODES = 10_000
"""How many values a frontmatter may have after its aliases are expanded."""

MAX_DEPTH = 32
_MAX_REPAIR_DEPTH = 4
"""How deep mappings are read entry by entry; deeper ones are read as text."""

_LOADER: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
_ENTRY = re.compile(r"([A-Za-z_][\w-]*|\"[^\"\n]*\"|'[^'\n]*')[ \t]*:(?:[ \t]+(.*)|$)")
_ENTRY_WITHOUT_SPACE = re.compile(r"(name|description|license|compatibility|version):(\S.*)")
_BLOCK = re.compile(r"([|>])[-+0-9]*")
_ESCAPES = {'\\"': '"', "\\\\": "\\", "\\n": "\n", "\\t": "\t"}
_HASH_IN_TEXT = re.compile(r"^description[ \t]*:[ \t]+([^\s\"'|>#&*!\[{].*)$", re.MULTILINE)


class InvalidYaml(ValueError):
    """The text is not valid YAML, or cannot be read as text, lists and mappings."""


def load_yaml(header: str, notes: Notes, first_line: int) -> dict[str, Any]:
    """Return the fields of a frontmatter as text, lists and mappings, with a diagnostic in `notes` for each repair."""
    yaml_notes: Notes = Notes()
    try:
        data = read_yaml(header, first_line, yaml_notes)
    except OverflowError:
        message = "YAML aliases expand beyond limits"
        notes.error("yaml-bomb", message, "do not use aliases", first_line)
        return {}
    except InvalidYaml:
        return _load_invalid(header, notes, first_line)
    if data is not None and data != "" and not isinstance(data, dict):
        return _load_invalid(header, notes, first_line)
    notes += yaml_notes
    values = cast("dict[str, Any]", data or {})
    _restore_hash(header, first_line, values, notes)
    return values


def _restore_hash(header: str, first_line: int, values: dict[str, Any], notes: Notes) -> None:
    """Restore the end of a description that YAML took for a comment, because ` #` is nearly always meant as text."""
    match = _HASH_IN_TEXT.search(header)
    if match is None:
        return
    written_text = match[1].rstrip()
    value = values.get("description")
    if " #" in written_text and isinstance(value, str) and written_text.startswith(value):
        values["description"] = written_text
        message = "in YAML, ` #` starts a comment in the description"
        line_number = first_line + header.count("\n", 0, match.start())
        notes.warn("yaml-hash-in-text", message, "quote the value", line_number)


@dataclass(slots=True)
class _Entry:
    """A `key: value` line at the left margin, and the lines after it that continue its value."""

    key: str
    inline_value: str
    line: int
    continuation: list[str] = field(default_factory=list[str])


def _load_invalid(header: str, notes: Notes, first_line: int) -> dict[str, Any]:
    """Return the fields of a frontmatter that is not valid YAML, read entry by entry."""
    values = _read_block(header.split("\n"), first_line, 0, notes)
    if not values and header.strip():
        message = "the frontmatter has no `key: value` lines"
        notes.warn("yaml-not-a-mapping", message, line=first_line)
    return values


def _read_block(lines: list[str], first_line: int, depth: int, notes: Notes) -> dict[str, Any]:
    """Return the entries of a mapping that is not valid YAML."""
    values: dict[str, Any] = {}
    for entry in _split_entries(lines, first_line, notes):
        if entry.key in values:
            _note_duplicate_key(entry.key, entry.line, notes)
        values[entry.key] = _read_entry(entry, depth, notes)
    return values


def _split_entries(lines: list[str], first_line: int, notes: Notes) -> list[_Entry]:
    """Split lines into entries; add a diagnostic for each line that belongs to none."""
    entries: list[_Entry] = []
    for number, line in enumerate(lines, first_line):
        match = _ENTRY.match(line)
        if match is None and (match := _ENTRY_WITHOUT_SPACE.fullmatch(line)):
            message = f"no space after `{match[1]}:`"
            notes.warn("yaml-missing-space", message, f"{match[1]}: …", number)
        if match is not None:
            entries.append(_Entry(match[1].strip("\"'"), (match[2] or "").strip(), number))
        elif entries and not (
            entries[-1].key.lower() == "name" and entries[-1].inline_value
        ):  # a name is a single line
            entries[-1].continuation.append(line)
        elif line.strip() and not line.lstrip().startswith("#"):
            message = f"a line that belongs to no key: {line.strip()[:60]}"
            notes.warn("yaml-stray-line", message, "remove it", number)
    return entries


def _read_entry(entry: _Entry, depth: int, notes: Notes) -> Any:
    """Return the value of an entry: parsed as YAML if possible, else repaired or as text."""
    if not any(entry.continuation):
        plain = load_plain(f"key: {entry.inline_value}")  # takes a fifth of YAML's time
        if plain is not None:
            return plain["key"]
    text = "\n".join([entry.inline_value, *entry.continuation])
    value = _read_value(text)
    if value is None and "\t" in text:
        value = _read_value(text.expandtabs(2))
        if value is not None:
            notes.warn("yaml-tab", f"tabs in `{entry.key}`", "indent with spaces", entry.line)
    if value is not None:
        return value
    if not entry.inline_value and depth < _MAX_REPAIR_DEPTH:
        return _read_nested(entry, depth, notes)
    return _read_as_text(entry, notes)


def _read_value(text: str) -> Any:
    """Return the value of a key as YAML parses it; None if the text is not valid YAML."""
    try:
        data = read_yaml(f"key: {text}\n", 1, Notes())
    except (InvalidYaml, OverflowError):
        return None
    return data["key"] if isinstance(data, dict) and list(data) == ["key"] else None  # pyright: ignore


def _read_nested(entry: _Entry, depth: int, notes: Notes) -> Any:
    """Return the list, mapping or text in the lines below a key, which are not valid YAML."""
    lines = [line.expandtabs(2) for line in entry.continuation]
    filled_lines = [line for line in lines if line.strip()]
    if not filled_lines:
        return ""
    margin = min(len(line) - len(line.lstrip()) for line in filled_lines)
    lines = [line[margin:] for line in lines]
    if all(line[margin:].startswith(("-", " ")) for line in filled_lines):
        return _read_list(lines, entry, notes)
    if _ENTRY.match(filled_lines[0][margin:]):
        return _read_block(lines, entry.line + 1, depth + 1, notes)
    return _read_as_text(entry, notes)


def _read_list(lines: list[str], entry: _Entry, notes: Notes) -> list[Any]:
    """Return the items of a list that is not valid YAML; each item is read like an entry."""
    items: list[_Entry] = []
    for line in lines:
        if line.startswith("-"):
            items.append(_Entry(entry.key, line[1:].strip(), entry.line))
        elif items and line.strip():
            items[-1].continuation.append(f"  {line.strip()}")
    return [_read_entry(item, _MAX_REPAIR_DEPTH, notes) for item in items]


def _read_as_text(entry: _Entry, notes: Notes) -> str:
    """Return the value of an entry as plain text, with a diagnostic that names the error."""
    code, reason = _explain_invalid_value(entry.inline_value, "\n".join([entry.inline_value, *entry.continuation]))
    notes.warn(code, f"`{entry.key}`: {reason}", "put the value in quotes, or write it as `>-`", entry.line)
    continuation = [line.strip() for line in entry.continuation]
    if block := _BLOCK.fullmatch(entry.inline_value):
        return ("\n" if block[1] == "|" else " ").join(continuation).strip()
    return _unquote(" ".join(part for part in [entry.inline_value, *continuation] if part))


def _explain_invalid_value(inline_value: str, text: str) -> tuple[str, str]:
    """Return (diagnostic code, reason) for a value that is not valid YAML."""
    if inline_value.startswith(("*", "&")):
        return "yaml-unquoted-alias", f"an unquoted value cannot start with `{inline_value[0]}`"
    if _BLOCK.match(inline_value):
        return "yaml-block", "the block is not indented correctly"
    if inline_value.startswith('"') and re.search(r"\\[^\"\\/0abtnvfre\sNLPxuU_]", text):
        return "yaml-bad-escape", "an invalid escape sequence"
    if inline_value.startswith(('"', "'")):
        return "yaml-stray-quote", "an unbalanced quote"
    if inline_value.startswith(tuple("@`%!?,]}[{")):
        return "yaml-special-character", f"an unquoted value cannot start with `{inline_value[0]}`"
    if re.search(r":(\s|$)", text):
        return "yaml-unquoted-colon", "an unquoted `: ` in the value"
    return "yaml-invalid", "the value is not valid YAML"


def _unquote(text: str) -> str:
    """Return a text without its quotes, also if the closing quote is missing."""
    quote = text[:1]
    if quote not in ('"', "'"):
        return text
    inner = text[1:-1] if len(text) > 1 and text.endswith(quote) else text[1:]
    if quote == "'":
        return inner.replace("''", "'")
    return re.sub(r'\\["\\nt]', lambda match: _ESCAPES[match[0]], inner)


def read_yaml(text: str, first_line: int, notes: Notes) -> Any:
    """Return the value of a YAML document; None for an empty document. Of duplicate keys, the last one is used.

    Args:
        first_line: The first line of the text in the file, for the line numbers in `notes`.
        notes: Receives a diagnostic for every duplicate key.

    Raises:
        InvalidYaml: The text is not valid YAML, contains several documents, or has a key that is not text.
        OverflowError: The document exceeds `MAX_NODES` or `MAX_DEPTH`, with its aliases expanded.
    """
    try:
        loader = _LOADER(text)
        try:
            return _Builder(loader, first_line, notes).read_document()
        finally:
            loader.dispose()
    except (yaml.YAMLError, ValueError) as error:
        raise InvalidYaml(str(error)) from error


class _Builder:
    """Builds values from a parser's events, and limits their number and depth.

    PyYAML's own composer has no limit: a deeply nested file can crash the process.
    """

    def __init__(self, loader: Any, first_line: int, notes: Notes) -> None:
        self._next_event: Any = loader.get_event
        self._first_line = first_line
        self._notes = notes
        self._nodes_left = MAX_NODES
        self._anchors: dict[str, tuple[Any, int]] = {}

    def read_document(self) -> Any:
        """Return the value of the stream's only document."""
        self._next_event()  # the stream starts
        if isinstance(self._next_event(), yaml.StreamEndEvent):
            return None
        value = self._read_value(self._next_event(), 0)
        self._next_event()  # the document ends
        if not isinstance(self._next_event(), yaml.StreamEndEvent):
            raise InvalidYaml("several documents")
        return value

    def _read_value(self, event: Any, depth: int) -> Any:
        """Return the value that starts with `event`, and remember its anchor."""
        # Counted before the value is built: otherwise a YAML bomb would already fill the memory.
        self._count_nodes(1)
        if depth > MAX_DEPTH:
            raise OverflowError
        nodes_left = self._nodes_left
        match event:
            case yaml.ScalarEvent():
                value = event.value
            case yaml.AliasEvent():
                return self._read_alias(event)
            case yaml.SequenceStartEvent():
                value = self._read_list(depth)
            case _:
                value = self._read_mapping(depth)
        if event.anchor:  # registered after the value is complete, so no value can contain itself
            self._anchors[event.anchor] = (value, nodes_left - self._nodes_left)
        return value

    def _count_nodes(self, nodes: int) -> None:
        self._nodes_left -= nodes
        if self._nodes_left < 0:
            raise OverflowError

    def _read_alias(self, event: Any) -> Any:
        if event.anchor not in self._anchors:
            raise InvalidYaml("an undefined alias")
        value, size = self._anchors[event.anchor]
        # An alias counts as a copy, because code that walks over the result visits the value again.
        self._count_nodes(size)
        return value

    def _read_list(self, depth: int) -> list[Any]:
        items: list[Any] = []
        while not isinstance(event := self._next_event(), yaml.SequenceEndEvent):
            items.append(self._read_value(event, depth + 1))
        return items

    def _read_mapping(self, depth: int) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        while not isinstance(event := self._next_event(), yaml.MappingEndEvent):
            if not isinstance(event, yaml.ScalarEvent):
                raise InvalidYaml("a key is not text")
            key = str(event.value)
            if key in mapping:
                _note_duplicate_key(key, int(event.start_mark.line) + self._first_line, self._notes)
            mapping[key] = self._read_value(self._next_event(), depth + 1)
        return mapping


def _note_duplicate_key(key: str, line: int, notes: Notes) -> None:
    notes.warn("yaml-duplicate-key", f"duplicate key `{key[:64]}`; the last one is used", "keep one", line)
