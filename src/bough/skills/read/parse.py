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
    Resources,
    Scope,
    Skill,
    SkillMetadata,
    is_skill_file,
)
from bough.skills.read import fields as read
from bough.skills.read.encoding import decode, is_binary
from bough.skills.read.frontmatter import Split, load, load_yaml, split
from bough.skills.read.plain import plain_fields

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
        worst = next((each for each in diagnostics if each.severity == "error"), diagnostics[0])
        super().__init__(
            f"{path} is not a skill: {worst.message}",
            hint=worst.fix or "run `bough skills check` to list every problem",
            details={"diagnostics": [each.as_dict() for each in diagnostics]},
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
        raise SkillRefused(skill_file(Path(path)), reading.diagnostics)
    return reading.skill


def try_read(path: str | Path, mode: Mode = "lenient", *, source: str = "", scope: Scope = "code") -> Reading:
    """Read a skill like `read_skill`, but return a refusal as a `Reading` without a skill. Never raises."""
    return read_file(skill_file(Path(path)), mode, source, scope)


def read_file(file: Path, mode: Mode = "lenient", source: str = "", scope: Scope = "code") -> Reading:
    """Read a skill like `try_read`, from the path of the file itself."""
    data, notes = read_bounded(file)
    return Reading(None, _set_path(notes, file)) if data is None else _read(file, data, notes, mode, source, scope)


def _read(file: Path, data: bytes, notes: list[Diagnostic], mode: Mode, source: str, scope: Scope) -> Reading:
    if is_binary(data):
        refusal = _refusal("binary", "the file is not text", "write the instructions as Markdown")
        return Reading(None, _set_path([*notes, refusal], file))
    text, decoded = decode(data)
    cut = split(text)
    skill, found = _understand(file, cut, source=source, scope=scope)
    notes += [*decoded, *found]
    if mode == "strict":
        from bough.skills.read.strict import faults

        notes = [*faults(file, data), *(each for each in notes if each.severity != "error")]
        if any(each.severity == "error" for each in notes):
            skill = None
    placed = _set_path(notes, file)
    if skill is not None:
        held: dict[str, Any] = skill.__dict__
        held["diagnostics"] = placed
        held["_unhashed"] = (cut.body, data)
    return Reading(skill, placed)


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
        return _sum_up(read_file(Path(path), "lenient", source, scope))
    try:
        head = os.read(handle, HEAD_BYTES)
    except OSError:
        head = b""
    finally:
        os.close(handle)
    notes: list[Diagnostic] = []
    values = None if b"\0" in head else _head_fields(head, notes)
    if values is None:
        is_all = 0 < len(head) < HEAD_BYTES  # otherwise the file is read again, in full
        whole = _read(Path(path), head, [], "lenient", source, scope) if is_all else None
        return _sum_up(whole or read_file(Path(path), "lenient", source, scope))
    name = home
    if values.get("name") != home or not read.is_good_name(home):
        name = read.read_name(values, home, notes, is_folder=is_skill_file(path.rpartition("/")[2]))
        if unsafe := read.unsafe_name(name):
            notes.append(_refusal("name-unsafe", f"the name is refused: {unsafe}", "use letters, digits, hyphens"))
            return HeadReading(None, _set_path(notes, path))
    return HeadReading(_summary(values, name, path, source, scope, notes), _set_path(notes, path) if notes else ())


def _summary(
    values: dict[str, Any], name: str, path: str, source: str, scope: Scope, notes: list[Diagnostic]
) -> SkillMetadata:
    description = values["description"].strip()
    if len(description) > read.MAX_DESCRIPTION:
        notes.append(_long_description(description))
    if _NOTHING_MORE.issuperset(values):
        return SkillMetadata(name, description, path, source, scope, keywords=_keywords(values))
    inputs = read.read_inputs(values, notes)
    trigger = read.read_trigger(values, inputs, notes)
    invocable = not read.truth(values.get("disable-model-invocation"))
    return SkillMetadata(name, description, path, source, scope, trigger, inputs, _keywords(values), invocable)


def _sum_up(reading: Reading) -> HeadReading:
    return HeadReading(reading.skill and reading.skill.summary(), reading.diagnostics)


def _head_fields(head: bytes, notes: list[Diagnostic]) -> dict[str, Any] | None:
    """Return the fields of a head that contains a whole frontmatter between exact fences; None for any other head."""
    end = head.find(b"\n---\n", 3) if head.startswith(b"---\n") else -1
    if end < 0:
        return None
    shown = head[3 : end + 1]
    try:
        header = shown[1:].decode("utf-8")
    except UnicodeDecodeError:
        return None
    values = plain_fields(header)
    if values is None:
        if b"\r" in shown or b"\0" in shown or b"\n..." in shown or b"\n---" in shown:
            return None
        fields = load_yaml(header)
        notes += fields.diagnostics
        values = fields.values
    values = read.canonical(values, notes)
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
    return Document.of(split(decode(data)[0]).body, data)


class FileSkillLoader:
    """Reads skills from their files and folders."""

    def read_document(self, path: Path) -> Document:
        """Return the instructions of a file. Raises: see `read_document`."""
        return read_document(path)

    def list_resources(self, folder: Path) -> Resources:
        """Return the files of a skill's folder."""
        from bough.skills.read.resources import list_resources

        return list_resources(folder)


def skill_file(path: Path) -> Path:
    """Return the file that defines a skill, given that file or its folder."""
    if not path.is_dir() or os.path.lexists(path / "SKILL.md"):
        return path / "SKILL.md" if path.is_dir() else path
    try:
        return next(path / name for name in sorted(os.listdir(path)) if is_skill_file(name))
    except (OSError, StopIteration):
        return path / "SKILL.md"


def read_bounded(path: Path) -> tuple[bytes | None, list[Diagnostic]]:
    """Return at most `MAX_FILE_BYTES` of a file, or None and the reason. Does not follow links out of its folder."""
    data, notes = _read_bytes(str(path), MAX_FILE_BYTES)
    if data is not None and len(data) >= MAX_FILE_BYTES:
        notes.append(
            Diagnostic("file-too-long", "warning", "only the first 1 MB of the file was read", None, "shorten it")
        )
    return data, notes


def _read_bytes(path: str, size: int) -> tuple[bytes | None, list[Diagnostic]]:
    try:
        handle = os.open(path, _FLAGS)
    except OSError as error:
        if os.path.islink(path):
            return _read_link(path, size)
        return None, [_refusal("unreadable", f"cannot be read: {error.strerror}")]
    except ValueError:
        return None, [_refusal("unreadable", "cannot be read: the path contains a NUL byte")]
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return None, [_refusal("not-a-file", "not a regular file")]
        return _read_all(handle, size), []
    except OSError as error:
        return None, [_refusal("unreadable", f"cannot be read: {error.strerror}")]
    finally:
        os.close(handle)


def _read_all(handle: int, size: int) -> bytes:
    data = os.read(handle, size)
    if len(data) in (0, size) or size <= HEAD_BYTES:
        return data
    parts = [data]
    while (left := size - sum(map(len, parts))) and (more := os.read(handle, left)):
        parts.append(more)
    return b"".join(parts)


def _read_link(path: str, size: int) -> tuple[bytes | None, list[Diagnostic]]:
    folder, target = os.path.realpath(os.path.dirname(path)), os.path.realpath(path)
    if not target.startswith(folder + os.sep):
        return None, [_refusal("link-out", "the link leaves its folder", "replace the link by the file")]
    if os.path.islink(target):
        return None, [_refusal("link-circle", "the link is circular", "replace the link by the file")]
    return _read_bytes(target, size)


def _understand(file: Path, cut: Split, *, source: str, scope: Scope) -> tuple[Skill | None, list[Diagnostic]]:
    """Build the skill from a file's frontmatter and body; None and the diagnostics if that is not possible."""
    is_folder = is_skill_file(file.name)
    home = file.absolute().parent.name if is_folder else file.name.removesuffix(".md")
    notes = list(cut.diagnostics)
    values = _header_values(cut, notes)
    if not values and not cut.body.strip():
        return None, [*notes, _refusal("empty", "the file is empty", "write frontmatter with a name and a description")]
    name = read.read_name(values, home, notes, is_folder=is_folder) if cut.header is not None else home
    if unsafe := read.unsafe_name(name):
        return None, [*notes, _refusal("name-unsafe", f"the name is refused: {unsafe}", "use letters, digits, hyphens")]
    description = _description(values, cut.body, notes)
    if description is None:
        return None, [*notes, _refusal("description-missing", "no description and no text", "description: …")]
    inputs = read.read_inputs(values, notes)
    skill = Skill(
        name=name,
        description=description,
        path=file,
        trigger=read.read_trigger(values, inputs, notes),
        inputs=inputs,
        mcp_tools=_mapping(values, "mcp_tools", notes),
        frontmatter=values,
        license=read.read_text(values, "license", notes),
        compatibility=_compatibility(values, notes),
        metadata=read.read_metadata(values, notes),
        allowed_tools=_parse_allowed_tools(values),
        source=source,
        scope=scope,
        keywords=_keywords(values),
        invocable=not read.truth(values.get("disable-model-invocation")),
        hooks=not read.is_nothing(values.get("hooks")),
        loader=FileSkillLoader(),
    )
    return skill, notes


def _header_values(cut: Split, notes: list[Diagnostic]) -> dict[str, Any]:
    if cut.header is None:
        if cut.body.strip():
            notes.append(Diagnostic("frontmatter-missing", "warning", "no frontmatter", 1, "start with `---`, "
                                    "`name: …`, `description: …`, `---`"))  # fmt: skip
        return {}
    header = cut.header
    if len(header) > MAX_HEADER_CHARACTERS:
        header = header[: header.rfind("\n", 0, MAX_HEADER_CHARACTERS) + 1]
        notes.append(Diagnostic("frontmatter-too-long", "warning", "only the first 64 KB of frontmatter were read",
                                None, "move text into the body"))  # fmt: skip
    loaded = load(header, cut.header_line)
    notes += loaded.diagnostics
    return read.canonical(loaded.values, notes)


def _description(values: dict[str, Any], body: str, notes: list[Diagnostic]) -> str | None:
    text = read.read_text(values, "description", notes)
    if text is None:
        text = first_paragraph(body)
        if text is not None:
            notes.append(Diagnostic("description-missing", "warning", "no `description`; the first paragraph is used",
                                    None, "description: what it does and when to use it"))  # fmt: skip
    elif len(text) > read.MAX_DESCRIPTION:
        notes.append(_long_description(text))
    return text


def _long_description(text: str) -> Diagnostic:
    message = f"the description has {len(text)} characters, more than {read.MAX_DESCRIPTION}"
    return Diagnostic("description-length", "warning", message, None, "shorten it")


def first_paragraph(body: str) -> str | None:
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


def _compatibility(values: dict[str, Any], notes: list[Diagnostic]) -> str | None:
    text = read.read_text(values, "compatibility", notes)
    if text and len(text) > read.MAX_COMPATIBILITY:
        message = f"`compatibility` has {len(text)} characters, more than {read.MAX_COMPATIBILITY}"
        notes.append(Diagnostic("compatibility-length", "warning", message, None, "shorten it"))
    return text


def _mapping(values: dict[str, Any], field: str, notes: list[Diagnostic]) -> dict[str, Any]:
    value = values.get(field)
    if isinstance(value, dict):
        return value  # pyright: ignore[reportUnknownVariableType]
    if not read.is_nothing(value):
        notes.append(Diagnostic(f"{field}-not-mapping", "warning", f"`{field}` is not a mapping; it is ignored"))
    return {}


def _parse_allowed_tools(values: dict[str, Any]) -> tuple[str, ...] | None:
    if "allowed-tools" not in values:
        return None
    from bough.skills.read.allowed_tools import parse_allowed_tools

    return parse_allowed_tools(values["allowed-tools"])


def _keywords(values: dict[str, Any]) -> tuple[str, ...]:
    metadata = values.get("metadata")
    nested = metadata.get("keywords", metadata.get("tags")) if isinstance(metadata, dict) else None  # pyright: ignore
    value: Any = values.get("keywords", values.get("tags", nested))  # pyright: ignore
    return read.read_words(value) if value else ()


def _refusal(code: str, message: str, fix: str = "") -> Diagnostic:
    return Diagnostic(code, "error", message, None, fix)


def _set_path(notes: list[Diagnostic], path: Path | str) -> tuple[Diagnostic, ...]:
    where = str(path)
    if len(notes) > MAX_DIAGNOSTICS:
        notes = [each for each in notes if each.severity == "error"][:MAX_DIAGNOSTICS] + notes[:MAX_DIAGNOSTICS]
        notes.append(Diagnostic("more", "info", "further diagnostics are not listed"))
    return tuple([Diagnostic(*note[:5], where) for note in notes])
