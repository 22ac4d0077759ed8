"""Routes for the files of a conversation at past events: list, read, compare, restore, redo, apply.

Source: server.md, files of then.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias
from uuid import UUID

from fastapi import Query, Response
from pydantic import BaseModel, Field, StringConstraints

from bough.conversation.fork.file_changes import FileChanges
from bough.errors import InvalidInput
from bough.server.access import ConversationFileWriter, FileReader
from bough.server.bodies.base import MAX_SEQ, Flag, Form, Integer, ItemPage
from bough.server.conversations.past_files import (
    FileRestore,
    apply_files,
    compare_files,
    list_files,
    open_past_workspace,
    read_file,
    redo_files,
    restore_files,
)
from bough.server.requests.routing import ConversationId, router
from bough.server.routes.files import make_download

routes = router("Workspace")

_PathText = Annotated[str, StringConstraints(min_length=1, max_length=4096)]
_AskedCut: TypeAlias = Annotated[int, Field(ge=0, le=MAX_SEQ)] | UUID
_PostedCut: TypeAlias = Annotated[Integer, Field(ge=0, le=MAX_SEQ)] | UUID
_Cut = Annotated[
    _AskedCut | None,
    Query(description="The number of events, or the id of the last one; if missing, the files are the present ones."),
]
_Tree = Annotated[
    str | None, Query(pattern="^[0-9a-f]{40}$", description="The tree that was listed; 409 if the files have changed.")
]


class PastFile(BaseModel):
    """A file or link. In `path`, bytes that are not UTF-8 are escaped."""

    path: str
    kind: Literal["file", "executable", "link"]
    size: int


class PastFilePage(ItemPage[PastFile]):
    """Files of one tree, by path."""

    tree: str


class ChangedFile(BaseModel):
    """A file that differs. The numbers of lines are null if the lines were not compared, as in a binary file."""

    path: str
    change: Literal["added", "changed", "removed", "mode"]
    lines_added: int | None = None
    lines_removed: int | None = None


class FileChangesInfo(BaseModel):
    """Files that differ, or that were written. `left` are paths that stayed although they differ."""

    files: list[ChangedFile]
    skipped: list[str] = Field(alias="left")
    patch: str = ""


class _Restoration(Form):
    """Which files are written. A path names a file, or a folder with everything below it; none are all files."""

    paths: list[_PathText] = Field(default_factory=list[str], max_length=1000)
    conflicts: Literal["refuse", "leave", "force"] = "refuse"
    dry_run: Flag = False

    def parse(self) -> FileRestore:
        """Return what is asked for."""
        return FileRestore(paths=tuple(self.paths), conflicts=self.conflicts, dry_run=self.dry_run)


class RestoreForm(_Restoration):
    """Take back what the conversation did to its files after an event."""

    at: _PostedCut
    exact: Flag = False


class ApplyForm(_Restoration):
    """Bring in what another conversation did to its files between two events; all that both do not share if missing."""

    source: UUID
    start: _PostedCut | None = None
    stop: _PostedCut | None = None


@routes.get("/api/conversations/{id}/files")
async def list_past_files(
    id: ConversationId,
    access: FileReader,
    at: _Cut = None,
    tree: _Tree = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
    page_id: Annotated[str | None, Query(pattern=r"^[0-9]{1,9}$")] = None,
) -> PastFilePage:
    """List the files of a conversation's workspace at an event."""
    async with open_past_workspace(access, id) as workspace:
        page = await list_files(workspace, at, tree=tree, start=int(page_id or 0), limit=limit)
    items = [PastFile(path=entry.path, kind=entry.kind, size=entry.size) for entry in page.entries]
    next_page = None if page.next_start is None else str(page.next_start)
    return PastFilePage(items=items, next_page_id=next_page, tree=page.tree)


@routes.get("/api/conversations/{id}/files/content", response_class=Response)
async def read_past_file(
    id: ConversationId,
    path: Annotated[_PathText, Query(description="As the list of files shows it.")],
    access: FileReader,
    at: _Cut = None,
    tree: _Tree = None,
) -> Response:
    """Return the bytes of a file at an event, as a download that browsers do not display; of a link, its target."""
    async with open_past_workspace(access, id) as workspace:
        content = await read_file(workspace, at, path, tree=tree)
    return make_download(content, path.rpartition("/")[2])


@routes.get("/api/conversations/{id}/files/diff")
async def compare_past_files(
    id: ConversationId,
    access: FileReader,
    start: Annotated[
        _AskedCut | None, Query(alias="from", description="As `at`; the start of the conversation if missing.")
    ] = None,
    stop: Annotated[_AskedCut | None, Query(alias="to", description="As `at`.")] = None,
    other: Annotated[UUID | None, Query(description="The conversation that `to` is an event of.")] = None,
    own: Annotated[bool, Query(description="Leave out what others changed meanwhile.")] = False,
    path: Annotated[list[_PathText] | None, Query(max_length=1000, description="Only these files and folders.")] = None,
) -> FileChangesInfo:
    """Return which files differ between two events, with the numbers of lines and a patch."""
    if own and other is not None:
        raise InvalidInput("own and other cannot be combined", hint="own is about one conversation")
    changes = await compare_files(access, id, start, stop, other=other, own=own, paths=path or ())
    return _describe(changes)


@routes.post("/api/conversations/{id}/restore")
async def restore_past_files(id: ConversationId, body: RestoreForm, access: ConversationFileWriter) -> FileChangesInfo:
    """Take back what a conversation did to its files after an event. What others changed stays."""
    return _describe(await restore_files(access, id, body.at, body.parse(), exact=body.exact))


@routes.post("/api/conversations/{id}/redo")
async def redo_restored_files(id: ConversationId, access: ConversationFileWriter) -> FileChangesInfo:
    """Bring back the files that the last restore changed."""
    return _describe(await redo_files(access, id))


@routes.post("/api/conversations/{id}/apply")
async def apply_past_files(id: ConversationId, body: ApplyForm, access: ConversationFileWriter) -> FileChangesInfo:
    """Bring what another conversation did to its files into the workspace, by a merge."""
    options = {"start": body.start, "stop": body.stop}
    return _describe(await apply_files(access, id, body.source, body.parse(), **options))


def _describe(changes: FileChanges) -> FileChangesInfo:
    files = [ChangedFile.model_validate(change.to_json()) for change in changes.changes]
    return FileChangesInfo(files=files, left=list(changes.skipped), patch=changes.patch)
