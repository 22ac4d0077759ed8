"""Reading skills from a zip or tar file, in memory: only regular files with safe names, up to a total size."""

from __future__ import annotations

import posixpath
import tarfile
import zipfile
from collections.abc import Iterator
from functools import partial
from io import BytesIO
from typing import NoReturn

from bough.errors import InvalidInput, LimitExceeded
from bough.skills.install import listing
from bough.skills.install.listing import SourceEntry, SourceListing


def list_archive(data: bytes, name: str, origin: str) -> SourceListing:
    """Return the contents of an archive.

    Args:
        name: The file name of the archive; its extension determines the format.

    Raises:
        InvalidInput: The file is not an archive, or contains a link, an unsafe name, or names that collide.
        LimitExceeded: The archive is too large.
    """
    entries: dict[str, SourceEntry] = {}
    folders: dict[str, str] = {}
    paths_by_lowercase: dict[str, str] = {}
    total_bytes = 0
    for member_name, content, mode in _read_members(data, name):
        path = _check_name(member_name, name)
        # Counted after unpacking: the sizes that an archive declares may be false.
        total_bytes += len(content)
        if len(entries) >= listing.MAX_FILES or total_bytes > listing.MAX_BYTES:
            refuse_size(name)
        _check_collision(path, entries, folders, paths_by_lowercase, name)
        entries[path] = SourceEntry("file", bool(mode & 0o100), len(content), partial(bytes, content))
    stem = posixpath.basename(name)
    for extension in (".zip", ".tar.gz", ".tgz", ".tar"):
        stem = stem.removesuffix(extension)
    return SourceListing(entries, stem or "skill", origin)


def refuse_size(source: str) -> NoReturn:
    """Raise the error for a source that is too large.

    Raises:
        LimitExceeded: Always.
    """
    raise LimitExceeded(
        f"{source} is larger than {listing.MAX_FILES} files or {listing.MAX_BYTES >> 20} MB",
        hint="leave large data out of skills",
    )


def _check_collision(
    path: str,
    entries: dict[str, SourceEntry],
    folders: dict[str, str],
    paths_by_lowercase: dict[str, str],
    archive_name: str,
) -> None:
    """Raise `InvalidInput` for a name that already exists, in any case, or that is also a folder.

    Which of two such entries is used would depend on their order and on the file system. So the scan could read one
    entry, and a run the other.
    """
    colliding_path = paths_by_lowercase.get(path.lower()) or folders.get(path)
    parent_folders = [path[:position] for position, char in enumerate(path) if char == "/"]
    colliding_path = colliding_path or next((folder for folder in parent_folders if folder in entries), None)
    if colliding_path is not None:
        raise InvalidInput(
            f"{archive_name} contains {colliding_path[:80]!r} and {path[:80]!r}, which collide",
            hint="remove one of them",
        )
    paths_by_lowercase[path.lower()] = path
    folders.update(dict.fromkeys(parent_folders, path))


def _read_members(data: bytes, name: str) -> Iterator[tuple[str, bytes, int]]:
    """Yield (name, bytes, mode) of each file in an archive."""
    try:
        if name.endswith(".zip"):
            yield from _read_zip(data)
        elif name.endswith((".tar.gz", ".tgz", ".tar")):
            yield from _read_tar(data)
        else:
            raise InvalidInput(f"not an archive: {name}", hint="pass a .zip, .tar.gz or .tgz file")
    # RuntimeError: an encrypted member. NotImplementedError: an unknown compression.
    except (zipfile.BadZipFile, tarfile.TarError, EOFError, OSError, RuntimeError, NotImplementedError) as error:
        raise InvalidInput(f"cannot unpack {name}: {error}", hint="recreate the archive") from error


def _read_zip(data: bytes) -> Iterator[tuple[str, bytes, int]]:
    with zipfile.ZipFile(BytesIO(data)) as archive:
        for entry in archive.infolist():
            mode = entry.external_attr >> 16
            if entry.is_dir():
                continue
            # 0o100000 is a regular file. Archives from Windows have no file type, so it is 0.
            if mode & 0o170000 not in (0, 0o100000):
                raise InvalidInput(f"{entry.filename[:80]!r} is not a regular file", hint="pack files only")
            with archive.open(entry) as handle:
                yield entry.filename, _check_size(handle.read(listing.MAX_BYTES + 1)), mode


def _read_tar(data: bytes) -> Iterator[tuple[str, bytes, int]]:
    with tarfile.open(fileobj=BytesIO(data), mode="r:*") as archive:
        for entry in archive:
            if entry.isdir():
                continue
            # `isreg` is checked because `extractfile` would follow a link to another member.
            handle = archive.extractfile(entry) if entry.isreg() else None
            if handle is None:
                raise InvalidInput(f"{entry.name[:80]!r} is not a regular file", hint="pack files only")
            yield entry.name, _check_size(handle.read(listing.MAX_BYTES + 1)), entry.mode


def _check_size(data: bytes) -> bytes:
    if len(data) > listing.MAX_BYTES:
        refuse_size("a file of the archive")
    return data


def _check_name(path: str, archive_name: str) -> str:
    """Return the path of a member without `./`; raise `InvalidInput` if it is not a safe relative path."""
    normalized_path = path.removeprefix("./")
    parts = normalized_path.split("/")
    # On Windows, `\` and `:` separate folders and drives, so such a name could be a path out of the archive.
    if any(part in ("", ".", "..") for part in parts) or any(char in path for char in "\\\0:"):
        raise InvalidInput(
            f"{archive_name} contains the name {path[:80]!r}", hint="use relative names without `..`, `\\` or `:`"
        )
    return normalized_path
