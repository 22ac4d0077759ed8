"""What discovery learned of each file, kept between runs by the file's (mtime, size, inode).

The index is a cache: a missing, broken or foreign file is an empty index, and nothing in it is ever executed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

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
from bough.skills.parse import HeadReading, read_head

_VERSION = 2
_TRIGGERS: dict[str, Any] = {"keyword": KeywordTrigger, "task": TaskTrigger, "path": PathTrigger}


class SkillIndex:
    """Remembers readings by path; load, use while discovering, save.

    Args:
        file: Where it is kept.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self.misses = 0
        self._old = _load(file)
        self._new: dict[str, list[Any]] = {}

    def get(self, path: str, home: str, *, source: str, scope: Scope) -> HeadReading | None:
        """Return what a file says: from memory when it is the very file read before, else by reading it.

        None when there is no file of that path.
        """
        try:
            info = os.stat(path)
        except OSError:
            return read_head(path, home, source=source, scope=scope)
        stamp = [info.st_mtime_ns, info.st_size, info.st_ino]
        entry = self._old.get(path)
        if entry is not None and entry[0] == stamp and (known := _decode(path, source, scope, entry)) is not None:
            self._new[path] = entry
            return known
        reading = read_head(path, home, source=source, scope=scope)
        if reading is not None:
            self.misses += 1
            self._new[path] = [stamp, *_encode(reading)]
        return reading

    @property
    def hits(self) -> int:
        """How many files were known."""
        return len(self._new) - self.misses

    def save(self) -> None:
        """Write what this run has seen, replacing the file at once; unwritable places are left alone."""
        if not self.misses and len(self._new) == len(self._old):
            return
        import tempfile

        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self.file.parent, prefix=self.file.name)
            with os.fdopen(handle, "w", encoding="utf-8") as out:
                json.dump({"version": _VERSION, "files": self._new}, out, ensure_ascii=True, separators=(",", ":"))
            os.replace(name, self.file)
        except OSError:  # a read-only home: the next run reads the files again
            return


def _load(file: Path) -> dict[str, list[Any]]:
    try:
        data: Any = json.loads(file.read_bytes())
        files: Any = data["files"] if data["version"] == _VERSION else {}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}
    if not isinstance(files, dict):
        return {}
    entries = cast("dict[str, Any]", files)
    return {path: entry for path, entry in entries.items() if type(entry) is list and len(cast("list[Any]", entry)) > 2}


def _encode(reading: HeadReading) -> list[Any]:
    """[name or null, description, diagnostics, and what else there is]."""
    notes = [[d.code, d.severity, d.message, d.line, d.fix] for d in reading.diagnostics]
    skill = reading.metadata
    if skill is None:
        return [None, "", notes]
    if not (skill.trigger or skill.inputs or skill.keywords) and skill.invocable:
        return [skill.name, skill.description, notes] if notes else [skill.name, skill.description]
    inputs = [[each.name, each.description, each.required, each.default] for each in skill.inputs]
    more = [_encode_trigger(skill.trigger), inputs, skill.keywords, skill.invocable]
    return [skill.name, skill.description, notes, more]


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


def _decode(path: str, source: str, scope: Scope, entry: Sequence[Any]) -> HeadReading | None:
    try:
        if type(entry[2]) is not str:
            return None
        if len(entry) == 3 and type(entry[1]) is str:
            return HeadReading(SkillMetadata(entry[1], entry[2], path, source, scope), ())
        diagnostics = tuple([Diagnostic(*note, path=path) for note in entry[3]])
        if entry[1] is None:
            return HeadReading(None, diagnostics)
        if len(entry) == 4:
            return HeadReading(SkillMetadata(entry[1], entry[2], path, source, scope), diagnostics)
        trigger, inputs, keywords, invocable = entry[4]
        metadata = SkillMetadata(
            entry[1],
            entry[2],
            path,
            source,
            scope,
            trigger and _TRIGGERS[trigger[0]](tuple(trigger[1])),
            tuple(InputMetadata(*each) for each in inputs),
            tuple(keywords),
            invocable,
        )
        return HeadReading(metadata, diagnostics)
    except (ValueError, TypeError, KeyError, IndexError):  # a foreign entry: read the file again
        return None
