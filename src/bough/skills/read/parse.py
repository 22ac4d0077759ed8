"""Reading a skill file: leniently, with whatever is readable, or strictly, by the specification.

A file that is not a skill is refused with diagnostics. Any other file is read, whatever its faults.
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
from bough.skills.read import fields
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
        header_line: The first line of `header` in the file, 1-based.
    """

    header: str | None
    body: str
    header_line: int = 1
    diagnostics: tuple[Diagnostic, ...] = ()


def split(text: str) -> Split:
    """Split a file's text into frontmatter and body. O(n). Lines of `text` must end with a line feed only."""
    notes = Notes()
    header_start = _find_opening(text, notes)
    opening = _OPENING.match(text, header_start)
    if opening is None:
        return Split(None, text)
    header_start = opening.end()
    header_line = _line_at(text, header_start)
    if opening[1] != "---":
        _note_inexact_fence("first", header_line - 1, notes)
    closing = _FENCE.search(text, header_start)
    if (fence := _find_fence_with_text(text, header_start, closing)) is not None:
        message = "the frontmatter's last line has text after `---`"
        fix = "start a new line after `---`"
        notes.warn("fence-with-text", message, fix, _line_at(text, fence.start()))
        return Split(text[header_start : fence.start()], fence[1] + text[fence.end() :], header_line, tuple(notes))
    if closing is None:
        return _split_unclosed(text, header_start, header_line, notes)
    if closing[0] != "---":
        _note_inexact_fence("last", _line_at(text, closing.start()), notes)
    return Split(text[header_start : closing.start()], text[closing.end() + 1 :], header_line, tuple(notes))


def find_exact_header(head: bytes) -> str | None:
    """Return the frontmatter from a file's first bytes; None unless it is complete UTF-8 between two `---` lines."""
    end = head.find(b"\n---\n", 3) if head.startswith(b"---\n") else -1
    header = head[3 : end + 1]  # begins with the line feed of the first fence
    if end < 0 or b"\r" in header or b"\0" in header or b"\n..." in header or b"\n---" in header:
        return None
    try:
        return header[1:].decode("utf-8")
    except UnicodeDecodeError:
        return None


