"""A workspace, and the store in which its files are kept."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bough.files import FileStore, KeepBounds, Looked, Objects, look


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    return folder


@pytest.fixture
def file_store(tmp_path: Path) -> Iterator[FileStore]:
    file_store = FileStore(tmp_path / "log.db.files")
    yield file_store
    file_store.close()


@pytest.fixture
def objects(file_store: FileStore) -> Iterator[Objects]:
    with file_store.objects() as objects:
        yield objects


@pytest.fixture
def keep(file_store: FileStore, objects: Objects, folder: Path) -> Callable[..., Looked]:
    """Look at the workspace."""

    def keep(*paths: str, bounds: KeepBounds | None = None) -> Looked:
        return look(file_store, objects, folder, paths=paths or None, bounds=bounds)

    return keep


def age(folder: Path) -> None:
    """Wait until every file is older than the step of the file system's clock, by which changes are told."""
    marker = folder.parent / "clock"
    newest = max((os.lstat(path).st_ctime_ns for path in folder.rglob("*")), default=0)
    while True:
        marker.write_bytes(b"")
        if os.stat(marker).st_ctime_ns > newest + 25_000_000:
            return
