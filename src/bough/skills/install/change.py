"""Changing installed skills: removing, disabling, enabling, updating."""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bough.errors import BoughError, InvalidInput, NotFound, StoreError
from bough.skills.find.places import DISABLED, read_disabled
from bough.skills.install.install import (
    InstallRequest,
    RefusedSkill,
    list_source,
    publish_skills,
    stage_skills,
)
from bough.skills.install.review import review_skill
from bough.skills.install.staging import StagingFolder, remove_leftovers
from bough.skills.model import Diagnostic, SkillMetadata
from bough.skills.read.parse import find_skill_file
from bough.skills.read.resources import suggest_nearest
from bough.skills.registry import SkillRegistry
from bough.skills.trust.lock import NAME, LockedSkill, change_lock, read_lock
from bough.skills.trust.scan import Scanner
from bough.skills.trust.tree import list_differences


@dataclass(frozen=True, slots=True)
class SkillUpdate:
    """The result of updating one skill.

    Attributes:
        changes: New, removed and changed files; empty if the skill is up to date.
        findings: New findings of the scan.
        refused: The error that prevented the update; None if the skill was updated or is up to date.
    """

    name: str
    changes: tuple[str, ...] = ()
    findings: tuple[Diagnostic, ...] = ()
    refused: BoughError | None = None


def list_installed(target: Path) -> list[LockedSkill]:
    """Return the skills installed below `target`, sorted by name; empty if there is no lock file.

    Raises:
        InvalidInput: The lock file is invalid.
    """
    entries = read_lock(target / NAME) if (target / NAME).exists() else []
    return sorted(entries, key=lambda entry: entry.used_name)


def find_installed(entries: Iterable[LockedSkill], name: str) -> LockedSkill:
    """Return the entry of a skill by its name, its alias or `owner/name`.

    Raises:
        NotFound: No installed skill has that name; the hint suggests a similar name.
    """
    installed = list(entries)
    for entry in installed:
        owners = entry.source.rstrip("/").split("/")[-2:-1]  # of `https://host/owner/repository`; at most one
        if name in (entry.used_name, entry.name, *(f"{owner}/{entry.name}" for owner in owners)):
            return entry
    names = tuple(sorted(entry.used_name for entry in installed))
    raise NotFound(f"no installed skill named {name[:100]!r}", hint=suggest_nearest(name, names))


def remove_skills(target: Path, names: Sequence[str]) -> list[LockedSkill]:
    """Remove installed skills, all at once, and return their lock entries.

    Raises:
        NotFound: One of the skills is not installed; nothing was changed.
    """
    with change_lock(target) as entries:
        # All names are looked up first: an unknown name raises, and the lock file is unchanged.
        removed = [find_installed(entries.values(), name) for name in names]
        for entry in removed:
            entries.pop(entry.folder, None)
    return removed


def switch_skills(home: Path, registry: SkillRegistry, names: Sequence[str], *, disabled: bool) -> list[str]:
    """Disable or enable skills, both installed skills and those of the user or the project; return their names.

    Raises:
        NotFound: One of the skills does not exist; nothing was changed.
    """
    target = home / "installed"
    installed_entries: list[LockedSkill] = []
    local_skills: list[SkillMetadata] = []
    skills_by_name = {skill.name: skill for skill in (*registry.disabled, *registry.list_all())}
    for name in names:
        skill = skills_by_name.get(name)
        if skill is not None and skill.scope not in ("installed", "builtin", "code"):
            local_skills.append(skill)
            continue
        try:
            installed_entries.append(find_installed(list_installed(target), name))
        except NotFound as error:
            hint = suggest_nearest(name, tuple(sorted(skills_by_name)))
            raise NotFound(f"no skill named {name[:100]!r} to disable or enable", hint=hint) from error
    if installed_entries:
        with change_lock(target) as entries:
            for entry in installed_entries:
                if entry.folder not in entries:  # removed since it was listed, so it must not be added again
                    raise NotFound(f"the skill {entry.used_name!r} was removed meanwhile", hint="bough skills list")
                entries[entry.folder] = replace(entries[entry.folder], disabled=disabled)
    if local_skills:
        paths = {str(skill.path) for skill in local_skills}
        _change_disabled(home, lambda current: current | paths if disabled else current - paths)
    return sorted([*(entry.used_name for entry in installed_entries), *(skill.name for skill in local_skills)])


