"""`bough keys`: the API keys of the agent server."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from bough.cli import options
from bough.cli.render import Report
from bough.cli.text import Line, line
from bough.errors import InvalidInput
from bough.settings import Settings

if TYPE_CHECKING:
    from bough.server.auth.keys import KeyInfo, KeyTable, NewKey

T = TypeVar("T")

KeyName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the key.")]
KeyId = Annotated[str, typer.Argument(metavar="ID", help="Id of the key, as shown by `bough keys list`.")]
Tenant = Annotated[str, typer.Option("--tenant", metavar="T", help="Tenant of the key; `local` is the command line's.")]
Role = Annotated[str, typer.Option("--role", metavar="read|write|admin", help="What the key may do.")]
Scopes = Annotated[
    list[str] | None, typer.Option("--scope", metavar="S", help="Limit the key to this scope; repeatable.")
]
Expires = Annotated[str | None, typer.Option("--expires", metavar="90d", help="Validity. Default: it does not expire.")]
Grace = Annotated[str, typer.Option("--grace", metavar="1h", help="How long the old key stays valid.")]

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def create(
    name: KeyName,
    tenant: Tenant = "local",
    role: Role = "write",
    scope: Scopes = None,
    expires: Expires = None,
    home: options.Home = None,
    store: options.Store = None,
    json: options.Json = False,
) -> Report:
    """Create a key and print it. It is never shown again."""
    validity = None if expires is None else _parse_duration(expires, "--expires")

    async def make(table: KeyTable) -> NewKey:
        from bough.server.auth.caller import SCOPES

        key_fields: Any = {"tenant": tenant, "role": role, "scopes": frozenset(scope) if scope else SCOPES}
        return await table.create(name, expires=validity, **key_fields)

    return _report_key("keys create", asyncio.run(_with_table(options.load_settings(home, store), make)))


def list_(home: options.Home = None, store: options.Store = None, json: options.Json = False) -> Report:
    """List the keys. Their texts are not shown."""
    infos = asyncio.run(_with_table(options.load_settings(home, store), lambda table: table.list()))
    blocks = [_row(info) for info in infos] or [line(("no keys: only this machine may use the server", "dim"))]
    return Report(command="keys list", data={"items": [_json(info) for info in infos]}, blocks=blocks)


def revoke(id: KeyId, home: options.Home = None, store: options.Store = None, json: options.Json = False) -> Report:
    """Revoke a key. Servers refuse it within a second."""
    asyncio.run(_with_table(options.load_settings(home, store), lambda table: table.revoke(id)))
    return Report(command="keys revoke", data={"id": id, "revoked": True}, blocks=[line(f"revoked {id}")])


def rotate(
    id: KeyId,
    grace: Grace = "1h",
    home: options.Home = None,
    store: options.Store = None,
    json: options.Json = False,
) -> Report:
    """Replace a key with a new one. The old key stays valid for the grace period."""
    grace_period = _parse_duration(grace, "--grace")
    settings = options.load_settings(home, store)
    return _report_key(
        "keys rotate", asyncio.run(_with_table(settings, lambda table: table.rotate(id, grace=grace_period)))
    )


async def _with_table(settings: Settings, do: Callable[[KeyTable], Awaitable[T]]) -> T:
    """Return the result of `do`, called with the key table of the settings' store."""
    from bough.server.auth.keys import KeyTable

    async with options.open_settings_store(settings) as store:
        return await do(KeyTable(store))


def _report_key(command: str, key: NewKey) -> Report:
    data = {"id": key.id, "key": key.text, "tenant": key.tenant}
    return Report(command=command, data=data, blocks=[line(key.text)])


def _row(info: KeyInfo) -> Line:
    from bough.server.auth.caller import SCOPES

    expiry = f"until {info.expires:%Y-%m-%d %H:%M} UTC" if info.expires else "does not expire"
    validity = "revoked" if info.revoked else expiry
    scopes = "all scopes" if set(info.scopes) >= SCOPES else ",".join(info.scopes) or "no scopes"
    # The text of a key is never stored, so a list cannot show it.
    return line((info.id, "strong"), f"  {info.tenant}  {info.name}  {info.role}  {scopes}  ", (validity, "dim"))


def _json(info: KeyInfo) -> dict[str, Any]:
    def format_time(time: datetime | None) -> str | None:
        return None if time is None else time.isoformat()

    times = {"created": format_time(info.created), "expires": format_time(info.expires), "used": format_time(info.used)}
    fields = {"id": info.id, "tenant": info.tenant, "name": info.name, "role": info.role, "scopes": list(info.scopes)}
    return {**fields, **times, "revoked": format_time(info.revoked)}


def _parse_duration(text: str, option: str) -> timedelta:
    # At most 6 digits, because more days would exceed the range of datetime.
    match = re.fullmatch(r"(\d{1,6})([smhd])", text)
    if match is None:
        raise InvalidInput(f"{option}: not a duration", hint="for example 90d, 12h, 30m, 10s")
    return timedelta(seconds=int(match[1]) * _UNITS[match[2]])
