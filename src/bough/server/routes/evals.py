"""Runs of evals below the home, as they were recorded: read, never started. They are the operator's."""

from __future__ import annotations

import asyncio
import re
from typing import Annotated

from fastapi import Query
from pydantic import BaseModel, Field

from bough.errors import NotFound, PermissionDenied
from bough.evals.run.folder import RunFolder, list_runs, summarize_run
from bough.server.access import Access, EvalReader
from bough.server.auth.caller import LOCAL
from bough.server.bodies.base import Form, ItemPage
from bough.server.requests.routing import router
from bough.types import JsonObject

routes = router("Evals")
_RUN = re.compile(r"[0-9]{8}-[0-9]{6}-[0-9a-f]{6}")


class RunsQuery(Form):
    """Which page of the runs, newest first."""

    page_id: str | None = Field(default=None, max_length=64)
    limit: int = Field(default=50, ge=1, le=100)


class EvalRunInfo(BaseModel):
    """A run: how it was made, and what came of it; without a report it is not finished."""

    record: JsonObject
    report: JsonObject | None


@routes.get("/api/evals")
async def list_eval_runs(query: Annotated[RunsQuery, Query()], access: EvalReader) -> ItemPage[JsonObject]:
    """List runs."""
    _require_operator(access)

    def look() -> ItemPage[JsonObject]:
        matches = [item for item in _runs(access) if query.page_id is None or item.run <= query.page_id]
        items = [summarize_run(item) for item in matches[: query.limit]]
        return ItemPage(items=items, next_page_id=matches[query.limit].run if len(matches) > query.limit else None)

    return await asyncio.to_thread(look)


@routes.get("/api/evals/{run}")
async def get_eval_run(run: str, access: EvalReader) -> EvalRunInfo:
    """Return a run with its report."""
    folder = await _find_run(access, run)
    return await asyncio.to_thread(lambda: EvalRunInfo(record=folder.read_record(), report=folder.read_report()))


@routes.get("/api/evals/{run}/cases/{case}")
async def get_eval_case(run: str, case: str, access: EvalReader) -> list[JsonObject]:
    """Return the results of a case: one for each attempt, with its conversation and its scores."""
    folder = await _find_run(access, run)
    report = await asyncio.to_thread(folder.read_report)
    matches: list[JsonObject] = [item for item in (report or {}).get("cases", ()) if item["case"] == case]
    if not matches:
        raise NotFound("the run has no result of such a case")
    return matches


@routes.get("/api/evals/{run}/compare/{other}")
async def compare_eval_runs(run: str, other: str, access: EvalReader) -> JsonObject:
    """Compare two runs on the cases that both have; what got worse comes first."""
    from bough.evals.report.compare import compare_runs

    return (await compare_runs(await _find_run(access, run), await _find_run(access, other))).as_dict()


async def _find_run(access: Access, run: str) -> RunFolder:
    _require_operator(access)
    if _RUN.fullmatch(run):  # never a path, nor a part of an id as on the command line
        matches = await asyncio.to_thread(lambda: [item for item in _runs(access) if item.run == run])
        if matches:
            return matches[0]
    raise NotFound("there is no such run", hint="GET /api/evals lists them")


def _runs(access: Access) -> list[RunFolder]:
    return list_runs(access.services.settings.home / "evals")


def _require_operator(access: Access) -> None:
    if access.caller.tenant != LOCAL:
        raise PermissionDenied("runs of evals are the operator's", hint="use a key of the tenant local")
