"""Split Markdown that arrives in pieces into complete blocks, which can be printed, and an open last block.

Printed text is in the terminal's scrollback and cannot be changed, so a block is returned only when no later text can
change how it is rendered.
"""

from __future__ import annotations

import re

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_HEADING = re.compile(r" {0,3}#{1,6}(\s|$)")
_LIST_ITEM = re.compile(r"\s*([-*+]|\d{1,9}[.)])\s")


class MarkdownStream:
    """Splits the text of one answer into complete blocks and an open remainder.

    A block ends at a blank line outside a fenced block. A list continues over blank lines, because its numbers and its
    indentation depend on the lines before.
    """

    def __init__(self) -> None:
        self._source = ""
        self._end_of_blocks = 0
        self._scanned = 0
        self._fence = ""
        self._is_list = False

    @property
    def source(self) -> str:
        """The text so far."""
        return self._source

    @property
    def complete(self) -> str:
        """The text of the blocks that `feed` has returned."""
        return self._source[: self._end_of_blocks]

    @property
    def open_text(self) -> str:
        """The text after the last complete block."""
        return self._source[self._end_of_blocks :]

    def feed(self, text: str) -> str:
        """Add a piece, and return the blocks that it completes; empty if it completes none. O(piece)."""
        self._source += text
        end = self._end_of_blocks
        while (stop := self._source.find("\n", self._scanned)) >= 0:
            line = self._source[self._scanned : stop]
            if self._ends_block_before(line):
                end = self._scanned
            self._scanned = stop + 1
            if self._ends_block_after(line):
                end = self._scanned
        blocks = self._source[self._end_of_blocks : end]
        self._end_of_blocks = end
        return blocks

    def take_rest(self) -> str:
        """Return the open text as complete. Call it when no more text follows."""
        remainder = self.open_text
        self._end_of_blocks = self._scanned = len(self._source)
        self._fence, self._is_list = "", False
        return remainder

    def _ends_block_before(self, line: str) -> bool:
        """Return whether a list ends before this line."""
        if self._fence or not self._is_list or not line.strip() or line[0].isspace() or _LIST_ITEM.match(line):
            return False
        # Text right after an item belongs to the item; after a blank line it ends the list.
        if self._source[: self._scanned].endswith("\n\n"):
            self._is_list = False
            return True
        return False

    def _ends_block_after(self, line: str) -> bool:
        """Return whether a block is complete with this line."""
        if self._fence:
            marker = line.strip()
            if marker and set(marker) == {self._fence[0]} and len(marker) >= len(self._fence):
                self._fence = ""
                return not self._is_list
            return False
        if opening := _FENCE.match(line):
            self._fence = opening[1]
            return False
        if _LIST_ITEM.match(line):
            self._is_list = True
            return False
        if self._is_list:
            return False
        return not line.strip() or _HEADING.match(line) is not None
