"""The rules of `.gitignore` files, as git applies them. The user's and the system's rules are not read.

libgit2 is not used, because it drops a rule such as `!name` unless the same file has the rule that it negates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

RULES_NAME: Final = ".gitignore"
MAX_RULES_BYTES: Final = 256 << 10
"""What is read of a `.gitignore` at most."""


class IgnoreRules:
    """The rules of one look; `pathspec` is imported and rules are compiled at the first question."""

    def __init__(self) -> None:
        self._contents: dict[str, bytes] = {}
        self._specs: dict[str, GitIgnoreSpec] = {}

    def add(self, folder: str, content: bytes) -> None:
        """Add the `.gitignore` of a folder, before anything below it is asked for.

        Args:
            folder: Its path, empty for the top.
            content: What the file holds.
        """
        self._contents[folder] = content
        self._specs.pop(folder, None)

    def covers(self, path: str, *, is_folder: bool) -> bool:
        """Return whether a path is left out: the innermost file that has a rule for it decides. O(depth)."""
        if not self._contents:
            return False
        folder, inner = path, f"{path}/" if is_folder else path
        while folder:
            folder = folder.rpartition("/")[0]
            if folder in self._contents:
                include = self._compile(folder).check_file(_decode(inner[len(folder) :].lstrip("/"))).include
                if include is not None:
                    return include
        return False

    def _compile(self, folder: str) -> GitIgnoreSpec:
        spec = self._specs.get(folder)
        if spec is None:
            spec = self._specs[folder] = _parse(self._contents[folder])
        return spec


def _parse(content: bytes) -> GitIgnoreSpec:
    """Return the rules of a file; other lines are left out, as git leaves them out."""
    from pathspec import GitIgnoreSpec
    from pathspec.patterns.gitignore import GitIgnorePatternError

    # RE2 matches in linear time: a script may write any pattern into the file.
    lines = content.decode("utf-8-sig", "replace").splitlines()
    try:
        return GitIgnoreSpec.from_lines(lines, backend="re2")
    except GitIgnorePatternError:
        valid: list[str] = []
        for text in lines:
            try:
                GitIgnoreSpec.from_lines([text], backend="re2")
            except GitIgnorePatternError:
                continue
            valid.append(text)
        return GitIgnoreSpec.from_lines(valid, backend="re2")


def _decode(path: str) -> str:
    """Return a path in which bytes that are not UTF-8 are one replacement character each, which `*` and `?` match."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
