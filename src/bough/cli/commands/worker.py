"""`bough worker`: runs tasks until it is stopped."""

from __future__ import annotations

import asyncio
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bough import __version__
from bough.cli import options
from bough.cli.commands.tasks.text import STATE_STYLES
from bough.cli.render import renderer_for
from bough.cli.text import line, one_line
from bough.errors import BoughError, InvalidInput
from bough.events.stores.faults import hide_password
from bough.log import shorten_stderr
from bough.types import JsonObject

if TYPE_CHECKING:
    from bough.agents.spec import AgentSpec
    from bough.cli.render import Renderer
    from bough.tasks import Task, TaskBroker
    from bough.tasks.worker import ActiveRun


def worker(
    queues: Annotated[str, typer.Option("--queues", metavar="A,B", help="Queues to take tasks from.")] = "default",
    agents: Annotated[
        list[str] | None,
        typer.Option("--agents", metavar="MODULE:ATTRIBUTE", help="Agents in Python code; repeatable."),
    ] = None,
    concurrency: Annotated[
        int, typer.Option("--concurrency", metavar="N", min=1, max=1000, help="Maximum number of tasks at once.")
    ] = 4,
    once: Annotated[bool, typer.Option("--once", help="Exit when no task is waiting.")] = False,
    model: options.Model = None,
    base_url: options.BaseUrl = None,
    home: options.Home = None,
    store: options.Store = None,
    json: options.Json = False,
) -> int:
    """Run tasks until stopped.

    Writes a line to stderr when a task starts and when its run ends; with --json, an object to stdout.

    On SIGTERM, it finishes the running tasks and takes no new ones; a second SIGTERM returns them to their queue. On
    SIGHUP, it reloads the limits of tenants.
    """
    settings = options.load_settings(home, store, model=model, base_url=base_url)
    renderer = renderer_for(json=json)
    shorten_stderr()

    async def main() -> int:
        from bough.cli.tasks import make_broker, relay_responses
        from bough.server.bounds.tenants import reload_at_sighup
        from bough.server.worker import list_for_workers, read_rules, work_for_servers
        from bough.tasks.serve import serve
        from bough.tasks.stores.backends import open_task_store

        named_specs = [spec for name in agents or () for spec in load_agents(name)]
        agent_names = {spec.name for spec in named_specs}
        # An agent of --agents replaces the one of config.yaml with the same name.
        specs = [*named_specs, *(spec for spec in list_for_workers(settings) if spec.name not in agent_names)]
        tasks = open_task_store(settings.store)
        queue_names = [name.strip() for name in queues.split(",") if name.strip()]
        rules = read_rules(settings)
        try:
            with reload_at_sighup(rules.reload):
                broker = make_broker(tasks, settings, rules)
                store_url = hide_password(settings.store)
                renderer.note(
                    line(f"bough {__version__}  {store_url}  {broker.dispatcher.name}  queues {', '.join(queue_names)}")
                )
                work_for_servers(broker, await tasks.open(), settings, rules)
                async with relay_responses(broker, settings.store), TaskLog(broker, renderer):
                    await serve(broker, queues=queue_names, agents=specs, concurrency=concurrency, once=once)
        finally:
            await tasks.aclose()
        return 0

    return asyncio.run(main())


class TaskLog:
    """Writes a line when a run of a task starts and when the run ends. Never writes the task's input or output."""

    def __init__(self, broker: TaskBroker, renderer: Renderer) -> None:
        self._broker = broker
        self._renderer = renderer
        self._pending: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> None:
        self._broker.worker.on_begin.append(self._write_begin)
        self._broker.worker.on_end.append(self._schedule_end)

    async def __aexit__(self, *_: object) -> None:
        self._broker.worker.on_begin.remove(self._write_begin)
        self._broker.worker.on_end.remove(self._schedule_end)
        while self._pending:  # the last lines are read from the store, which is still open here
            await asyncio.wait(self._pending)

    def _write_begin(self, run: ActiveRun) -> None:
        task = run.claim.task
        data = {"attempt": task.attempts, "max_attempts": task.max_attempts}
        self._write("begin", task, "begins", f"attempt {task.attempts} of {task.max_attempts}", data)

    def _schedule_end(self, run: ActiveRun) -> None:
        """Schedule `_write_end`, which must read the task's state, because another process may have ended the task."""
        # `_pending` holds a reference, because the event loop has only weak references to tasks.
        writing = asyncio.create_task(self._write_end(run.claim.task, time.monotonic() - run.started))
        self._pending.add(writing)
        writing.add_done_callback(self._pending.discard)

    async def _write_end(self, task: Task, seconds: float) -> None:
        try:
            task = await self._broker.poll(task.id)
        except BoughError as error:
            state, cost = "unknown", None
            facts = f"{seconds:.1f} s  {error.message}"
        else:
            state, cost = task.state.value, task.usage.cost_usd
            facts = f"{seconds:.1f} s" + (f"  {cost:.4f} USD" if cost else "")
        data: JsonObject = {"state": state, "seconds": round(seconds, 3), "cost_usd": cost, "code": task.code}
        self._write("end", task, state, facts, data)

    def _write(self, event: str, task: Task, state: str, facts: str, data: JsonObject) -> None:
        agent = task.agent_name
        self._renderer.record({"event": event, "task": task.id, "agent": agent, **data})
        name = one_line(agent, 60) if agent else "-"
        self._renderer.note(line((task.id, "id"), "  ", (state, STATE_STYLES.get(state, "")), f"  {name}  {facts}"))


def load_agents(name: str) -> list[AgentSpec]:
    """Return the agents of `MODULE:ATTRIBUTE`; the module may be in the working folder.

    Raises:
        InvalidInput: The module or attribute is missing, or the attribute is not an agent.
    """
    from bough.agents.spec import AgentSpec

    module, separator, attribute = name.partition(":")
    if not separator or not module or not attribute:
        raise InvalidInput(
            f"--agents {name!r} is not a MODULE:ATTRIBUTE", hint="for example my_package.agents:reviewer"
        )
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        value: Any = import_module(module)
        for part in attribute.split("."):
            value = getattr(value, part)
    except (ImportError, AttributeError) as error:
        raise InvalidInput(f"--agents {name!r} cannot be loaded: {error}", hint="check the module's name") from error
    specs = [value] if isinstance(value, AgentSpec) else list(value.values() if isinstance(value, dict) else value)  # pyright: ignore
    if not specs or not all(isinstance(spec, AgentSpec) for spec in specs):  # pyright: ignore
        raise InvalidInput(f"--agents {name!r} is not an AgentSpec", hint="name an AgentSpec, or a list of them")
    return specs  # pyright: ignore
