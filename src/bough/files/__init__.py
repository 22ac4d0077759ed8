"""Files of workspaces at past moments: kept as git's objects, compared, merged, and written back.

A `FileStore` is the folder of one event store. `file_store.objects()` opens what is in it; `look` keeps a folder as a
tree, whose id an event names; `diff`, `merge`, `entries` and `read` work on trees; `write` and `materialise` write one
into a folder. Everything here is synchronous and belongs in a thread.

    with file_store.objects() as objects:
        looked = look(file_store, objects, folder)
        ...  # append the event that names looked.tree, then leave the block
"""

from __future__ import annotations

from bough.files.collect import CollectedFiles, FileStoreState, collect, inspect_files, repair_files
from bough.files.folder import Written, recover, write
from bough.files.look import HEAVY, KeepBounds, Looked, look
from bough.files.materialise import materialise
from bough.files.merge import Merged, merge
from bough.files.objects import Objects
from bough.files.patch import MAX_PATCH_FILE_BYTES, make_patch, make_short_patch
from bough.files.store import FileStore, name_postgres_files, name_sqlite_files
from bough.files.trees import (
    FileChange,
    KeptFile,
    count_changes,
    diff,
    entries,
    find_file,
    leave_out,
    read,
    select,
    show_path,
)

__all__ = [
    "HEAVY",
    "MAX_PATCH_FILE_BYTES",
    "CollectedFiles",
    "FileChange",
    "FileStore",
    "FileStoreState",
    "KeepBounds",
    "KeptFile",
    "Looked",
    "Merged",
    "Objects",
    "Written",
    "collect",
    "count_changes",
    "diff",
    "entries",
    "find_file",
    "inspect_files",
    "leave_out",
    "look",
    "make_patch",
    "make_short_patch",
    "materialise",
    "merge",
    "name_postgres_files",
    "name_sqlite_files",
    "read",
    "recover",
    "repair_files",
    "select",
    "show_path",
    "write",
]
