"""Routes that read the recorded eval runs in the home. Only the operator may read them; no route starts one."""

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
_RUN_ID = re.compile(r"[0-9]{8}-[0-9]{6}-[0-9a-f]{6}")


class RunsQuery(Form):
    """A page of runs, the newest first."""

    page_id: str | None = Field(default=None, max_length=64)
    limit: int = Field(default=50, ge=1, le=100)


class EvalRunInfo(BaseModel):
    """An eval run: its recorded settings, and its report; None until the run has finished."""

    record: JsonObject
    report: JsonObject | None


@routes.get("/api/evals")
async def list_eval_runs(query: Annotated[RunsQuery, Query()], access: EvalReader) -> ItemPage[JsonObject]:
    """List eval runs, the newest first."""
    _require_operator(access)

    def read_page() -> ItemPage[JsonObject]:
        folders = _list_run_folders(access)
        if query.page_id is not None:
            folders = [folder for folder in folders if folder.run <= query.page_id]
        items = [summarize_run(folder) for folder in folders[: query.limit]]
        next_page_id = folders[query.limit].run if len(folders) > query.limit else None
        return ItemPage(items=items, next_page_id=next_page_id)

    return await asyncio.to_thread(read_page)


@routes.get("/api/evals/{run}")
async def get_eval_run(run: str, access: EvalReader) -> EvalRunInfo:
    """Return an eval run with its report."""
    folder = await _find_run(access, run)
    return await asyncio.to_thread(lambda: EvalRunInfo(record=folder.read_record(), report=folder.read_report()))


@routes.get("/api/evals/{run}/cases/{case}")
async def get_eval_case(run: str, case: str, access: EvalReader) -> list[JsonObject]:
    """Return the results of a case, one for each attempt, with its conversation and scores."""
    folder = await _find_run(access, run)
    report = await asyncio.to_thread(folder.read_report)
    results: list[JsonObject] = [result for result in (report or {}).get("cases", ()) if result["case"] == case]
    if not results:
        raise NotFound("the run has no result for this case")
    return results


@routes.get("/api/evals/{run}/compare/{other}")
async def compare_eval_runs(run: str, other: str, access: EvalReader) -> JsonObject:
    """Compare two eval runs on their common cases. Cases that got worse come first."""
    from bough.evals.report.compare import compare_runs

    return (await compare_runs(await _find_run(access, run), await _find_run(access, other))).as_dict()


async def _find_run(access: Access, run: str) -> RunFolder:
    _require_operator(access)
    if _RUN_ID.fullmatch(run):  # only a full id: the command line also accepts paths and prefixes
        folders = await asyncio.to_thread(_list_run_folders, access)
        for folder in folders:
            if folder.run == run:
                return folder
    raise NotFound("there is no such run", hint="GET /api/evals lists the runs")


def _list_run_folders(access: Access) -> list[RunFolder]:
    return list_runs(access.services.settings.home / "evals")


def _require_operator(access: Access) -> None:
    if access.caller.tenant != LOCAL:
        raise PermissionDenied("only the operator may read eval runs", hint="use a key of the tenant local")
