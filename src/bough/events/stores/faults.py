"""What stores refuse, in the same words whichever store it is."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

from bough.errors import Conflict, CorruptLog, InvalidInput, NotFound, StoreError, Unavailable
from bough.events.integrity import as_details, report_damaged_row


def no_conversation(cid: UUID) -> NotFound:
    """There is no such conversation, or it was deleted."""
    return NotFound(
        f"there is no conversation {cid}",
        hint="it may have been deleted; `bough conv list` shows what there is",
        details={"conversation": str(cid)},
    )


def bad_row(cid: UUID) -> CorruptLog:
    """The conversation's row is not what was written, so nothing it says is used."""
    finding = report_damaged_row(cid)
    return CorruptLog(
        finding.problem,
        hint="`bough doctor` says what is readable; export that",
        details={"conversation": str(cid), "findings": [as_details(finding)]},
    )


def no_event(event: UUID, cid: UUID | None = None) -> NotFound:
    """The event is nowhere, or not in this conversation's log."""
    where = "the store" if cid is None else f"the log of {cid}"
    return NotFound(
        f"there is no event {event} in {where}",
        hint="an event of a sibling or of the source after the cut does not count",
        details={"event": str(event)},
    )


def bad_cut(at: object, head: int) -> InvalidInput:
    """The cut is not a place in the log."""
    return InvalidInput(
        f"cannot cut at {at!r}: the log has {head} events",
        hint=f"give a count of events to share, from 0 to {head}, or the id of the last event to share",
        details={"at": str(at), "head": head},
    )


def make_taken(cid: UUID) -> Conflict:
    """The id is used by another conversation, or by a fork with other arguments."""
    return Conflict(
        f"the id {cid} is taken by another conversation",
        hint="leave the id out, or repeat the same call to get the same conversation",
        details={"conversation": str(cid)},
    )


def make_fenced(cid: UUID, generation: int, current: int) -> Conflict:
    """Another runner took over."""
    return Conflict(
        f"generation {generation} of conversation {cid} is fenced off; it is at {current}",
        hint="another runner took over; stop here and load the conversation again",
        details={"conversation": str(cid), "generation": generation, "current": current},
    )


def make_moved_on(cid: UUID, expected: int, head: int) -> Conflict:
    """Someone appended meanwhile."""
    return Conflict(
        f"conversation {cid} has {head} events, not {expected}",
        hint="someone appended meanwhile; read the new events and decide again",
        details={"conversation": str(cid), "expected_head": expected, "head": head},
    )


def event_exists(cid: UUID) -> Conflict:
    """An event with this id is stored already."""
    return Conflict(
        f"an event to append to {cid} has an id that is stored already; nothing was written",
        hint="append each event once; make a new event for new content",
        details={"conversation": str(cid)},
    )


def make_leased(cid: UUID, owner: str, seconds: float) -> Conflict:
    """Another owner runs it."""
    return Conflict(
        f"conversation {cid} is being run by {owner}",
        hint=f"its lease ends in {seconds:.0f} s at the latest; wait, or stop the other runner",
        details={"conversation": str(cid), "owner": owner},
    )


def not_unique(error: BaseException) -> Conflict:
    """A row of a table beside the log that must be unique already exists."""
    return Conflict(f"such a row already exists ({str(error).strip()}); nothing was written", hint="read it instead")


def make_used_outside() -> InvalidInput:
    """Tables were kept beyond the change that they were given to."""
    return InvalidInput("tables can be used only inside the change they were given to", hint="call `together` again")


def not_here(what: str) -> InvalidInput:
    """The tables of a follower or of a read-only change write no events."""
    return InvalidInput(f"{what} is not possible here", hint="use `together` without read_only")


def make_changed_meanwhile(cid: UUID) -> Conflict:
    """The store is not as it was when an import was planned."""
    return Conflict(
        f"conversation {cid} changed while it was being imported; nothing was written",
        hint="import it again",
        details={"conversation": str(cid)},
    )


def make_closed(url: str) -> StoreError:
    """The store was closed."""
    return StoreError(f"the store {url} is closed", hint="open it again with open_store")


def read_only(path: Path) -> StoreError:
    """The file, its folder or its file system cannot be written."""
    return StoreError(
        f"{path}: the store is read-only here",
        hint="fix the permissions of the file and its folder, or copy the store to where you may write",
        details={"path": str(path)},
    )


def no_tables(url: str, package: str) -> Unavailable:
    """The store is read-only, and has no tables of a package, or older ones."""
    return Unavailable(
        f"{url} is read-only and has no tables of {package}",
        hint="open the store once where it can be written",
        details={"package": package},
    )


def make_forked(url: str) -> Unavailable:
    """The store belongs to the process that this one was forked from."""
    return Unavailable(f"the store {url} was opened before this process was forked", hint="open it again")
