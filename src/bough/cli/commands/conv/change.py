"""`bough conv tag`, `bough conv delete`: change a conversation without running it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from bough.cli import options
from bough.cli.commands.conv.look import record_json
from bough.cli.render import Report
from bough.cli.target import Target, short
from bough.cli.text import Line, harmless, line, one_line
from bough.errors import Conflict, InvalidInput
from bough.events.lease import hold_lease
from bough.events.record import ConversationRecord
from bough.events.store import DeleteMode, EventStore
from bough.settings import Settings

if TYPE_CHECKING:
    from uuid import UUID

_MODE_EFFECTS: dict[DeleteMode, str] = {
    "tombstone": "hidden from lists; events that a fork shares stay",
    "erase": "the content of its events is erased, also in forks that share them; this cannot be undone",
    "cascade": "all its forks are deleted, too; this cannot be undone",
}

_INTERRUPT_SECONDS = 30
"""Time limit for an interrupted run to end; it may wait for blocking functions or for the end of its lease."""

_POLL_SECONDS = 0.1


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
    settings = options.load_settings(home, store)
    records = asyncio.run(_list_affected(settings, name, delete_mode))
    if not dry_run:
        _confirm(records, delete_mode, yes=yes, json=json)
        asyncio.run(_delete(settings, records, delete_mode, force=force))
    effect = "would be deleted" if dry_run else "deleted"
    return Report(
        command="conv delete",
        data={
            "mode": delete_mode,
            "deleted": not dry_run,
            "conversations": [record_json(record) for record in records],
        },
        blocks=[line((short(record.id), "id"), f"  {_title(record)}  {effect}") for record in records],
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
        record = await store.get(await store.resolve(name))
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


async def _list_affected(settings: Settings, name: str, mode: DeleteMode) -> list[ConversationRecord]:
    """Return the conversation and, with `cascade`, every fork below it."""
    async with options.open_settings_store(settings) as store:
        record = await store.get(await store.resolve(name))
        return [record, *(await _list_descendants(store, record.id) if mode == "cascade" else [])]


async def _list_descendants(store: EventStore, cid: UUID) -> list[ConversationRecord]:
    """Return all forks below a conversation, also those below deleted forks, without the deleted ones."""
    descendants: list[ConversationRecord] = []
    pending = [cid]
    while pending:
        forks = await store.children(pending.pop())
        descendants += [fork for fork in forks if not fork.deleted]
        pending += [fork.id for fork in forks]
    return descendants


async def _delete(settings: Settings, records: Sequence[ConversationRecord], mode: DeleteMode, *, force: bool) -> None:
    """Delete a conversation and, with `cascade`, its forks. Nothing is deleted if one of them is running.

    The folders created for them are removed, unless another conversation uses them.

    Args:
        force: Interrupt the runs first.

    Raises:
        Conflict: A conversation is running; with `force`, it did not end within `_INTERRUPT_SECONDS`.
    """
    from bough.conversation.fork.orphans import remove_made

    async with options.open_settings_store(settings) as store, AsyncExitStack() as leases:
        # All leases are taken before anything is deleted, so that no run of a deleted conversation starts.
        for record in records:
            try:
                await leases.enter_async_context(hold_lease(store, record.id))
            except Conflict as conflict:
                if force and await _interrupt(store, record.id, leases):
                    continue
                raise Conflict(
                    f"{short(record.id)} is running, so nothing was deleted",
                    hint="wait until that run has ended" if force else "--force interrupts it first",
                    details=conflict.details,
                ) from conflict
        # The folders are removed last: a crash before that leaves only folders, which `bough doctor` reports.
        await store.delete(records[0].id, mode)
        await remove_made(store, settings.home, records)


async def _interrupt(store: EventStore, cid: UUID, leases: AsyncExitStack) -> bool:
    """Interrupt a run through its log and take its lease. Return False if the run does not end in time."""
    from bough.events.model import PauseRequested

    await store.append(cid, [PauseRequested(reason="it is to be deleted", now=True)])
    with suppress(TimeoutError):
        async with asyncio.timeout(_INTERRUPT_SECONDS):
            while True:  # polled, because a store does not announce released leases
                with suppress(Conflict):
                    await leases.enter_async_context(hold_lease(store, cid))
                    return True
                await asyncio.sleep(_POLL_SECONDS)
    return False


def _confirm(records: list[ConversationRecord], mode: DeleteMode, *, yes: bool, json: bool) -> None:
    """Ask whether to delete these conversations.

    Raises:
        InvalidInput: There is no terminal to ask on, or the answer is no.
    """
    if yes:
        return
    if json or not sys.stdin.isatty():
        raise InvalidInput("no terminal to ask on", hint="--dry-run shows what would be deleted; --yes deletes it")
    for record in records:
        typer.echo(_render_record(record).plain, err=True)
    if not typer.confirm(f"Delete? {mode}: {_MODE_EFFECTS[mode]}", err=True):
        raise InvalidInput("nothing was deleted", hint="--dry-run shows what would be deleted")


def _render_record(record: ConversationRecord) -> Line:
    return line(f"  {short(record.id)}  {_title(record)}  {record.head} events")


def _title(record: ConversationRecord) -> str:
    return harmless(one_line(record.title or "untitled", 40))
