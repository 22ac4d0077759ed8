"""Taking in skills from elsewhere: a folder, an archive, a git repository at a commit, a site's index.

Everything is put together in a staging folder, read, bounded, and only then moved to its place and locked. Nothing of
it is run.

Source: Agent Skills Discovery RFC 0.2 (`.well-known/agent-skills/index.json` with digests).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tarfile
import tempfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import Any, cast
from urllib.parse import urljoin, urlsplit

from bough import git
from bough.errors import Conflict, ConnectError, InvalidInput, LimitExceeded, NotFound, Unavailable
from bough.skills.find.discover import Root, skill_files
from bough.skills.model import Diagnostic, is_skill_file
from bough.skills.read.fields import is_good_name
from bough.skills.read.parse import read_file
from bough.skills.trust.lock import NAME, LockedSkill, lock_skill, read_lock, write_lock

MAX_FILES = 5_000
MAX_BYTES = 100 << 20
MAX_DOWNLOAD = 50 << 20
INDEX = "/.well-known/agent-skills/index.json"
_COMMIT = re.compile(r"(.+)@([0-9a-f]{40})")
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


@dataclass(frozen=True, slots=True)
class Installed:
    """A skill that was taken in.

    Attributes:
        folder: Where it lies now.
        diagnostics: What was noticed when it was read.
    """

    name: str
    folder: Path
    lock: LockedSkill
    diagnostics: tuple[Diagnostic, ...]


def install(source: str, target: Path, *, names: Sequence[str] = (), replace: bool = False) -> list[Installed]:
    """Take in the skills of `source`, write them into `target/skills.lock`, and return them sorted by name. Blocks.

    Args:
        source: A folder; a `.zip`, `.tar.gz` or `.tgz`; `<git url>@<commit of 40 digits>`; an address of a site, or of
            its `index.json`.
        target: The folder of skills to add to, for example `<home>/installed`.
        names: Only these; empty for all.
        replace: Whether one that is there already is replaced.

    Raises:
        InvalidInput: The source is none of these, or what it holds is refused.
        NotFound: It is not there, or has no skill (of those names).
        Conflict: A skill of that name is there already; nothing was changed.
        LimitExceeded: It is too large.
        ConnectError: It could not be fetched.
    """
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target, prefix=".staging-") as staging:
        stage = Path(staging)
        origin = _fetch(source, stage)
        found = _skills(stage, names)
        if not replace:
            _refuse_existing(found, target)
        return _settle(found, target, origin)


def _fetch(source: str, stage: Path) -> str:
    """Bring what `source` names into `stage`; return what to write down as its origin."""
    if match := _COMMIT.fullmatch(source):
        _fetch_git(match[1].removeprefix("git+"), match[2], stage)
        return source
    if source.startswith(("http://", "https://")):
        return _fetch_site(source, stage)
    path = Path(source).expanduser()
    if path.is_dir():
        _copy_folder(path, stage / (path.resolve().name or "skill"))
    elif path.is_file():
        unpack(path.read_bytes() if path.stat().st_size <= MAX_BYTES else _too_large(source), stage, path.name)
    else:
        raise NotFound(f"there is no {source}", hint="a folder, an archive, <git url>@<commit>, or an address")
    return str(path.absolute())


def _too_large(what: str) -> bytes:
    raise LimitExceeded(f"{what} is larger than {MAX_BYTES >> 20} MB", hint="a skill holds know-how, not data")


def _copy_folder(source: Path, target: Path) -> None:
    """Copy the regular files of a folder; a link in it is refused rather than followed."""
    files = size = 0
    for place, folders, names in os.walk(source):
        folders[:] = sorted(each for each in folders if each not in (".git", "__pycache__", "node_modules"))
        for name in [*folders, *names]:
            if os.path.islink(os.path.join(place, name)):
                raise InvalidInput(f"{os.path.join(place, name)} is a link", hint="put the file itself there")
        for name in sorted(names):
            file = Path(place, name)
            files, size = files + 1, size + file.stat().st_size
            _check_bounds(files, size, str(source))
            goal = target / file.relative_to(source)
            goal.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, goal)


def _check_bounds(files: int, size: int, what: str) -> None:
    if files > MAX_FILES or size > MAX_BYTES:
        _too_large(what)


def unpack(data: bytes, stage: Path, name: str) -> None:
    """Unpack a zip or a tar archive into `stage`: regular files only, with safe names, within bounds.

    Raises:
        InvalidInput: It is no archive, or holds a link or a name that leads out.
        LimitExceeded: It holds too much.
    """
    files = size = 0
    for path, content, mode in _members(data, name):
        files, size = files + 1, size + len(content)
        _check_bounds(files, size, name)
        goal = stage / _safe(path, name)
        goal.parent.mkdir(parents=True, exist_ok=True)
        goal.write_bytes(content)
        goal.chmod(0o755 if mode & 0o100 else 0o644)


def _members(data: bytes, name: str) -> Iterator[tuple[str, bytes, int]]:
    try:
        if name.endswith(".zip"):
            yield from _zip_members(data)
        elif name.endswith((".tar.gz", ".tgz", ".tar")):
            yield from _tar_members(data)
        else:
            raise InvalidInput(f"{name} is no archive", hint="give a .zip, .tar.gz or .tgz")
    except (zipfile.BadZipFile, tarfile.TarError, EOFError, OSError, RuntimeError, NotImplementedError) as error:
        raise InvalidInput(f"{name} cannot be unpacked: {error}", hint="make the archive again") from error


def _zip_members(data: bytes) -> Iterator[tuple[str, bytes, int]]:
    with zipfile.ZipFile(BytesIO(data)) as archive:
        for entry in archive.infolist():
            mode = entry.external_attr >> 16
            if entry.is_dir():
                continue
            if mode & 0o170000 not in (0, 0o100000):
                raise InvalidInput(f"{entry.filename[:80]!r} is no regular file", hint="pack files only")
            with archive.open(entry) as handle:
                yield entry.filename, _bounded(handle.read(MAX_BYTES + 1)), mode


def _tar_members(data: bytes) -> Iterator[tuple[str, bytes, int]]:
    with tarfile.open(fileobj=BytesIO(data), mode="r:*") as archive:
        for entry in archive:
            if entry.isdir():
                continue
            handle = archive.extractfile(entry) if entry.isreg() else None
            if handle is None:
                raise InvalidInput(f"{entry.name[:80]!r} is no regular file", hint="pack files only")
            yield entry.name, _bounded(handle.read(MAX_BYTES + 1)), entry.mode


def _bounded(data: bytes) -> bytes:
    return data if len(data) <= MAX_BYTES else _too_large("a file of the archive")


def _safe(path: str, where: str) -> PurePosixPath:
    clean = PurePosixPath(path.removeprefix("./"))
    if not path or clean.is_absolute() or ".." in clean.parts or "\\" in path or "\0" in path or ":" in path:
        raise InvalidInput(f"{where} holds the name {path[:80]!r}", hint="relative names without `..` only")
    return clean


def _fetch_git(url: str, commit: str, stage: Path) -> None:
    """Check out one commit without running anything of the repository: no hooks, filters or submodules."""
    if urlsplit(url).scheme not in ("https", "ssh", "file") and not Path(url).is_dir():
        raise InvalidInput(f"{url[:80]!r} is no address of a git repository", hint="https://…@<commit of 40 digits>")
    with tempfile.TemporaryDirectory(dir=stage, prefix=".git-") as place:
        repository = git.Repository(Path(place) / ".git", Path(place))
        _git(repository, "init", "-q")
        _git(repository, "fetch", "-q", "--depth", "1", "--no-tags", "--", url, commit)
        _git(repository, "checkout", "-q", "--detach", "FETCH_HEAD")
        if _git(repository, "rev-parse", "HEAD").strip() != commit:
            raise ConnectError(f"{url} gave another commit than {commit}", hint="give the full commit")
        _copy_folder(Path(place), stage / "repository")


def _git(repository: git.Repository, *arguments: str) -> str:
    try:
        ran = git.run(repository.work_tree, *arguments, repository=repository, protocols=("https", "ssh", "file"))
    except Unavailable as error:
        raise ConnectError(error.message, hint=f"{error.hint}, or give an archive") from error
    if ran.code:
        reason = ran.stderr.strip().splitlines()[-1:] or [""]
        raise ConnectError(f"git {arguments[0]} failed: {reason[0]}", hint="look at the address and the commit")
    return ran.stdout


def _fetch_site(address: str, stage: Path) -> str:
    """Bring every skill of a site's index into `stage`, each held against its digest."""
    index = address if address.endswith(".json") else address.rstrip("/") + INDEX
    try:
        data: Any = json.loads(_download(index))
        entries = cast("list[Any]", data["skills"])
        wanted = [_site_entry(each) for each in entries]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InvalidInput(
            f"{index} is no index of skills: {error!r}", hint="see the Agent Skills Discovery RFC"
        ) from error
    for name, kind, url, digest in wanted:
        content = _download(urljoin(index, url))
        if hashlib.sha256(content).hexdigest() != digest:
            raise InvalidInput(f"{url} does not have the digest of the index", hint="the site has to mend it")
        if kind == "skill-md":
            (stage / name).mkdir()
            (stage / name / "SKILL.md").write_bytes(content)
        else:
            unpack(content, stage / name, urlsplit(url).path)
    return index


