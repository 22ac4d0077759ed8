"""`bough doctor`: what works here and what does not, and how to fix it."""

from __future__ import annotations

import asyncio
import os
import platform
import sqlite3
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Literal, TypeAlias
from uuid import UUID

from bough.cli import options
from bough.cli.progress import Progress
from bough.cli.render import Report, renderer_for
from bough.cli.text import Line, Style, line
from bough.errors import BoughError, CorruptLog, StoreError, Unavailable
from bough.events.check import check as check_store
from bough.events.url import hide_password
from bough.execution.base import Isolation
from bough.settings import Settings
from bough.types import JsonObject

if TYPE_CHECKING:
    from bough.events import EventStore

State: TypeAlias = Literal["ok", "missing", "broken"]

_KEYS = ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GOOGLE_API_KEY", "GEMINI_API_KEY", "GROQ_API_KEY", "MISTRAL_API_KEY")
_SHOWN_ORPHANS = 5
_PACKAGES = ("pydantic-ai-slim", "pydantic", "typer", "rich")
_STYLES: Mapping[State, Style] = {"ok": "good", "missing": "dim", "broken": "bad"}


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Attributes:
        state: `missing` is not a fault: it is optional. `broken` is one.
        fix: How to fix it.
        essential: Whether bough's main job fails without it.
    """

    part: str
    name: str
    state: State
    said: str
    fix: str = ""
    essential: bool = False


def doctor(
    home: options.Home = None,
    store: options.Store = None,
    json: options.Json = False,
) -> Report:
    """Say what works here and how to fix the rest. Exit code 6 when the main job does not work."""
    settings = options.settings_of(home, store)
    checks = asyncio.run(_all(settings, Progress(renderer_for(json=json), "conversations")))
    works = not any(check.essential and check.state != "ok" for check in checks)
    return Report(
        command="doctor",
        data={"works": works, "checks": [asdict(check) for check in checks]},
        blocks=list(_sheet(checks, works=works)),
        exit_code=0 if works else 6,
    )


async def _all(settings: Settings, progress: Progress) -> list[Check]:
    return [
        *await _executors(settings.executor),
        *_models(settings, os.environ),
        *await _store(settings, progress),
        *await _tasks(settings),
        *await asyncio.to_thread(_config, settings),
        *_versions(),
    ]


async def _executors(chosen_executor: str) -> list[Check]:
    """Probe every rung by really running something behind it; one that works is enough."""
    from bough.execution import LocalSandboxCodeExecutor
    from bough.execution.gaps import list_gaps

    executor = LocalSandboxCodeExecutor()
    try:
        reports = await executor.probe()
    finally:
        await executor.aclose()
    checks = [
        Check(
            "executor",
            report.name,
            "ok" if report.works else "missing",
            f"isolation {report.isolation.name.lower()}" if report.works else report.missing,
            "" if report.works else report.install,
        )
        for report in reports
    ]
    chosen = max((report for report in reports if report.works), key=lambda report: report.isolation, default=None)
    gaps = {report.name: report.gaps for report in reports if report.works}
    if chosen_executor.partition(":")[0] == "container":
        gaps["container"] = list_gaps("container")
    limits = [
        Check("executor", f"{name}: not promised", "missing", gap) for name, found in gaps.items() for gap in found
    ]
    return [_check_isolation(None if chosen is None else chosen.isolation), *checks, *limits]


def _check_isolation(isolation: Isolation | None) -> Check:
    if isolation is None:
        fix = "fix one of the rungs below; bubblewrap is the strongest: apt-get install bubblewrap"
        if sys.platform == "darwin":
            fix = "scripts are refused on macOS for now; use a Linux machine or virtual machine"
        return Check("executor", "sandbox", "broken", "scripts cannot run: no sandbox works here", fix, essential=True)
    return Check("executor", "sandbox", "ok", f"isolation reached: {isolation.name.lower()}", essential=True)


def _models(settings: Settings, env: Mapping[str, str]) -> Iterator[Check]:
    from bough.agents.models.resolve import resolve_model

    try:
        model = resolve_model(settings.model, base_url=settings.base_url, env=env)
        yield Check("model", "default", "ok", f"{model.name} ({model.reason})", essential=True)
    except BoughError as error:
        yield Check("model", "default", "broken", error.message, error.hint, essential=True)
    for name in _KEYS:
        is_set = bool(env.get(name, "").strip())
        yield Check("model", name, "ok" if is_set else "missing", "set" if is_set else "not set")


async def _store(settings: Settings, progress: Progress) -> list[Check]:
    """Open the store and look at every row of it: counts, lineage, digests; say what of a damaged one is readable.

    Then at the folders that were made for its forks.
    """
    name = hide_password(settings.store)
    try:
        async with options.open_settings_store(settings, create=False) as store:
            found = await check_store(store, progress)
            found.require()
            states = await _check_states(store)
            folders = await _check_folders(store, settings)
    except CorruptLog as error:
        findings: list[JsonObject] = error.details.get("findings") or []
        checks = [Check("store", name, "broken", error.message, error.hint, essential=True)]
        return [*checks, *(_damage(finding) for finding in findings)]
    except BoughError as error:
        return [Check("store", name, "broken", error.message, error.hint, essential=True)]
    counts = f"{found.conversations} conversations, {found.events} events, ok"
    return [Check("store", name, "ok", counts, essential=True), states, *folders]


async def _check_states(store: EventStore) -> Check:
    """Hold the kept states against their digests. A damaged one is made again when it is needed: not essential."""
    from bough.conversation.log.kept_states import count_states

    try:
        found = await count_states(store)
    except (StoreError, Unavailable) as error:
        return Check("store", "kept states", "missing", error.message)
    said = f"{found.kept} kept, {found.other} by another version of bough, {found.damaged} damaged"
    if not found.damaged:
        return Check("store", "kept states", "ok", said)
    return Check("store", "kept states", "broken", said, "nothing: they are made again when they are next needed")


async def _check_folders(store: EventStore, settings: Settings) -> list[Check]:
    """Look for folders that were made for forks and belong to nobody. They take space and harm nothing."""
    from bough.conversation.fork.orphans import find_orphans

    orphans = await find_orphans(store, settings.home)
    if not orphans:
        return []
    shown = ", ".join(map(str, orphans[:_SHOWN_ORPHANS]))
    more = f" and {len(orphans) - _SHOWN_ORPHANS} more" if len(orphans) > _SHOWN_ORPHANS else ""
    said = f"{len(orphans)} made for forks belong to no conversation of this store: {shown}{more}"
    return [Check("store", "folders", "broken", said, "remove them, unless a conversation of another store has them")]


async def _tasks(settings: Settings) -> list[Check]:
    """Count the tasks by state, and check the tables of the engine that delivers them."""
    from bough.tasks.dispatch.choose import choose_dispatcher
    from bough.tasks.stores.named import has_store, open_task_store

    if not has_store(settings.store):
        return []
    tasks = open_task_store(settings.store)
    try:
        counts = await tasks.count_by_state()
        dispatcher = choose_dispatcher(tasks)
        findings = await dispatcher.check()
    except CorruptLog:
        return []  # the store says so itself
    except BoughError as error:
        return [Check("tasks", "rows", "broken", error.message, error.hint)]
    finally:
        await tasks.aclose()
    said = ", ".join(f"{count} {state.value}" for state, count in counts.items()) or "none"
    delivered = Check("tasks", "dispatch", "ok", dispatcher.version)
    broken = [Check("tasks", "dispatch", "broken", finding.problem) for finding in findings]
    return [Check("tasks", "rows", "ok", said), *(broken or [delivered])]


def _config(settings: Settings) -> list[Check]:
    """Read `config.yaml`, as a worker that starts here would. Nothing that it names is imported or started."""
    from bough.agents.config.agents import AgentConfig

    try:
        found = AgentConfig.load(settings=settings)
    except BoughError as error:
        return [Check("config", "config.yaml", "broken", error.message, error.hint or "bough agents check")]
    if found.file.path is None:
        return [Check("config", "config.yaml", "missing", "no agents are configured", "write a config.yaml")]
    counts = {"agents": len(found.names), "models": len(found.config.models), "servers": len(found.config.mcp_servers)}
    said = ", ".join(f"{count} {what}" for what, count in counts.items())
    return [Check("config", "config.yaml", "ok", f"{found.file.path}: {said}")]


def _damage(finding: JsonObject) -> Check:
    """Return what is wrong with one conversation, what of it can be read, and how to save that."""
    cid = finding.get("conversation")
    readable: list[list[int]] = finding.get("readable") or []
    if cid is None:
        return Check("store", "database", "broken", finding["problem"], essential=True)
    name = UUID(cid).hex[-8:]
    parts = ", ".join(f"{lo} to {hi - 1}" for lo, hi in readable)
    said = f"{finding['problem']}; readable: {f'events {parts}' if parts else 'none of its own'}"
    fix = f"bough conv export {name} --salvage -o {name}.jsonl" if parts else "put a copy of the store back"
    return Check("store", name, "broken", said, fix, essential=True)


def _versions() -> Iterator[Check]:
    from bough import __version__

    yield Check("version", "bough", "ok", __version__)
    yield Check("version", "python", "ok", f"{platform.python_version()} on {platform.system()} {platform.release()}")
    yield Check("version", "sqlite", "ok", sqlite3.sqlite_version)
    for package in _PACKAGES:
        try:
            yield Check("version", package, "ok", version(package))
        except PackageNotFoundError:
            yield Check("version", package, "broken", "not installed", f"pip install {package}", essential=True)


def _sheet(checks: list[Check], *, works: bool) -> Iterator[Line]:
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
