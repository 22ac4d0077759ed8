"""`bough conv export`, `import` and `adopt`: move conversations between stores."""

from __future__ import annotations

import asyncio
import json as json_module
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Collection, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from bough.cli import options
from bough.cli.commands.conv.look import record_json
from bough.cli.progress import CountedFile, Progress
from bough.cli.render import Report, renderer_for
from bough.cli.target import Target, resolve, short
from bough.cli.text import Line, line
from bough.cli.turns.confirm import call_lines, can_ask
from bough.conversation.collection import export_bundle, import_bundle, list_trusted_keys, replace_file
from bough.errors import Conflict, InvalidInput, PermissionDenied
from bough.events.record import ConversationRecord, StoredEvent
from bough.settings import Settings
from bough.types import JsonObject, escape_json_controls

if TYPE_CHECKING:
    from uuid import UUID

    from bough.cli.transcript import Transcript
    from bough.conversation import AsyncConversation
    from bough.events import StoreAdmin

FORMATS = ("bundle", "jsonl", "md", "html")
_PAGE_SIZE = 500
_SPOOL_BYTES = 8 << 20
"""Size above which an export to stdout is buffered on disk."""

_REVIEWED_RULES = ("policy", "allow_list", "limits", "executor")
_FORMATS_BY_SUFFIX = {".jsonl": "jsonl", ".md": "md", ".html": "html", ".htm": "html"}


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
    kind = _choose_format(format, output)
    if target.at is not None and kind == "bundle":
        raise InvalidInput("a bundle contains a whole conversation", hint=f"fork at @{target.at} and export the fork")
    progress = Progress(renderer_for(json=json), "events")
    exporter = _Exporter(options.load_settings(home, store), target, kind, progress, salvage=salvage)
    if output is None:
        return _write_to_stdout(exporter, json=json)
    if output.exists() and not force:
        raise Conflict(f"{output} already exists", hint="choose another name, or pass --force to replace it")
    with replace_file(output, exist_ok=force) as file:
        record = asyncio.run(exporter.write(file))
    return Report(
        command="conv export",
        data={"conversation": record_json(record), "format": kind, "file": str(output.absolute())},
        blocks=[
            line((short(record.id), "id"), f"  {record.head} events, {kind}, in {output}"),
            *([line(("the files of its workspace are not in it", "dim"))] if exporter.has_files else ()),
        ],
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
    settings = options.load_settings(home, store)
    progress = Progress(renderer_for(json=json), "lines read")
    if signed_by is None and not accept_unknown:
        record = asyncio.run(_import_known(settings, file, progress, json=json))
    else:
        keys = list_trusted_keys(settings.home, signed_by=signed_by or (), accept_unknown=signed_by is None)
        record = asyncio.run(_import_bundle(settings, file, keys, progress))
    return Report(
        command="conv import",
        data={"conversation": record_json(record)},
        blocks=[line((short(record.id), "id"), f"  {record.title or 'untitled'}  {record.head} events")],
        next=(f"bough conv show {short(record.id)}", f"bough conv adopt {short(record.id)}"),
    )


def adopt(
    id: options.WholeConversation,
    workspace: Annotated[
        Path | None, typer.Option("--workspace", "-w", metavar="DIR", help="Working folder, if it has none yet.")
    ] = None,
    policy: Annotated[
        str | None, typer.Option("--policy", metavar="NAME", help="Approval policy to add to its rules.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    home: options.Home = None,
    store: options.Store = None,
    json: options.Json = False,
) -> Report:
    """Release an imported conversation from quarantine.

    Until then, every tool call needs approval and scripts run only in the sandbox.
    """
    name = Target.parse_name(id)
    settings = options.load_settings(home, store)
    return asyncio.run(_adopt(name, settings, workspace, policy, yes=yes, json=json))


class _Exporter:
    """Writes one conversation to a file."""

    def __init__(self, settings: Settings, target: Target, kind: str, progress: Progress, *, salvage: bool) -> None:
        self._settings = settings
        self._target = target
        self._kind = kind
        self._progress = progress
        self._salvage = salvage
        self.has_files = False
        """Whether the log names files of the workspace; a bundle has the log only. Known when it is written."""

    async def write(self, file: IO[bytes]) -> ConversationRecord:
        """Write the conversation and return its record."""
        async with options.open_settings_store(self._settings, create=False) as store:
            record = await store.get(await resolve(store, self._target.name))
            file = CountedFile(file, self._progress, record.head).as_file
            if self._kind == "bundle":
                await export_bundle(store, record.id, file, self._settings.home, salvage=self._salvage)
                async for _ in store.read(record.id, kinds={"FilesKept"}):
                    self.has_files = True
                    break
            else:
                stop = self._target.end(record)
                document = _make_document(self._kind, record)
                file.write(document.head.encode("utf-8", "surrogatepass"))
                async for stored in self._read_events(store, record.id, stop):
                    file.write(document.write(stored.as_json()).encode("utf-8", "surrogatepass"))
                file.write((document.finish() + document.tail).encode("utf-8", "surrogatepass"))
            return record

    async def _read_events(self, store: StoreAdmin, cid: UUID, stop: int) -> AsyncIterator[StoredEvent]:
        """Yield the events before `stop`, checked against their digests; with `--salvage`, only the readable ones."""
        from bough.events.check import salvage

        for owner, range_start, range_end in await store.lineage(cid):
            end = min(range_end, stop)
            if self._salvage:
                async for stored in salvage(store, owner, range_start, end):
                    yield stored
                continue
            for start in range(
                range_start, end, _PAGE_SIZE
            ):  # `span` checks every event against its digest, `read` does not
                for stored in await store.span(owner, start, min(start + _PAGE_SIZE, end)):
                    yield stored


def _make_document(kind: str, record: ConversationRecord) -> Transcript:
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


def _write_to_stdout(exporter: _Exporter, *, json: bool) -> Report | None:
    """Write the conversation to stdout; with --json, return it in a report instead."""
    # Buffered first, so that a damaged conversation gives an error and no partial output.
    with tempfile.SpooledTemporaryFile(_SPOOL_BYTES) as content:
        record = asyncio.run(exporter.write(content))
        content.seek(0)
        if json:
            data = {"conversation": record_json(record), "content": content.read().decode("utf-8", "replace")}
            return Report(command="conv export", data=data)
        sys.stdout.flush()  # text written earlier must precede the bytes below
        shutil.copyfileobj(content, sys.stdout.buffer)
        sys.stdout.buffer.flush()
    return None


def _choose_format(format_name: str | None, output: Path | None) -> str:
    if format_name is None:
        return _FORMATS_BY_SUFFIX.get(output.suffix.lower(), "bundle") if output is not None else "bundle"
    if format_name in FORMATS:
        return format_name
    raise InvalidInput(f"invalid format {format_name!r}", hint=f"choose one of: {', '.join(FORMATS)}")


async def _import_bundle(
    settings: Settings, file: Path, trusted: Collection[bytes] | None, progress: Progress
) -> ConversationRecord:
    """Import a bundle from a file or from stdin.

    Args:
        trusted: Public keys of accepted signers; None accepts every signer.
    """
    try:
        source = sys.stdin.buffer if str(file) == "-" else file.open("rb")
    except OSError as error:
        raise InvalidInput(f"{file} cannot be read: {error.strerror}", hint="give a bundle") from error
    with source:
        async with options.open_settings_store(settings) as store:
            return await import_bundle(store, CountedFile(source, progress).as_file, trusted)


async def _import_known(settings: Settings, file: Path, progress: Progress, *, json: bool) -> ConversationRecord:
    """Import a bundle of a known signer; if the signer is unknown, ask on the terminal.

    Raises:
        PermissionDenied: The signer is unknown and was not accepted.
    """
    from bough.events.bundle.keys import TRUSTED

    known_keys = list_trusted_keys(settings.home, signed_by=(), accept_unknown=False)
    try:
        return await _import_bundle(settings, file, known_keys, progress)
    except PermissionDenied as error:
        signer = str(error.details.get("public_key"))
        hint = (
            f"--accept-unknown imports it; a line `{signer} NAME` in {settings.home / TRUSTED} makes the signer known"
        )
        # A bundle on stdin was read to its end, so neither an answer nor the bundle can be read from stdin again.
        if json or str(file) == "-" or not can_ask():
            raise PermissionDenied(f"unknown signer {signer}", hint=hint, details=error.details) from error
        answer = await asyncio.to_thread(input, f"signed by {signer}, an unknown signer. Import it? y, n: ")
        if answer.strip().lower() not in ("y", "yes"):
            raise PermissionDenied("nothing was imported", hint=hint, details=error.details) from error
        return await _import_bundle(settings, file, None, progress)


async def _adopt(
    name: str, settings: Settings, workspace: Path | None, policy: str | None, *, yes: bool, json: bool
) -> Report:
    from bough.conversation import AsyncConversation
    from bough.guard import policy_named

    added_policy = None if policy is None else policy_named(policy)
    async with await AsyncConversation.open(name, settings=settings, workspace=workspace) as conversation:
        record = await conversation.store.get(conversation.id)
        if not conversation.state.quarantined:
            raise Conflict(f"{short(record.id)} is not in quarantine", hint="only imported conversations are adopted")
        if not yes:
            _confirm_adoption(list(_describe_quarantined(conversation, record)), json=json)
        await conversation.adopt(policy=added_policy)
        waiting = conversation.state.waiting
    return Report(
        command="conv adopt",
        data={"conversation": record_json(record), "signed_by": record.config.get("signed_by")},
        blocks=[line((short(record.id), "id"), f"  adopted, {len(waiting)} calls waiting")],
        next=(f"bough approve {short(record.id)}" if waiting else f"bough resume {short(record.id)}",),
    )


def _describe_quarantined(conversation: AsyncConversation, record: ConversationRecord) -> Iterator[Line]:
    """Yield the facts to review: the signer, the agent, the rules, the workspace and every waiting call."""
    state = conversation.state
    yield line(("signer     ", "dim"), str(record.config.get("signed_by") or "none"))
    agent: JsonObject = {key: state.agent.get(key) for key in ("name", "model", "base_url", "workspace_access")}
    yield line(("agent      ", "dim"), json_module.dumps(agent, ensure_ascii=False), hang=11)
    rules = {key: state.policies.get(key) for key in _REVIEWED_RULES}
    yield line(("rules      ", "dim"), json_module.dumps(rules, ensure_ascii=False), hang=11)
    yield line(("workspace  ", "dim"), str(state.workspace), hang=11)
    for id, call in state.waiting.items():
        yield from call_lines(id, call)


def _confirm_adoption(facts: list[Line], *, json: bool) -> None:
    """Show the facts and ask for confirmation.

    Raises:
        InvalidInput: Standard input is not a terminal.
        PermissionDenied: The answer is no.
    """
    # With --json, a program reads stdout, and it cannot answer.
    if json or not can_ask():
        raise InvalidInput("no terminal to ask on: nothing was adopted", hint="pass --yes")
    renderer = renderer_for(json=False)
    for output_line in facts:
        renderer.note(output_line)
    if input("adopt it? y, n: ").strip().lower() not in ("y", "yes"):
        raise PermissionDenied("nothing was adopted", hint="inspect it with `bough conv show`")
