"""`bough budgets`: the budgets that conversations share, and what has been spent of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from bough.cli import options
from bough.cli.render import Report
from bough.cli.target import short
from bough.cli.text import Block, Span, Table, line
from bough.errors import InvalidInput
from bough.settings import Settings

if TYPE_CHECKING:
    from bough.guard import Budget
    from bough.guard.budget_report import Amounts, BudgetMember, BudgetReport

BudgetId = Annotated[str, typer.Argument(metavar="ID", help="Id of the budget, as shown by `bough budgets list`.")]
Usd = Annotated[float | None, typer.Option("--usd", metavar="USD", help="Dollars.")]
Tokens = Annotated[int | None, typer.Option("--tokens", metavar="N", help="Input and output tokens together.")]
Requests = Annotated[int | None, typer.Option("--requests", metavar="N", help="Requests to models.")]


def list_(home: options.Home = None, store: options.Store = None, json: options.Json = False) -> Report:
    """List the budgets, and what is left of each."""
    reports = asyncio.run(_list(options.load_settings(home, store)))
    rows = tuple((_id_span(report), *_describe(report)) for report in reports)
    table = Table(head=("id", "spent", "reserved", "remaining"), rows=rows, flexible=(0,))
    return Report(
        command="budgets list",
        data={"budgets": [report.as_json() for report in reports]},
        blocks=[table] if reports else [line(("no budgets: `bough run --budget june=usd:5` creates one", "dim"))],
    )


def show(id: BudgetId, home: options.Home = None, store: options.Store = None, json: options.Json = False) -> Report:
    """Show a budget, and the conversations that have spent it, the most expensive first."""
    report = asyncio.run(_read(options.load_settings(home, store), id))
    return Report(
        command="budgets show",
        data=report.as_json() | {"members": [member.as_json() for member in report.members]},
        blocks=list(_render(report)),
    )


def change(
    id: BudgetId,
    usd: Usd = None,
    tokens: Tokens = None,
    requests: Requests = None,
    home: options.Home = None,
    store: options.Store = None,
    json: options.Json = False,
) -> Report:
    """Create a budget, or change bounds of one. Runs that it paused continue with `bough resume`."""
    from bough.guard import Budget

    budget = Budget(usd=usd, tokens=tokens, requests=requests, id=id)
    if not budget.bounds:
        raise InvalidInput("a budget needs a bound", hint=f"for example `bough budgets change {id} --usd 10`")
    report = asyncio.run(_change(options.load_settings(home, store), budget))
    return Report(command="budgets change", data=report.as_json(), blocks=list(_render(report)))


async def _list(settings: Settings) -> list[BudgetReport]:
    from bough.guard.budget_report import PAGE, list_budgets

    reports: list[BudgetReport] = []
    async with options.open_settings_store(settings, create=False) as store:
        while page := await list_budgets(store, after=reports[-1].id if reports else ""):
            reports += page
            if len(page) < PAGE:
                break
    return reports


async def _read(settings: Settings, id: str) -> BudgetReport:
    from bough.guard.budget_report import read_budget

    async with options.open_settings_store(settings, create=False) as store:
        return await read_budget(store, id)


async def _change(settings: Settings, budget: Budget) -> BudgetReport:
    from bough.guard.budget_report import read_budget, set_budget

    async with options.open_settings_store(settings) as store:
        await set_budget(store, budget)
        return await read_budget(store, budget.id)


def _id_span(report: BudgetReport) -> Span:
    return report.id, "bad" if report.used_up else "id"


def _describe(report: BudgetReport) -> tuple[Span, Span, Span]:
    """Return spent, held and left, in the units of the bounds."""
    remaining = ", ".join(_amount(name, amount) for name, amount in report.remaining.items())
    return (
        (_amounts(report.spent, report.bounds), ""),
        (_amounts(report.reserved, report.bounds) if report.reserved.requests else "-", "dim"),
        (remaining, "bad" if report.used_up else ""),
    )


def _render(report: BudgetReport) -> Iterator[Block]:
    used_up = f"  used up: {', '.join(report.used_up)}" if report.used_up else ""
    yield line(_id_span(report), (used_up, "bad"))
    rows: tuple[tuple[Span, ...], ...] = tuple(
        (
            (name, ""),
            (_number(name, report.spent.as_json()[name]), ""),
            (_number(name, report.reserved.as_json()[name]), "dim"),
            (_number(name, report.remaining[name]) if name in report.remaining else "-", ""),
            (_number(name, report.bounds[name]) if name in report.bounds else "-", "dim"),
        )
        for name in ("usd", "tokens", "requests")
    )
    yield Table(
        head=("", "spent", "reserved", "remaining", "bound"), rows=rows, flexible=(0,), right=frozenset({1, 2, 3, 4})
    )
    if report.members:
        yield line()
        rows = tuple(_member_row(member) for member in report.members)
        yield Table(head=("conversation", "spent"), rows=rows, flexible=(1,))


def _member_row(member: BudgetMember) -> tuple[Span, Span]:
    name = "question" if member.conversation is None else short(member.conversation)
    return (name, "id"), (_amounts(member.spent, ("usd", "tokens", "requests")), "")


def _amounts(amounts: Amounts, names: Iterable[str]) -> str:
    values = amounts.as_json()
    return ", ".join(_amount(name, values[name]) for name in names)


def _amount(name: str, value: float) -> str:
    return f"{_number(name, value)} {'USD' if name == 'usd' else name}"


def _number(name: str, value: float) -> str:
    return f"{value:.4f}" if name == "usd" else f"{value:,}"