def _line_at(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def _note_inexact_fence(position: str, line: int, notes: Notes) -> None:
    notes.warn("fence", f"the frontmatter's {position} line is not exactly `---`", "write `---`", line)


def _find_fence_with_text(text: str, start: int, closing: re.Match[str] | None) -> re.Match[str] | None:
    """Return the line of dashes and text that ends the frontmatter, such as `--- # Title`; None if there is none.

    The lines before it must contain a name or a description. Between it and the next heading, there must be no
    plain `---` line.
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
    """Return the position of the first fence, after any blank lines, code fence or comment before it."""
    position = 0
    while position < len(text) and text[position].isspace():
        position += 1
    if position and _OPENING.match(text, position):
        notes.warn("leading-blank-lines", "blank lines before the frontmatter", "start with `---`", 1)
    for pattern, wrapper in ((_CODE_FENCE, "a code fence"), (_COMMENT, "a comment")):
        if match := pattern.match(text, position):
            notes.warn("text-before-frontmatter", f"{wrapper} before the frontmatter", "start with `---`", 1)
            return match.end()
    return position


def _split_unclosed(text: str, header_start: int, first_line: int, notes: Notes) -> Split:
    """Split a file whose frontmatter has no closing fence: it ends before the first blank line or heading."""
    lines = text[header_start:].split("\n")
    count = next((i for i, line in enumerate(lines) if not line.strip() or line.startswith("#")), len(lines))
    if not any(_ENTRY.match(line) for line in lines[:count]):
        return Split(None, text)
    message = "the frontmatter has no closing `---`"
    notes.warn("unclosed-frontmatter", message, "add a line `---`", first_line + count)
    return Split("\n".join(lines[:count]) + "\n", "\n".join(lines[count:]), first_line, tuple(notes))


def load(header: str, notes: Notes, first_line: int = 2) -> dict[str, Any]:
    """Return the fields of a frontmatter as text, lists and mappings; repairs invalid YAML. O(n); never raises.

    Args:
        header: The text between the fences.
        notes: Receives a diagnostic for each repair.
        first_line: The first line of `header` in the file, for the line numbers in `notes`.
    """
    values = load_plain(header)
    if values is None:
        from bough.skills.read.yaml_text import load_yaml  # imported here: slow, and most skills need no YAML

        values = load_yaml(header, notes, first_line)
    return values


Mode: TypeAlias = Literal["lenient", "strict"]

MAX_HEADER_CHARACTERS = 64 << 10
HEAD_BYTES = 4096
MAX_DIAGNOSTICS = 100

_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_PLAIN_FIELDS = frozenset({"name", "description", "license", "compatibility", "allowed-tools", "metadata", "keywords"})
"""A skill with no other fields has neither a trigger nor inputs."""

_PARAGRAPH_SKIPS = re.compile(r"\s*(?:#|<!--|```|---|===|!\[|\|)")


class SkillRefused(InvalidInput):
    """A file that cannot be loaded as a skill.

    Attributes:
        diagnostics: Of the file; at least one has the severity `error`.
    """

    def __init__(self, path: Path, diagnostics: tuple[Diagnostic, ...]) -> None:
        first_error = next((diagnostic for diagnostic in diagnostics if diagnostic.severity == "error"), diagnostics[0])
        super().__init__(
            f"{path} is not a skill: {first_error.message}",
            hint=first_error.fix or "run `bough skills check` to list every problem",
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
        SkillRefused: The skill cannot be loaded or, in strict mode, violates the specification.
    """
    reading = try_read(path, mode, source=source, scope=scope)
    if reading.skill is None:
        raise SkillRefused(find_skill_file(Path(path)), reading.diagnostics)
    return reading.skill


def try_read(path: str | Path, mode: Mode = "lenient", *, source: str = "", scope: Scope = "code") -> Reading:
    """Read a skill like `read_skill`, but return a `Reading` without a skill instead of raising."""
    return read_file(find_skill_file(Path(path)), mode, source, scope)


def read_file(file: Path, mode: Mode = "lenient", source: str = "", scope: Scope = "code") -> Reading:
    """Read a skill like `try_read`; `file` is the path of the file, not of its folder."""
    data, notes = read_bounded(file)
    return Reading(None, _set_path(notes, file)) if data is None else _read(file, data, notes, mode, source, scope)


def _read(file: Path, data: bytes, notes: Notes, mode: Mode, source: str, scope: Scope) -> Reading:
    """Read a skill from the bytes of its file; `notes` are the diagnostics of reading them."""
    if is_binary(data):
        notes.error("binary", "the file is not text", "write the instructions as Markdown")
        return Reading(None, _set_path(notes, file))
    sections = split(decode(data, notes))
    notes += sections.diagnostics
    values = _load_header(sections, notes)
    skill = _build_skill(file, sections, fields.rename_aliases(values, notes), notes, source=source, scope=scope)
    if mode == "strict":
        from bough.skills.read.strict import find_violations

        repairs = [note for note in notes if note.severity != "error"]
        notes = find_violations(file, data, sections.header, values)
        notes += repairs
        if any(note.severity == "error" for note in notes):
            skill = None
    diagnostics = _set_path(notes, file)
    if skill is not None:
        # Set in the dict, because `Skill` is frozen. The text is hashed only when it is used; see `Skill.document`.
        attributes: dict[str, Any] = skill.__dict__
        attributes["diagnostics"] = diagnostics
        attributes["_unhashed"] = (sections.body, data)
    return Reading(skill, diagnostics)


def read_head(path: str, default_name: str, source: str = "", scope: Scope = "configured") -> HeadReading | None:
    """Return the tier 1 metadata of one file; None if the file does not exist.

    Reads 4 KB, or the whole file if its frontmatter is longer or broken.

    Args:
        path: Absolute path of the file.
        default_name: The folder's name; for a flat file, the file's name without its extension.
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
        # Only the whole file is parsed here: a frontmatter that is cut off would look broken.
        is_whole_file = 0 < len(head) < HEAD_BYTES
        reading = _read(Path(path), head, Notes(), "lenient", source, scope) if is_whole_file else None
        return _summarize(reading or read_file(Path(path), "lenient", source, scope))
    metadata = _read_metadata(path, default_name, values, "", notes, source, scope)
    return HeadReading(metadata, _set_path(notes, path) if notes else ())


def _summarize(reading: Reading) -> HeadReading:
    return HeadReading(None if reading.skill is None else reading.skill.summary(), reading.diagnostics)


def _load_head(head: bytes, notes: Notes) -> dict[str, Any] | None:
    """Return the fields in the first bytes of a file; None without a complete frontmatter and a description."""
    header = find_exact_header(head)
    if header is None:
        return None
    values = fields.rename_aliases(load(header, notes), notes)
    description = values.get("description")
    return values if isinstance(description, str) and description and not description.isspace() else None


def read_document(path: Path) -> Document:
    """Return the instructions of a file.

    Raises:
        SkillRefused: The file does not exist or cannot be read.
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
            SkillRefused: The file does not exist or cannot be read.
        """
        return read_document(path)

    def list_resources(self, folder: Path) -> Resources:
        """Return the files of a skill's folder."""
        from bough.skills.read.resources import list_resources

        return list_resources(folder)


def find_skill_file(path: Path) -> Path:
    """Return the file that defines a skill: `path` itself, or in a folder its `SKILL.md`, in upper or lower case."""
    if not path.is_dir():
        return path
    if os.path.lexists(path / "SKILL.md"):
        return path / "SKILL.md"
    try:
        return next(path / name for name in sorted(os.listdir(path)) if is_skill_file(name))
    except (OSError, StopIteration):
        return path / "SKILL.md"


def read_bounded(path: Path) -> tuple[bytes | None, Notes]:
    """Return up to 1 MiB of a file and the diagnostics; None if it is unreadable, or a link out of its folder."""
    notes = Notes()
    data = _read_bytes(str(path), MAX_FILE_BYTES, notes)
    if data is not None and len(data) >= MAX_FILE_BYTES:
        notes.warn("file-too-long", "only the first 1 MB of the file was read", "shorten it")
    return data, notes


def _read_bytes(path: str, max_bytes: int, notes: Notes) -> bytes | None:
    """Return the first bytes of a regular file; None, with the reason in `notes`, if it cannot be read."""
    # Opened without following links, then checked by its descriptor. If the path were checked first, the file could be
    # replaced before it is opened: by a link out of the folder, or by a pipe that blocks for ever.
    try:
        handle = os.open(path, _FLAGS)
    except OSError as error:
        if os.path.islink(path):
            return _read_link(path, max_bytes, notes)
        return notes.error("unreadable", f"cannot be read: {error.strerror}")
    except ValueError:
        return notes.error("unreadable", "cannot be read: the path contains a NUL byte")
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return notes.error("not-a-file", "not a regular file")
        return _read_all(handle, max_bytes)
    except OSError as error:
        return notes.error("unreadable", f"cannot be read: {error.strerror}")
    finally:
        os.close(handle)


def _read_all(handle: int, max_bytes: int) -> bytes:
    first_chunk = os.read(handle, max_bytes)
    if len(first_chunk) in (0, max_bytes) or max_bytes <= HEAD_BYTES:
        return first_chunk
    # One read may return less than requested, for example on a network file system.
    chunks = [first_chunk]
    bytes_left = max_bytes - len(first_chunk)
    while bytes_left and (chunk := os.read(handle, bytes_left)):
        chunks.append(chunk)
        bytes_left -= len(chunk)
    return b"".join(chunks)


def _read_link(path: str, max_bytes: int, notes: Notes) -> bytes | None:
    """Return the first bytes of the file that a link points to; None, with the reason in `notes`, if it is refused."""
    folder, target = os.path.realpath(os.path.dirname(path)), os.path.realpath(path)
    if not target.startswith(folder + os.sep):
        return notes.error("link-out", "the link leaves its folder", "replace the link with the file")
    if os.path.islink(target):  # realpath leaves a circular link unresolved; reading it would recurse for ever
        return notes.error("link-circle", "the link is circular", "replace the link with the file")
    return _read_bytes(target, max_bytes, notes)


def _load_header(sections: Split, notes: Notes) -> dict[str, Any]:
    """Return the fields of a file's frontmatter, at most 64 KiB of it; empty if it has none."""
    header = sections.header
    if header is None:
        if sections.body.strip():
            fix = "start with `---`, `name: …`, `description: …`, `---`"
            notes.warn("frontmatter-missing", "no frontmatter", fix, 1)
        return {}
    if len(header) > MAX_HEADER_CHARACTERS:
        header = header[: header.rfind("\n", 0, MAX_HEADER_CHARACTERS) + 1]
        message = "only the first 64 KB of frontmatter were read"
        notes.warn("frontmatter-too-long", message, "move text into the body")
    return load(header, notes, sections.header_line)


def _build_skill(
    file: Path, sections: Split, values: dict[str, Any], notes: Notes, *, source: str, scope: Scope
) -> Skill | None:
    """Return the skill of a file; None, with the reason in `notes`, if it is not a skill."""
    if not values and not sections.body.strip():
        return notes.error("empty", "the file is empty", "write frontmatter with a name and a description")
    default_name = file.absolute().parent.name if is_skill_file(file.name) else file.name.removesuffix(".md")
    header_values = None if sections.header is None else values
    metadata = _read_metadata(str(file), default_name, header_values, sections.body, notes, source, scope)
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
        license=fields.read_text(values, "license", notes),
        compatibility=_read_compatibility(values, notes),
        metadata=fields.read_metadata(values, notes),
        allowed_tools=_read_allowed_tools(values),
        source=source,
        scope=scope,
        keywords=metadata.keywords,
        invocable=metadata.invocable,
        hooks=not fields.is_nothing(values.get("hooks")),
        loader=FileSkillLoader(),
    )


