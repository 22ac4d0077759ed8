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
        changes: Files that are new, gone or changed; empty if it is up to date.
        findings: New findings of the scan.
        refused: Why it was not updated; None if it was updated or is up to date.
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
        NotFound: No installed skill has that name; the hint names the nearest.
    """
    installed = list(entries)
    for entry in installed:
        owner = entry.source.rstrip("/").split("/")[-2:-1]
        if name in (entry.used_name, entry.name, *(f"{parent}/{entry.name}" for parent in owner)):
            return entry
    names = tuple(sorted(entry.used_name for entry in installed))
    raise NotFound(f"no installed skill named {name[:100]!r}", hint=suggest_nearest(name, names))


def remove_skills(target: Path, names: Sequence[str]) -> list[LockedSkill]:
    """Remove installed skills and return their entries. All are removed at once, when the lock file is replaced.

    Raises:
        NotFound: One of them is not installed; nothing was changed.
    """
    with change_lock(target) as entries:
        # All names are looked up before anything is removed: an unknown one raises, and leaves the lock file unchanged.
        removed = [find_installed(entries.values(), name) for name in names]
        for entry in removed:
            entries.pop(entry.folder, None)
    return removed


def switch_skills(home: Path, registry: SkillRegistry, names: Sequence[str], *, disabled: bool) -> list[str]:
    """Disable or enable skills, installed ones or those of the user and the project; return their names.

    Raises:
        NotFound: One of them does not exist; nothing was changed.
    """
    target = home / "installed"
    installed: list[LockedSkill] = []
    others: list[SkillMetadata] = []
    skills_by_name = {skill.name: skill for skill in (*registry.disabled, *registry.list_all())}
    for name in names:
        skill = skills_by_name.get(name)
        if skill is not None and skill.scope not in ("installed", "builtin", "code"):
            others.append(skill)
            continue
        try:
            installed.append(find_installed(list_installed(target), name))
        except NotFound as error:
            hint = suggest_nearest(name, tuple(sorted(skills_by_name)))
            raise NotFound(f"no skill named {name[:100]!r} to disable or enable", hint=hint) from error
    if installed:
        with change_lock(target) as entries:
            for entry in installed:
                if entry.folder not in entries:  # removed since it was listed: writing it would bring it back
                    raise NotFound(f"the skill {entry.used_name!r} was removed meanwhile", hint="bough skills list")
                entries[entry.folder] = replace(entries[entry.folder], disabled=disabled)
    if others:
        paths = {str(skill.path) for skill in others}
        _change_disabled(home, lambda old: old | paths if disabled else old - paths)
    return sorted([*(entry.used_name for entry in installed), *(skill.name for skill in others)])


def _change_disabled(home: Path, change: Callable[[set[str]], set[str]]) -> None:
    home.mkdir(parents=True, exist_ok=True)
    file = home / DISABLED
    # A separate file is locked: `os.replace` gives the list a new inode, which a lock on the old one does not protect.
    with open(file.with_suffix(".lock"), "wb") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        # Read under the lock: a concurrent change would be lost otherwise.
        paths = sorted(change(set(read_disabled(home))))
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

    A skill pinned to a commit is not updated. A skill that is refused, or whose source cannot be reached, is unchanged.

    Raises:
        NotFound: One of them is not installed.
    """
    entries = list_installed(target)
    selected = [find_installed(entries, name) for name in names] if names else entries
    place = staging or target / ".staging"
    remove_leftovers(place)
    updates: list[SkillUpdate] = []
    for entry in selected:
        with StagingFolder(place) as stage:
            try:
                updates.append(_update_one(entry, target, stage, dry_run=dry_run, accept_findings=accept_findings))
            except BoughError as error:
                updates.append(SkillUpdate(entry.used_name, refused=error))
    return updates


def _update_one(entry: LockedSkill, target: Path, stage: Path, *, dry_run: bool, accept_findings: bool) -> SkillUpdate:
    request = InstallRequest(
        source=entry.source,
        ref=entry.ref,
        names=(entry.path or entry.name,),
        replace=True,
        accept_findings=accept_findings,
        hosts=(),
    )
    # Recorded again, so that the next update follows the same branch.
    listing = replace(list_source(request, stage), ref=entry.ref)
    staged, refused = stage_skills(listing, request, stage)
    if not staged:
        raise _explain_failure(refused, entry)
    new = replace(staged[0], alias=entry.alias)
    changes = tuple(list_differences(dict(entry.files), dict(new.files)))
    if new.digest == entry.digest:
        return SkillUpdate(entry.used_name)
    # Only new findings are reported: the others were shown when the present version was installed.
    old = {(note.code, note.message) for note in Scanner().scan_folder(target / entry.folder)}
    findings = tuple(note for note in new.diagnostics if (note.code, note.message) not in old)
    if not dry_run:
        publish_skills([new], target, listing, replace(request, hosts=_find_unchanged_hosts(entry, target, new.folder)))
    # The digest covers executable bits, the list of files does not.
    return SkillUpdate(entry.used_name, changes or ("changed: executable bits",), findings)


def _find_unchanged_hosts(entry: LockedSkill, target: Path, folder: Path) -> tuple[str, ...]:
    """Return the servers that may still run on this machine: those whose command has not changed."""
    # A changed command needs a new consent: an update must not start another program outside the sandbox.
    scanner = Scanner()
    old_servers = review_skill(find_skill_file(target / entry.folder), scanner).servers
    new_servers = review_skill(find_skill_file(folder), scanner).servers
    return tuple(name for name in entry.hosts if name in old_servers and old_servers[name] == new_servers.get(name))


def _explain_failure(refused: Sequence[RefusedSkill], entry: LockedSkill) -> BoughError:
    if refused:
        return refused[0].error
    return InvalidInput(f"{entry.source} no longer has a skill {entry.name!r}", hint="remove it, or add it again")
