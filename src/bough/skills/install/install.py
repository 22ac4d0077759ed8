"""Installing skills from a folder, an archive, a git repository or a site's index.

Skills are copied, read and scanned in a staging folder, which discovery ignores, and then moved to their final folders.
Discovery uses a folder only if the lock file lists it. So a process that is killed at any point leaves either the old
skills or the new ones. No code of a skill is run.
"""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
import re
import urllib.error
import urllib.request
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import urljoin, urlsplit

from bough.errors import BoughError, Conflict, ConnectError, InvalidInput, NotFound, PermissionDenied
from bough.skills.install.address import ArchiveSource, FolderSource, GitSource, SiteSource, parse_source
from bough.skills.install.archive import list_archive, refuse_size
from bough.skills.install.listing import MAX_BYTES, SourceEntry, SourceListing, list_folder
from bough.skills.install.repository import list_repository
from bough.skills.install.review import review_skill
from bough.skills.install.staging import StagingFolder, remove_leftovers
from bough.skills.model import Diagnostic
from bough.skills.read.fields import normalize_name
from bough.skills.read.parse import find_skill_file, read_file
from bough.skills.read.resources import suggest_nearest
from bough.skills.trust.lock import DIGEST_DIGITS, LockedSkill, change_lock
from bough.skills.trust.scan import Scanner
from bough.skills.trust.tree import read_tree


@dataclass(frozen=True, kw_only=True)
class InstallRequest:
    """What to install, and how.

    Attributes:
        source: The address of the source; see `parse_source`.
        names: The skills to install, by name or `owner/name`; empty for all.
        path: The folder of the source at or below which skills are installed; empty for all.
        alias: The local name, if a single skill is installed.
        ref: A branch, tag or commit, if the source does not include one.
        replace: Whether to replace an installed skill of the same name.
        accept_findings: Whether to install skills in which the scan finds errors.
        take_both: Whether to install two skills of the same name, as `<parent folder>/name`.
        hosts: MCP servers that may run outside the sandbox.
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
        folder: The folder in which it is installed.
        diagnostics: Results of reading and scanning it.
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
        has_findings: Whether it was refused because of findings of the scan.
    """

    name: str
    path: str
    error: BoughError
    diagnostics: tuple[Diagnostic, ...] = ()
    has_findings: bool = False


@dataclass(frozen=True, slots=True)
class Installation:
    """The result of an installation, each part sorted by name."""

    installed: tuple[InstalledSkill, ...]
    refused: tuple[RefusedSkill, ...] = ()


@dataclass(frozen=True, slots=True)
class StagedSkill:
    """A valid skill in the staging folder."""

    name: str
    alias: str | None
    path: str
    folder: Path
    digest: str
    files: Mapping[str, str]
    diagnostics: tuple[Diagnostic, ...]

    @property
    def used_name(self) -> str:
        """The local name."""
        return self.alias or self.name


def install(request: InstallRequest, target: Path, *, staging: Path | None = None) -> Installation:
    """Install skills below `target`, add them to `target/skills.lock`, and return installed and refused ones. Blocks.

    Args:
        target: For example `<home>/installed`.
        staging: A folder for unfinished installations, on the same file system; None: a hidden folder in `target`.

    Raises:
        InvalidInput: The source is not supported, or nothing in it can be read as a skill.
        NotFound: The source does not exist, or contains none of the requested skills.
        Conflict: A skill of that name is already installed, or two have the same name; nothing was changed.
        PermissionDenied: The scan found errors in all skills.
        LimitExceeded: The source is too large.
        ConnectError: The source could not be fetched.
    """
    # Below `target` by default, because `rename` moves folders only within one file system.
    staging_parent = staging or target / ".staging"
    target.mkdir(parents=True, exist_ok=True)
    remove_leftovers(staging_parent)
    with StagingFolder(staging_parent) as staging_folder:
        listing = list_source(request, staging_folder)
        staged, refused = stage_skills(listing, request, staging_folder)
        installed = publish_skills(staged, target, listing, request) if staged else ()
    if not installed and refused:
        raise _make_installation_error(refused)
    return Installation(tuple(installed), tuple(refused))


