"""Installing skills from elsewhere: a folder, an archive, a git repository, a site's index.

What is asked for is put together in a staging folder that nothing looks into, read, scanned, and only then moved to its
place, which counts from the moment the lock file names it. A kill at any point leaves the old state or the new one.
Nothing of a skill is run.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from bough.errors import BoughError, Conflict, InvalidInput, NotFound, PermissionDenied
from bough.skills.install.address import ArchiveSource, FolderSource, GitSource, SiteSource, parse_source
from bough.skills.install.archive import list_archive, refuse_size
from bough.skills.install.listing import MAX_BYTES, SourceListing, list_folder
from bough.skills.install.repository import list_repository
from bough.skills.install.review import review_skill
from bough.skills.install.site import list_site
from bough.skills.install.staging import StagingFolder, sweep
from bough.skills.model import Diagnostic
from bough.skills.read.fields import is_good_name
from bough.skills.read.parse import read_file, skill_file
from bough.skills.read.resources import nearest
from bough.skills.trust.lock import LockedSkill, change_lock
from bough.skills.trust.scan import Scanner
from bough.skills.trust.snapshot import remove_tree
from bough.skills.trust.tree import read_tree

_DIGITS: Final = 12
"""Of a skill's digest, in the name of the folder it is put into."""


@dataclass(frozen=True, kw_only=True)
class InstallRequest:
    """What to install, and how.

    Attributes:
        source: See `parse_source`.
        names: Only these skills, by name or `owner/name`; empty for all.
        path: Only what is at or below this folder of the source.
        alias: The name it is used under here; for one skill.
        ref: A branch, tag or commit, where the source does not say.
        replace: Whether one of the name that already exists is replaced.
        accept_findings: Whether skills in which the scan finds errors are installed all the same.
        take_both: Whether two of one name are both taken, as `<folder above>/name`.
        hosts: Their MCP servers that may run outside of the sandbox.
    """

    source: str
    names: Sequence[str] = ()
    path: str = ""
    alias: str | None = None
    ref: str = ""
    replace: bool = False
    accept_findings: bool = False
    take_both: bool = False
    hosts: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class InstalledSkill:
    """A skill that was installed.

    Attributes:
        folder: Where it lies now.
        diagnostics: What was noticed when it was read and scanned.
    """

    name: str
    folder: Path
    lock: LockedSkill
    diagnostics: tuple[Diagnostic, ...]


@dataclass(frozen=True, slots=True)
class RefusedSkill:
    """A skill that was not installed, and why.

    Attributes:
        path: Its folder in the source.
        has_findings: Whether the scan's findings are the reason.
    """

    name: str
    path: str
    error: BoughError
    diagnostics: tuple[Diagnostic, ...] = ()
    has_findings: bool = False


@dataclass(frozen=True, slots=True)
class Installation:
    """The result of one installation, each part sorted by name."""

    taken: tuple[InstalledSkill, ...]
    refused: tuple[RefusedSkill, ...] = ()


@dataclass(frozen=True, slots=True)
class StagedSkill:
    """A skill that was read into the staging folder and may be installed."""

    name: str
    alias: str | None
    path: str
    folder: Path
    digest: str
    files: Mapping[str, str]
    diagnostics: tuple[Diagnostic, ...]

    @property
    def used_name(self) -> str:
        """The name it is used under here."""
        return self.alias or self.name


def install(request: InstallRequest, target: Path, *, staging: Path | None = None) -> Installation:
    """Install skills below `target`, name them in `target/skills.lock`, and return which and which not. Blocks.

    Args:
        target: For example `<home>/installed`.
        staging: A folder on the same file system that takes what is not finished; None: a hidden one in `target`.

    Raises:
        InvalidInput: The source is none, or nothing in it can be read as a skill.
        NotFound: It does not exist, or has no skill (of those names).
        Conflict: A skill of that name already exists, or two have one name; nothing was changed.
        PermissionDenied: The scan found errors in all of them.
        LimitExceeded: It is too large.
        ConnectError: It could not be fetched.
    """
    place = staging or target / ".staging"
    target.mkdir(parents=True, exist_ok=True)
    sweep(place)
    with StagingFolder(place) as stage:
        listing = list_source(request, stage)
        staged, refused = stage_skills(listing, request, stage)
        taken = settle(staged, target, listing, request) if staged else ()
    if not taken and refused:
        raise _explain_refusal(refused)
    return Installation(tuple(taken), tuple(refused))