def _change_disabled(home: Path, compute_new: Callable[[set[str]], set[str]]) -> None:
    """Replace the list of disabled skills with what `compute_new` returns for the current list."""
    home.mkdir(parents=True, exist_ok=True)
    file = home / DISABLED
    # The list itself cannot be locked: `os.replace` gives it a new inode.
    with open(file.with_suffix(".lock"), "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Read under the lock: otherwise a concurrent change would be lost.
        paths = sorted(compute_new(set(read_disabled(home))))
        handle, name = tempfile.mkstemp(dir=home, prefix=f".{DISABLED}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8", errors="surrogateescape") as out:
                json.dump({"version": 1, "skills": paths}, out, indent=1)
            os.replace(name, file)
        except OSError as error:
            os.unlink(name)
            raise StoreError(f"cannot write {file}: {error.strerror}", hint="move it away, then retry") from error


def update_skills(
    target: Path,
    names: Sequence[str] = (),
    *,
    dry_run: bool = False,
    accept_findings: bool = False,
    staging: Path | None = None,
) -> list[SkillUpdate]:
    """Update installed skills from their sources; all of them if no name is given. Blocks.

    A skill pinned to a commit is not updated. A skill that is refused or cannot be fetched stays as it is.

    Raises:
        NotFound: One of the skills is not installed.
    """
    entries = list_installed(target)
    selected = [find_installed(entries, name) for name in names] if names else entries
    staging_parent = staging or target / ".staging"
    remove_leftovers(staging_parent)
    updates: list[SkillUpdate] = []
    for entry in selected:
        with StagingFolder(staging_parent) as staging_folder:
            try:
                updates.append(
                    _update_skill(entry, target, staging_folder, dry_run=dry_run, accept_findings=accept_findings)
                )
            except BoughError as error:
                updates.append(SkillUpdate(entry.used_name, refused=error))
    return updates


def _update_skill(
    entry: LockedSkill, target: Path, staging_folder: Path, *, dry_run: bool, accept_findings: bool
) -> SkillUpdate:
    """Fetch, stage and, unless `dry_run`, publish the current version of a skill; return what changed."""
    request = InstallRequest(
        source=entry.source,
        ref=entry.ref,
        names=(entry.path or entry.name,),
        replace=True,
        accept_findings=accept_findings,
        hosts=(),
    )
    # The requested ref stays in the lock entry, so that the next update follows the same branch.
    listing = replace(list_source(request, staging_folder), ref=entry.ref)
    staged, refused = stage_skills(listing, request, staging_folder)
    if not staged:
        raise _make_update_error(refused, entry)
    new_skill = replace(staged[0], alias=entry.alias)
    changes = tuple(list_differences(dict(entry.files), dict(new_skill.files)))
    if new_skill.digest == entry.digest:
        return SkillUpdate(entry.used_name)
    # Only new findings are reported; the others were reported when the current version was installed.
    old_findings = {(note.code, note.message) for note in Scanner().scan_folder(target / entry.folder)}
    findings = tuple(note for note in new_skill.diagnostics if (note.code, note.message) not in old_findings)
    if not dry_run:
        publish_skills(
            [new_skill], target, listing, replace(request, hosts=_find_unchanged_hosts(entry, target, new_skill.folder))
        )
    # The digest also covers executable bits, which are not in the list of files.
    return SkillUpdate(entry.used_name, changes or ("changed: executable bits",), findings)


def _find_unchanged_hosts(entry: LockedSkill, target: Path, folder: Path) -> tuple[str, ...]:
    """Return the servers that may still run outside the sandbox: those with an unchanged command."""
    # The user permitted a command: an update must not start another program outside the sandbox.
    scanner = Scanner()
    old_servers = review_skill(find_skill_file(target / entry.folder), scanner).servers
    new_servers = review_skill(find_skill_file(folder), scanner).servers
    return tuple(name for name in entry.hosts if name in old_servers and old_servers[name] == new_servers.get(name))


def _make_update_error(refused: Sequence[RefusedSkill], entry: LockedSkill) -> BoughError:
    """Return the error for an update that staged no skill."""
    if refused:
        return refused[0].error
    return InvalidInput(f"{entry.source} no longer has a skill {entry.name!r}", hint="remove it, or add it again")
