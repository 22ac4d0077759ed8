"""`bough conv tag`, `bough conv delete`: change a conversation without running it."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated, get_args

import typer

from bough.cli import options
from bough.cli.commands.conv.look import record_json
from bough.cli.progress import Progress
from bough.cli.render import Report, renderer_for
from bough.cli.target import Target, resolve, short
from bough.cli.text import Line, harmless, line, one_line
from bough.conversation.collection import Affected, delete_conversations, erase_conversation, find_affected
from bough.errors import Conflict, InvalidInput
from bough.events.erasure.receipt import ErasureReceipt
from bough.events.record import ConversationRecord
from bough.events.store import DeleteMode
from bough.settings import Settings

_MODE_EFFECTS: dict[DeleteMode, str] = {
    "tombstone": "hidden from lists; events that a fork shares stay",
    "erase": "the content of its events is erased, also in forks that share them; this cannot be undone",
    "cascade": "all its forks are deleted, too; this cannot be undone",
}


def tag(
    id: options.WholeConversation,
    changes: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE | KEY-]...", help="Tags to set or remove.")
    ] = None,
    remove: Annotated[list[str] | None, typer.Option("-k", metavar="KEY", help="Remove this tag.")] = None,
    home: options.Home = None,
    store: options.Store = None,
    json: options.Json = False,
) -> Report:
    """Set or remove tags of a conversation.

    For example `bough conv tag ID stage=draft owner-`.
    """
    name = Target.parse_name(id)
    arguments = changes or []
    removed_keys = [
        *(remove or ()),
        *(argument[:-1] for argument in arguments if argument.endswith("-") and "=" not in argument),
    ]
    added = options.parse_tags([argument for argument in arguments if "=" in argument or not argument.endswith("-")])
    record = asyncio.run(_set_tags(options.load_settings(home, store), name, added, removed_keys))
    tag_text = " ".join(f"{key}={value}" for key, value in sorted(record.tags.items()))
    return Report(
        command="conv tag",
        data={"conversation": record_json(record)},
        blocks=[line((short(record.id), "id"), f"  {tag_text or 'no tags'}")],
    )


def delete(
    id: options.WholeConversation,
    mode: Annotated[
        str,
        typer.Option(
            "--mode", metavar="tombstone|erase|cascade", help="Hide it, erase its content, or delete its forks too."
        ),
    ] = "tombstone",
    erase: Annotated[
        bool, typer.Option("--erase", help="As --mode erase: leave no byte of it in the store, and show a receipt.")
    ] = False,
    forks: Annotated[bool, typer.Option("--forks", help="With --erase: erase all its forks too.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be deleted.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Interrupt it first if it is running.")] = False,
    home: options.Home = None,
    store: options.Store = None,
    json: options.Json = False,
) -> Report:
    """Delete a conversation."""
    name = Target.parse_name(id)
    delete_mode = _parse_mode(mode)
    if erase and delete_mode == "cascade":
        raise InvalidInput("--erase and --mode cascade cannot be combined", hint="--erase --forks erases the forks too")
    delete_mode = "erase" if erase else delete_mode
    if forks and delete_mode != "erase":
        raise InvalidInput("--forks belongs to --erase", hint="--mode cascade deletes the forks without erasing them")
    settings = options.load_settings(home, store)
    affected = asyncio.run(_find_affected(settings, name, delete_mode, forks=forks))
    records, receipt = affected.records, None
    if not dry_run:
        _confirm(affected, delete_mode, yes=yes, json=json)
        progress = Progress(renderer_for(json=json), "seconds")
        receipt = asyncio.run(_delete(settings, affected, delete_mode, progress, force=force))
    effect = "would be deleted" if dry_run else "deleted"
    return Report(
        command="conv delete",
        data={
            "mode": delete_mode,
            "deleted": not dry_run,
            "conversations": [record_json(record) for record in records],
            "erasure": None if receipt is None else receipt.to_json(),
        },
        blocks=[
            *(line((short(record.id), "id"), f"  {_title(record)}  {effect}") for record in records),
            *(line(text) for text in (() if receipt is None else str(receipt).splitlines())),
        ],
    )


def _parse_mode(name: str) -> DeleteMode:
    for mode in get_args(DeleteMode):
        if mode == name:
            return mode
    raise InvalidInput(f"invalid mode {name!r}", hint=f"choose one of: {', '.join(get_args(DeleteMode))}")


async def _set_tags(
    settings: Settings, name: str, added: dict[str, str], removed_keys: list[str]
) -> ConversationRecord:
    """Add and remove tags, and return the changed record.

    Raises:
        InvalidInput: A tag to remove does not exist.
        Conflict: Another process appended events at the same time.
    """
    from bough.events.model import StateChanged

    async with options.open_settings_store(settings) as store:
        record = await store.get(await resolve(store, name))
        missing = [key for key in removed_keys if key not in record.tags]
        if missing:
            raise InvalidInput(
                f"the conversation has no tag {missing[0]!r}", hint=f"it has: {', '.join(record.tags) or 'none'}"
            )
        tags = {key: value for key, value in (record.tags | added).items() if key not in removed_keys}
        if tags != record.tags:
            # Fails if another process appended since the read, whose tags would be overwritten.
            await store.append(record.id, [StateChanged(changes={"tags": tags})], expected_head=record.head)
        return await store.get(record.id)


async def _find_affected(settings: Settings, name: str, mode: DeleteMode, *, forks: bool) -> Affected:
    async with options.open_settings_store(settings) as store:
        return await find_affected(store, name, mode, forks=forks)


async def _delete(
    settings: Settings, affected: Affected, mode: DeleteMode, progress: Progress, *, force: bool
) -> ErasureReceipt | None:
    """Delete conversations, and report the seconds that it takes: an erasure rewrites the store."""
    async with options.open_settings_store(settings) as store:
        if mode != "erase":
            deletion = delete_conversations(store, settings.home, affected, mode, interrupt=force)
        else:
            deletion = erase_conversation(store, settings, affected, whole_store=store, interrupt=force)
        running = asyncio.ensure_future(deletion)
        try:
            seconds = 0
            while not (await asyncio.wait({running}, timeout=1))[0]:
                seconds += 1
                progress(seconds)
            return running.result()
        except Conflict as conflict:
            if force:
                raise
            raise Conflict(str(conflict), hint="--force interrupts it first", details=conflict.details) from conflict
        finally:
            running.cancel()
            await asyncio.wait({running})  # it releases the leases, which needs the open store


def _confirm(affected: Affected, mode: DeleteMode, *, yes: bool, json: bool) -> None:
    """Ask whether to delete these conversations.

    Raises:
        InvalidInput: There is no terminal to ask on, or the answer is no.
    """
    if yes:
        return
    if json or not sys.stdin.isatty():
        raise InvalidInput("no terminal to ask on", hint="--dry-run shows what would be deleted; --yes deletes it")
    for record in affected.records:
        typer.echo(_render_record(record).plain, err=True)
    if not affected.records:
        typer.echo(f"  {short(affected.id)}  deleted before", err=True)
    if not typer.confirm(f"Delete? {mode}: {_MODE_EFFECTS[mode]}", err=True):
        raise InvalidInput("nothing was deleted", hint="--dry-run shows what would be deleted")


def _render_record(record: ConversationRecord) -> Line:
    return line(f"  {short(record.id)}  {_title(record)}  {record.head} events")


def _title(record: ConversationRecord) -> str:
    return harmless(one_line(record.title or "untitled", 40))
