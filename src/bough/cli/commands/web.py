"""`bough web`: serves the web page on this machine and opens it."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import webbrowser
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote
from uuid import UUID

import typer

from bough.cli import options
from bough.cli.commands.serve import Port
from bough.cli.render import Report, renderer_for
from bough.cli.target import Target, resolve
from bough.cli.text import line
from bough.log import shorten_stderr
from bough.settings import Settings

if TYPE_CHECKING:
    from bough.web.signin import TicketKeys

Conversation = Annotated[
    str | None,
    typer.Argument(metavar="[ID]", help="Conversation: an id, its end, or -; else the list."),
]
NoOpen = Annotated[bool, typer.Option("--no-open", help="Print the address without opening a browser.")]
_HOST = "127.0.0.1"


def web(
    id: Conversation = None,
    port: Port = 0,
    no_open: NoOpen = False,
    home: options.Home = None,
    store: options.Store = None,
    json: options.Json = False,
) -> None:
    """Show conversations in a browser.

    Serves the web page on this machine until Ctrl-C. The printed address opens it once, within a minute; Enter prints a
    new one.
    """
    show_page(id, options.load_settings(home, store), port=port, opens_browser=not no_open, json=json)


def show_page(name: str | None, settings: Settings, *, port: int, opens_browser: bool, json: bool) -> None:
    """Serve the page until a signal arrives.

    Args:
        name: The conversation to show, as on the command line; None for the list.

    Raises:
        ImportError: A package of the extra `server` is missing.
        NotFound: No conversation has this name.
        Unavailable: The port is in use.
    """
    from bough.cli.transcript import as_markdown
    from bough.server.app import create_app
    from bough.server.serve import listen, run_server
    from bough.server.settings import ServerSettings
    from bough.web.page import mount
    from bough.web.signin import TicketKeys

    path = "/" if name is None else f"/c/{_find_id(Target.parse_name(name), settings)}"
    server_settings = ServerSettings.load(settings)
    app = create_app(settings, server=server_settings, bind=_HOST, transcript=as_markdown, keys=TicketKeys)
    mount(app)
    listener = listen(_HOST, port)
    shorten_stderr()
    renderer = renderer_for(json=json)
    address = f"http://{_HOST}:{listener.getsockname()[1]}"

    def make_url() -> str:
        keys: TicketKeys = app.state.services.keys
        return f"{address}/enter/{keys.make_ticket()}?to={quote(path)}"

    def show_url() -> str:
        url = make_url()
        renderer.report(Report(command="web", data={"url": url}, blocks=[line((url, "id"))]))
        return url

    def report_ready() -> None:
        url = show_url()
        renderer.note(line(("Enter prints a new address; Ctrl-C ends the page", "dim")))
        if opens_browser and _has_display():
            webbrowser.open(url)
        threading.Thread(target=_print_at_enter, args=(show_url,), daemon=True, name="new addresses").start()

    run_server(app, server_settings, listener, report_ready)


def _find_id(name: str, settings: Settings) -> UUID:
    async def find() -> UUID:
        async with options.open_settings_store(settings, create=False) as store:
            return await resolve(store, name)

    return asyncio.run(find())


def _print_at_enter(show_url: Callable[[], str]) -> None:
    """Print a new address for each line of stdin, until it ends."""
    for _ in sys.stdin:
        show_url()


def _has_display() -> bool:
    """Whether a browser that is started here would be seen by the person at this terminal."""
    is_remote = "SSH_CONNECTION" in os.environ or "SSH_TTY" in os.environ
    return not is_remote and (sys.platform == "darwin" or bool({"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys()))
