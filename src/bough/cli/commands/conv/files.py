"""`bough conv restore`, `apply`, `collect`: bring back files of a past event or of a fork; remove what none needs."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal, TypedDict

import typer

from bough.cli import options
from bough.cli.commands.conv.past_files import list_changes
from bough.cli.render import Report
from bough.cli.rule_options import NO_RULES
from bough.cli.target import Target, open_conversation
from bough.cli.text import Line, harmless, line
from bough.errors import InvalidInput

if TYPE_CHECKING:
    from bough.conversation.fork.file_changes import FileChanges
    from bough.conversation.fork.files import Conflicts
    from bough.events.model import CheckRan
    from bough.files import CollectedFiles

_Paths = Annotated[
    list[str] | None, typer.Argument(metavar="[PATH]...", help="Only these files and folders of the workspace.")
]
_Leave = Annotated[bool, typer.Option("--leave", help="Skip the files that you or another program changed since.")]
_Force = Annotated[bool, typer.Option("--force", help="Replace these files too; restore --redo brings them back.")]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what would be written and removed.")]
_Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


class _Checks(TypedDict):
    check: str | None
    check_timeout: float


def restore(
    id: options.Conversation,
    paths: _Paths = None,
    exact: Annotated[bool, typer.Option("--exact", help="Make the folder exactly as it was then.")] = False,
    redo: Annotated[bool, typer.Option("--redo", help="Bring back what the last restore changed.")] = False,
    leave: _Leave = False,
    force: _Force = False,
    dry_run: _DryRun = False,
    yes: _Yes = False,
    home: options.Home = None,
    store: options.Store = None,
    json: options.Json = False,
) -> Report:
    """Take back what was done to the files after an event."""
    target = Target.parse(id)
    if target.at is None and not redo:
        raise InvalidInput("restore needs an event", hint="bough conv restore ID@SEQ; `bough conv show` lists them")
    if redo and (paths or exact or dry_run or target.at is not None):
        raise InvalidInput("--redo takes the conversation only", hint="bough conv restore ID --redo")
    settings, conflicts = options.load_settings(home, store), _choose_conflicts(leave=leave, force=force)

    async def main() -> tuple[str, FileChanges]:
        async with await open_conversation(target.name, settings, NO_RULES) as conversation:
            name = conversation.short_id
            if redo:
                return name, await conversation.redo()
            at = target.at or 0
            plan = await conversation.restore(at, paths=paths or (), exact=exact, conflicts=conflicts, dry_run=True)
            if dry_run or not plan.changes:
                return name, plan
            _confirm(plan, yes=yes, json=json)
            return name, await conversation.restore(at, paths=paths or (), exact=exact, conflicts=conflicts)

    name, changes = asyncio.run(main())
    return _report("conv restore", changes, next=f"bough conv restore {name} --redo", dry_run=dry_run)


def apply(
    id: options.WholeConversation,
    paths: _Paths = None,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="ID", help="Conversation whose files change. Default: the source."),
    ] = None,
    leave: _Leave = False,
    force: _Force = False,
    check: Annotated[
        str | None,
        typer.Option("--check", metavar="CMD", help="Bash command; if it fails, nothing stays changed."),
    ] = None,
    check_timeout: Annotated[float, typer.Option("--check-timeout", help="Seconds that the check may take.")] = 600.0,
    dry_run: _DryRun = False,
    yes: _Yes = False,
    home: options.Home = None,
    store: options.Store = None,
    json: options.Json = False,
) -> Report:
    """Bring what a fork did to its files to its source."""
    name = Target.parse_name(id)
    if check is not None and dry_run:
        raise InvalidInput("--check and --dry-run cannot be combined", hint="a check runs after files are written")
    settings, conflicts = options.load_settings(home, store), _choose_conflicts(leave=leave, force=force)

    async def main() -> tuple[str, FileChanges]:
        async with await open_conversation(name, settings, NO_RULES) as branch:
            source = to or (await branch.store.get(branch.id)).forked_from
            if source is None:
                raise InvalidInput(f"{branch.short_id} is not a fork", hint="--to ID names the other conversation")
            async with await open_conversation(str(source), settings, NO_RULES) as conversation:
                plan = await conversation.apply(branch, paths=paths or (), conflicts=conflicts, dry_run=True)
                if dry_run or (not plan.changes and check is None):
                    return conversation.short_id, plan
                if plan.changes:
                    _confirm(plan, yes=yes, json=json)
                checks: _Checks = {"check": check, "check_timeout": check_timeout}
                changes = await conversation.apply(branch, paths=paths or (), conflicts=conflicts, **checks)
                return conversation.short_id, changes

    changed, changes = asyncio.run(main())
    return _report("conv apply", changes, next=f"bough conv show {changed}", dry_run=dry_run)


def collect(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be freed.")] = False,
    home: options.Home = None,
    store: options.Store = None,
    json: options.Json = False,
) -> Report:
    """Remove kept files that no conversation needs any more."""
    from bough.conversation.file_store import collect_files
    from bough.html.numbers import format_bytes

    settings = options.load_settings(home, store)

    async def main() -> CollectedFiles:
        async with options.open_settings_store(settings) as opened:
            return await collect_files(opened, settings, dry_run=dry_run)

    collected = asyncio.run(main())
    freed, remaining = format_bytes(collected.freed_bytes), format_bytes(collected.size_bytes)
    verb = "would be freed" if dry_run else "freed"
    missing = [line((f"  not here: the files of tree {tree}", "warn"), hang=4) for tree in collected.missing]
    return Report(
        command="conv collect",
        data={
            "packs": collected.packs,
            "bytes": collected.size_bytes,
            "freed_bytes": collected.freed_bytes,
            "missing": list(collected.missing),
        },
        blocks=[*missing, line(f"{freed} {verb}, {remaining} of kept files remain")],
    )


def _choose_conflicts(*, leave: bool, force: bool) -> Conflicts:
    if leave and force:
        raise InvalidInput("--leave and --force cannot be combined", hint="choose one")
    chosen: Literal["refuse", "leave", "force"] = "refuse"
    if leave:
        chosen = "leave"
    elif force:
        chosen = "force"
    return chosen


def _confirm(plan: FileChanges, *, yes: bool, json: bool) -> None:
    """Show the changes and ask whether to make them.

    Raises:
        InvalidInput: There is no terminal to ask on, or the answer is no.
    """
    if yes:
        return
    if json or not sys.stdin.isatty():
        raise InvalidInput("no terminal to ask on", hint="--dry-run shows what would be written; --yes writes it")
    for output_line in list_changes(plan):
        typer.echo(output_line.plain, err=True)
    if not typer.confirm("Write these files?", err=True):
        raise InvalidInput("nothing was written", hint="--dry-run shows what would be written")


def _report(command: str, changes: FileChanges, *, next: str, dry_run: bool) -> Report:
    verb = "would be written" if dry_run else "written"
    count = len(changes.changes)
    summary = line(f"{count} {'file' if count == 1 else 'files'} {verb}") if count else line(("nothing to do", "dim"))
    has_failed = changes.check is not None and not changes.check.passed
    rows = [] if has_failed else [*(list_changes(changes) if count or changes.skipped else ()), summary]
    if changes.check is not None:
        rows += _describe_check(changes.check)
    return Report(
        command=command,
        data=changes.to_json(),
        blocks=rows,
        next=(next,) if count and not dry_run else (),
        exit_code=1 if has_failed else 0,
    )


def _describe_check(check: CheckRan) -> Iterator[Line]:
    """Yield what a check said; its output only if it failed, and then the files are as they were."""
    if check.passed:
        yield line(("check passed", "good"))
        return
    ended = f"was ended: {check.killed_by}" if check.exit_code is None else f"failed with exit code {check.exit_code}"
    if check.timed_out:
        ended = "did not end in time"
    yield line((f"check {ended}; the files are as they were", "bad"))
    for text in (check.stdout + check.stderr).splitlines():
        yield line("  ", harmless(text), hang=2)
