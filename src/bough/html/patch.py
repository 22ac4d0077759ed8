"""A unified diff of several files as HTML, a line a row, with the numbers that lines have in their files."""

from __future__ import annotations

import re
from typing import Final

from markupsafe import Markup

from bough.html.invisible import show_block

MAX_PATCH_LINES: Final = 2000
"""How many lines of a patch a page shows; the files after them are only named."""

_HUNK: Final = re.compile(r"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@")
_ROWS: Final = {
    "-": Markup('<del data-n="{}">{}</del>'),
    "+": Markup('<ins data-n="{}">{}</ins>'),
    " ": Markup('<span data-n="{}">{}</span>'),
}
_GAP: Final = Markup("<span>⋯</span>")


def render_patch(patch: str) -> dict[str, Markup]:
    """Return the changed lines of each file by its path. O(lines shown).

    Args:
        patch: As `bough.files` makes it: `---`, `+++` and hunks for each text file; other files have no lines.
    """
    files: dict[str, list[Markup]] = {}
    rows: list[Markup] = []
    path = ""
    row_count = old_line = new_line = old_left = new_left = 0
    for line in patch.split("\n"):
        # Within a hunk its counts decide what a line is: a removed line `-- a/x` looks like the header of a file.
        if (old_left > 0 or new_left > 0) and (row := _ROWS.get(line[:1])) is not None:
            rows.append(row.format(old_line if line[0] == "-" else new_line, show_block(line[1:])))
            old_line, old_left = (old_line + 1, old_left - 1) if line[0] != "+" else (old_line, old_left)
            new_line, new_left = (new_line + 1, new_left - 1) if line[0] != "-" else (new_line, new_left)
            row_count += 1
        elif line.startswith(("--- a/", "+++ b/")):
            path = line[len("--- a/") :]
        elif hunk := _HUNK.match(line):
            if row_count >= MAX_PATCH_LINES:
                break
            rows = files.setdefault(path, [])
            rows += [_GAP] * bool(rows)
            old_line, new_line = int(hunk[1]), int(hunk[3])
            old_left, new_left = int(hunk[2] or 1), int(hunk[4] or 1)
    return {path: _join(rows[:MAX_PATCH_LINES]) for path, rows in files.items()}


def _join(rows: list[Markup]) -> Markup:
    return Markup('<pre class="diff">{}</pre>').format(Markup("\n").join(rows))