def list_source(request: InstallRequest, staging_folder: Path) -> SourceListing:
    """Return the contents of a request's source, fetching it if necessary."""
    match parse_source(request.source, ref=request.ref):
        case FolderSource(path):
            listing = list_folder(path)
        case ArchiveSource(path):
            # Checked before reading: an archive is unpacked in memory.
            if path.stat().st_size > MAX_BYTES:
                refuse_size(request.source)
            listing = list_archive(path.read_bytes(), path.name, str(path.absolute()))
        case SiteSource(url):
            listing = list_site(url)
        case GitSource() as source:
            # The path of a web address is known only after its ref: `list_repository` splits them.
            if not source.ref_and_path:
                folder = "/".join(filter(None, (source.path, request.path.strip("/"))))
                source = replace(source, path=folder)
            return list_repository(source, staging_folder)
    return replace(listing, below=request.path.strip("/"))


def stage_skills(
    listing: SourceListing, request: InstallRequest, staging_folder: Path
) -> tuple[list[StagedSkill], list[RefusedSkill]]:
    """Copy the requested skills of a source into `staging_folder`; return the installable and the refused skills.

    Raises:
        NotFound: The source has none of the requested skills.
        Conflict: Two skills have the same name, and the request does not choose between them.
    """
    paths = listing.list_skills()
    if request.path and not paths:
        raise NotFound(f"no skill at or below {request.path!r}", hint="omit --path to install all")
    staged: list[StagedSkill] = []
    refused: list[RefusedSkill] = []
    scanner = Scanner()
    for number, path in enumerate(paths):
        folder_name = posixpath.basename(path) or listing.name
        # Each skill has a numbered folder, because two folders of the source may have the same name.
        folder = staging_folder / str(number) / folder_name
        folder.mkdir(parents=True)
        try:
            staged.append(_stage_skill(listing, path, paths, folder, scanner))
        except _SkillRefusal as error:
            if not request.names or error.refused.name in request.names:
                refused.append(error.refused)
    staged = _select_skills(staged, listing, request)
    allowed = [skill for skill in staged if request.accept_findings or not _list_errors(skill)]
    refused += [_refuse_for_findings(skill) for skill in staged if skill not in allowed]
    if not staged and not refused:
        raise NotFound("the source contains no skill", hint="a skill is a folder with a SKILL.md")
    return allowed, sorted(refused, key=lambda skill: skill.name)


class _SkillRefusal(Exception):
    """Carries the reason why a skill is not installed."""

    def __init__(self, refused: RefusedSkill) -> None:
        self.refused = refused


def _stage_skill(listing: SourceListing, path: str, paths: list[str], folder: Path, scanner: Scanner) -> StagedSkill:
    """Copy a skill into `folder`, then read, hash and scan the copy; raise `_SkillRefusal` if it is invalid."""
    folder_name = posixpath.basename(path) or listing.name
    try:
        notes = listing.write_skill(path, paths, folder)
    except (BoughError, OSError) as error:
        cause = error if isinstance(error, BoughError) else InvalidInput(f"cannot read {path}: {error.strerror}")
        raise _SkillRefusal(RefusedSkill(folder_name, path, cause)) from error
    # Read, hashed and scanned in the staging folder, not in the source, so that the checked files are installed.
    reading = read_file(find_skill_file(folder))
    notes += [_set_source_path(note, folder, path) for note in reading.diagnostics]
    if reading.skill is None:
        reason = next((note for note in reading.diagnostics if note.severity == "error"), reading.diagnostics[-1])
        error = InvalidInput(f"not a skill: {path or folder_name}: {reason.message}", hint=reason.fix)
        raise _SkillRefusal(RefusedSkill(folder_name, path, error, tuple(notes)))
    name = normalize_name(reading.skill.name)
    if name is None:
        name = reading.skill.name
        error = InvalidInput(f"invalid skill name {name[:80]!r}", hint="use lowercase letters, digits and hyphens")
        raise _SkillRefusal(RefusedSkill(name, path, error, tuple(notes)))
    tree = read_tree(folder)
    notes += [_set_source_path(note, folder, path) for note in (*tree.faults, *scanner.scan_folder(folder))]
    if tree.faults:
        error = PermissionDenied(f"{name} cannot be installed: {tree.faults[0].message}")
        raise _SkillRefusal(RefusedSkill(name, path, error, tuple(notes)))
    return StagedSkill(name, None, path, folder, tree.digest, tree.files, tuple(notes))


def _set_source_path(note: Diagnostic, folder: Path, path: str) -> Diagnostic:
    """Return a diagnostic whose path is the file's path in the source, not in the staging folder."""
    relative_path = os.path.relpath(note.path, folder) if note.path.startswith(str(folder)) else note.path
    return note._replace(path=posixpath.join(path, relative_path))


def _list_errors(staged: StagedSkill) -> list[Diagnostic]:
    return [diagnostic for diagnostic in staged.diagnostics if diagnostic.severity == "error"]