def list_source(request: InstallRequest, stage: Path) -> SourceListing:
    """Return what the source of a request holds; what must be fetched is fetched."""
    match parse_source(request.source, ref=request.ref):
        case FolderSource(path):
            listing = list_folder(path)
        case ArchiveSource(path):
            if path.stat().st_size > MAX_BYTES:
                refuse_size(request.source)
            listing = list_archive(path.read_bytes(), path.name, str(path.absolute()))
        case SiteSource(url):
            listing = list_site(url)
        case GitSource() as source:
            below = "/".join(filter(None, (source.path, request.path.strip("/"))))
            return list_repository(replace(source, path=source.path if source.rest else below), stage)
    return replace(listing, below=request.path.strip("/"))


def stage_skills(
    listing: SourceListing, request: InstallRequest, stage: Path
) -> tuple[list[StagedSkill], list[RefusedSkill]]:
    """Read the skills of a source that are asked for into `stage`: those that may be installed, and the others.

    Raises:
        NotFound: There is none (of those names).
        Conflict: Two have one name, and nothing says which is meant.
    """
    paths = listing.list_skills()
    if request.path and not paths:
        raise NotFound(f"there is no skill at or below {request.path!r}", hint="leave --path out to take all")
    staged: list[StagedSkill] = []
    refused: list[RefusedSkill] = []
    scanner = Scanner()
    for number, path in enumerate(paths):
        home = posixpath.basename(path) or listing.name
        folder = stage / str(number) / home
        folder.mkdir(parents=True)
        try:
            staged.append(_stage_one(listing, path, paths, folder, scanner))
        except _NotInstallable as error:
            if not request.names or error.refused.name in request.names:
                refused.append(error.refused)
    staged = _choose(staged, listing, request)
    wanted = {each.path for each in staged}
    allowed = [each for each in staged if request.accept_findings or not _errors(each)]
    refused += [_refuse_findings(each) for each in staged if each not in allowed]
    if not wanted and not refused:
        raise NotFound("there is no skill in it", hint="a skill is a folder with a SKILL.md in it")
    return allowed, sorted(refused, key=lambda each: each.name)


class _NotInstallable(Exception):
    def __init__(self, refused: RefusedSkill) -> None:
        self.refused = refused


def _stage_one(listing: SourceListing, path: str, paths: list[str], folder: Path, scanner: Scanner) -> StagedSkill:
    home = posixpath.basename(path) or listing.name
    try:
        notes = listing.write_skill(path, paths, folder)
    except (BoughError, OSError) as error:
        known = error if isinstance(error, BoughError) else InvalidInput(f"{path} cannot be read: {error.strerror}")
        raise _NotInstallable(RefusedSkill(home, path, known)) from error
    reading = read_file(skill_file(folder))
    notes += [_at(each, folder, path) for each in reading.diagnostics]
    if reading.skill is None:
        reason = next((each for each in reading.diagnostics if each.severity == "error"), reading.diagnostics[-1])
        error = InvalidInput(f"{path or home} is not a skill: {reason.message}", hint=reason.fix)
        raise _NotInstallable(RefusedSkill(home, path, error, tuple(notes)))
    name = reading.skill.name
    if not is_good_name(name):
        error = InvalidInput(f"{name[:80]!r} cannot be the name of a skill", hint="lower case letters, digits, hyphens")
        raise _NotInstallable(RefusedSkill(name, path, error, tuple(notes)))
    tree = read_tree(folder)
    notes += [_at(each, folder, path) for each in (*tree.faults, *scanner.scan_folder(folder))]
    if tree.faults:
        error = PermissionDenied(f"{name} cannot be installed as it is: {tree.faults[0].message}")
        raise _NotInstallable(RefusedSkill(name, path, error, tuple(notes)))
    return StagedSkill(name, None, path, folder, tree.digest, tree.files, tuple(notes))


def _at(note: Diagnostic, folder: Path, path: str) -> Diagnostic:
    """Return a diagnostic that names the file as it is in the source, not in the staging folder."""
    inside = os.path.relpath(note.path, folder) if note.path.startswith(str(folder)) else note.path
    return note._replace(path=posixpath.join(path, inside))


def _errors(staged: StagedSkill) -> list[Diagnostic]:
    return [each for each in staged.diagnostics if each.severity == "error"]


def _refuse_findings(staged: StagedSkill) -> RefusedSkill:
    error = PermissionDenied(
        f"{staged.used_name} was not installed: {_errors(staged)[0].message}",
        hint="review the findings; --accept-findings installs it all the same",
    )
    return RefusedSkill(staged.used_name, staged.path, error, staged.diagnostics, has_findings=True)


