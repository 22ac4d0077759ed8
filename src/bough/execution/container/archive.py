"""Copy files into and out of a container, as the tar archives that engines exchange."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from bough.errors import InvalidInput

_OVERHEAD_BYTES: Final = 64 << 10
"""Size of an archive of one file in addition to its content."""


def pack_folder(source: Path, target: str) -> bytes:
    """Return an archive that unpacks a folder at the absolute path `target`, owned by root and executable for all.

    Links are packed as links; devices and pipes are omitted. The whole archive is in memory. Blocks; O(bytes).
    """

    def give_to_root(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        if not (entry.isfile() or entry.isdir() or entry.issym()):
            return None
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = "root"
        entry.mode = 0o755
        return entry

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        tar.add(source, arcname=target.strip("/"), filter=give_to_root)
    return buffer.getvalue()


def pack_links(links: Mapping[str, str]) -> bytes:
    """Return an archive of symbolic links, given as target by absolute path; unpacking it replaces existing files."""
    return _pack((path, tarfile.SYMTYPE, target) for path, target in links.items())


def pack_file(path: str) -> bytes:
    """Return an archive of an empty file; an engine that unpacks it first removes any file or folder at its path."""
    return _pack([(path, tarfile.REGTYPE, "")])


def pack_folders(paths: Iterable[str]) -> bytes:
    """Return an archive of empty folders by absolute path, owned by root."""
    return _pack((path, tarfile.DIRTYPE, "") for path in paths)


def _pack(entries: Iterable[tuple[str, bytes, str]]) -> bytes:
    """Return an archive of empty entries, owned by root. An entry is (absolute path, type, target of a link)."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for path, kind, target in entries:
            entry = tarfile.TarInfo(path.strip("/"))
            entry.type, entry.linkname = kind, target
            entry.mode = 0o755 if kind == tarfile.DIRTYPE else 0o644
            tar.addfile(entry)
    return buffer.getvalue()


def read_member(content: Iterable[bytes], path: str, max_bytes: int) -> bytes:
    """Return the content of the only regular file of an archive.

    Raises:
        InvalidInput: The first entry is not a regular file, or the file is larger than `max_bytes`.
    """
    data = bytearray()
    for chunk in content:
        data += chunk
        if len(data) > max_bytes + _OVERHEAD_BYTES:
            raise InvalidInput(f"{path} is larger than {max_bytes} bytes")
    with tarfile.open(fileobj=io.BytesIO(bytes(data)), mode="r:") as tar:
        member = tar.next()
        if member is None or not member.isreg():
            raise InvalidInput(f"{path} is not a regular file")
        if member.size > max_bytes:
            raise InvalidInput(f"{path} is larger than {max_bytes} bytes")
        source = tar.extractfile(member)
        return b"" if source is None else source.read()
