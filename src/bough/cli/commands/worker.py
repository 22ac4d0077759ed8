"""`bough worker`: runs tasks until it is told to stop."""

from __future__ import annotations

import asyncio
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bough import __version__
from bough.cli import options
from bough.cli.render import renderer_for
from bough.cli.text import line
from bough.errors import InvalidInput
from bough.events.url import hide_password

if TYPE_CHECKING:
    from bough.agents.spec import AgentSpec


def worker(
    queues: Annotated[str, typer.Option("--queues", metavar="A,B", help="Whose tasks it runs.")] = "default",
    agents: Annotated[
        list[str] | None,
        typer.Option("--agents", metavar="MODULE:ATTRIBUTE", help="An agent, or several, in Python; may be repeated."),
    ] = None,
    concurrency: Annotated[int, typer.Option("--concurrency", metavar="N", min=1, max=1000, help="Tasks at once.")] = 4,
    once: Annotated[bool, typer.Option("--once", help="Exit when nothing is waiting.")] = False,
    model: options.Model = None,
    base_url: options.BaseUrl = None,
    home: options.Home = None,
    store: options.Store = None,
    json: options.Json = False,
) -> int:
    """Run tasks. SIGTERM lets those that run end and takes no more; a second one hands them back.

    SIGHUP reads the tenants' limits again.
    """
    settings = options.settings_of(home, store, model=model, base_url=base_url)
    renderer = renderer_for(json=json)

    async def main() -> int:
        from bough.cli.detach import make_broker, sending_pieces
        from bough.server.bounds.tenants import reload_at_sighup
        from bough.server.environment.configured import list_for_workers
        from bough.server.worker import read_rules, work_for_servers
        from bough.tasks.serve import serve
        from bough.tasks.stores.named import open_task_store

        given = [spec for name in agents or () for spec in load_agents(name)]
        names_given = {spec.name for spec in given}
        specs = [*given, *(spec for spec in list_for_workers(settings) if spec.name not in names_given)]
        tasks = open_task_store(settings.store)
        names = [name.strip() for name in queues.split(",") if name.strip()]
        rules = read_rules(settings)
        try:
            with reload_at_sighup(rules.reload):
                broker = make_broker(tasks, settings, rules)
                shown = hide_password(settings.store)
                renderer.note(
                    line(f"bough {__version__}  {shown}  {broker.dispatcher.name}  queues {', '.join(names)}")
                )
                work_for_servers(broker, await tasks.open(), settings, rules)
                async with sending_pieces(broker, settings.store):
                    await serve(broker, queues=names, agents=specs, concurrency=concurrency, once=once)
        finally:
            await tasks.aclose()
        return 0

    return asyncio.run(main())


def load_agents(name: str) -> list[AgentSpec]:
    """Return the agents that `MODULE:ATTRIBUTE` names; modules are looked for in the working folder, too.

    Raises:
        InvalidInput: There is no such module or attribute, or it is not an agent.
    """
    from bough.agents.spec import AgentSpec

    module, separator, attribute = name.partition(":")
    if not separator or not module or not attribute:
        raise InvalidInput(f"--agents {name!r} names no agent", hint="write MODULE:ATTRIBUTE")
    if (folder := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, folder)
    try:
        found: Any = import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise InvalidInput(f"--agents {name!r} cannot be loaded: {error}", hint="check the module's name") from error
    specs = [found] if isinstance(found, AgentSpec) else list(found.values() if isinstance(found, dict) else found)  # pyright: ignore
    if not specs or not all(isinstance(spec, AgentSpec) for spec in specs):  # pyright: ignore
        raise InvalidInput(f"--agents {name!r} is not an AgentSpec", hint="name an AgentSpec, or a list of them")
    return specs  # pyright: ignore
