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
"""Time limit for an interrupted run to end: it waits for blocking functions, or its lease expires."""

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
    name = Target.parse_whole(id)
    arguments = changes or []
    gone = [
        *(remove or ()),
        *(argument[:-1] for argument in arguments if argument.endswith("-") and "=" not in argument),
    ]
    added = options.parse_tags([argument for argument in arguments if "=" in argument or not argument.endswith("-")])
    record = asyncio.run(_set_tags(options.load_settings(home, store), name, added, gone))
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
    name, chosen = Target.parse_whole(id), _parse_mode(mode)
    settings = options.load_settings(home, store)
    records = asyncio.run(_list_affected(settings, name, chosen))
    if not dry_run:
        _confirm(records, chosen, yes=yes, json=json)
        asyncio.run(_delete(settings, records, chosen, force=force))
    done = "would be deleted" if dry_run else "deleted"
    return Report(
        command="conv delete",
        data={
            "mode": chosen,
            "deleted": not dry_run,
            "conversations": [record_json(record) for record in records],
        },
        blocks=[line((short(record.id), "id"), f"  {_title(record)}  {done}") for record in records],
    )


def _parse_mode(name: str) -> DeleteMode:
    for mode in get_args(DeleteMode):
        if mode == name:
            return mode
    raise InvalidInput(f"invalid mode {name!r}", hint=f"choose one of: {', '.join(get_args(DeleteMode))}")


async def _set_tags(settings: Settings, name: str, added: dict[str, str], gone: list[str]) -> ConversationRecord:
    from bough.events.model import StateChanged

    async with options.open_settings_store(settings) as store:
        record = await store.get(await store.resolve(name))
        missing = [key for key in gone if key not in record.tags]
        if missing:
            raise InvalidInput(
                f"the conversation has no tag {missing[0]!r}", hint=f"it has: {', '.join(record.tags) or 'none'}"
            )
        tags = {key: value for key, value in (record.tags | added).items() if key not in gone}
        if tags != record.tags:
            # Fails if another process appended since the read: its tags would be overwritten.
            await store.append(record.id, [StateChanged(changes={"tags": tags})], expected_head=record.head)
        return await store.get(record.id)


async def _list_affected(settings: Settings, name: str, mode: DeleteMode) -> list[ConversationRecord]:
    """Return the conversation and, with `cascade`, every fork below it."""
    async with options.open_settings_store(settings) as store:
        record = await store.get(await store.resolve(name))
        return [record, *(await _list_descendants(store, record.id) if mode == "cascade" else [])]


async def _list_descendants(store: EventStore, cid: UUID) -> list[ConversationRecord]:
    descendants: list[ConversationRecord] = []
    waiting = [cid]
    while waiting:
        forks = await store.children(waiting.pop())
        descendants += [fork for fork in forks if not fork.deleted]
        waiting += [fork.id for fork in forks]
    return descendants


async def _delete(settings: Settings, records: Sequence[ConversationRecord], mode: DeleteMode, *, force: bool) -> None:
    """Delete a conversation and, with `cascade`, its forks. Nothing is deleted if one of them is running.

    Folders that were made for them are removed, unless another conversation works in them.

    Args:
        force: Interrupt the runs first.

    Raises:
        Conflict: One is running; with `force`, it did not end within `_INTERRUPT_SECONDS`.
    """
    from bough.conversation.fork.orphans import remove_made

    async with options.open_settings_store(settings) as store, AsyncExitStack() as leases:
        # All leases are held before anything is deleted, so that no run starts on a conversation that goes away.
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
        # The folders go last: a crash in between leaves only folders, which `bough doctor` reports.
        await store.delete(records[0].id, mode)
        await remove_made(store, settings.home, records)


async def _interrupt(store: EventStore, cid: UUID, leases: AsyncExitStack) -> bool:
    """Interrupt a run through its log and take its lease. Return False if the run does not end in time."""
    from bough.events.model import PauseRequested

    await store.append(cid, [PauseRequested(reason="it is to be deleted", now=True)])
    with suppress(TimeoutError):
        async with asyncio.timeout(_INTERRUPT_SECONDS):
            while True:  # polled: a store does not announce released leases
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
