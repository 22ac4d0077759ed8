"""The provenance of a run: the facts needed to compare two runs, written once before the first attempt."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from bough import git
from bough.agents.build import Blueprint, open_registry
from bough.agents.spec import AgentSpec
from bough.errors import InvalidInput, Unavailable
from bough.evals.case import SetCase
from bough.evals.eval_set import EvalSet
from bough.settings import Settings
from bough.types import JsonObject

SCHEMA_VERSION = 1
_PACKAGES = ("bough", "pydantic-ai-slim", "pydantic-evals", "duckdb", "ibis-framework", "scikit-learn")
_COMPARED_FIELDS = ("skill", "model", "prompt_sha256", "agent", "judge", "metrics", "repeat")


def describe_run(
    run: str,
    kind: str,
    eval_set: EvalSet,
    cases: Sequence[SetCase],
    agent: AgentSpec,
    *,
    settings: Settings,
    plan: JsonObject,
    judge: JsonObject | None,
    executor: str,
    isolation: str,
    argv: Sequence[str] = (),
) -> JsonObject:
    """Return the content of `run.json`.

    Args:
        plan: `repeat`, `seed`, `jobs`, `threshold`, `metrics` and other fields that define the run.
        argv: The command line with secrets masked.
    """
    folder = eval_set.path.absolute().parent if eval_set.path is not None else Path.cwd()
    registry = open_registry(agent, workspace=folder, home=settings.home, roots=settings.skill_roots)
    instructions = Blueprint.of(agent, registry).instructions
    return {
        "schema_version": SCHEMA_VERSION,
        "run": run,
        "kind": kind,
        "set": {
            "name": eval_set.name,
            "path": None if eval_set.path is None else str(eval_set.path.absolute()),
            "sha256": eval_set.sha256,
            "cases": len(eval_set.cases),
        },
        "cases": [{"id": case.id, "sha256": case.sha256} for case in cases],
        "faults": [fault.as_dict() for fault in eval_set.faults],
        **plan,
        "agent": agent.snapshot(),
        "model": agent.model_name,
        "model_settings": agent.snapshot()["settings"],
        "tools": agent.snapshot()["tools"],
        "judge": judge,
        "prompt_sha256": sha256(instructions.encode()).hexdigest(),
        "skills": [{"name": skill.name, "sha256": _skill_digest(skill)} for skill in registry.list_all()],
        "executor": executor,
        "isolation": isolation,
        "versions": {"python": platform.python_version(), **_versions()},
        "platform": platform.platform(),
        "commit": _commit(folder),
        "started": datetime.now(UTC).isoformat(),
        "argv": list(argv),
    }


def find_differences(a: Mapping[str, object], b: Mapping[str, object]) -> list[str]:
    """Return the names of the fields and skills in which two records of runs differ."""
    differences = [name for name in _COMPARED_FIELDS if a.get(name) != b.get(name)]
    first, second = _skill_digests(a), _skill_digests(b)
    differences += [f"skill {name}" for name in sorted(first | second) if first.get(name) != second.get(name)]
    return differences


def _skill_digests(record: Mapping[str, object]) -> dict[str, str]:
    skills: object = record.get("skills") or []
    return {skill["name"]: skill["sha256"] for skill in skills}  # pyright: ignore


def _skill_digest(skill: object) -> str:
    """Return the digest of a skill's files, as in the lock file; without a folder, that of its text."""
    from bough.skills.trust.tree import read_tree

    folder: Path | None = getattr(skill, "folder", None)
    if folder is None:
        return sha256(repr(skill).encode()).hexdigest()
    return read_tree(folder).digest


def _versions() -> dict[str, str | None]:
    versions: dict[str, str | None] = {}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = None
    return versions


def _commit(folder: Path) -> JsonObject | None:
    """Return the commit of a folder and whether the folder has changes; None outside a git repository."""
    try:
        head = git.run(folder, "rev-parse", "HEAD", timeout_seconds=10)
        status = git.run(folder, "status", "--porcelain", "--ignore-submodules=all", "--", ".", timeout_seconds=10)
    except (InvalidInput, Unavailable):
        return None
    if head.code:
        return None
    return {"sha": head.stdout.strip(), "dirty": bool(status.stdout.strip())}
