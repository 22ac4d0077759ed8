"""`bough conv export`, `bough conv import`: conversations as files."""

from __future__ import annotations

import asyncio
import json as json_module
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from bough.cli import options
from bough.cli.commands.conv.look import record_json
from bough.cli.progress import CountedFile, Progress
from bough.cli.render import Report, renderer_for
from bough.cli.target import Target, short
from bough.cli.text import line
from bough.cli.turns.confirm import can_ask
from bough.errors import BoughError, Conflict, InvalidInput, PermissionDenied, StoreError
from bough.events.record import ConversationRecord, StoredEvent
from bough.settings import Settings
from bough.types import JsonObject, escape_json_controls

if TYPE_CHECKING:
    from uuid import UUID

    from bough.cli.transcript import Transcript
    from bough.events import StoreAdmin

FORMATS = ("bundle", "jsonl", "md", "html")
_PAGE = 500
_SPOOL_BYTES = 8 << 20
_ENDINGS = {".jsonl": "jsonl", ".md": "md", ".html": "html", ".htm": "html"}


def export(
    id: options.Conversation,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Output file. Default: stdout.")
    ] = None,
    format: Annotated[
        str | None,
        typer.Option("--format", metavar="bundle|jsonl|md|html", help="Default: by FILE's extension, else bundle."),
    ] = None,
    salvage: Annotated[bool, typer.Option("--salvage", help="Skip events that a damaged store lost.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing FILE.")] = False,
    home: options.Home = None,
    store: options.Store = None,
    json: options.Json = False,
) -> Report | None:
    """Write a conversation to a file.

    As a signed bundle for other stores, as JSON lines, or as a document.
    """
    target = Target.parse(id)
    kind = _format(format, output)
    if target.at is not None and kind == "bundle":
        raise InvalidInput("a bundle carries a whole conversation", hint=f"fork at @{target.at} and export the fork")
    progress = Progress(renderer_for(json=json), "events")
    exporting = _Exporting(options.load_settings(home, store), target, kind, progress, salvage=salvage)
    if output is None:
        return _to_stdout(exporting, json=json)
    with _replace_file(output, force=force) as file:
        record = asyncio.run(exporting.write(file))
    return Report(
        command="conv export",
        data={"conversation": record_json(record), "format": kind, "file": str(output.absolute())},
        blocks=[line((short(record.id), "id"), f"  {record.head} events, {kind}, in {output}")],
        next=(f"bough conv import {output}",) if kind == "bundle" else (),
    )


def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Bundle that `bough conv export` wrote; - for stdin.")],
    signed_by: Annotated[
        list[str] | None,
        typer.Option("--signed-by", metavar="KEY", help="Import only if this public key signed it; repeatable."),
    ] = None,
    accept_unknown: Annotated[
        bool,
        typer.Option("--accept-unknown", help="Accept a bundle of an unknown signer."),
    ] = False,
    home: options.Home = None,
    store: options.Store = None,
    json: options.Json = False,
) -> Report:
    """Import a conversation from a bundle.

    It stays in quarantine until `bough conv adopt`. Importing it twice adds nothing.
    """
    from bough.events.bundle.keys import parse_public_key

    settings = options.load_settings(home, store)
    progress = Progress(renderer_for(json=json), "lines read")
    if signed_by is None and not accept_unknown:
        record = asyncio.run(_import_known(settings, file, progress, json=json))
    else:
        keys = None if signed_by is None else [parse_public_key(text) for text in signed_by]
        record = asyncio.run(_import_bundle(settings, file, keys, progress))
    return Report(
        command="conv import",
        data={"conversation": record_json(record)},
        blocks=[line((short(record.id), "id"), f"  {record.title or 'untitled'}  {record.head} events")],
        next=(f"bough conv show {short(record.id)}", f"bough conv adopt {short(record.id)}"),
    )


class _Exporting:
    """One conversation on its way into a file."""

    def __init__(self, settings: Settings, target: Target, kind: str, progress: Progress, *, salvage: bool) -> None:
        self._settings = settings
        self._target = target
        self._kind = kind
        self._progress = progress
        self._salvage = salvage

    async def write(self, file: IO[bytes]) -> ConversationRecord:
        """Write it, and return its record."""
        async with options.open_settings_store(self._settings, create=False) as store:
            record = await store.get(await store.resolve(self._target.name))
            file = CountedFile(file, self._progress, record.head).as_file
            if self._kind == "bundle":
                await self._bundle(store, record.id, file)
            else:
                stop = self._target.end(record)
                document = _document(self._kind, record)
                file.write(document.head.encode("utf-8", "surrogatepass"))
                async for stored in self._events(store, record.id, stop):
                    file.write(document.write(stored.as_json()).encode("utf-8", "surrogatepass"))
                file.write(document.tail.encode("utf-8", "surrogatepass"))
            return record

    async def _bundle(self, store: StoreAdmin, cid: UUID, file: IO[bytes]) -> None:
        from bough.events.bundle.keys import own_signing_key

        await store.export(cid, file, key=own_signing_key(self._settings.home), salvage=self._salvage)

    async def _events(self, store: StoreAdmin, cid: UUID, stop: int) -> AsyncIterator[StoredEvent]:
        from bough.events.check import salvage

        for owner, lo, hi in await store.lineage(cid):
            end = min(hi, stop)
            if self._salvage:
                async for stored in salvage(store, owner, lo, end):
                    yield stored
                continue
            for start in range(lo, end, _PAGE):  # unlike `read`, this holds every event against its digest
                for stored in await store.span(owner, start, min(start + _PAGE, end)):
                    yield stored


