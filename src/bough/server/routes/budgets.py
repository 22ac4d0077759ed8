"""Routes for budgets that conversations of a tenant share."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import Path, Query, Response
from pydantic import BaseModel, Field
from starlette.status import HTTP_201_CREATED

from bough.errors import InvalidInput, NotFound
from bough.guard.budget_report import BudgetReport, list_budgets, read_budget
from bough.server.access import Access, Reader, Writer
from bough.server.bodies.base import Form, ItemPage
from bough.server.bodies.rules import BudgetBounds, BudgetForm, make_budget, store_id
from bough.server.requests.routing import router
from bough.types import JsonObject

routes = router("Budgets")

Id = Annotated[str, Path(alias="budget", pattern=r"^[\w.:@-]{1,100}$", description="Id of a budget of the tenant.")]


class BudgetAmounts(BaseModel):
    """Dollars, input and output tokens together, and requests."""

    usd: float
    tokens: int
    requests: int


class BudgetLimits(BaseModel):
    """As `BudgetAmounts`; null where there is no bound."""

    usd: float | None
    tokens: int | None
    requests: int | None


class BudgetInfo(BaseModel):
    """A budget: its bounds, what is spent, what requests in flight hold, and what is left of the bounds."""

    id: str
    bounds: BudgetLimits
    spent: BudgetAmounts
    reserved: BudgetAmounts
    remaining: BudgetLimits


class BudgetMemberInfo(BaseModel):
    """What a conversation has spent and holds; `conversation` is null for interrupted questions."""

    conversation: UUID | None
    spent: BudgetAmounts
    reserved: BudgetAmounts


class BudgetDetails(BudgetInfo):
    """A budget with the 1,000 conversations that have spent most of it."""

    members: list[BudgetMemberInfo]


class BudgetPage(Form):
    """A page of the list of budgets."""

    page_id: str | None = Field(default=None, max_length=200, pattern=r"^[\w.:@-]*$")
    limit: int = Field(default=50, ge=1, le=100)


@routes.get("/api/budgets")
async def get_budgets(query: Annotated[BudgetPage, Query()], access: Reader) -> ItemPage[BudgetInfo]:
    """List the budgets of the tenant by id."""
    prefix = store_id(access.caller.owner, "")
    after = prefix + (query.page_id or "")
    reports = await list_budgets(access.store, prefix=prefix, after=after, limit=query.limit + 1)
    items = [BudgetInfo.model_validate(_describe(report, prefix)) for report in reports[: query.limit]]
    return ItemPage(items=items, next_page_id=items[-1].id if len(reports) > query.limit else None)


@routes.post("/api/budgets", status_code=HTTP_201_CREATED, responses={200: {"model": BudgetDetails}})
async def create_budget(body: BudgetForm, access: Writer, response: Response) -> BudgetDetails:
    """Create a budget. One with the same id and bounds is returned (200); one with other bounds is a conflict."""
    _require_bounds(body)
    if await _find(access, body.id) is not None:
        response.status_code = 200
    await make_budget(access.caller.owner, body).create(access.store)
    return await _answer(access, body.id)


@routes.get("/api/budgets/{budget}")
async def get_budget(id: Id, access: Reader) -> BudgetDetails:
    """Return a budget and the conversations that spend from it, the most expensive first."""
    return await _answer(access, id)


@routes.patch("/api/budgets/{budget}")
async def change_budget(id: Id, body: BudgetBounds, access: Writer) -> BudgetDetails:
    """Replace bounds from the next request on; those that are left out stay. Raising one needs the scope `approve`."""
    report = await read_budget(access.store, store_id(access.caller.owner, id))
    _require_bounds(body)
    if any(bound > report.bounds.get(name, float("inf")) for name, bound in body.bounds().items()):
        access.caller.require("write", "approve")
    await make_budget(access.caller.owner, id).change(access.store, **body.bounds())
    return await _answer(access, id)


def _require_bounds(body: BudgetBounds) -> None:
    if not body.bounds():
        raise InvalidInput("a budget needs a bound", hint="give usd, tokens or requests")


async def _find(access: Access, id: str) -> BudgetReport | None:
    try:
        return await read_budget(access.store, store_id(access.caller.owner, id))
    except NotFound:
        return None


async def _answer(access: Access, id: str) -> BudgetDetails:
    report = await read_budget(access.store, store_id(access.caller.owner, id))
    document = _describe(report, store_id(access.caller.owner, ""))
    return BudgetDetails.model_validate(document | {"members": [member.as_json() for member in report.members]})


def _describe(report: BudgetReport, prefix: str) -> JsonObject:
    return report.as_json() | {"id": report.id.removeprefix(prefix)}
