"""Reading a skill file: leniently, loading whatever is readable, or strictly, by the specification.

A file that is not a skill is refused with diagnostics; it does not affect other files.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from bough.errors import InvalidInput
from bough.skills.model import (
    MAX_FILE_BYTES,
    Diagnostic,
    Document,
    Notes,
    Resources,
    Scope,
    Skill,
    SkillMetadata,
    is_skill_file,
)
from bough.skills.read import fields as read
from bough.skills.read.encoding import decode, is_binary
from bough.skills.read.plain import load_plain

_FENCE = re.compile(r"^(?:-{3,}|\.\.\.)[ \t]*$", re.MULTILINE)
_FENCE_WITH_TEXT = re.compile(r"^-{3,}[ \t]*([^\s-].*)$", re.MULTILINE)
_HEADING = re.compile(r"^#{1,6}[ \t]+\S", re.MULTILINE)
_OPENING = re.compile(r"(-{3,}[ \t]*)(?:\n|$)")
_CODE_FENCE = re.compile(r"`{3,}[a-zA-Z]*[ \t]*\n(?=-{3,}[ \t]*\n)")
_COMMENT = re.compile(r"<!--.*?-->\s*(?=-{3,}[ \t]*\n)", re.DOTALL)
_ENTRY = re.compile(r"[A-Za-z_][\w-]*[ \t]*:(?=\s|$)")


@dataclass(frozen=True, slots=True)
class Split:
    """A file split into frontmatter and body.

    Attributes:
        header: The frontmatter's text; None if missing.
        body: The text after it.
        header_line: The 1-based line of the file at which `header` starts.
    """

    header: str | None
    body: str
    header_line: int = 1
    diagnostics: tuple[Diagnostic, ...] = ()


def split(text: str) -> Split:
    """Split `text`, which has line feeds only, into frontmatter and body. O(n)."""
    notes = Notes()
    start = _find_opening(text, notes)
    opening = _OPENING.match(text, start)
    if opening is None:
        return Split(None, text)
    start = opening.end()
    line = _line_at(text, start)
    if opening[1] != "---":
        _note_inexact_fence("first", line - 1, notes)
    closing = _FENCE.search(text, start)
    if (fence := _find_fence_with_text(text, start, closing)) is not None:
        message = "the frontmatter's last line has text after `---`"
        fix = "start a new line after `---`"
        notes.warn("fence-with-text", message, fix, _line_at(text, fence.start()))
        return Split(text[start : fence.start()], fence[1] + text[fence.end() :], line, tuple(notes))
    if closing is None:
        return _split_unclosed(text, start, line, notes)
    if closing[0] != "---":
        _note_inexact_fence("last", _line_at(text, closing.start()), notes)
    return Split(text[start : closing.start()], text[closing.end() + 1 :], line, tuple(notes))


def find_exact_header(head: bytes) -> str | None:
    """Return the frontmatter of a file's first bytes if it lies between exact fences; else None."""
    end = head.find(b"\n---\n", 3) if head.startswith(b"---\n") else -1
    header = head[3 : end + 1]  # with the line feed before its first line
    if end < 0 or b"\r" in header or b"\0" in header or b"\n..." in header or b"\n---" in header:
        return None
    try:
        return header[1:].decode("utf-8")
    except UnicodeDecodeError:
        return None