def _read_metadata(
    path: str, default_name: str, values: dict[str, Any] | None, body: str, notes: Notes, source: str, scope: Scope
) -> SkillMetadata | None:
    """Return a skill's tier 1 metadata; None, with the reason in `notes`, if it has no safe name or no description.

    Args:
        values: The fields; None if the file has no frontmatter.
        body: The text whose first paragraph replaces a missing description.
    """
    name = _read_name(path, default_name, values, notes)
    if name is None:
        return None
    values = values or {}
    description = fields.read_text(values, "description", notes)
    if description is None:
        description = extract_first_paragraph(body)
        if description is None:
            return notes.error("description-missing", "no description and no text", "description: …")
        message, fix = "no `description`; the first paragraph is used", "description: what it does and when to use it"
        notes.warn("description-missing", message, fix)
    elif len(description) > fields.MAX_DESCRIPTION:
        message = f"the description has {len(description)} characters, more than {fields.MAX_DESCRIPTION}"
        notes.warn("description-length", message, "shorten it")
    if _PLAIN_FIELDS.issuperset(values):
        return SkillMetadata(name, description, path, source, scope, keywords=_read_keywords(values))
    inputs = fields.read_inputs(values, notes)
    trigger = fields.read_trigger(values, inputs, notes)
    invocable = not fields.means_true(values.get("disable-model-invocation"))
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
    text = " ".join(" ".join(paragraph).split()) or heading
    return text[: fields.MAX_DESCRIPTION] or None


