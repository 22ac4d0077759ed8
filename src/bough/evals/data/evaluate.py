"""Evaluates sets of data questions: the agent has nine data tools over the built-in or the caller's datasets."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import anyio

from bough.agents.spec import AgentSpec
from bough.errors import InvalidInput
from bough.evals.data.public_data import PROJECT, ensure_datasets
from bough.evals.data.sql import WriteMode
from bough.evals.data.tools import DataTools
from bough.evals.eval_set import EvalSet
from bough.evals.formats.read import read_set
from bough.settings import Settings

if TYPE_CHECKING:
    from bough.evals.loop import EvalOptions
    from bough.evals.run.attempt import Prepare
    from bough.evals.run.plan import PlannedAttempt
    from bough.evals.run.result import EvalRun

_FOLDER = Path(__file__).parent
BIGQUERYBENCH: Final = _FOLDER / "bigquerybench_eval.json"
"""Five skill cases with twelve rubrics, seven data cases in three tiers."""

DATA_SKILLS: Final = _FOLDER / "skills"
"""The folder with the skill `bq-sql-analyst`."""


def read_data_set(path: Path = BIGQUERYBENCH) -> EvalSet:
    """Return an eval set whose cases get data tools; invalid cases are among its faults.

    Raises:
        InvalidInput: The file is not an eval set.
    """
    eval_set = read_set(path)
    cases = (replace(case, input=case.input.model_copy(update={"setup": "data"})) for case in eval_set.cases)
    return replace(eval_set, cases=tuple(cases))


async def evaluate_data(
    eval_set: EvalSet,
    agent: AgentSpec,
    *,
    settings: Settings,
    projects: Mapping[str, Path | Literal["bigquery"]] | None = None,
    write_mode: WriteMode = "blocked",
    folder: Path | None = None,
    resume: str | None = None,
    options: EvalOptions | None = None,
) -> EvalRun:
    """Run a set of data questions; each attempt has separate tools and a separate query process.

    Args:
        projects: DuckDB files by project, in addition to `bough-public-data`; or a single project with the value
            `bigquery`.

    Raises:
        InvalidInput: A file is missing, or for one of the reasons of `evaluate`.
        Unavailable: BigQuery is requested and its extra is not installed.
        StoreError: The datasets cannot be written.
    """
    from bough.evals.loop import EvalOptions, evaluate

    open_tools = await anyio.to_thread.run_sync(_choose_warehouse, projects or {}, write_mode, settings)
    # Opened once before the run, so that an invalid argument is raised before the first attempt.
    tools = await anyio.to_thread.run_sync(open_tools)
    await tools.aclose()
    data_options = replace(options or EvalOptions(), kind="data", prepare=_make_prepare(open_tools))
    spec = agent.model_copy(update={"skill_roots": (DATA_SKILLS, *agent.skill_roots)})
    return await evaluate(eval_set, spec, settings=settings, folder=folder, resume=resume, options=data_options)


def _choose_warehouse(
    projects: Mapping[str, Path | Literal["bigquery"]], write_mode: WriteMode, settings: Settings
) -> Callable[[], DataTools]:
    """Return a function that opens the tools for the projects. Blocks while the datasets are created.

    Raises:
        InvalidInput: A BigQuery project is combined with other projects.
    """
    files = {name: file for name, file in projects.items() if isinstance(file, Path)}
    remote = [name for name in projects if name not in files]
    if not remote:
        datasets = ensure_datasets(settings.home / "evals" / "data")
        return lambda: DataTools.duckdb({PROJECT: datasets, **files}, write_mode=write_mode)
    if len(projects) > 1:
        raise InvalidInput(f"BigQuery's project {remote[0]!r} must be the only one", hint="remove the other projects")
    return lambda: DataTools.bigquery(remote[0], write_mode=write_mode)


def _make_prepare(open_tools: Callable[[], DataTools]) -> Prepare:
    """Return the hook that opens the tools of an attempt, adds them to its agent, and closes them afterwards."""

    @asynccontextmanager
    async def prepare(planned: PlannedAttempt, spec: AgentSpec, workspace: Path) -> AsyncGenerator[AgentSpec]:
        tools = await anyio.to_thread.run_sync(open_tools)
        try:
            yield spec.model_copy(update={"tools": (*spec.tools, *tools.functions())})
        finally:
            await tools.aclose()

    return prepare