def _line_at(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def _note_inexact_fence(place: str, line: int, notes: Notes) -> None:
    notes.warn("fence", f"the frontmatter's {place} line is not exactly `---`", "write `---`", line)


def _find_fence_with_text(text: str, start: int, closing: re.Match[str] | None) -> re.Match[str] | None:
    """Return the line of dashes with text after them that ends the frontmatter; None if there is no such line.

    The text before it must be a mapping with a name or a description, and no plain fence may follow before the first
    heading.
    """
    fence = _FENCE_WITH_TEXT.search(text, start, len(text) if closing is None else closing.start())
    if fence is None or not any(_ENTRY.match(line) for line in text[start : fence.start()].split("\n")):
        return None
    heading = fence if fence[1].startswith("#") else _HEADING.search(text, fence.end())
    if closing is not None and (heading is None or closing.start() < heading.start()):
        return None
    values = load(text[start : fence.start()], Notes())
    return fence if "name" in values or "description" in values else None


def _find_opening(text: str, notes: Notes) -> int:
    start = 0
    while start < len(text) and text[start].isspace():
        start += 1
    if start and _OPENING.match(text, start):
        notes.warn("leading-blank-lines", "blank lines before the frontmatter", "start with `---`", 1)
    for pattern, wrapper in ((_CODE_FENCE, "a code fence"), (_COMMENT, "a comment")):
        if match := pattern.match(text, start):
            notes.warn("text-before-frontmatter", f"{wrapper} before the frontmatter", "start with `---`", 1)
            return match.end()
    return start


def _split_unclosed(text: str, start: int, first_line: int, notes: Notes) -> Split:
    """Split a file whose frontmatter has no end: it consists of the entries up to the first blank line or heading."""
    lines = text[start:].split("\n")
    count = next((i for i, line in enumerate(lines) if not line.strip() or line.startswith("#")), len(lines))
    if not any(_ENTRY.match(line) for line in lines[:count]):
        return Split(None, text)
    message = "the frontmatter has no closing `---`"
    notes.warn("unclosed-frontmatter", message, "add a line `---`", first_line + count)
    return Split("\n".join(lines[:count]) + "\n", "\n".join(lines[count:]), first_line, tuple(notes))


def load(header: str, notes: Notes, first_line: int = 2) -> dict[str, Any]:
    """Return the fields of a frontmatter as text, lists and mappings, repaired where necessary. O(n); never raises.

    Args:
        header: The text between the fences.
        notes: Receives a diagnostic for each repair.
        first_line: The line of the file at which `header` starts, for `notes`.
    """
    values = load_plain(header)
    if values is None:
        from bough.skills.read.yaml_text import load_yaml  # most libraries of skills need no YAML, slow to import

        values = load_yaml(header, notes, first_line)
    return values


Mode: TypeAlias = Literal["lenient", "strict"]

MAX_HEADER_CHARACTERS = 64 << 10
HEAD_BYTES = 4096
MAX_DIAGNOSTICS = 100

_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NOTHING_MORE = frozenset({"name", "description", "license", "compatibility", "allowed-tools", "metadata", "keywords"})

_PARAGRAPH_SKIPS = re.compile(r"\s*(?:#|<!--|```|---|===|!\[|\|)")


class SkillRefused(InvalidInput):
    """A file that cannot be loaded as a skill.

    Attributes:
        diagnostics: One or more with severity `error`, and all others of the file.
    """

    def __init__(self, path: Path, diagnostics: tuple[Diagnostic, ...]) -> None:
        worst = next((diagnostic for diagnostic in diagnostics if diagnostic.severity == "error"), diagnostics[0])
        super().__init__(
            f"{path} is not a skill: {worst.message}",
            hint=worst.fix or "run `bough skills check` to list every problem",
            details={"diagnostics": [diagnostic.as_dict() for diagnostic in diagnostics]},
        )
        self.diagnostics = diagnostics


@dataclass(frozen=True, slots=True)
class Reading:
    """The result of reading a file: a skill, or None if it was refused, and diagnostics in both cases."""

    skill: Skill | None
    diagnostics: tuple[Diagnostic, ...]


class HeadReading(NamedTuple):
    """The result of reading a file for tier 1: metadata, or None if it was refused, and diagnostics."""

    metadata: SkillMetadata | None
    diagnostics: tuple[Diagnostic, ...]


def read_skill(path: str | Path, mode: Mode = "lenient", *, source: str = "", scope: Scope = "code") -> Skill:
    """Return the skill that a file, or a folder with a `SKILL.md`, defines.

    Raises:
        SkillRefused: It cannot be loaded; in strict mode, also if it violates the specification in any way.
    """
    reading = try_read(path, mode, source=source, scope=scope)
    if reading.skill is None:
        raise SkillRefused(find_skill_file(Path(path)), reading.diagnostics)
    return reading.skill


def try_read(path: str | Path, mode: Mode = "lenient", *, source: str = "", scope: Scope = "code") -> Reading:
    """Read a skill like `read_skill`, but return a refusal as a `Reading` without a skill. Never raises."""
    return read_file(find_skill_file(Path(path)), mode, source, scope)


def read_file(file: Path, mode: Mode = "lenient", source: str = "", scope: Scope = "code") -> Reading:
    """Read a skill like `try_read`, from the path of the file itself."""
    data, notes = read_bounded(file)
    return Reading(None, _set_path(notes, file)) if data is None else _read(file, data, notes, mode, source, scope)


def _read(file: Path, data: bytes, notes: Notes, mode: Mode, source: str, scope: Scope) -> Reading:
    if is_binary(data):
        notes.error("binary", "the file is not text", "write the instructions as Markdown")
        return Reading(None, _set_path(notes, file))
    parts = split(decode(data, notes))
    notes += parts.diagnostics
    fields = _load_header(parts, notes)
    skill = _build_skill(file, parts, read.rename_aliases(fields, notes), notes, source=source, scope=scope)
    if mode == "strict":
        from bough.skills.read.strict import find_violations

        repairs = [note for note in notes if note.severity != "error"]
        notes = find_violations(file, data, parts.header, fields)
        notes += repairs
        if any(note.severity == "error" for note in notes):
            skill = None
    diagnostics = _set_path(notes, file)
    if skill is not None:
        attributes: dict[str, Any] = skill.__dict__
        attributes["diagnostics"] = diagnostics
        attributes["_unhashed"] = (parts.body, data)
    return Reading(skill, diagnostics)


def read_head(path: str, home: str, source: str = "", scope: Scope = "configured") -> HeadReading | None:
    """Read the tier 1 metadata of one file: 4 KB of it, or all if its frontmatter is longer or broken.

    Returns None if there is no such file.

    Args:
        path: Absolute path of the file.
        home: The folder's name; for a flat file its own name without the extension.
    """
    try:
        handle = os.open(path, _FLAGS)
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        return _summarize(read_file(Path(path), "lenient", source, scope))
    try:
        head = os.read(handle, HEAD_BYTES)
    except OSError:
        head = b""
    finally:
        os.close(handle)
    notes: Notes = Notes()
    values = None if b"\0" in head else _load_head(head, notes)
    if values is None:
        # The head is used only if it is the whole file: one that is cut off would look broken.
        is_whole_file = 0 < len(head) < HEAD_BYTES
        reading = _read(Path(path), head, Notes(), "lenient", source, scope) if is_whole_file else None
        return _summarize(reading or read_file(Path(path), "lenient", source, scope))
    metadata = _read_metadata(path, home, values, "", notes, source, scope)
    return HeadReading(metadata, _set_path(notes, path) if notes else ())


def _summarize(reading: Reading) -> HeadReading:
    return HeadReading(None if reading.skill is None else reading.skill.summary(), reading.diagnostics)


def _load_head(head: bytes, notes: Notes) -> dict[str, Any] | None:
    """Return the fields of a head with a whole frontmatter and a description; None for any other head."""
    header = find_exact_header(head)
    if header is None:
        return None
    values = read.rename_aliases(load(header, notes), notes)
    description = values.get("description")
    return values if isinstance(description, str) and description and not description.isspace() else None


def read_document(path: Path) -> Document:
    """Return the instructions of a file.

    Raises:
        SkillRefused: The file is gone or unreadable.
    """
    data, notes = read_bounded(path)
    if data is None:
        raise SkillRefused(path, _set_path(notes, path))
    return Document.from_file(split(decode(data, Notes())).body, data)


class FileSkillLoader:
    """Reads skills from their files and folders."""

    def read_document(self, path: Path) -> Document:
        """Return the instructions of a file.

        Raises:
            SkillRefused: The file is gone or unreadable.
        """
        return read_document(path)

    def list_resources(self, folder: Path) -> Resources:
        """Return the files of a skill's folder."""
        from bough.skills.read.resources import list_resources

        return list_resources(folder)


def find_skill_file(path: Path) -> Path:
    """Return the file that defines a skill, given that file or its folder."""
    if not path.is_dir() or os.path.lexists(path / "SKILL.md"):
        return path / "SKILL.md" if path.is_dir() else path
    try:
        return next(path / name for name in sorted(os.listdir(path)) if is_skill_file(name))
    except (OSError, StopIteration):
        return path / "SKILL.md"


def read_bounded(path: Path) -> tuple[bytes | None, Notes]:
    """Return at most `MAX_FILE_BYTES` of a file, or None and the reason. Does not follow links out of its folder."""
    notes = Notes()
    data = _read_bytes(str(path), MAX_FILE_BYTES, notes)
    if data is not None and len(data) >= MAX_FILE_BYTES:
        notes.warn("file-too-long", "only the first 1 MB of the file was read", "shorten it")
    return data, notes


def _read_bytes(path: str, size: int, notes: Notes) -> bytes | None:
    # Opened without following a link, and checked on the descriptor: between a check of the path and the opening, the
    # file could be replaced by a link that leaves the folder, or by a pipe that blocks for ever.
    try:
        handle = os.open(path, _FLAGS)
    except OSError as error:
        if os.path.islink(path):
            return _read_link(path, size, notes)
        return notes.error("unreadable", f"cannot be read: {error.strerror}")
    except ValueError:
        return notes.error("unreadable", "cannot be read: the path contains a NUL byte")
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return notes.error("not-a-file", "not a regular file")
        return _read_all(handle, size)
    except OSError as error:
        return notes.error("unreadable", f"cannot be read: {error.strerror}")
    finally:
        os.close(handle)


def _read_all(handle: int, size: int) -> bytes:
    data = os.read(handle, size)
    if len(data) in (0, size) or size <= HEAD_BYTES:
        return data
    # One read may return less than was asked for, for example on a network file system.
    parts = [data]
    while (bytes_left := size - sum(map(len, parts))) and (part := os.read(handle, bytes_left)):
        parts.append(part)
    return b"".join(parts)


def _read_link(path: str, size: int, notes: Notes) -> bytes | None:
    folder, target = os.path.realpath(os.path.dirname(path)), os.path.realpath(path)
    if not target.startswith(folder + os.sep):
        return notes.error("link-out", "the link leaves its folder", "replace the link by the file")
    if os.path.islink(target):  # realpath returns a circular link unresolved; reading it would recurse for ever
        return notes.error("link-circle", "the link is circular", "replace the link by the file")
    return _read_bytes(target, size, notes)


def _load_header(parts: Split, notes: Notes) -> dict[str, Any]:
    header = parts.header
    if header is None:
        if parts.body.strip():
            fix = "start with `---`, `name: …`, `description: …`, `---`"
            notes.warn("frontmatter-missing", "no frontmatter", fix, 1)
        return {}
    if len(header) > MAX_HEADER_CHARACTERS:
        header = header[: header.rfind("\n", 0, MAX_HEADER_CHARACTERS) + 1]
        message = "only the first 64 KB of frontmatter were read"
        notes.warn("frontmatter-too-long", message, "move text into the body")
    return load(header, notes, parts.header_line)


def _build_skill(
    file: Path, parts: Split, values: dict[str, Any], notes: Notes, *, source: str, scope: Scope
) -> Skill | None:
    """Return the skill of a file; None, with the reason in `notes`, if it is not a skill."""
    if not values and not parts.body.strip():
        return notes.error("empty", "the file is empty", "write frontmatter with a name and a description")
    home = file.absolute().parent.name if is_skill_file(file.name) else file.name.removesuffix(".md")
    fields = None if parts.header is None else values
    metadata = _read_metadata(str(file), home, fields, parts.body, notes, source, scope)
    if metadata is None:
        return None
    return Skill(
        name=metadata.name,
        description=metadata.description,
        path=file,
        trigger=metadata.trigger,
        inputs=metadata.inputs,
        mcp_tools=_read_mapping(values, "mcp_tools", notes),
        frontmatter=values,
        license=read.read_text(values, "license", notes),
        compatibility=_read_compatibility(values, notes),
        metadata=read.read_metadata(values, notes),
        allowed_tools=_read_allowed_tools(values),
        source=source,
        scope=scope,
        keywords=metadata.keywords,
        invocable=metadata.invocable,
        hooks=not read.is_nothing(values.get("hooks")),
        loader=FileSkillLoader(),
    )


def _read_metadata(
    path: str, home: str, values: dict[str, Any] | None, body: str, notes: Notes, source: str, scope: Scope
) -> SkillMetadata | None:
    """Return a skill's tier 1 metadata; None, with the reason in `notes`, if it has no safe name or no description.

    Args:
        values: The fields; None if the file has no frontmatter.
        body: The text whose first paragraph replaces a missing description.
    """
    name = _read_name(path, home, values, notes)
    if name is None:
        return None
    values = values or {}
    description = read.read_text(values, "description", notes)
    if description is None:
        description = extract_first_paragraph(body)
        if description is None:
            return notes.error("description-missing", "no description and no text", "description: …")
        message, fix = "no `description`; the first paragraph is used", "description: what it does and when to use it"
        notes.warn("description-missing", message, fix)
    elif len(description) > read.MAX_DESCRIPTION:
        message = f"the description has {len(description)} characters, more than {read.MAX_DESCRIPTION}"
        notes.warn("description-length", message, "shorten it")
    if _NOTHING_MORE.issuperset(values):
        return SkillMetadata(name, description, path, source, scope, keywords=_read_keywords(values))
    inputs = read.read_inputs(values, notes)
    trigger = read.read_trigger(values, inputs, notes)
    invocable = not read.means_true(values.get("disable-model-invocation"))
    return SkillMetadata(name, description, path, source, scope, trigger, inputs, _read_keywords(values), invocable)


def extract_first_paragraph(body: str) -> str | None:
    """Return the first paragraph of a Markdown text on one line, at most 1,024 characters; else its first heading."""
    heading = ""
    paragraph: list[str] = []
    for line in body[: 8 << 10].split("\n"):
        if not line or line.isspace():
            if paragraph:
                break
        elif paragraph or not _PARAGRAPH_SKIPS.match(line):
            paragraph.append(line)
        else:
            heading = heading or line.strip("# \t")
    return (" ".join(" ".join(paragraph).split()) or heading)[: read.MAX_DESCRIPTION] or None


def _read_name(path: str, home: str, values: dict[str, Any] | None, notes: Notes) -> str | None:
    """Return a skill's name, which is `home` if there is no frontmatter; None if it is unsafe."""
    name = home
    if values is not None:
        if values.get("name") == home and read.is_good_name(home):
            return home
        name = read.read_name(values, home, notes, is_folder=is_skill_file(path.rpartition("/")[2]))
    if reason := read.explain_unsafe_name(name):
        return notes.error("name-unsafe", f"the name is refused: {reason}", "use letters, digits, hyphens")
    return name


def _read_compatibility(values: dict[str, Any], notes: Notes) -> str | None:
    text = read.read_text(values, "compatibility", notes)
    if text and len(text) > read.MAX_COMPATIBILITY:
        message = f"`compatibility` has {len(text)} characters, more than {read.MAX_COMPATIBILITY}"
        notes.warn("compatibility-length", message, "shorten it")
    return text


def _read_mapping(values: dict[str, Any], field: str, notes: Notes) -> dict[str, Any]:
    value = values.get(field)
    if isinstance(value, dict):
        return value  # pyright: ignore[reportUnknownVariableType]
    if not read.is_nothing(value):
        notes.warn(f"{field}-not-mapping", f"`{field}` is not a mapping; it is ignored")
    return {}


def _read_allowed_tools(values: dict[str, Any]) -> tuple[str, ...] | None:
    if "allowed-tools" not in values:
        return None
    from bough.skills.read.allowed_tools import parse_allowed_tools

    return parse_allowed_tools(values["allowed-tools"])


def _read_keywords(values: dict[str, Any]) -> tuple[str, ...]:
    metadata = values.get("metadata")
    nested = metadata.get("keywords", metadata.get("tags")) if isinstance(metadata, dict) else None  # pyright: ignore
    value: Any = values.get("keywords", values.get("tags", nested))  # pyright: ignore
    return read.read_words(value) if value else ()


def _set_path(notes: list[Diagnostic], path: Path | str) -> tuple[Diagnostic, ...]:
    file = str(path)
    if len(notes) > MAX_DIAGNOSTICS:
        # Errors first: they decide whether the file is refused, and must not be displaced by warnings before them.
        notes = [note for note in notes if note.severity == "error"][:MAX_DIAGNOSTICS] + notes[:MAX_DIAGNOSTICS]
        notes.append(Diagnostic("more", "info", "further diagnostics are not listed"))
    return tuple([Diagnostic(*note[:5], file) for note in notes])