def _read_name(path: str, default_name: str, values: dict[str, Any] | None, notes: Notes) -> str | None:
    """Return a skill's name: the field, else `default_name`; None, with the reason in `notes`, if it is unsafe."""
    name = default_name
    if values is not None:
        if values.get("name") == default_name and fields.is_good_name(default_name):
            return default_name
        name = fields.read_name(values, default_name, notes, is_folder=is_skill_file(path.rpartition("/")[2]))
    if reason := fields.explain_unsafe_name(name):
        return notes.error("name-unsafe", f"the name is refused: {reason}", "use letters, digits, hyphens")
    return name


def _read_compatibility(values: dict[str, Any], notes: Notes) -> str | None:
    text = fields.read_text(values, "compatibility", notes)
    if text and len(text) > fields.MAX_COMPATIBILITY:
        message = f"`compatibility` has {len(text)} characters, more than {fields.MAX_COMPATIBILITY}"
        notes.warn("compatibility-length", message, "shorten it")
    return text


def _read_mapping(values: dict[str, Any], field: str, notes: Notes) -> dict[str, Any]:
    value = values.get(field)
    if isinstance(value, dict):
        return value  # pyright: ignore[reportUnknownVariableType]
    if not fields.is_nothing(value):
        notes.warn(f"{field}-not-mapping", f"`{field}` is not a mapping; it is ignored")
    return {}


def _read_allowed_tools(values: dict[str, Any]) -> tuple[str, ...] | None:
    if "allowed-tools" not in values:
        return None
    from bough.skills.read.allowed_tools import parse_allowed_tools

    return parse_allowed_tools(values["allowed-tools"])


def _read_keywords(values: dict[str, Any]) -> tuple[str, ...]:
    """Return the field `keywords` or `tags`, else that of `metadata`; empty if there is none."""
    metadata = values.get("metadata")
    nested = metadata.get("keywords", metadata.get("tags")) if isinstance(metadata, dict) else None  # pyright: ignore
    value: Any = values.get("keywords", values.get("tags", nested))  # pyright: ignore
    return fields.read_words(value) if value else ()


def _set_path(notes: list[Diagnostic], path: Path | str) -> tuple[Diagnostic, ...]:
    """Return the diagnostics with the path of their file; if there are more than 100, with the errors first."""
    file = str(path)
    if len(notes) > MAX_DIAGNOSTICS:
        # Errors first: they decide whether the file is refused, so earlier warnings must not displace them.
        notes = [note for note in notes if note.severity == "error"][:MAX_DIAGNOSTICS] + notes[:MAX_DIAGNOSTICS]
        notes.append(Diagnostic("more", "info", "further diagnostics are not listed"))
    return tuple([Diagnostic(*note[:5], file) for note in notes])
