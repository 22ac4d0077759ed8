"""Checking every skill below a folder: which skills can be loaded, and why others cannot. Also as SARIF."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bough.errors import NotFound
from bough.skills.find.discover import THOROUGH, Root, find_skill_files
from bough.skills.model import Diagnostic, is_skill_file
from bough.skills.read.parse import Mode, find_skill_file, read_file


@dataclass(frozen=True, slots=True)
class CheckedSkill:
    """The result of checking one skill file.

    Attributes:
        file: The path of the skill file, as text, because there may be thousands.
        name: The skill's name; the folder's name if the file was not loaded.
        loaded: Whether the skill can be used.
    """

    file: str
    name: str
    loaded: bool
    diagnostics: tuple[Diagnostic, ...]

    @property
    def path(self) -> Path:
        """The path of the skill file."""
        return Path(self.file)

    @property
    def has_errors(self) -> bool:
        """Whether any diagnostic is an error."""
        return any(diagnostic.severity == "error" for diagnostic in self.diagnostics)

    def as_dict(self) -> dict[str, Any]:
        """Return the result as JSON."""
        return {
            "path": self.file,
            "name": self.name,
            "loaded": self.loaded,
            "diagnostics": [diagnostic.as_dict() for diagnostic in self.diagnostics],
        }


def check(directory: Path, recursive: bool = False, mode: Mode = "lenient") -> list[CheckedSkill]:
    """Return the results of `iter_check` as a list."""
    return list(iter_check(directory, recursive, mode))


def iter_check(directory: Path, recursive: bool = False, mode: Mode = "lenient") -> Iterator[CheckedSkill]:
    """Yield the result for every skill found. One file at a time is in memory.

    Args:
        directory: A skill's folder or file; with `recursive`, a folder of skills.

    Raises:
        NotFound: The folder does not exist, or it contains no skill and nothing was skipped.
    """
    if not directory.exists():
        raise NotFound(f"{directory} does not exist", hint="pass a skill's folder, or with -r a folder of skills")
    notes: list[Diagnostic] = []
    count = 0
    for path, folder_name in _list_skill_files(directory, recursive, notes):
        count += 1
        reading = read_file(Path(path), mode)
        name = reading.skill.name if reading.skill else folder_name
        # The search's notes about this file belong to its result; the others are yielded at the end.
        file_notes = tuple(note for note in notes if note.path == path)
        notes[:] = [note for note in notes if note.path != path]
        yield CheckedSkill(path, name, reading.skill is not None, (*reading.diagnostics, *file_notes))
    if not count and not notes:
        raise NotFound(f"no SKILL.md in {directory}", hint="pass --recursive for a folder of skills")
    for note in notes:
        yield CheckedSkill(note.path, os.path.basename(note.path), loaded=False, diagnostics=(note,))


def _list_skill_files(directory: Path, recursive: bool, notes: list[Diagnostic]) -> Iterator[tuple[str, str]]:
    """Yield (absolute path, name of the folder) of the files to check."""
    if directory.is_file():
        is_flat = not is_skill_file(directory.name)
        yield str(directory.absolute()), directory.stem if is_flat else directory.absolute().parent.name
    elif recursive:
        yield from find_skill_files(Root(directory), notes, limits=THOROUGH, thorough=True)
    elif os.path.lexists(file := find_skill_file(directory.absolute())):
        yield str(file), directory.absolute().name


def as_sarif(diagnostics: Iterable[Diagnostic], *, version: str = "0") -> dict[str, Any]:
    """Return the diagnostics as a SARIF 2.1.0 log.

    Source: OASIS, Static Analysis Results Interchange Format 2.1.0.
    """
    all_diagnostics = list(diagnostics)
    driver = {
        "name": "bough skills check",
        "version": version,
        "rules": [{"id": code} for code in sorted({diagnostic.code for diagnostic in all_diagnostics})],
    }
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [
            {"tool": {"driver": driver}, "results": [_make_sarif_result(diagnostic) for diagnostic in all_diagnostics]}
        ],
    }


def _make_sarif_result(finding: Diagnostic) -> Mapping[str, Any]:
    """Return a diagnostic as a SARIF result."""
    level = {"error": "error", "warning": "warning", "info": "note"}[finding.severity]
    location: dict[str, Any] = {"artifactLocation": {"uri": Path(finding.path).as_posix()}}
    if finding.line:
        location["region"] = {"startLine": finding.line}
    text = f"{finding.message}. {finding.fix}" if finding.fix else finding.message
    return {
        "ruleId": finding.code,
        "level": level,
        "message": {"text": text},
        "locations": [{"physicalLocation": location}],
    }