def _site_entry(entry: Mapping[str, Any]) -> tuple[str, str, str, str]:
    name, kind, url, digest = entry["name"], entry["type"], entry["url"], entry["digest"]
    match = re.fullmatch(r"sha256:([0-9a-f]{64})", digest)
    if not is_good_name(name) or kind not in ("skill-md", "archive") or match is None or not isinstance(url, str):
        raise ValueError(f"bad entry {name!r}")
    return name, kind, url, match[1]


def _download(url: str) -> bytes:
    parts = urlsplit(url)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in _LOOPBACK):
        raise InvalidInput(f"{url[:120]} is not fetched", hint="only https addresses are")
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:  # noqa: S310 - the scheme is checked above
            landed = str(answer.url)
            if urlsplit(landed).scheme != parts.scheme:
                raise InvalidInput(f"{url} leads to {landed[:120]}", hint="only https addresses are fetched")
            data = answer.read(MAX_DOWNLOAD + 1)
    except (urllib.error.URLError, OSError) as error:
        raise ConnectError(f"{url} could not be fetched: {error}", hint="look at the address") from error
    return data if len(data) <= MAX_DOWNLOAD else _too_large(url)


def _skills(stage: Path, names: Sequence[str]) -> dict[str, tuple[Path, tuple[Diagnostic, ...]]]:
    """Name to folder and diagnostics of the skills in the staging folder."""
    notes: list[Diagnostic] = []
    found: dict[str, tuple[Path, tuple[Diagnostic, ...]]] = {}
    for path, _ in skill_files(Root(stage, within=stage), notes):
        if not is_skill_file(Path(path).name):
            continue
        reading = read_file(Path(path))
        if reading.skill is None:
            if not names:
                raise InvalidInput(f"a skill of it is refused: {reading.diagnostics[-1].message}", hint="mend it first")
            continue
        name = reading.skill.name
        if names and name not in names:
            continue
        if not is_good_name(name):
            raise InvalidInput(f"a skill of it is called {name[:80]!r}", hint="lower case letters, digits and hyphens")
        if name in found:
            raise Conflict(f"two skills of it are called {name!r}", hint="name the folder of the one you want")
        found[name] = (Path(path).parent, reading.diagnostics)
    missing = sorted(set(names) - set(found))
    if missing or not found:
        raise NotFound(
            f"there is no skill {', '.join(missing)} in it" if missing else "there is no skill in it",
            hint="a skill is a folder with a SKILL.md in it",
        )
    return found


def _refuse_existing(found: Mapping[str, object], target: Path) -> None:
    there = sorted(name for name in found if (target / name).exists())
    if there:
        raise Conflict(f"there already: {', '.join(there)}", hint="replace it, or remove it first")


def _settle(found: Mapping[str, tuple[Path, tuple[Diagnostic, ...]]], target: Path, origin: str) -> list[Installed]:
    """Move the staged skills to their places and lock them."""
    locks = {each.folder: each for each in read_lock(target / NAME)} if (target / NAME).exists() else {}
    done: list[Installed] = []
    for name, (folder, notes) in sorted(found.items()):
        place = target / name
        if place.exists():
            shutil.rmtree(place)
        os.rename(folder, place)
        locks[name] = lock_skill(target, name, origin)
        done.append(Installed(name, place, locks[name], notes))
    write_lock(target / NAME, locks.values())
    return done