def _document(kind: str, record: ConversationRecord) -> Transcript:
    from bough.cli.transcript import Transcript, html_document, markdown_document

    match kind:
        case "jsonl":
            return Transcript("", _write_line)
        case "md":
            return markdown_document(record)
        case _:
            return html_document(record)


def _write_line(event: JsonObject) -> str:
    return escape_json_controls(json_module.dumps(event, ensure_ascii=False)) + "\n"


def _to_stdout(exporting: _Exporting, *, json: bool) -> Report | None:
    # Nothing is printed of what cannot be read to its end; a long one waits in a file.
    with tempfile.SpooledTemporaryFile(_SPOOL_BYTES) as content:
        record = asyncio.run(exporting.write(content))
        content.seek(0)
        if json:
            data = {"conversation": record_json(record), "content": content.read().decode("utf-8", "replace")}
            return Report(command="conv export", data=data)
        sys.stdout.flush()
        shutil.copyfileobj(content, sys.stdout.buffer)
        sys.stdout.buffer.flush()
    return None


def _format(format_name: str | None, output: Path | None) -> str:
    if format_name is None:
        return _ENDINGS.get(output.suffix.lower(), "bundle") if output is not None else "bundle"
    if format_name in FORMATS:
        return format_name
    raise InvalidInput(f"invalid format {format_name!r}", hint=f"choose one of: {', '.join(FORMATS)}")


@contextmanager
def _replace_file(path: Path, *, force: bool) -> Generator[IO[bytes]]:
    """Give a file that takes its place at `path` when the block ends well, and is gone when it does not.

    Raises:
        Conflict: There is one already.
        StoreError: It cannot be written.
    """
    if path.exists() and not force:
        raise Conflict(f"{path} already exists", hint="choose another name, or give --force")
    try:
        handle, name = tempfile.mkstemp(dir=path.absolute().parent, prefix=f".{path.name}.")
    except OSError as error:
        raise _unwritable(path, error) from error
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        os.replace(name, path)
    except BaseException as error:
        os.unlink(name)
        if isinstance(error, OSError) and not isinstance(error, BoughError):
            raise _unwritable(path, error) from error
        raise


def _unwritable(path: Path, error: OSError) -> StoreError:
    return StoreError(f"{path} cannot be written: {error.strerror or error}", hint="choose another path")


async def _import_bundle(
    settings: Settings, file: Path, trusted: list[bytes] | None, progress: Progress
) -> ConversationRecord:
    try:
        source = sys.stdin.buffer if str(file) == "-" else file.open("rb")
    except OSError as error:
        raise InvalidInput(f"{file} cannot be read: {error.strerror}", hint="give a bundle") from error
    with source:
        async with options.open_settings_store(settings) as store:
            return await store.import_(CountedFile(source, progress).as_file, trusted=trusted)


async def _import_known(settings: Settings, file: Path, progress: Progress, *, json: bool) -> ConversationRecord:
    """Import what somebody signed who is known here; ask about anybody else where there is a terminal.

    Raises:
        PermissionDenied: Nobody known signed it, and nobody said yes.
    """
    from bough.events.bundle.keys import TRUSTED, read_known_keys

    known_keys = read_known_keys(settings.home)
    try:
        return await _import_bundle(settings, file, known_keys, progress)
    except PermissionDenied as error:
        signer = str(error.details.get("public_key"))
        hint = f"--accept-unknown takes it in; a line `{signer} NAME` in {settings.home / TRUSTED} makes it known"
        if json or str(file) == "-" or not can_ask():
            raise PermissionDenied(f"unknown signer {signer}", hint=hint, details=error.details) from error
        answer = await asyncio.to_thread(input, f"signed by {signer}, whom nobody here knows. Take it in? y, n: ")
        if answer.strip().lower() not in ("y", "yes"):
            raise PermissionDenied("nothing was imported", hint=hint, details=error.details) from error
        return await _import_bundle(settings, file, None, progress)