def _refuse_for_findings(staged: StagedSkill) -> RefusedSkill:
    error = PermissionDenied(
        f"{staged.used_name} was not installed: {_list_errors(staged)[0].message}",
        hint="review the findings; pass --accept-findings to install it anyway",
    )
    return RefusedSkill(staged.used_name, staged.path, error, staged.diagnostics, has_findings=True)


def _make_installation_error(refused: Sequence[RefusedSkill]) -> BoughError:
    """Return the error for an installation in which every skill was refused."""
    # Findings first: their hint says how to install the skill anyway.
    first_refused = next((skill for skill in refused if skill.has_findings), refused[0])
    suffix = f" (and {len(refused) - 1} more skills were refused)" if len(refused) > 1 else ""
    notes = [note.as_dict() for skill in refused for note in skill.diagnostics][:100]
    error = first_refused.error
    return type(error)(f"{error.message}{suffix}", hint=error.hint, details={"diagnostics": notes})


def _select_skills(staged: list[StagedSkill], listing: SourceListing, request: InstallRequest) -> list[StagedSkill]:
    """Return the requested skills, each with its local name."""
    selected = [skill for skill in staged if not request.names or _is_named(skill, listing, request.names)]
    available_names = tuple(sorted(skill.name for skill in staged))
    for name in request.names:
        is_staged = any(_is_named(skill, listing, [name]) for skill in staged)
        # If all skills were refused, the caller reports the reasons instead.
        if not is_staged and available_names:
            raise NotFound(f"the source has no skill {name[:80]!r}", hint=suggest_nearest(name, available_names))
    duplicate_names = {skill.name for skill in selected if sum(other.name == skill.name for other in selected) > 1}
    if duplicate_names:
        listed_duplicates = ", ".join(
            f"{_make_full_name(skill, listing)} ({skill.path})" for skill in selected if skill.name in duplicate_names
        )
        if not request.take_both:
            raise Conflict(
                f"several skills have the same name: {listed_duplicates}",
                hint="select one with --only OWNER/NAME or --path DIR, rename it with --as NAME, or pass --yes for all",
            )
        selected = [
            replace(skill, alias=_make_full_name(skill, listing)) if skill.name in duplicate_names else skill
            for skill in selected
        ]
    if request.alias is None:
        return selected
    if len(selected) != 1:
        raise InvalidInput(f"--as applies to one skill, not {len(selected)}", hint="select one with --only or --path")
    alias = normalize_name(request.alias)
    if alias is None:
        raise InvalidInput(
            f"invalid skill name {request.alias[:80]!r}", hint="use lowercase letters, digits and hyphens"
        )
    return [replace(selected[0], alias=alias)]


def _is_named(staged: StagedSkill, listing: SourceListing, names: Iterable[str]) -> bool:
    """Whether a skill has one of the names: its name, its path, `<parent folder>/name` or `owner/name`."""
    return any(
        name in (staged.name, staged.path, _make_full_name(staged, listing), f"{listing.owner}/{staged.name}")
        for name in names
    )


def _make_full_name(staged: StagedSkill, listing: SourceListing) -> str:
    """Return `<parent folder>/name`, which distinguishes skills of the same name."""
    parent_name = posixpath.basename(posixpath.dirname(staged.path)) or listing.owner or listing.name
    return f"{parent_name}/{staged.name}"


def publish_skills(
    staged: Sequence[StagedSkill], target: Path, listing: SourceListing, request: InstallRequest
) -> list[InstalledSkill]:
    """Move staged skills to their final folders and add them all to the lock file at once.

    Raises:
        Conflict: A skill of the same name is already installed; nothing was changed.
    """
    installed_skills: list[InstalledSkill] = []
    with change_lock(target) as entries:
        entries_by_name = {entry.used_name: entry for entry in entries.values()}
        folders = {skill.used_name: f"{skill.digest[:DIGEST_DIGITS]}/{skill.folder.name}" for skill in staged}
        # Checked under the lock: of two concurrent installations of the same name, only one may succeed.
        conflicts = sorted(
            name for name, relative_folder in folders.items() if name in entries_by_name or relative_folder in entries
        )
        if conflicts and not request.replace:
            raise Conflict(f"already installed: {', '.join(conflicts)}", hint="pass --replace to replace them")
        for skill in staged:
            relative_folder = folders[skill.used_name]
            target_folder = target / relative_folder
            target_folder.parent.mkdir(exist_ok=True)
            # Moved before the lock file lists it, which happens at the end of the block: if the process is killed in
            # between, discovery ignores the folder. An existing folder has the same digest, so it has the same files.
            if not target_folder.exists():
                os.rename(skill.folder, target_folder)
            old_entry = entries_by_name.get(skill.used_name)
            # `change_lock` removes the old folder when the lock file no longer lists it.
            if old_entry is not None:
                entries.pop(old_entry.folder, None)
            entries[relative_folder] = _make_lock_entry(
                skill, relative_folder, listing, request, old_entry, target_folder
            )
            installed_skills.append(
                InstalledSkill(skill.used_name, target_folder, entries[relative_folder], skill.diagnostics)
            )
    return sorted(installed_skills, key=lambda skill: skill.name)


