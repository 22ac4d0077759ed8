"""Reading skills from a zip or tar file: regular files with safe names, within bounds, in memory."""

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
        name: Its file name, whose extension determines the format.

    Raises:
        InvalidInput: It is not an archive, or contains a link, an unsafe name, or names that collide.
        LimitExceeded: It is too large.
    """
    entries: dict[str, SourceEntry] = {}
    folders: dict[str, str] = {}
    lower: dict[str, str] = {}
    size = 0
    for raw, content, mode in _read_members(data, name):
        path = _check_name(raw, name)
        # Counted after unpacking: the sizes that an archive declares may be false.
        size += len(content)
        if len(entries) >= listing.MAX_FILES or size > listing.MAX_BYTES:
            refuse_size(name)
        _check_collision(path, entries, folders, lower, name)
        entries[path] = SourceEntry("file", bool(mode & 0o100), len(content), partial(bytes, content))
    stem = posixpath.basename(name)
    for ending in (".zip", ".tar.gz", ".tgz", ".tar"):
        stem = stem.removesuffix(ending)
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
    path: str, entries: dict[str, SourceEntry], folders: dict[str, str], lower: dict[str, str], where: str
) -> None:
    """Refuse a name that already exists, in any case, or that is also a folder.

    Which entry wins would depend on the order in the archive and on the file system, so that the scan could read one
    and a run the other.
    """
    other = lower.get(path.lower()) or folders.get(path)
    above = [path[:at] for at, char in enumerate(path) if char == "/"]
    other = other or next((folder for folder in above if folder in entries), None)
    if other is not None:
        raise InvalidInput(
            f"{where} contains {other[:80]!r} and {path[:80]!r}, which collide", hint="remove one of them"
        )
    lower[path.lower()] = path
    folders.update(dict.fromkeys(above, path))


def _read_members(data: bytes, name: str) -> Iterator[tuple[str, bytes, int]]:
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
            # Archives made on Windows record no file type, which reads as 0; links and devices have another one.
            if mode & 0o170000 not in (0, 0o100000):
                raise InvalidInput(f"{entry.filename[:80]!r} is not a regular file", hint="pack files only")
            with archive.open(entry) as handle:
                yield entry.filename, _check_size(handle.read(listing.MAX_BYTES + 1)), mode


def _read_tar(data: bytes) -> Iterator[tuple[str, bytes, int]]:
    with tarfile.open(fileobj=BytesIO(data), mode="r:*") as archive:
        for entry in archive:
            if entry.isdir():
                continue
            # `isreg` first: `extractfile` would follow a link to another member.
            handle = archive.extractfile(entry) if entry.isreg() else None
            if handle is None:
                raise InvalidInput(f"{entry.name[:80]!r} is not a regular file", hint="pack files only")
            yield entry.name, _check_size(handle.read(listing.MAX_BYTES + 1)), entry.mode


def _check_size(data: bytes) -> bytes:
    if len(data) > listing.MAX_BYTES:
        refuse_size("a file of the archive")
    return data


def _check_name(path: str, where: str) -> str:
    clean = path.removeprefix("./")
    parts = clean.split("/")
    # `\` and `:` separate folders and drives on Windows, where such a name would lead elsewhere.
    if any(part in ("", ".", "..") for part in parts) or any(char in path for char in "\\\0:"):
        raise InvalidInput(
            f"{where} contains the name {path[:80]!r}", hint="use relative names without `..`, `\\` or `:`"
        )
    return clean
