"""`bough serve`: runs the agent server."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from bough.cli import options
from bough.cli.render import Report, renderer_for
from bough.cli.text import line
from bough.errors import InvalidInput
from bough.log import shorten_stderr
from bough.settings import Settings

if TYPE_CHECKING:
    from bough.agents.spec import AgentSpec

Host = Annotated[str, typer.Option("--host", metavar="ADDR", help="Address to listen on.")]
Port = Annotated[int, typer.Option("--port", metavar="N", min=0, max=65535, help="Port; 0 picks a free one.")]
Agents = Annotated[
    list[str] | None,
    typer.Option("--agents", metavar="MODULE:ATTRIBUTE", help="Agents in Python code; repeatable."),
]
Concurrency = Annotated[
    int | None,
    typer.Option("--concurrency", metavar="N", min=1, help="Maximum number of runs at once in this process."),
]
Runs = Annotated[
    Literal["here", "workers"] | None,
    typer.Option("--runs", help="Where runs execute: in this process or in workers."),
]
Unsafe = Annotated[bool, typer.Option("--unsafe-no-auth", help="Listen on any address without keys: open to everyone.")]


def serve(
    host: Host = "127.0.0.1",
    port: Port = 8000,
    agents: Agents = None,
    runs: Runs = None,
    concurrency: Concurrency = None,
    unsafe_no_auth: Unsafe = False,
    home: options.Home = None,
    store: options.Store = None,
    json: options.Json = False,
) -> None:
    """Serve conversations over HTTP.

    Without keys, only users of this machine can reach it. Create a key with `bough keys create`.
    """
    settings = options.load_settings(home, store)
    address = ServeAddress(host=host, port=port, unsafe=unsafe_no_auth, json=json)
    specs = [spec for name in agents or () for spec in load_agents(name)]
    serve_at(address, settings, specs, {"runs": runs, "concurrency": concurrency}, with_page=True)


@dataclass(frozen=True, kw_only=True)
class ServeAddress:
    """The address to listen on, and how to report it.

    Attributes:
        unsafe: Allow any address, even if there are no keys.
        json: Report the address as a JSON envelope.
    """

    host: str
    port: int
    unsafe: bool
    json: bool


def serve_at(
    address: ServeAddress,
    settings: Settings,
    specs: list[AgentSpec],
    server_options: Mapping[str, Any],
    *,
    a2a_agent: str | None = None,
    command: str = "serve",
    with_page: bool = False,
) -> None:
    """Serve until a signal arrives.

    Args:
        server_options: Fields of the server's settings.
        a2a_agent: The agent that A2A clients reach at the root path.
        with_page: Also serve the web page.

    Raises:
        ImportError: A package of the extra `server` is missing.
        Unavailable: The address is in use, or the store's secrets were sealed with other keys.
        PermissionDenied: Other machines can reach the address, and no key exists.
    """
    from bough.cli.transcript import as_markdown
    from bough.server.app import create_app
    from bough.server.serve import listen, require_safe_bind, run_server
    from bough.server.settings import ServerSettings

    server_settings = ServerSettings.load(settings, **server_options)
    has_keys = asyncio.run(_has_keys(settings))
    host = address.host
    # Checked before the port is opened, because an unprotected server must not accept any connection.
    require_safe_bind(host, has_keys=has_keys, unsafe=address.unsafe)
    listener = listen(host, address.port)
    renderer = renderer_for(json=address.json)
    shorten_stderr()
    url_host = f"[{host}]" if ":" in host else host  # an IPv6 address
    url = f"http://{url_host}:{listener.getsockname()[1]}"

    def report_ready() -> None:
        if not has_keys:
            renderer.note(line(("no key is needed: everyone on this machine may use this server", "warn")))
        renderer.note(line(f"listening on {url}"))
        if address.json:
            renderer.report(Report(command=command, data={"url": url}))

    app_options: Any = {"transcript": as_markdown, "a2a_agent": a2a_agent}
    app = create_app(settings, server=server_settings, agents=specs, bind=host, **app_options)
    if with_page:
        from bough.web.page import mount

        mount(app)
    run_server(app, server_settings, listener, report_ready)


async def _has_keys(settings: Settings) -> bool:
    """Return whether the store has API keys.

    Raises:
        Unavailable: The store's secrets were sealed with keys that this server does not have.
    """
    from bough.server.auth.keys import KeyTable
    from bough.server.auth.sealed import SealedSecrets, SecretBox

    async with options.open_settings_store(settings) as store:
        await SealedSecrets(store, lambda: SecretBox.of(settings.home, os.environ)).require_keys()
        return await KeyTable(store).any()


def load_agents(name: str) -> list[AgentSpec]:
    """Return the agents of `MODULE:ATTRIBUTE`: a spec, a list or mapping of specs, or a function that returns these.

    Raises:
        InvalidInput: The module or attribute is missing, or the attribute is not an agent.
    """
    from bough.agents.spec import AgentSpec

    module, _, attribute = name.partition(":")
    try:
        value: Any = getattr(import_module(module), attribute)
    except (ImportError, ValueError, AttributeError) as error:
        raise InvalidInput(f"--agents {name}: {error}", hint="for example my_package.agents:reviewer") from error
    if callable(value) and not isinstance(value, AgentSpec):
        value = cast("Callable[[], Any]", value)()
    specs: list[Any] = [value] if isinstance(value, AgentSpec) else _list_specs(value)
    if not specs or not all(isinstance(spec, AgentSpec) for spec in specs):
        raise InvalidInput(f"--agents {name} is not an AgentSpec", hint="name a spec, or a list of them")
    return specs


def _list_specs(value: Any) -> list[Any]:
    """Return the items of a list or the values of a mapping; empty for other values."""
    if isinstance(value, Mapping):
        return list(cast("Mapping[str, Any]", value).values())
    return list(cast("list[Any]", value)) if isinstance(value, (list, tuple)) else []
