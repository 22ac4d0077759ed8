"""Routes for files of a workspace: upload, download, list. Only regular files; links out of the workspace fail."""

from __future__ import annotations

import os
import re
import stat
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

from fastapi import Header, Query, Request, Response, UploadFile
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from bough.server.access import FileReader, FileWriter
from bough.server.bodies.base import ItemPage, Success, stamp
from bough.server.requests.routing import workspace_router
from bough.server.routes.places import find_place, on_tree

routes = workspace_router()

FilePath = Annotated[str, Query(min_length=1, max_length=4096, description="Absolute, or relative to the workspace.")]
_RANGE = re.compile(r"bytes=(\d{1,15})-(\d{0,15})")


class Uploaded(Success):
    """The file was written."""

    file_size: int


class ListedFile(BaseModel):
    """A file or a folder."""

    path: str
    kind: str
    bytes: int
    modified: str


@routes.post("/file/upload")
async def upload_file(path: FilePath, file: UploadFile, request: Request, access: FileWriter) -> Uploaded:
    """Write a file. Missing folders are created."""
    place = await find_place(request, access)
    target = place.resolve(path)
    content = await file.read()
    tree = place.open_tree(target, max_file_bytes=access.services.server.upload_bytes)
    await on_tree(lambda: tree.write(str(target), content))
    return Uploaded(file_size=len(content))


@routes.get("/file/download", response_class=Response)
async def download_file(
    path: FilePath,
    request: Request,
    access: FileReader,
    range: Annotated[str | None, Header(description="One range of bytes.")] = None,
) -> Response:
    """Return the bytes of a file, as a download that browsers do not display."""
    place = await find_place(request, access)
    target = place.resolve(path)
    tree = place.open_tree(target, max_file_bytes=access.services.server.upload_bytes)
    content = await on_tree(lambda: tree.read(str(target)))
    return make_download(content, target.name, range)


@routes.post("/file/create_directory")
async def create_folder(path: FilePath, request: Request, access: FileWriter) -> Success:
    """Create a folder and its missing parents."""
    place = await find_place(request, access)
    target = place.resolve(path)
    tree = place.open_tree(target, max_file_bytes=1)
    await on_tree(lambda: tree.make_folder(str(target)))
    return Success()


@routes.get("/file/list")
async def list_folder(path: FilePath, request: Request, access: FileReader) -> ItemPage[ListedFile]:
    """List the entries of a folder, sorted by name."""
    place = await find_place(request, access)
    target = place.resolve(path)
    tree = place.open_tree(target, max_file_bytes=1)

    def read_entries() -> list[ListedFile]:
        return [_describe(target / name, tree.stat(str(target / name))) for name in tree.list_names(str(target))]

    return ItemPage(items=await on_tree(read_entries))


def _describe(path: Path, state: os.stat_result) -> ListedFile:
    modified = datetime.fromtimestamp(state.st_mtime, UTC)
    return ListedFile(path=str(path), kind=_describe_kind(state.st_mode), bytes=state.st_size, modified=stamp(modified))


def _describe_kind(mode: int) -> str:
    if stat.S_ISDIR(mode):
        return "folder"
    return "file" if stat.S_ISREG(mode) else "other"


def make_download(content: bytes, file_name: str, range: str | None = None) -> Response:
    """Return a response with a file that browsers save and do not display."""
    name = re.sub(r"[^\w.-]", "_", file_name, flags=re.ASCII) or "file"
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "X-Content-Type-Options": "nosniff"}
    return _answer_part(content, range, headers | {"Accept-Ranges": "bytes"})


def _answer_part(content: bytes, range: str | None, headers: dict[str, str]) -> Response:
    """Return a response with the bytes in `range`; with all bytes if the header is missing or invalid."""
    match = None if range is None else _RANGE.fullmatch(range.strip())
    if match is None:
        return Response(content, media_type="application/octet-stream", headers=headers)
    first = int(match[1])
    last = min(int(match[2]) if match[2] else len(content) - 1, len(content) - 1)
    if first > last:
        raise HTTPException(416, "the file is shorter", headers={"Content-Range": f"bytes */{len(content)}"})
    headers = headers | {"Content-Range": f"bytes {first}-{last}/{len(content)}"}
    return Response(content[first : last + 1], 206, headers, "application/octet-stream")
