"""`bough skills add`, `update`, `remove`, `disable`, `enable`: install and manage skills."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bough.cli import options
from bough.cli.commands.skills.look import diagnostic_lines, open_registry
from bough.cli.render import Report
from bough.cli.text import Line, line
from bough.settings import Settings

if TYPE_CHECKING:
    from bough.skills.install.change import SkillUpdate
    from bough.skills.install.install import InstalledSkill, RefusedSkill

_SOURCE = "Folder, archive, git repository (URL, URL@REF, OWNER/NAME or web address) or website."
Names = Annotated[list[str], typer.Argument(metavar="NAME...", help="Names of the skills.")]
AcceptFindings = Annotated[
    bool, typer.Option("--accept-findings", help="Also install skills in which the scan found errors.")
]


def add(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help=_SOURCE)],
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="NAME", help="Install only this skill; repeatable.")
    ] = None,
    path: Annotated[
        str, typer.Option("--path", metavar="DIR", help="Install only skills at or below this folder.")
    ] = "",
    as_: Annotated[str | None, typer.Option("--as", metavar="NAME", help="Local name for the skill.")] = None,
    ref: Annotated[str, typer.Option("--ref", metavar="REF", help="Branch, tag or commit.")] = "",
    replace: Annotated[bool, typer.Option("--replace", help="Replace installed skills of the same name.")] = False,
    accept_findings: AcceptFindings = False,
    host_servers: Annotated[
        list[str] | None,
        typer.Option("--host-servers", metavar="NAME", help="Run this MCP server outside the sandbox; repeatable."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Install all skills that share a name.")] = False,
    root: Annotated[
        Path | None, typer.Option("--root", metavar="DIR", help="Target folder. Default: <home>/installed.")
    ] = None,
    home: options.Home = None,
    store: options.Store = None,
    json: options.Json = False,
) -> Report:
    """Install skills from a folder, archive or repository. No code is run.

    Prints the findings of the scan; skills with errors are not installed. Exit code 1 if some skills were refused, 4 if
    all were refused because of findings.
    """
    from bough.skills.install.install import InstallRequest, install
    from bough.skills.trust.snapshot import SnapshotStore
    from bough.skills.trust.trust import TrustStore

    settings = options.load_settings(home, store)
    request = InstallRequest(
        source=source,
        names=tuple(only or ()),
        path=path,
        alias=as_,
        ref=ref,
        replace=replace,
        accept_findings=accept_findings,
        take_both=yes,
        hosts=tuple(host_servers or ()),
    )
    staging = settings.home / "staging" if root is None else None
    result = install(request, root or settings.home / "installed", staging=staging)
    # Remove all snapshots except those of trusted and newly installed skills.
    needed = {skill.lock.digest for skill in result.installed} | TrustStore(settings.home).digests()
    SnapshotStore(settings.home / "snapshots").collect(needed)
    return Report(
        command="skills add",
        data={
            "skills": [_make_installed_json(skill) for skill in result.installed],
            "refused": [_refusal_json(skill) for skill in result.refused],
        },
        blocks=[*_list_installed(result.installed), *_list_refused(result.refused)],
        next=(f"bough skills show {result.installed[0].name}",),
        exit_code=1 if result.refused else 0,
    )


def update(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Skills to update. Default: all.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would change.")] = False,
    accept_findings: AcceptFindings = False,
    home: options.Home = None,
    store: options.Store = None,
    json: options.Json = False,
) -> Report:
    """Update installed skills from their sources. Skills pinned to a commit stay."""
    from bough.skills.install.change import update_skills

    settings = options.load_settings(home, store)
    updates = update_skills(
        settings.home / "installed",
        names or (),
        dry_run=dry_run,
        accept_findings=accept_findings,
        staging=settings.home / "staging",
    )
    return Report(
        command="skills update",
        data={"skills": [_update_json(update_result) for update_result in updates]},
        blocks=[output_line for update_result in updates for output_line in _list_update(update_result)]
        or [line(("no skills installed", "dim"))],
        exit_code=1 if any(update_result.refused is not None for update_result in updates) else 0,
    )


def remove(
    names: Names,
    home: options.Home = None,
    store: options.Store = None,
    json: options.Json = False,
) -> Report:
    """Remove installed skills."""
    from bough.skills.install.change import remove_skills

    removed = remove_skills(options.load_settings(home, store).home / "installed", names)
    return Report(
        command="skills remove",
        data={
            "skills": [{"name": entry.used_name, "source": entry.source, "digest": entry.digest} for entry in removed]
        },
        blocks=[line((entry.used_name, "id"), "  removed") for entry in removed],
    )


def disable(
    names: Names,
    workspace: options.Workspace = Path(),
    home: options.Home = None,
    store: options.Store = None,
    json: options.Json = False,
) -> Report:
    """Disable skills without removing them."""
    return _switch(names, workspace, options.load_settings(home, store), disabled=True)


def enable(
    names: Names,
    workspace: options.Workspace = Path(),
    home: options.Home = None,
    store: options.Store = None,
    json: options.Json = False,
) -> Report:
    """Enable disabled skills."""
    return _switch(names, workspace, options.load_settings(home, store), disabled=False)


def _switch(names: Sequence[str], workspace: Path, settings: Settings, *, disabled: bool) -> Report:
    from bough.skills.install.change import switch_skills

    switched = switch_skills(settings.home, open_registry(workspace, settings), names, disabled=disabled)
    state = "disabled" if disabled else "enabled"
    return Report(
        command=f"skills {state[:-1]}",
        data={"skills": [{"name": name, "disabled": disabled} for name in switched]},
        blocks=[line((name, "id"), f"  {state}") for name in switched],
    )


def _make_installed_json(skill: InstalledSkill) -> dict[str, object]:
    return {
        "name": skill.name,
        "path": str(skill.folder),
        "source": skill.lock.source,
        "commit": skill.lock.commit,
        "digest": skill.lock.digest,
        "diagnostics": [note.as_dict() for note in skill.diagnostics],
    }


def _refusal_json(refused: RefusedSkill) -> dict[str, object]:
    return {
        "name": refused.name,
        "path": refused.path,
        "reason": refused.error.message,
        "diagnostics": [note.as_dict() for note in refused.diagnostics],
    }


def _update_json(update_result: SkillUpdate) -> dict[str, object]:
    return {
        "name": update_result.name,
        "changes": list(update_result.changes),
        "diagnostics": [note.as_dict() for note in update_result.findings],
        "refused": None if update_result.refused is None else update_result.refused.message,
    }


def _list_installed(installed: Sequence[InstalledSkill]) -> Iterator[Line]:
    for skill in installed:
        yield line((skill.name, "id"), f"  {skill.folder}")
        for note in skill.diagnostics:
            yield from diagnostic_lines(note, with_path=True)


def _list_refused(refused: Sequence[RefusedSkill]) -> Iterator[Line]:
    for skill in refused:
        yield line((skill.name, "id"), ("  not installed: ", "bad"), skill.error.message)
        for note in skill.diagnostics:
            yield from diagnostic_lines(note, with_path=True)


def _list_update(update_result: SkillUpdate) -> Iterator[Line]:
    if update_result.refused is not None:
        yield line((update_result.name, "id"), ("  not updated: ", "bad"), update_result.refused.message)
        return
    yield line((update_result.name, "id"), "  updated" if update_result.changes else "  up to date")
    for change in update_result.changes:
        yield line((f"  {change}", "dim"))
    for note in update_result.findings:
        yield from diagnostic_lines(note, with_path=True)
