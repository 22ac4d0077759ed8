"""`bough a2a`: serves one agent to A2A clients."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bough.cli import agent_file, options
from bough.cli.commands.serve import Host, Port, ServeAddress, Unsafe, serve_at

_DEFAULT = "default"
Agent = Annotated[
    str, typer.Option("--agent", metavar="NAME|FILE", help="Agent: a name in config.yaml, a file, or `default`.")
]


def serve(
    agent: Agent,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    unsafe_no_auth: Unsafe = False,
    home: options.Home = None,
    store: options.Store = None,
    json: options.Json = False,
) -> None:
    """Serve one agent to A2A clients.

    Its card, JSON-RPC and REST, in versions 1.0 and 0.3. Without keys, only users of this machine can reach it. Create
    a key with `bough keys create`.
    """
    settings = options.load_settings(home, store)
    address = ServeAddress(host=host, port=port, unsafe=unsafe_no_auth, json=json)
    if agent == _DEFAULT and not Path(agent).exists():  # every server has the default agent
        serve_at(address, settings, [], {}, a2a_agent=_DEFAULT, command="a2a serve")
        return
    spec = agent_file.resolve_agent(Path(agent), settings)
    serve_at(address, settings, [spec], {}, a2a_agent=spec.name, command="a2a serve")
