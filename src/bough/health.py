"""Checks of what works on this machine, for `bough doctor` and agent servers."""

from __future__ import annotations

import platform
import sqlite3
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Literal, TypeAlias

from bough.errors import BoughError, CorruptLog
from bough.execution.base import Isolation
from bough.settings import Settings

if TYPE_CHECKING:
    from bough.tasks.stores.relational import RelationalTaskStore

CheckState: TypeAlias = Literal["ok", "missing", "broken"]

_PROVIDER_KEYS = (
    *("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GOOGLE_API_KEY", "GEMINI_API_KEY"),
    *("GROQ_API_KEY", "MISTRAL_API_KEY"),
)
_PACKAGES = ("pydantic-ai-slim", "pydantic", "typer", "rich")


@dataclass(frozen=True)
class Check:
    """The result of one check.

    Attributes:
        state: `broken` is a fault; `missing` is not, because the part is optional.
        said: The result, as text for people.
        fix: How to fix it.
        essential: Whether bough cannot run agents and scripts without it.
    """

    part: str
    name: str
    state: CheckState
    said: str
    fix: str = ""
    essential: bool = False


async def check_executors(chosen_executor: str) -> list[Check]:
    """Probe each kind of sandbox by running a script in it; one working sandbox is enough.

    Args:
        chosen_executor: The executor in the settings; a container's gaps are listed only if it is a container.
    """
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
    isolations = [report.isolation for report in reports if report.works]
    gaps_by_name = {report.name: report.gaps for report in reports if report.works}
    if chosen_executor.partition(":")[0] == "container":
        gaps_by_name["container"] = list_gaps("container")
    gap_checks = [
        Check("executor", f"{name}: not promised", "missing", gap)
        for name, gaps in gaps_by_name.items()
        for gap in gaps
    ]
    return [_check_isolation(max(isolations, default=None)), *checks, *gap_checks]


def _check_isolation(isolation: Isolation | None) -> Check:
    """Return the result for the strongest isolation that works; None if none works."""
    if isolation is None:
        fix = "fix one of the rungs below; bubblewrap is the strongest: apt-get install bubblewrap"
        if sys.platform == "darwin":
            fix = "scripts are refused on macOS for now; use a Linux machine or virtual machine"
        return Check("executor", "sandbox", "broken", "scripts cannot run: no sandbox works here", fix, essential=True)
    return Check("executor", "sandbox", "ok", f"isolation reached: {isolation.name.lower()}", essential=True)


def check_models(settings: Settings, env: Mapping[str, str]) -> Iterator[Check]:
    """Check the default model, and which keys of providers are set in the environment."""
    from bough.agents.spec import AgentSpec
    from bough.conversation.agent import resolve_spec, with_default_model

    try:
        spec = with_default_model(AgentSpec(), settings)
        model = resolve_spec(spec, settings)
        is_configured = spec.model is not None
        reason = "models.default of config.yaml" if is_configured else model.reason
        yield Check("model", "default", "ok", f"{model.name} ({reason})", essential=True)
    except BoughError as error:
        yield Check("model", "default", "broken", error.message, error.hint, essential=True)
    for name in _PROVIDER_KEYS:
        is_set = bool(env.get(name, "").strip())
        yield Check("model", name, "ok" if is_set else "missing", "set" if is_set else "not set")


async def check_tasks(tasks: RelationalTaskStore) -> list[Check]:
    """Count the tasks by state, and check the tables of the engine that delivers them.

    Raises:
        CorruptLog: The store is damaged.
    """
    from bough.tasks.dispatch.dispatcher import choose_dispatcher

    try:
        counts = await tasks.count_by_state()
        dispatcher = choose_dispatcher(tasks)
        findings = await dispatcher.check()
    except CorruptLog:
        raise
    except BoughError as error:
        return [Check("tasks", "rows", "broken", error.message, error.hint)]
    summary = ", ".join(f"{count} {state.value}" for state, count in counts.items()) or "none"
    dispatch_ok = Check("tasks", "dispatch", "ok", dispatcher.version)
    dispatch_faults = [Check("tasks", "dispatch", "broken", finding.problem) for finding in findings]
    return [Check("tasks", "rows", "ok", summary), *(dispatch_faults or [dispatch_ok])]


def check_config(settings: Settings) -> list[Check]:
    """Read the `config.yaml` that a worker in this folder would use. Nothing that it names is imported or started."""
    from bough.agents.config.agents import AgentConfig

    try:
        config = AgentConfig.load(settings=settings)
    except BoughError as error:
        return [Check("config", "config.yaml", "broken", error.message, error.hint or "bough agents check")]
    if config.file.path is None:
        return [Check("config", "config.yaml", "missing", "no agents are configured", "write a config.yaml")]
    counts = {
        "agents": len(config.names),
        "models": len(config.config.models),
        "servers": len(config.config.mcp_servers),
    }
    summary = ", ".join(f"{count} {noun}" for noun, count in counts.items())
    return [Check("config", "config.yaml", "ok", f"{config.file.path}: {summary}")]


def check_versions() -> Iterator[Check]:
    """Report the versions of bough, Python, SQLite and the main packages."""
    from bough import __version__

    yield Check("version", "bough", "ok", __version__)
    yield Check("version", "python", "ok", f"{platform.python_version()} on {platform.system()} {platform.release()}")
    yield Check("version", "sqlite", "ok", sqlite3.sqlite_version)
    for package in _PACKAGES:
        try:
            yield Check("version", package, "ok", version(package))
        except PackageNotFoundError:
            yield Check("version", package, "broken", "not installed", f"pip install {package}", essential=True)
