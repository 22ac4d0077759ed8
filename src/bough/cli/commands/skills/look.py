"""`bough skills list`, `show`, `match`: the skills of a working folder, and the skills that a message activates."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bough.cli import options
from bough.cli.render import Report
from bough.cli.text import Block, Line, Span, Style, Table, line, one_line, paragraph
from bough.errors import InvalidInput, PermissionDenied
from bough.settings import Settings
from bough.types import JsonObject

if TYPE_CHECKING:
    from bough.skills import Diagnostic, Skill, SkillMetadata, SkillRegistry, TriggerMatch

_SEVERITY: dict[str, Style] = {"error": "bad", "warning": "warn", "info": "dim"}


def list_(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Show only this skill, in full.")] = None,
    workspace: options.Workspace = Path(),
    skills: options.SkillRoots = None,
    home: options.Home = None,
    store: options.Store = None,
    json: options.Json = False,
) -> Report:
    """List the skills that apply in a working folder."""
    if name is not None:
        return show(name, workspace=workspace, skills=skills, home=home, store=store, json=json)
    registry = open_registry(workspace, options.load_settings(home, store, skill_roots=skills))
    return Report(
        command="skills list",
        data={
            "skills": [skill_json(skill) for skill in registry.list_all()],
            "withheld": [skill_json(skill) for skill in registry.withheld],
            "diagnostics": [diagnostic.as_dict() for diagnostic in registry.diagnostics],
        },
        blocks=list(_render_list(registry)),
        next=("bough skills trust",) if registry.withheld else (),
    )


def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the skill.")],
    workspace: options.Workspace = Path(),
    skills: options.SkillRoots = None,
    home: options.Home = None,
    store: options.Store = None,
    json: options.Json = False,
) -> Report:
    """Show a skill: its instructions, its files and its origin."""
    skill = open_registry(workspace, options.load_settings(home, store, skill_roots=skills)).get(name)
    return Report(
        command="skills show",
        data=skill_json(skill.summary())
        | {
            "content": skill.content,
            "content_hash": skill.content_hash,
            "files": list(skill.resources.all),
            "diagnostics": [diagnostic.as_dict() for diagnostic in skill.diagnostics],
        },
        blocks=list(_render_skill(skill)),
        next=(f'bough run "/{skill.name} …"',),
    )


def match(
    text: Annotated[str, typer.Argument(metavar="TEXT", help="Message to match.")],
    workspace: options.Workspace = Path(),
    skills: options.SkillRoots = None,
    home: options.Home = None,
    store: options.Store = None,
    json: options.Json = False,
) -> Report:
    """Show which skills a message would activate.

    Also shows the skills whose descriptions fit its words best.
    """
    from bough.skills import TriggerIndex
    from bough.skills.match.triggers import find_withheld

    registry = open_registry(workspace, options.load_settings(home, store, skill_roots=skills))
    matches = TriggerIndex(registry.list_all()).match(text)
    nearest = registry.search(text)
    untrusted = find_withheld(registry, text)
    warnings = [line((skill.name, "id"), ("  not trusted: bough skills trust", "warn")) for skill in untrusted]
    return Report(
        command="skills match",
        data={
            "matches": [_match_json(trigger_match) for trigger_match in matches],
            "nearest": [skill_json(skill) for skill in nearest],
            "untrusted": [skill_json(skill) for skill in untrusted],
        },
        blocks=[*warnings, *_render_matches(matches, nearest)],
        next=("bough skills trust",) if untrusted else (),
        exit_code=PermissionDenied("").exit_code if untrusted else 0,
    )


def skill_json(skill: SkillMetadata) -> JsonObject:
    """Return a skill's metadata as JSON."""
    return {
        "name": skill.name,
        "description": skill.description,
        "kind": skill.kind,
        "scope": skill.scope,
        "path": str(skill.path),
    }


def require_folder(workspace: Path) -> Path:
    """Return the working folder as an absolute path.

    Raises:
        InvalidInput: The path is not a folder.
    """
    folder = workspace.expanduser().absolute()
    if not folder.is_dir():
        raise InvalidInput(f"the workspace {folder} is not a folder", hint="create it, or pass another one")
    return folder


def open_registry(workspace: Path, settings: Settings) -> SkillRegistry:
    """Return the registry of the skills of a working folder."""
    from bough.skills import SkillRegistry

    return SkillRegistry.open(require_folder(workspace), home=settings.home, roots=settings.skill_roots)


def _match_json(match: TriggerMatch) -> JsonObject:
    return {
        "skill": match.skill,
        "kind": match.kind,
        "keyword": match.keyword,
        "inputs": match.inputs,
        "missing": list(match.missing),
    }


def _render_list(registry: SkillRegistry) -> Iterator[Block]:
    skills = registry.list_all()
    if skills:
        rows = tuple(_row(skill) for skill in skills)
        yield Table(
            head=("name", "kind", "from", "description"), rows=rows, flexible=(3,), drop=(1, 2), last_flexible=0
        )
    if all(skill.scope == "builtin" for skill in skills) and not registry.withheld:
        yield line(("no skills found in this project", "dim"))
        yield line(("put a folder with a SKILL.md into .agents/skills, or pass a folder with --skills", "dim"))
    for skill in registry.withheld:
        yield line((f"{skill.name}: not trusted: bough skills trust", "warn"))
    for diagnostic in registry.diagnostics:
        if diagnostic.code != "untrusted":
            yield from diagnostic_lines(diagnostic, with_path=True)


def _row(skill: SkillMetadata) -> tuple[Span, ...]:
    return (skill.name, "id"), (skill.kind, ""), (skill.scope, "dim"), (one_line(skill.description, 500), "")


def _render_skill(skill: Skill) -> Iterator[Line]:
    yield line((skill.name, "strong"), (f"  {skill.kind}, {skill.scope}", "dim"))
    yield from paragraph(skill.description)
    yield line((str(skill.path), "dim"))
    for name in skill.resources.all:
        yield line(("  file  ", "dim"), name)
    for diagnostic in skill.diagnostics:
        yield from diagnostic_lines(diagnostic)
    yield line()
    yield from paragraph(skill.content)


def diagnostic_lines(diagnostic: Diagnostic, *, with_path: bool = False, file: str | None = None) -> Iterator[Line]:
    """Yield the lines of a diagnostic and its fix.

    Args:
        with_path: Show the file of the diagnostic.
        file: Also show the file of the diagnostic if it is another file than this.
    """
    with_path = with_path or (file is not None and str(diagnostic.path) not in ("", file))
    line_prefix = f"line {diagnostic.line}: " if diagnostic.line else ""
    file_prefix = f"{diagnostic.path}: " if with_path and diagnostic.path else ""
    text = f"  {file_prefix}{line_prefix}{diagnostic.message}"
    yield line(
        "  ", (diagnostic.severity, _SEVERITY[diagnostic.severity]), text, (f"  [{diagnostic.code}]", "dim"), hang=4
    )
    if diagnostic.fix:
        yield line((f"    fix: {one_line(diagnostic.fix)}", "dim"), hang=9)


def _render_matches(matches: list[TriggerMatch], nearest: list[SkillMetadata]) -> Iterator[Line]:
    for match in matches:
        text = f'  {match.kind} "{match.keyword}"' + "".join(f" {key}={value}" for key, value in match.inputs.items())
        yield line((match.skill, "id"), text)
        if match.missing:
            yield line((f"  asks for {', '.join(match.missing)}", "warn"))
    if not matches:
        yield line(("no trigger matches", "dim"))
    if nearest:
        yield line(("nearest  ", "dim"), ", ".join(skill.name for skill in nearest))
