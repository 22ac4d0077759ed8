"""The difference of two versions of a text, line by line, by libgit2."""

from __future__ import annotations

from typing import Final, NamedTuple

MAX_PATCH_FILE_BYTES: Final = 1 << 20
"""Of a larger file, a patch only says that it differs."""


class FilePatch(NamedTuple):
    """The part of a patch for one file.

    Attributes:
        text: The unified diff; one line without content if the file is not a text or is too long.
        lines_added: None if the lines were not compared, like `lines_removed`.
    """

    text: str
    lines_added: int | None = None
    lines_removed: int | None = None


def make_patch(path: str, before: bytes | None, after: bytes | None, *, context: int = 3) -> FilePatch:
    """Compare two versions of a file. O(bytes), and O(bytes times different lines) at worst.

    Args:
        path: As the patch shows it.
        before: None if the file did not exist then; `after` likewise.
        context: How many equal lines are shown around a difference.
    """
    import pygit2

    if not (_is_text(before) and _is_text(after)):
        return make_short_patch(path, before is not None, after is not None)
    patch = pygit2.Patch.create_from(
        before or b"", after or b"", old_as_path="file", new_as_path="file", context_lines=context
    )
    _, added, removed = patch.line_stats
    # libgit2's header quotes names as C does; ours has the path as every other output of bough shows it.
    _, marker, hunks = patch.data.decode().partition("\n@@ ")
    text = f"{_head(path, before is not None, after is not None)}@@ {hunks}" if marker else ""
    return FilePatch(text, added, removed)


def make_short_patch(path: str, existed: bool, exists: bool) -> FilePatch:
    """Return the part of a patch for a file whose contents are not compared."""
    old_name, new_name = _names(path, existed, exists)
    return FilePatch(f"Binary files {old_name} and {new_name} differ\n")


def _head(path: str, existed: bool, exists: bool) -> str:
    old_name, new_name = _names(path, existed, exists)
    return f"--- {old_name}\n+++ {new_name}\n"


def _names(path: str, existed: bool, exists: bool) -> tuple[str, str]:
    return (f"a/{path}" if existed else "/dev/null"), (f"b/{path}" if exists else "/dev/null")


def _is_text(content: bytes | None) -> bool:
    """Whether the lines of a version can be compared; a file that does not exist has no lines."""
    if content is None:
        return True
    if len(content) > MAX_PATCH_FILE_BYTES or b"\0" in content:
        return False
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True