def _make_lock_entry(
    staged: StagedSkill,
    relative_folder: str,
    listing: SourceListing,
    request: InstallRequest,
    old_entry: LockedSkill | None,
    target_folder: Path,
) -> LockedSkill:
    """Return the lock entry of an installed skill; of the requested hosts, only those that are its servers."""
    review = review_skill(find_skill_file(target_folder), Scanner())
    return LockedSkill(
        relative_folder,
        listing.origin,
        dict(staged.files),
        staged.digest,
        name=staged.name,
        ref=listing.ref,
        commit=listing.commit,
        path=staged.path,
        disabled=old_entry is not None and old_entry.disabled,
        alias=staged.alias or (old_entry.alias if old_entry is not None else None),
        hosts=review.grant(request.hosts).hosts,
        domains=review.domains,
    )


MAX_DOWNLOAD: Final = 50 << 20
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


def list_site(index_url: str) -> SourceListing:
    """Download all skills of a site's index; in the listing, each skill is in a folder of its name.

    Raises:
        InvalidInput: The index is invalid, or a skill does not match its digest.
        ConnectError: The index or a skill could not be fetched.
    """
    entries: dict[str, SourceEntry] = {}
    for name, kind, url, digest in _read_index(index_url):
        content = _download(urljoin(index_url, url))
        # Verified before it is parsed, so that only verified data is unpacked.
        if hashlib.sha256(content).hexdigest() != digest:
            raise InvalidInput(f"{url} does not match its digest in the index", hint="report it to the site's owner")
        if kind == "skill-md":
            entries[f"{name}/SKILL.md"] = SourceEntry("file", False, len(content), partial(bytes, content))
            continue
        archive_listing = list_archive(content, urlsplit(url).path, index_url)
        entries |= {f"{name}/{path}": entry for path, entry in archive_listing.entries.items()}
    host = (urlsplit(index_url).hostname or "site").removeprefix("www.")
    return SourceListing(entries, host, index_url, owner=host)


def _read_index(index_url: str) -> list[tuple[str, str, str, str]]:
    """Return (name, kind, URL, sha256) of each skill in a site's index."""
    try:
        data: Any = json.loads(_download(index_url))
        return [_parse_entry(entry) for entry in cast("list[Any]", data["skills"])]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InvalidInput(
            f"not an index of skills: {index_url}: {error!r}", hint="see the Agent Skills Discovery RFC"
        ) from error


def _parse_entry(entry: Mapping[str, Any]) -> tuple[str, str, str, str]:
    name, kind, url, digest = entry["name"], entry["type"], entry["url"], entry["digest"]
    match = re.fullmatch(r"sha256:([0-9a-f]{64})", digest)
    if normalize_name(name) is None or kind not in ("skill-md", "archive") or match is None or not isinstance(url, str):
        raise ValueError(f"invalid entry {name!r}")
    return name, kind, url, match[1]


def _download(url: str) -> bytes:
    """Return the bytes of a file, up to 50 MiB, over HTTPS only; plain HTTP is allowed for this machine."""
    parts = urlsplit(url)
    # The digests come from the index, so the index itself must be authenticated, except on this machine.
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in _LOOPBACK):
        raise InvalidInput(f"unsupported address {url[:120]}", hint="use an https address")
    try:
        with urllib.request.urlopen(url, timeout=30) as response:  # noqa: S310 - the scheme is checked above
            # urllib also follows redirects from https to http.
            final_url = str(response.url)
            if urlsplit(final_url).scheme != parts.scheme:
                raise InvalidInput(f"{url} redirects to {final_url[:120]}", hint="use an address that stays on https")
            data = response.read(MAX_DOWNLOAD + 1)
    except (urllib.error.URLError, OSError) as error:
        raise ConnectError(f"could not fetch {url}: {error}", hint="check the address") from error
    if len(data) > MAX_DOWNLOAD:
        refuse_size(url)
    return data
