"""The files of a conversation's workspace at past events: finds, lists, reads and compares them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from bough.conversation.fork.file_changes import FileChanges, FileTree
from bough.conversation.fork.files import (
    KeptTree,
    WorkspaceFolder,
    describe_damage,
    find_tree,
    list_steps,
    require_tree,
    revert_steps,
)
from bough.conversation.fork.request import find_cut
from bough.conversation.log.journal import Journal
from bough.conversation.log.turns import Turn
from bough.errors import Conflict
from bough.events.store import Cut
from bough.files import Objects


@dataclass(frozen=True)
class PastWorkspace:
    """A workspace at the events of a log. Every method reads the new events of the log first.

    Attributes:
        journal: The log.
        folder: The workspace, with the store of its kept files.
    """

    journal: Journal
    folder: WorkspaceFolder

    async def find(self, at: Cut | Turn | None) -> KeptTree:
        """Return the tree of the files at a cut. At the head, these are the present files unless a run uses the folder.

        Raises:
            NotFound: The files were not kept.
        """
        journal = self.journal
        await journal.catch_up()
        _, log = await find_cut(journal, at, pending="close")
        state, head = log.state, journal.durable
        if state.head == head:
            try:
                return await asyncio.to_thread(self.folder.look_at_idle)
            except Conflict:  # a run uses the folder
                if state.files is not None:
                    return require_tree(state.files, state.head)
                raise
        kept_tree = await find_tree(journal.store, journal.cid, state, head)
        return await asyncio.to_thread(self.folder.look_at_idle) if kept_tree is None else kept_tree

    async def list(self, at: Cut | Turn | None) -> FileTree:
        """Return the files at a cut. O(files).

        Raises:
            NotFound: The files were not kept.
            CorruptLog: The kept files are damaged.
        """
        kept_tree = await self.find(at)
        with describe_damage(kept_tree):
            return await asyncio.to_thread(self.folder.read_tree, kept_tree.tree)

    async def read(self, at: Cut | Turn | None, path: str) -> bytes:
        """Return the content of a file at a cut, or the target of a link. O(depth of its path, and its bytes).

        Raises:
            NotFound: The files were not kept, or there was no file at this path.
            CorruptLog: The kept files are damaged.
        """
        kept_tree = await self.find(at)
        with describe_damage(kept_tree):
            return await asyncio.to_thread(self.folder.read_file, kept_tree.tree, path)

    async def compare(
        self,
        start: Cut | Turn | None,
        stop: Cut | Turn | None,
        *,
        other: PastWorkspace | None = None,
        paths: Sequence[str] = (),
    ) -> FileChanges:
        """Return which files differ between two cuts, with the patch. O(changed files).

        Args:
            start: None for the first event; in a fork, for its cut.
            other: The conversation of `stop`; None for this one.

        Raises:
            NotFound: The files were not kept.
            CorruptLog: The kept files are damaged.
        """
        before = await self.find(self.journal.state.base if start is None else start)
        after = await (other or self).find(stop)
        with describe_damage(before, after):
            return await asyncio.to_thread(self.folder.compare, before.tree, after.tree, paths)

    async def compare_own(
        self, start: Cut | Turn | None, stop: Cut | Turn | None, *, paths: Sequence[str] = ()
    ) -> FileChanges:
        """Return what the conversation itself changed between two cuts, as `compare` does.

        Changes that a person or another program made meanwhile are left out, as a restore leaves them.

        Raises: see `compare`. The files at a cut need not have been kept if the conversation changed none after it.
        """
        journal = self.journal
        await journal.catch_up()
        start_cut, _ = await find_cut(journal, journal.state.base if start is None else start, pending="close")
        stop_cut, _ = await find_cut(journal, stop, pending="close")
        steps = await list_steps(journal.store, journal.cid, start_cut.at, stop_cut.at)
        if not steps or (after := steps[-1].after) is None:
            return FileChanges()

        def compare(objects: Objects) -> FileChanges:
            before = revert_steps(steps, "force")(objects, after).tree
            return self.folder.compare_trees(objects, before, after, paths)

        with describe_damage(KeptTree(after, steps[-1].seq)):
            return await asyncio.to_thread(self.folder.with_objects, compare)
