"""`bough tenants`: the tenants of the agent server, and which of them may use it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from bough.cli import options
from bough.cli.render import Report
from bough.cli.text import line
from bough.settings import Settings

if TYPE_CHECKING:
    from datetime import datetime

Tenant = Annotated[str, typer.Argument(metavar="T", help="Name of the tenant, as shown by `bough tenants list`.")]


def list_(home: options.Home = None, store: options.Store = None, json: options.Json = False) -> Report:
    """List the tenants. The first key of a tenant creates it."""
    tenants = asyncio.run(_list(options.load_settings(home, store)))
    items = [
        {"id": id, "created": created.isoformat(), "disabled": None if disabled is None else disabled.isoformat()}
        for id, created, disabled in tenants
    ]
    blocks = [
        line((id, "strong"), f"  since {created:%Y-%m-%d}", ("  disabled" if disabled else "", "warn"))
        for id, created, disabled in tenants
    ]
    return Report(
        command="tenants list",
        data={"tenants": items},
        blocks=blocks or [line(("no tenants: there are no keys", "dim"))],
    )


def disable(
    tenant: Tenant, home: options.Home = None, store: options.Store = None, json: options.Json = False
) -> Report:
    """Refuse a tenant's keys and cancel its tasks. Takes effect within a second; conversations stay."""
    asyncio.run(_set(options.load_settings(home, store), tenant, disabled=True))
    data = {"tenant": tenant, "disabled": True}
    return Report(command="tenants disable", data=data, blocks=[line(f"disabled {tenant}")])


def enable(
    tenant: Tenant, home: options.Home = None, store: options.Store = None, json: options.Json = False
) -> Report:
    """Accept the keys of a tenant again."""
    asyncio.run(_set(options.load_settings(home, store), tenant, disabled=False))
    data = {"tenant": tenant, "disabled": False}
    return Report(command="tenants enable", data=data, blocks=[line(f"enabled {tenant}")])


async def _list(settings: Settings) -> list[tuple[str, datetime, datetime | None]]:
    from bough.server.auth.keys import KeyTable

    async with options.open_settings_store(settings) as store:
        return await KeyTable(store).tenants()


async def _set(settings: Settings, tenant: str, *, disabled: bool) -> None:
    from bough.server.auth.caller import LOCAL
    from bough.server.auth.keys import KeyTable
    from bough.tasks import TaskBroker
    from bough.tasks.stores.backends import tasks_in

    async with options.open_settings_store(settings) as store:
        await KeyTable(store).set_disabled(tenant, disabled=disabled)
        if disabled and tenant != LOCAL:  # tasks of the command line have no owner
            await TaskBroker(tasks_in(store), settings=settings).cancel_all(owner=tenant)
