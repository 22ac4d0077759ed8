"""A cache of what discovery read from each file. An entry is valid while the file has the same mtime, size and inode.

The index has five lines for each file: path, stamp, name, description, and the other fields as JSON, usually empty. So
reading the whole index is faster than opening each file. A missing, broken or foreign index counts as empty, and
nothing in it is executed.
"""

from __future__ import annotations

import json
import os
from functools import partial
from io import RawIOBase
from pathlib import Path
from typing import Any, TypeAlias

from bough.skills.model import (
    Diagnostic,
    InputMetadata,
    KeywordTrigger,
    PathTrigger,
    Scope,
    SkillMetadata,
    TaskTrigger,
    Trigger,
)
from bough.skills.read.parse import HeadReading, read_head

_FIRST_LINE = "bough skills 5"
_LINES_PER_FILE = 5
_PIECE_BYTES = 256 << 10
_TRIGGERS: dict[str, Any] = {"keyword": KeywordTrigger, "task": TaskTrigger, "path": PathTrigger}
_Entry: TypeAlias = tuple[str, str, str, str]
"""Stamp, name, description, other fields as JSON. The JSON also has name and description if one has several lines."""

_parse_json: Any = json.JSONDecoder().raw_decode

_make_skill: Any = partial(tuple.__new__, SkillMetadata)  # pyright: ignore[reportUnknownMemberType]
_make_reading: Any = partial(tuple.__new__, HeadReading)  # pyright: ignore[reportUnknownMemberType]


class SkillIndex:
    """Caches what was read from each file: loaded on creation, used during discovery, then saved.

    Args:
        file: The file in which the cache is stored.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self._stored_entries = _load(file)
        self._hit_paths: list[str] = []
        self._new_entries: dict[str, _Entry] = {}

    def get(self, path: str, default_name: str, source: str, scope: Scope) -> HeadReading | None:
        """Return a file's metadata and diagnostics: from the cache if the file is unchanged, else by reading it.

        None if the file does not exist.
        """
        try:
            info = os.stat(path)
        except OSError:
            return read_head(path, default_name, source=source, scope=scope)
        stamp = f"{info.st_mtime_ns} {info.st_size} {info.st_ino}"
        cached = self._stored_entries.get(path)
        if cached is not None and cached[0] == stamp:
            self._hit_paths.append(path)
            _, name, description, fields = cached
            if not fields:
                return _make_reading((_make_skill((name, description, path, source, scope, None, (), (), True)), ()))
            if (reading := _decode(cached, path, source, scope)) is not None:
                return reading
            self._hit_paths.pop()  # `save` must not write the invalid entry again
        reading = read_head(path, default_name, source=source, scope=scope)
        if reading is not None and path.isprintable():  # a path with a line feed would need two lines
            self._new_entries[path] = (stamp, *_encode(reading))
        return reading

    @property
    def hits(self) -> int:
        """How many files were found in the cache."""
        return len(self._hit_paths)

    def save(self) -> None:
        """Replace the cache file atomically with the entries of this run; do nothing if it cannot be written."""
        # No file was read, and none has disappeared, so the stored cache is up to date.
        if not self._new_entries and len(self._hit_paths) == len(self._stored_entries):
            return
        import tempfile

        valid_entries = {path: self._stored_entries[path] for path in self._hit_paths} | self._new_entries
        lines = (line for path, entry in valid_entries.items() for line in (path, *entry))
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self.file.parent, prefix=self.file.name)
            with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as out:
                out.write("\n".join((_FIRST_LINE, *lines)))
            os.replace(name, self.file)
        except OSError:  # for example a read-only folder: the next run reads the files again
            return


def _load(file: Path) -> dict[str, _Entry]:
    """Return the entries of an index file by path; empty if it is missing or invalid."""
    try:
        with open(file, "rb", buffering=0) as handle:
            first_line, *lines = _read_lines(handle)
    except (OSError, ValueError):
        return {}
    if first_line != _FIRST_LINE or len(lines) % _LINES_PER_FILE:
        return {}
    columns = [lines[start::_LINES_PER_FILE] for start in range(_LINES_PER_FILE)]
    return dict(zip(columns[0], zip(*columns[1:], strict=True), strict=True))


def _read_lines(handle: RawIOBase) -> list[str]:
    """Return the lines of a file, which is read in pieces, so that their memory is reused."""
    lines: list[str] = []
    unfinished_line = b""
    while piece := handle.read(_PIECE_BYTES):
        complete_lines, line_feed, incomplete_line = piece.rpartition(b"\n")
        if line_feed:
            lines += (unfinished_line + complete_lines).decode("utf-8").split("\n")
        unfinished_line = incomplete_line if line_feed else unfinished_line + piece
    return [*lines, unfinished_line.decode("utf-8")]


def _encode(reading: HeadReading) -> tuple[str, str, str]:
    """Return name, description and JSON of an entry; the JSON has only the diagnostics, or all fields."""
    skill, notes = reading
    diagnostics = [[d.code, d.severity, d.message, d.line, d.fix] for d in notes]
    if skill is None:
        return "", "", _dump_json([diagnostics])
    has_other_fields = skill.trigger or skill.inputs or skill.keywords or not skill.invocable
    if not has_other_fields and skill.name.isprintable() and skill.description.isprintable():
        return skill.name, skill.description, _dump_json([diagnostics]) if diagnostics else ""
    inputs = [[entry.name, entry.description, entry.required, entry.default] for entry in skill.inputs]
    trigger = _encode_trigger(skill.trigger)
    fields = [diagnostics, skill.name, skill.description, trigger, inputs, skill.keywords, skill.invocable]
    return "", "", _dump_json(fields)


def _dump_json(value: list[Any]) -> str:
    return json.dumps(value, separators=(",", ":"))


def _encode_trigger(trigger: Trigger | None) -> list[Any] | None:
    match trigger:
        case KeywordTrigger(words):
            return ["keyword", words]
        case TaskTrigger(words):
            return ["task", words]
        case PathTrigger(globs):
            return ["path", globs]
        case None:
            return None


def _decode(entry: _Entry, path: str, source: str, scope: Scope) -> HeadReading | None:
    """Return what an entry with JSON fields stores; None for an invalid entry."""
    _, name, description, json_fields = entry
    try:
        values = _parse_json(json_fields)[0]
        notes = tuple([Diagnostic(*note, path=path) for note in values[0]])
        if len(values) > 1:
            return HeadReading(_decode_skill(values, path, source, scope), notes)
    except (ValueError, TypeError, KeyError, IndexError, RecursionError):  # the caller reads the file again
        return None
    return _make_reading(
        (_make_skill((name, description, path, source, scope, None, (), (), True)) if name else None, notes)
    )


def _decode_skill(values: list[Any], path: str, source: str, scope: Scope) -> SkillMetadata:
    """Return the metadata in the JSON fields of an entry; raise an error if they are invalid."""
    _, name, description, trigger, inputs, keywords, invocable = values
    if type(name) is not str or type(description) is not str:
        raise TypeError
    return SkillMetadata(
        name,
        description,
        path,
        source,
        scope,
        _TRIGGERS[trigger[0]](tuple(trigger[1])) if trigger else None,
        tuple(InputMetadata(*entry) for entry in inputs),
        tuple(keywords),
        invocable,
    )
