"""`bough doctor`: checks what works on this machine and shows how to fix the rest."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from bough.cli import options
from bough.cli.progress import Progress
from bough.cli.render import Report, renderer_for
from bough.cli.text import Line, Style, line
from bough.errors import BoughError, Conflict, CorruptLog, StoreError, Unavailable
from bough.events.check import check as check_store
from bough.events.stores.faults import hide_password
from bough.health import Check, CheckState, check_config, check_executors, check_models, check_tasks, check_versions
from bough.settings import Settings
from bough.types import JsonObject

if TYPE_CHECKING:
    from bough.events import StoreAdmin

_SHOWN_ORPHANS = 5
_MIN_GROUP = 3
"""From this number on, similar things that are missing are one line."""
_STYLES: Mapping[CheckState, Style] = {"ok": "good", "missing": "dim", "broken": "bad"}


def doctor(
    all: Annotated[bool, typer.Option("--all", help="Show each thing that is missing on a line of its own.")] = False,
    repair: Annotated[
        bool, typer.Option("--repair", help="Finish interrupted restores; save what is whole of damaged kept files.")
    ] = False,
    home: options.Home = None,
    store: options.Store = None,
    json: options.Json = False,
) -> Report:
    """Check what works on this machine, and show how to fix the rest. Exits with 6 if something essential is broken."""
    settings = options.load_settings(home, store)
    progress = Progress(renderer_for(json=json), "conversations")
    checks = asyncio.run(_run_checks(settings, progress, repair=repair))
    works = not any(check.essential and check.state != "ok" for check in checks)
    return Report(
        command="doctor",
        data={"works": works, "checks": [asdict(check) for check in checks]},
        blocks=list(_render_checks(checks if all else _group_missing(checks), works=works)),
        exit_code=0 if works else 6,
    )


async def _run_checks(settings: Settings, progress: Progress, *, repair: bool) -> list[Check]:
    return [
        *await check_executors(settings.executor),
        *check_models(settings, os.environ),
        *await _check_store(settings, progress, repair=repair),
        *await _check_tasks(settings),
        *await asyncio.to_thread(check_config, settings),
        *check_versions(),
    ]


async def _check_store(settings: Settings, progress: Progress, *, repair: bool) -> list[Check]:
    """Check every row of the store, its kept states, its kept files and the folders of its forks. O(events).

    Each damaged conversation gets a separate check with its readable events.
    """
    name = hide_password(settings.store)
    try:
        # A missing store is not created, because a check must not leave files.
        async with options.open_settings_store(settings, create=False) as store:
            integrity = await check_store(store, progress)
            integrity.require()
            states = await _check_states(store)
            files = await _check_files(store, settings, repair=repair)
            folders = await _check_folders(store, settings)
    except CorruptLog as error:
        findings: list[JsonObject] = error.details.get("findings") or []
        checks = [Check("store", name, "broken", error.message, error.hint, essential=True)]
        return [*checks, *(_make_damage_check(finding) for finding in findings)]
    except BoughError as error:
        return [Check("store", name, "broken", error.message, error.hint, essential=True)]
    counts = f"{integrity.conversations} conversations, {integrity.events} events, ok"
    return [Check("store", name, "ok", counts, essential=True), states, *files, *folders]


async def _check_states(store: StoreAdmin) -> Check:
    """Check the kept states against their digests; not essential, since damaged states are rebuilt when needed."""
    from bough.conversation.log.kept_states import count_states

    try:
        counts = await count_states(store)
    except (StoreError, Unavailable) as error:
        return Check("store", "kept states", "missing", error.message)
    summary = f"{counts.total} kept, {counts.outdated} by another version of bough, {counts.damaged} damaged"
    if not counts.damaged:
        return Check("store", "kept states", "ok", summary)
    return Check("store", "kept states", "broken", summary, "nothing to do: they are rebuilt when they are next needed")


async def _check_files(store: StoreAdmin, settings: Settings, *, repair: bool) -> list[Check]:
    """Check the kept files of workspaces; empty if none were ever kept. Not essential: conversations work without."""
    from bough.conversation.file_store import check_files
    from bough.html.numbers import format_bytes

    try:
        checked = await check_files(store, settings, repair=repair)
    except (Conflict, Unavailable) as error:
        return [Check("store", "kept files", "broken", error.message, error.hint)]
    if checked is None:
        return []
    state = checked.state
    checks = [Check("store", "kept files", "ok", repaired) for repaired in checked.repairs]
    if state.damaged:
        summary = f"damaged: {', '.join(state.damaged[:_SHOWN_ORPHANS])}"
        checks.append(Check("store", "kept files", "broken", summary, "bough doctor --repair"))
    if state.missing:
        names = [f"{id.hex[-8:]}@{seq}" for id, seq in checked.events[:_SHOWN_ORPHANS]]
        summary = f"{len(state.missing)} states of files are not whole; named by events {', '.join(names)}"
        fix = "restore the folder of kept files from a backup; the conversations work without it"
        checks.append(Check("store", "kept files", "broken", summary, fix))
    if state.journals or state.leftovers:
        folders = ", ".join(state.journals) or f"{state.leftovers} incomplete files"
        summary = f"a crash interrupted a restore of {folders}" if state.journals else f"a crash left {folders}"
        checks.append(Check("store", "kept files", "broken", summary, "bough doctor --repair"))
    packs = f"{state.packs} pack{'s' * (state.packs != 1)}"
    sizes = f"{packs}, {format_bytes(state.size_bytes)}; {format_bytes(state.free_bytes)} free"
    return checks or [Check("store", "kept files", "ok", sizes)]


async def _check_folders(store: StoreAdmin, settings: Settings) -> list[Check]:
    """Return a check about folders that were created for forks and that no conversation uses; empty without any."""
    from bough.conversation.fork.orphans import find_orphans

    orphans = await find_orphans(store, settings.home)
    if not orphans:
        return []
    folder_names = ", ".join(map(str, orphans[:_SHOWN_ORPHANS]))
    more = f" and {len(orphans) - _SHOWN_ORPHANS} more" if len(orphans) > _SHOWN_ORPHANS else ""
    summary = f"{len(orphans)} made for forks belong to no conversation of this store: {folder_names}{more}"
    return [
        Check("store", "folders", "broken", summary, "remove them, unless a conversation of another store uses them")
    ]


async def _check_tasks(settings: Settings) -> list[Check]:
    from bough.tasks.stores.backends import has_store, open_task_store

    if not has_store(settings.store):
        return []
    tasks = open_task_store(settings.store)
    try:
        return await check_tasks(tasks)
    except CorruptLog:
        return []  # the check of the store reports it
    finally:
        await tasks.aclose()


def _make_damage_check(finding: JsonObject) -> Check:
    """Return the check of a damaged conversation: its problem, its readable events and how to save them."""
    cid = finding.get("conversation")
    readable: list[list[int]] = finding.get("readable") or []
    if cid is None:
        return Check("store", "database", "broken", finding["problem"], essential=True)
    name = UUID(cid).hex[-8:]
    readable_ranges = ", ".join(f"{start} to {end - 1}" for start, end in readable)
    summary = f"{finding['problem']}; readable: {f'events {readable_ranges}' if readable_ranges else 'no events'}"
    fix = (
        f"bough conv export {name} --salvage -o {name}.jsonl" if readable_ranges else "restore the store from a backup"
    )
    return Check("store", name, "broken", summary, fix, essential=True)


def _group_missing(checks: Sequence[Check]) -> list[Check]:
    """Return the checks with three or more in a row that are missing joined: by their name, or by what they say."""
    grouped: list[Check] = []
    for (part, state, message), similar in groupby(checks, lambda check: (check.part, check.state, check.said)):
        members = list(similar)
        if state == "missing" and len(members) >= _MIN_GROUP:
            names = ", ".join(check.name for check in members)
            members = [Check(part, message, state, names, members[0].fix)]
        grouped += members
    # After the joining by what is said, so that keys that are not set keep their names.
    joined: list[Check] = []
    for (part, state, name), similar in groupby(grouped, lambda check: (check.part, check.state, check.name)):
        members = list(similar)
        if state == "missing" and len(members) >= _MIN_GROUP:
            members = [Check(part, name, state, f"{len(members)} things: `bough doctor --all` lists them")]
        joined += members
    return joined


def _render_checks(checks: list[Check], *, works: bool) -> Iterator[Line]:
    part = ""
    width = max(len(check.name) for check in checks if check.part != "store")
    for check in checks:
        if check.part != part:
            part = check.part
            yield line((part, "strong"))
        yield line(
            "  ", (f"{check.state:<8}", _STYLES[check.state]), f"{check.name:<{width}}  {check.said}", hang=width + 12
        )
        if check.fix and check.state != "ok":
            yield line((f"{'':10}{'':{width}}  fix: {check.fix}", "warn"), hang=width + 17)
    yield line()
    yield line("bough works here", ("", "")) if works else line(("bough cannot do its main job here yet", "bad"))