def _explain_refusal(refused: Sequence[RefusedSkill]) -> BoughError:
    """Return the error of an installation that took nothing."""
    first = next((each for each in refused if each.has_findings), refused[0])
    more = f" (and {len(refused) - 1} more skills were refused)" if len(refused) > 1 else ""
    notes = [note.as_dict() for each in refused for note in each.diagnostics][:100]
    return type(first.error)(f"{first.error.message}{more}", hint=first.error.hint, details={"diagnostics": notes})


def _choose(staged: list[StagedSkill], listing: SourceListing, request: InstallRequest) -> list[StagedSkill]:
    """Return the skills that are asked for, each under the name it is used by here."""
    found = [each for each in staged if not request.names or _is_named(each, listing, request.names)]
    for name in request.names:
        if not any(_is_named(each, listing, [name]) for each in staged):
            known = tuple(sorted(each.name for each in staged))
            if known:
                raise NotFound(f"there is no skill {name[:80]!r} in it", hint=nearest(name, known))
    doubled = {each.name for each in found if sum(other.name == each.name for other in found) > 1}
    if doubled:
        names = ", ".join(f"{_full_name(each, listing)} ({each.path})" for each in found if each.name in doubled)
        if not request.take_both:
            raise Conflict(
                f"skills of one name: {names}",
                hint="--only OWNER/NAME or --path DIR takes one, --as NAME renames it, --yes takes both",
            )
        found = [replace(each, alias=_full_name(each, listing)) if each.name in doubled else each for each in found]
    if request.alias is None:
        return found
    if len(found) != 1:
        raise InvalidInput(f"--as names one skill, and {len(found)} were chosen", hint="choose one by --only or --path")
    if not is_good_name(request.alias):
        raise InvalidInput(f"{request.alias[:80]!r} cannot be the name of a skill", hint="lower case letters, hyphens")
    return [replace(found[0], alias=request.alias)]


def _is_named(staged: StagedSkill, listing: SourceListing, names: Iterable[str]) -> bool:
    return any(
        name in (staged.name, staged.path, _full_name(staged, listing), f"{listing.owner}/{staged.name}")
        for name in names
    )


def _full_name(staged: StagedSkill, listing: SourceListing) -> str:
    """Return `<folder above>/name`, by which two of one name are told apart."""
    above = posixpath.basename(posixpath.dirname(staged.path)) or listing.owner or listing.name
    return f"{above}/{staged.name}"


def settle(
    staged: Sequence[StagedSkill], target: Path, listing: SourceListing, request: InstallRequest
) -> list[InstalledSkill]:
    """Move staged skills to their places and name them in the lock file, at once.

    Raises:
        Conflict: One of the name already exists; nothing was changed.
    """
    done: list[InstalledSkill] = []
    with change_lock(target) as entries:
        there = {entry.used_name: entry for entry in entries.values()}
        places = {each.used_name: f"{each.digest[:_DIGITS]}/{each.folder.name}" for each in staged}
        taken = sorted(name for name, folder in places.items() if name in there or folder in entries)
        if taken and not request.replace:
            raise Conflict(f"installed already: {', '.join(taken)}", hint="--replace replaces them")
        for each in staged:
            folder = places[each.used_name]
            place = target / folder
            place.parent.mkdir(exist_ok=True)
            if not place.exists():
                os.rename(each.folder, place)
            old = there.get(each.used_name)
            if old is not None:
                entries.pop(old.folder, None)
            entries[folder] = _lock(each, folder, listing, request, old, place)
            done.append(InstalledSkill(each.used_name, place, entries[folder], each.diagnostics))
        kept = set(entries)
    remove_unlocked(target, kept)
    return sorted(done, key=lambda each: each.name)


def _lock(
    staged: StagedSkill,
    folder: str,
    listing: SourceListing,
    request: InstallRequest,
    old: LockedSkill | None,
    place: Path,
) -> LockedSkill:
    review = review_skill(skill_file(place), Scanner())
    return LockedSkill(
        folder,
        listing.origin,
        dict(staged.files),
        staged.digest,
        name=staged.name,
        ref=listing.ref,
        commit=listing.commit,
        path=staged.path,
        disabled=old is not None and old.disabled,
        alias=staged.alias or (old.alias if old is not None else None),
        hosts=review.grant(request.hosts).hosts,
        domains=review.domains,
    )


def remove_unlocked(target: Path, kept: Collection[str]) -> None:
    """Remove what an earlier installation left, or a later one replaced: folders of skills that no lock names."""
    digits = frozenset("0123456789abcdef")
    for place in sorted(target.iterdir()):
        if len(place.name) != _DIGITS or not digits.issuperset(place.name) or not place.is_dir():
            continue
        for folder in sorted(place.iterdir()):
            if f"{place.name}/{folder.name}" not in kept:
                remove_tree(folder)
        if not any(place.iterdir()):
            place.rmdir()
