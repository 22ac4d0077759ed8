"""A cache of what discovery read from each file, keyed by the file's (mtime, size, inode).

The index has five lines for each file: path, stamp, name, description, and the other fields as JSON, usually empty. So
reading the whole index costs less than opening each file. A missing, broken or foreign index counts as empty, and
nothing in it is ever executed.
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
_LINES = 5
_PIECE_BYTES = 256 << 10
_TRIGGERS: dict[str, Any] = {"keyword": KeywordTrigger, "task": TaskTrigger, "path": PathTrigger}
_Entry: TypeAlias = tuple[str, str, str, str]
"""Stamp, name, description, and the other fields as JSON, also name and description if they have several lines."""

_parse: Any = json.JSONDecoder().raw_decode

_skill: Any = partial(tuple.__new__, SkillMetadata)  # pyright: ignore[reportUnknownMemberType]
_reading: Any = partial(tuple.__new__, HeadReading)  # pyright: ignore[reportUnknownMemberType]


class SkillIndex:
    """Caches readings by path: load it, use it during discovery, save it.

    Args:
        file: Where it is stored.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self._old = _load(file)
        self._hit_paths: list[str] = []
        self._new: dict[str, _Entry] = {}

    def get(self, path: str, home: str, source: str, scope: Scope) -> HeadReading | None:
        """Return a file's reading: from the cache if the file is unchanged, else by reading it.

        None if there is no such file.
        """
        try:
            info = os.stat(path)
        except OSError:
            return read_head(path, home, source=source, scope=scope)
        stamp = f"{info.st_mtime_ns} {info.st_size} {info.st_ino}"
        cached = self._old.get(path)
        if cached is not None and cached[0] == stamp:
            self._hit_paths.append(path)
            _, name, description, fields = cached
            if not fields:
                return _reading((_skill((name, description, path, source, scope, None, (), (), True)), ()))
            if (reading := _decode(cached, path, source, scope)) is not None:
                return reading
            self._hit_paths.pop()  # `save` must not write the invalid entry again
        reading = read_head(path, home, source=source, scope=scope)
        if reading is not None and path.isprintable():  # other paths would not fit on one line
            self._new[path] = (stamp, *_encode(reading))
        return reading

    @property
    def hits(self) -> int:
        """How many files were served from the cache."""
        return len(self._hit_paths)

    def save(self) -> None:
        """Replace the file atomically with the readings of this run; do nothing if it cannot be written."""
        # Nothing was read anew, and no file has disappeared: the index on disk is up to date.
        if not self._new and len(self._hit_paths) == len(self._old):
            return
        import tempfile

        kept_entries = {path: self._old[path] for path in self._hit_paths} | self._new
        lines = (line for path, entry in kept_entries.items() for line in (path, *entry))
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self.file.parent, prefix=self.file.name)
            with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as out:
                out.write("\n".join((_FIRST_LINE, *lines)))
            os.replace(name, self.file)
        except OSError:  # a read-only home: the next run reads the files again
            return


def _load(file: Path) -> dict[str, _Entry]:
    try:
        with open(file, "rb", buffering=0) as handle:
            first, *lines = _read_lines(handle)
    except (OSError, ValueError):
        return {}
    if first != _FIRST_LINE or len(lines) % _LINES:
        return {}
    columns = [lines[start::_LINES] for start in range(_LINES)]
    return dict(zip(columns[0], zip(*columns[1:], strict=True), strict=True))


def _read_lines(handle: RawIOBase) -> list[str]:
    """Return the lines of a file. It is read in pieces, so that one buffer is reused."""
    lines: list[str] = []
    tail = b""
    while piece := handle.read(_PIECE_BYTES):
        whole, end, remainder = piece.rpartition(b"\n")
        if end:
            lines += (tail + whole).decode("utf-8").split("\n")
        tail = remainder if end else tail + piece
    return [*lines, tail.decode("utf-8")]


def _encode(reading: HeadReading) -> tuple[str, str, str]:
    """Return name, description and the other fields: only diagnostics, or everything."""
    skill, notes = reading
    diagnostics = [[d.code, d.severity, d.message, d.line, d.fix] for d in notes]
    if skill is None:
        return "", "", _dump([diagnostics])
    has_more = skill.trigger or skill.inputs or skill.keywords or not skill.invocable
    if not has_more and skill.name.isprintable() and skill.description.isprintable():
        return skill.name, skill.description, _dump([diagnostics]) if diagnostics else ""
    inputs = [[entry.name, entry.description, entry.required, entry.default] for entry in skill.inputs]
    trigger = _encode_trigger(skill.trigger)
    fields = [diagnostics, skill.name, skill.description, trigger, inputs, skill.keywords, skill.invocable]
    return "", "", _dump(fields)


def _dump(value: list[Any]) -> str:
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
    """Return the reading of an entry with more than a name and a description; None for a foreign entry."""
    _, name, description, fields = entry
    try:
        values = _parse(fields)[0]
        notes = tuple([Diagnostic(*note, path=path) for note in values[0]])
        if len(values) > 1:
            return HeadReading(_decode_skill(values, path, source, scope), notes)
    except (ValueError, TypeError, KeyError, IndexError, RecursionError):  # read the file again
        return None
    return _reading((_skill((name, description, path, source, scope, None, (), (), True)) if name else None, notes))


def _decode_skill(values: list[Any], path: str, source: str, scope: Scope) -> SkillMetadata:
    _, name, description, trigger, inputs, keywords, invocable = values
    if type(name) is not str or type(description) is not str:
        raise TypeError
    return SkillMetadata(
        name,
        description,
        path,
        source,
        scope,
        trigger and _TRIGGERS[trigger[0]](tuple(trigger[1])),
        tuple(InputMetadata(*entry) for entry in inputs),
        tuple(keywords),
        invocable,
    )
