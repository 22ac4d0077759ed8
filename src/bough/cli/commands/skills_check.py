"""`bough skills check`: what is wrong with skills, and what is suspicious in them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bough.cli import options
from bough.cli.commands.skills import diagnostic_lines
from bough.cli.render import Report, renderer_for
from bough.cli.text import Line, line
from bough.errors import InvalidInput
from bough.skills import Diagnostic

if TYPE_CHECKING:
    from bough.skills import CheckedSkill

FORMATS = ("text", "json", "sarif")


def check(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a skill, or one of skills.")] = Path(),
    recursive: Annotated[bool, typer.Option("--recursive", "-r", help="Every skill below DIR.")] = False,
    strict: Annotated[
        bool, typer.Option("--strict/--lenient", help="Hold to the specification, or load what can be understood.")
    ] = False,
    scan: Annotated[bool, typer.Option("--scan/--no-scan", help="Look for what a malicious skill does, too.")] = True,
    format: Annotated[
        str, typer.Option("--format", metavar="text|json|sarif", help="SARIF is what code scanners write.")
    ] = "text",
    home: options.Home = None,
    store: options.Store = None,
    json: options.Json = False,
) -> Report | int:
    """Check skills and say how to mend them.

    Exit code 1 when one has an error.
    """
    from bough.skills.check import iter_check

    if format not in FORMATS:
        raise InvalidInput(f"there is no format {format!r}", hint=f"choose one of: {', '.join(FORMATS)}")
    found = iter_check(directory, recursive, "strict" if strict else "lenient")
    checked = list(_scanned(found) if scan else found)
    code = 1 if any(skill.has_errors or not skill.loaded for skill in checked) else 0
    if format == "sarif":
        _write_sarif(checked)
        return code
    report = Report(
        command="skills check",
        data={"skills": [skill.as_dict() for skill in checked]},
        blocks=() if json or format == "json" else list(_findings(checked)),
        exit_code=code,
    )
    if format == "json" and not json:
        renderer_for(json=True).report(report)
        return code
    return report


def _scanned(found: Iterator[CheckedSkill]) -> Iterator[CheckedSkill]:
    """Add what a look with suspicion finds; a rule file that is no folder is looked at alone."""
    from bough.skills.model import is_skill_file
    from bough.skills.scan import Scanner

    scanner = Scanner()
    for skill in found:
        if is_skill_file(os.path.basename(skill.file)):
            seen = scanner.scan_folder(skill.path.parent)
            yield replace(skill, diagnostics=(*skill.diagnostics, *seen))
        else:
            yield skill


def _write_sarif(checked: list[CheckedSkill]) -> None:
    from bough import __version__
    from bough.skills.report import as_sarif

    found = [_placed(each, skill.file) for skill in checked for each in skill.diagnostics]
    renderer_for(json=True).record(as_sarif(found, version=__version__))


def _placed(found: Diagnostic, file: str) -> Diagnostic:
    """Return it with a path from here, as tools that show SARIF want it."""
    path = os.path.relpath(found.path or file)
    return Diagnostic(found.code, found.severity, found.message, found.line, found.fix, path)


def _findings(checked: list[CheckedSkill]) -> Iterator[Line]:
    for skill in checked:
        good = skill.loaded and not skill.has_errors
        yield line(("ok   " if good else "bad  ", "good" if good else "bad"), (skill.name, "strong"), f"  {skill.path}")
        for each in skill.diagnostics:
            yield from diagnostic_lines(each, file=skill.file)
    bad = sum(skill.has_errors or not skill.loaded for skill in checked)
    yield line((f"{len(checked)} checked, {bad} with errors", "dim"))
