"""`bough tasks list`, `show`, `logs` and `wait`: submitted work and its results."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bough.cli import options
from bough.cli.commands.tasks import text
from bough.cli.render import Renderer, Report, renderer_for
from bough.cli.tasks import TaskId, TaskIds, get_task, make_broker, open_existing, open_tasks
from bough.cli.text import Block, line
from bough.errors import InvalidInput

if TYPE_CHECKING:
    from bough.tasks import Task
    from bough.tasks.stores.relational import RelationalTaskStore


def list_(
    state: Annotated[str | None, typer.Option("--state", metavar="S", help="Only tasks in this state.")] = None,
    agent: Annotated[str | None, typer.Option("--agent", metavar="A", help="Only tasks of this agent.")] = None,
    queue: Annotated[str | None, typer.Option("--queue", metavar="Q", help="Only tasks in this queue.")] = None,
    parent: Annotated[
        str | None, typer.Option("--parent", metavar="ID", help="Only tasks that this conversation started.")
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Show changes until every task has ended.")] = False,
    limit: Annotated[int, typer.Option("--limit", "-n", metavar="N", min=1, max=1000, help="Show at most N.")] = 20,
    cursor: Annotated[
        str | None, typer.Option("--cursor", metavar="CURSOR", help="next_cursor of the page before (--json).")
    ] = None,
    home: options.Home = None,
    store: options.Store = None,
    json: options.Json = False,
) -> Report | int:
    """List tasks, the newest first."""

    async def main() -> Report | int:
        async with open_tasks(home, store) as tasks:
            if tasks is None:
                return text.report_list([], None)
            task_filter = await _make_filter(tasks, state, agent, queue, parent)
            if watch:
                return await _watch(tasks, task_filter, limit, renderer_for(json=json), json=json)
            page = await tasks.list(task_filter, cursor, limit)
            return text.report_list(page.items, page.next_cursor)

    return asyncio.run(main())


def show(
    id: TaskId = "-",
    home: options.Home = None,
    store: options.Store = None,
    json: options.Json = False,
) -> Report:
    """Show a task: its state, question, usage and subtasks."""

    async def main() -> Report:
        async with open_existing(home, store) as tasks:
            task = await get_task(tasks, id)
            children = await _list_children(tasks, task)
            blocks: list[Block] = [*text.describe_task(task)]
            if children:
                blocks += [line(), line(("started by it", "strong")), *text.draw_tree(children)]
            data = {"task": text.task_json(task), "children": [text.node_json(node) for node in children]}
            return Report(command="tasks show", data=data, blocks=blocks, next=text.suggest_next(task))

    return asyncio.run(main())


def logs(
    id: TaskId = "-",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Show new events until the task has ended.")] = False,
    after: Annotated[int, typer.Option("--after", metavar="N", min=0, help="Only events after this number.")] = 0,
    home: options.Home = None,
    store: options.Store = None,
    json: options.Json = False,
) -> Report | int:
    """Show the events of a task."""

    async def main() -> Report | int:
        async with open_existing(home, store) as tasks:
            task = await get_task(tasks, id)
            if not follow:
                events = [event for event in task.events if event.seq > after]
                data = {"events": [event.model_dump(mode="json") for event in events]}
                return Report(command="tasks logs", data=data, blocks=[text.event_line(event) for event in events])
            renderer = renderer_for(json=json)
            broker = make_broker(tasks, options.load_settings(home, store))
            async for event in broker.stream(task.id, after):
                if json:
                    renderer.record(event.model_dump(mode="json"))
                else:
                    renderer.result(text.event_line(event))
            return 0

    return asyncio.run(main())


def wait(
    ids: TaskIds = None,
    timeout: Annotated[
        float | None, typer.Option("--timeout", metavar="SECONDS", min=0, help="Time limit for waiting.")
    ] = None,
    run: Annotated[bool, typer.Option("--run", help="Also run tasks in this process, as a worker does.")] = False,
    home: options.Home = None,
    store: options.Store = None,
    json: options.Json = False,
) -> Report:
    """Wait until tasks have ended. Exit code 0: all completed, 1: one did not, 124: timed out."""

    async def main() -> Report:
        settings = options.load_settings(home, store)
        async with open_existing(home, store) as tasks:
            task_ids = [await tasks.resolve(name) for name in ids or ["-"]]
            broker = make_broker(tasks, settings)
            if run:
                # Entering the broker starts a worker in this process; otherwise the tasks are only watched.
                async with broker:
                    ended = await _wait_all(broker, task_ids, timeout)
            else:
                ended = await _wait_all(broker, task_ids, timeout)
                await broker.aclose()
            return text.report_ended(ended)

    return asyncio.run(main())


async def _make_filter(
    tasks: RelationalTaskStore, state: str | None, agent: str | None, queue: str | None, parent: str | None
) -> Any:
    from bough.tasks import TaskFilter, TaskState

    try:
        states = frozenset[TaskState]() if state is None else frozenset({TaskState(state.lower())})
    except ValueError as error:
        valid_states = ", ".join(valid_state.value for valid_state in TaskState)
        raise InvalidInput(f"invalid state {state!r}", hint=f"choose one of: {valid_states}") from error
    cid = None if parent is None else await (await tasks.open()).resolve(parent)
    return TaskFilter(states=states, agent=agent, queue=queue, parent=cid)


async def _watch(tasks: RelationalTaskStore, task_filter: Any, limit: int, renderer: Renderer, *, json: bool) -> int:
    """Show changed tasks after every commit of any process, until every listed task has ended."""
    log = await tasks.open()
    versions: dict[str, int] = {}
    commits = log.commits()
    try:
        while True:
            page = await tasks.list(task_filter, limit=limit)
            for task in reversed(page.items):
                if versions.get(task.id) != task.version:
                    versions[task.id] = task.version
                    text.show_change(task, renderer, json=json)
            if all(task.is_terminal for task in page.items):
                return 0
            await anext(commits)
    finally:  # ends the subscription while the store is still open
        await commits.aclose()  # pyright: ignore


async def _list_children(tasks: RelationalTaskStore, task: Task) -> list[Any]:
    """Return the tasks that a task's conversation started, as nodes `(task, child nodes)`."""
    from bough.tasks import TaskFilter

    page = await tasks.list(TaskFilter(parent=task.conversation), limit=100)
    return [(child, await _list_children(tasks, child)) for child in reversed(page.items)]


async def _wait_all(broker: Any, ids: list[str], timeout: float | None) -> list[Task]:
    return list(await asyncio.gather(*(broker.wait(task_id, timeout) for task_id in ids)))
