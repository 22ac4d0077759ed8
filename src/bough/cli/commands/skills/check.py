"""`bough skills check`: validates skills, and scans them for malicious patterns."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bough.cli import options
from bough.cli.commands.skills.look import diagnostic_lines
from bough.cli.render import renderer_for
from bough.cli.render.json import JsonRenderer
from bough.cli.text import line
from bough.errors import InvalidInput
from bough.skills import Diagnostic

if TYPE_CHECKING:
    from bough.skills import CheckedSkill

FORMATS = ("text", "json", "sarif")


def check(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder of the skill; with -r, a folder of skills.")
    ] = Path(),
    recursive: Annotated[bool, typer.Option("--recursive", "-r", help="Check every skill below DIR.")] = False,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict/--lenient", help="Strict: reject non-conforming skills. Lenient: load what is readable."
        ),
    ] = False,
    scan: Annotated[bool, typer.Option("--scan/--no-scan", help="Also scan for malicious patterns.")] = True,
    format: Annotated[
        str,
        typer.Option("--format", metavar="text|json|sarif", help="Output format; SARIF is for code scanning tools."),
    ] = "text",
    home: options.Home = None,
    store: options.Store = None,
    json: options.Json = False,
) -> int:
    """Validate skills and show how to fix them. Exit code 1 if one has an error."""
    from bough.skills.find.check import iter_check

    if format not in FORMATS:
        raise InvalidInput(f"invalid format {format!r}", hint=f"choose one of: {', '.join(FORMATS)}")
    skills = iter_check(directory, recursive, "strict" if strict else "lenient")
    counter = _SkillCounter()
    skills = _add_usage_faults(_add_eval_faults(skills))
    checked = counter.count(_add_scan(skills) if scan else skills)
    if format == "sarif":
        _write_sarif(checked)
    elif json or format == "json":
        JsonRenderer(sys.stdout).listing("skills check", "skills", (skill.as_dict() for skill in checked))
    else:
        _write_text(checked, counter)
    # Complete only here, because the output above consumes the stream of skills.
    return 1 if counter.failed else 0


@dataclass(slots=True)
class _SkillCounter:
    """Counts checked and failed skills while they are streamed, because there may be thousands."""

    checked: int = 0
    failed: int = 0

    def count(self, skills: Iterator[CheckedSkill]) -> Iterator[CheckedSkill]:
        for skill in skills:
            self.checked += 1
            self.failed += skill.has_errors or not skill.loaded
            yield skill


def _add_usage_faults(skills: Iterator[CheckedSkill]) -> Iterator[CheckedSkill]:
    """Add diagnostics about MCP servers, and about inputs that a skill's text uses without declaring them."""
    from bough.skills.match.inputs import check_inputs_declared
    from bough.skills.read.parse import read_file
    from bough.skills.run.mcp import check_servers

    for skill in skills:
        loaded_skill = read_file(skill.path).skill if skill.loaded else None
        if loaded_skill is None:
            yield skill
        else:
            notes = (*check_inputs_declared(loaded_skill), *check_servers(loaded_skill, os.environ))
            yield replace(skill, diagnostics=(*skill.diagnostics, *notes)) if notes else skill


def _add_eval_faults(skills: Iterator[CheckedSkill]) -> Iterator[CheckedSkill]:
    """Add diagnostics about the evals of skills that have evals."""
    for skill in skills:
        folder = skill.path.parent
        if not skill.loaded or not any((folder / name).exists() for name in ("evals", "eval_queries.json")):
            yield skill
            continue
        # Imported only for a skill with evals, because this loads pydantic.
        from bough.evals.formats.skill import read_skill_set, read_trigger_set

        faults = dict.fromkeys((*read_skill_set(folder).faults, *read_trigger_set(folder).faults))
        diagnostics = [
            Diagnostic(
                f"evals-{fault.code}",
                "info" if fault.severity == "note" else fault.severity,
                str(fault),
                None,
                "",
                fault.file,
            )
            for fault in faults
            if fault.code != "empty"
        ]
        yield replace(skill, diagnostics=(*skill.diagnostics, *diagnostics))


def _add_scan(skills: Iterator[CheckedSkill]) -> Iterator[CheckedSkill]:
    """Add the findings of the scan to skills that are folders."""
    from bough.skills.model import is_skill_file
    from bough.skills.trust.scan import Scanner

    scanner = Scanner()
    for skill in skills:
        if is_skill_file(os.path.basename(skill.file)):
            findings = scanner.scan_folder(skill.path.parent)
            yield replace(skill, diagnostics=(*skill.diagnostics, *findings))
        else:
            yield skill


def _write_sarif(checked: Iterator[CheckedSkill]) -> None:
    from bough import __version__
    from bough.skills.find.check import as_sarif

    diagnostics = [_make_relative(diagnostic, skill.file) for skill in checked for diagnostic in skill.diagnostics]
    renderer_for(json=True).record(as_sarif(diagnostics, version=__version__))


def _make_relative(diagnostic: Diagnostic, file: str) -> Diagnostic:
    """Return a diagnostic with a path relative to the current folder, as SARIF viewers expect."""
    path = os.path.relpath(diagnostic.path or file)
    return Diagnostic(diagnostic.code, diagnostic.severity, diagnostic.message, diagnostic.line, diagnostic.fix, path)


def _write_text(checked: Iterator[CheckedSkill], counter: _SkillCounter) -> None:
    renderer = renderer_for(json=False)
    for skill in checked:
        is_valid = skill.loaded and not skill.has_errors
        mark = ("ok   ", "good") if is_valid else ("bad  ", "bad")
        renderer.result(line(mark, (skill.name, "strong"), f"  {skill.path}"))
        for diagnostic in skill.diagnostics:
            for output_line in diagnostic_lines(diagnostic, file=skill.file):
                renderer.result(output_line)
    renderer.result(line((f"{counter.checked} checked, {counter.failed} with errors", "dim")))
