"""Methods of a conversation on a server for the files of its workspace. The server reads and changes the files."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Any
from uuid import UUID

from bough.conversation.check import CHECK_SECONDS
from bough.conversation.fork.file_changes import FileChanges, FileTree, KeptEntry
from bough.conversation.fork.files import Conflicts
from bough.conversation.log.turns import Turn
from bough.conversation.remote.transport import ServerTransport
from bough.errors import NotSupported
from bough.events.store import Cut
from bough.types import JsonObject, require_type

_PAGE = 10_000


class RemoteFiles:
    """The methods of `FileMethods`; names, results and errors are the same."""

    _transport: ServerTransport
    _path: str

    @property
    @abstractmethod
    def id(self) -> UUID:
        """The id of the conversation."""

    @abstractmethod
    async def refresh(self) -> None:
        """Read the new events from the server."""

    @abstractmethod
    async def _find_cut(self, turn: Turn) -> int: ...

    async def files(self, at: Cut | Turn | None = None) -> FileTree:
        """Return the files of the workspace at an event; see `AsyncConversation.files`."""
        query: JsonObject = {"limit": _PAGE, **await self._encode_cuts(at=at)}
        entries: list[KeptEntry] = []
        while True:
            page = await self._transport.send("GET", f"{self._path}/files", query=query)
            entries += [KeptEntry(**item) for item in page["items"]]
            # Sent with the next request, which the server refuses if the files have changed since the first page.
            query["tree"] = page["tree"]
            if page["next_page_id"] is None:
                break
            query["page_id"] = page["next_page_id"]
        cut = {name: query[name] for name in ("at", "tree") if name in query}
        return FileTree(tree=page["tree"], entries=tuple(entries), _read=partial(self._read_content, cut))

    def _read_content(self, cut: JsonObject, path: str) -> bytes:
        return self._transport.read_blocking(f"{self._path}/files/content", {**cut, "path": path})

    async def diff(
        self,
        start: Cut | Turn | None = None,
        stop: Cut | Turn | None = None,
        *,
        other: RemoteFiles | None = None,
        own: bool = False,
        paths: Sequence[str] = (),
    ) -> FileChanges:
        """Return which files differ between two events; see `AsyncConversation.diff`."""
        query = await self._encode_cuts(**{"from": start})
        query |= await (other or self)._encode_cuts(to=stop)
        query |= {"own": own, "path": list(paths)} | ({} if other is None else {"other": str(other.id)})
        return FileChanges.from_json(await self._transport.send("GET", f"{self._path}/files/diff", query=query))

    async def restore(
        self,
        at: Cut | Turn,
        *,
        paths: Sequence[str] = (),
        exact: bool = False,
        conflicts: Conflicts = "refuse",
        dry_run: bool = False,
    ) -> FileChanges:
        """Take back the changes that the conversation made to its files; see `AsyncConversation.restore`."""
        body: JsonObject = {"paths": list(paths), "exact": exact, "conflicts": conflicts, "dry_run": dry_run}
        return await self._change_files("restore", {**await self._encode_cuts(at=at), **body})

    async def redo(self) -> FileChanges:
        """Take back the last restore; see `AsyncConversation.redo`."""
        return await self._change_files("redo", None)

    async def apply(
        self,
        source: RemoteFiles,
        *,
        start: Cut | Turn | None = None,
        stop: Cut | Turn | None = None,
        paths: Sequence[str] = (),
        conflicts: Conflicts = "refuse",
        check: str | None = None,
        check_timeout: float = CHECK_SECONDS,
        dry_run: bool = False,
    ) -> FileChanges:
        """Merge the file changes of another conversation on the server; see `AsyncConversation.apply`.

        Raises:
            NotSupported: `check` is given. A key that may write files may not be allowed to run commands.
        """
        if check is not None:
            raise NotSupported("a server runs no check of an apply", hint="run the check where the files are")
        require_type(source, RemoteFiles, "the source", "give a conversation on the same server")
        body: JsonObject = {"source": str(source.id), **await source._encode_cuts(start=start, stop=stop)}
        body |= {"paths": list(paths), "conflicts": conflicts, "dry_run": dry_run}
        return await self._change_files("apply", body)

    async def _change_files(self, action: str, body: JsonObject | None) -> FileChanges:
        document: Any = await self._transport.send("POST", f"{self._path}/{action}", body=body)
        await self.refresh()
        return FileChanges.from_json(document)

    async def _encode_cuts(self, **cuts: Cut | Turn | None) -> JsonObject:
        """Return the cuts as parameters of a request: a turn becomes a number of events."""
        parameters: JsonObject = {}
        for name, cut in cuts.items():
            if isinstance(cut, Turn):
                parameters[name] = await self._find_cut(cut)
            elif cut is not None:
                parameters[name] = cut if isinstance(cut, int) else str(cut)
        return parameters
