"""The errors that stores raise, so that every store uses the same texts."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit, urlunsplit
from uuid import UUID

from bough.errors import Conflict, CorruptLog, InvalidInput, NotFound, StoreError, Unavailable
from bough.events.integrity import as_details, report_damaged_row


def no_conversation(cid: UUID) -> NotFound:
    """Return the error for a conversation that does not exist or was deleted."""
    return NotFound(
        f"there is no conversation {cid}",
        hint="it may have been deleted; list the conversations: Conversation.list(), or `bough conv list`",
        details={"conversation": str(cid)},
    )


def no_remains(cid: UUID) -> NotFound:
    """Return the error for erasing a conversation of which the store has neither a row nor a receipt."""
    return NotFound(
        f"there is nothing of a conversation {cid} to erase",
        hint="if it was deleted, no row is left of it; the next erasure of any conversation rewrites free space, too",
        details={"conversation": str(cid)},
    )


def row_damage(cid: UUID) -> CorruptLog:
    """Return the error for a conversation whose row is damaged: none of its values can be trusted."""
    finding = report_damaged_row(cid)
    return CorruptLog(
        finding.problem,
        hint="`bough doctor` says what is readable; export that",
        details={"conversation": str(cid), "findings": [as_details(finding)]},
    )


def no_event(event: UUID, cid: UUID | None = None) -> NotFound:
    """Return the error for an event that the store, or the log of `cid` if given, does not have."""
    where = "the store" if cid is None else f"the log of {cid}"
    return NotFound(
        f"there is no event {event} in {where}",
        hint="a log has its own events, and those of its source only up to the cut",
        details={"event": str(event)},
    )


def invalid_cut(at: object, head: int) -> InvalidInput:
    """Return the error for a fork at a position that the log does not have."""
    return InvalidInput(
        f"cannot cut at {at!r}: the log has {head} events",
        hint=f"give a count of events to share, from 0 to {head}, or the id of the last event to share",
        details={"at": str(at), "head": head},
    )


def id_taken(cid: UUID) -> Conflict:
    """Return the error for a new id that another conversation, or a fork with other arguments, already has."""
    return Conflict(
        f"another conversation already has the id {cid}",
        hint="leave the id out, or repeat the same call to get the same conversation",
        details={"conversation": str(cid)},
    )


def generation_conflict(cid: UUID, generation: int, current: int) -> Conflict:
    """Return the error for a write with an outdated generation: another runner took over the conversation."""
    return Conflict(
        f"generation {generation} of conversation {cid} is outdated; the current one is {current}",
        hint="another runner took over; stop here and load the conversation again",
        details={"conversation": str(cid), "generation": generation, "current": current},
    )


def head_conflict(cid: UUID, expected: int, head: int) -> Conflict:
    """Return the error for an append whose `expected_head` is not the current head."""
    return Conflict(
        f"conversation {cid} has {head} events, not {expected}",
        hint="another writer appended events; read them and decide again",
        details={"conversation": str(cid), "expected_head": expected, "head": head},
    )


def event_exists(cid: UUID) -> Conflict:
    """Return the error for an append with an event id that is already stored."""
    return Conflict(
        f"an event to append to {cid} has an id that is stored already; nothing was written",
        hint="append each event once; make a new event for new content",
        details={"conversation": str(cid)},
    )


def lease_conflict(cid: UUID, owner: str, seconds: float) -> Conflict:
    """Return the error for a lease that another owner holds."""
    return Conflict(
        f"conversation {cid} is being run by {owner}",
        hint=f"its lease ends in {seconds:.0f} s at the latest; wait, or stop the other runner",
        details={"conversation": str(cid), "owner": owner},
    )


def row_exists(error: BaseException) -> Conflict:
    """Return the error for a unique row of a side table that already exists."""
    return Conflict(
        f"a row with this key already exists ({str(error).strip()}); nothing was written",
        hint="read the existing row instead",
    )


def tables_closed() -> InvalidInput:
    """Return the error for using a `Tables` object after its change has returned."""
    return InvalidInput("tables can be used only inside the change they were given to", hint="call `transaction` again")


def events_not_writable(action: str) -> InvalidInput:
    """Return the error for writing to the log in a follower or a read-only change."""
    return InvalidInput(f"{action} is not possible here", hint="use `transaction` without read_only")


def import_conflict(cid: UUID) -> Conflict:
    """Return the error for an import whose conversation changed after the import was planned."""
    return Conflict(
        f"conversation {cid} changed while it was being imported; nothing was written",
        hint="import it again",
        details={"conversation": str(cid)},
    )


def store_closed(url: str) -> StoreError:
    """Return the error for using a closed store."""
    return StoreError(f"the store {url} is closed", hint="open it again with open_store")


def read_only(path: Path) -> StoreError:
    """Return the error for writing to a store whose file is read-only."""
    return StoreError(
        f"{path}: the store is read-only here",
        hint="fix the permissions of the file and its folder, or copy the store to where you may write",
        details={"path": str(path)},
    )


def side_tables_missing(url: str, package: str) -> Unavailable:
    """Return the error for a read-only store whose side tables of a package are missing or outdated."""
    return Unavailable(
        f"{url} is read-only and has no tables of {package}",
        hint="open the store once where it can be written",
        details={"package": package},
    )


def store_of_parent_process(url: str) -> Unavailable:
    """Return the error for using a store in a child process that inherited it through `os.fork`."""
    return Unavailable(f"the store {url} was opened before this process was forked", hint="open it again")


def foreign_messages() -> InvalidInput:
    """Return the error for folding a log that a PydanticAI program wrote (`MessageStored` events)."""
    return InvalidInput(
        "this conversation belongs to a PydanticAI program, which continues it on its own",
        hint="import its messages into a new one with bough.conversation.adapters.pydantic_messages.import_messages",
    )


def hide_password(url: str) -> str:
    """Return a URL with its password replaced by `***`."""
    parts = urlsplit(url)
    if parts.password is None:
        return url
    user = f"{parts.username}:***@" if parts.username else ""
    port = f":{parts.port}" if parts.port else ""
    return urlunsplit(parts._replace(netloc=f"{user}{parts.hostname or ''}{port}"))
