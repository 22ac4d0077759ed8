"""`bough tasks`: work that was submitted, and what became of it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bough.cli import options
from bough.cli.detach import make_broker
from bough.cli.render import Renderer, Report, renderer_for
from bough.cli.text import Block, Line, Span, Style, Table, line, one_line, paragraph
from bough.errors import InvalidInput, NotFound
from bough.types import JsonObject

if TYPE_CHECKING:
    from bough.tasks import Task, TaskEvent
    from bough.tasks.stores.relational import RelationalTaskStore

_STYLES: dict[str, Style] = {"running": "good", "failed": "bad", "input_required": "warn", "cancelled": "dim"}

TaskId = Annotated[str, typer.Argument(metavar="ID", help="A task: its id, a unique part of it, or - for the latest.")]
TaskIds = Annotated[list[str] | None, typer.Argument(metavar="ID…", help="Tasks, as shown by `bough tasks list`.")]


def list_(
    state: Annotated[str | None, typer.Option("--state", metavar="S", help="Only those in this state.")] = None,
    agent: Annotated[str | None, typer.Option("--agent", metavar="A", help="Only those of this agent.")] = None,
    queue: Annotated[str | None, typer.Option("--queue", metavar="Q", help="Only those of this queue.")] = None,
    parent: Annotated[
        str | None, typer.Option("--parent", metavar="ID", help="Only those that this conversation started.")
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Show them again as they change, until none is open.")] = False,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="How many.")] = 20,
    cursor: Annotated[str | None, typer.Option("--cursor", help="Go on where a page of --json ended.")] = None,
    home: options.Home = None,
    store: options.Store = None,
    json: options.Json = False,
) -> Report | int:
    """List tasks, the newest first."""

    async def main() -> Report | int:
        async with _opened(home, store) as tasks:
            if tasks is None:
                return _listing([], None)
            wanted = await _filter(tasks, state, agent, queue, parent)
            if watch:
                return await _watch(tasks, wanted, limit, renderer_for(json=json), json=json)
            page = await tasks.list(wanted, cursor, limit)
            return _listing(page.items, page.next_cursor)

    return asyncio.run(main())


def show(
    id: TaskId = "-",
    home: options.Home = None,
    store: options.Store = None,
    json: options.Json = False,
) -> Report:
    """Show a task: where it stands, what it asks, what it used, and the tasks below it."""

    async def main() -> Report:
        async with _existing(home, store) as tasks:
            task = await _get(tasks, id)
            below = await _children(tasks, task)
            blocks: list[Block] = [*_describe(task)]
            if below:
                blocks += [line(), line(("started by it", "strong")), *_tree(below)]
            data = {"task": task_json(task), "children": [_node_json(node) for node in below]}
            return Report(command="tasks show", data=data, blocks=blocks, next=_next(task))

    return asyncio.run(main())


def logs(
    id: TaskId = "-",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the task has ended.")] = False,
    after: Annotated[int, typer.Option("--after", metavar="N", min=0, help="Only events behind this place.")] = 0,
    home: options.Home = None,
    store: options.Store = None,
    json: options.Json = False,
) -> Report | int:
    """Show the events of a task."""

    async def main() -> Report | int:
        async with _existing(home, store) as tasks:
            task = await _get(tasks, id)
            if not follow:
                events = [event for event in task.events if event.seq > after]
                data = {"events": [event.model_dump(mode="json") for event in events]}
                return Report(command="tasks logs", data=data, blocks=[_event_line(event) for event in events])
            renderer = renderer_for(json=json)
            broker = make_broker(tasks, options.settings_of(home, store))
            async for event in broker.stream(task.id, after):
                if json:
                    renderer.record(event.model_dump(mode="json"))
                else:
                    renderer.result(_event_line(event))
            return 0

    return asyncio.run(main())


def wait(
    ids: TaskIds = None,
    timeout: Annotated[
        float | None, typer.Option("--timeout", metavar="SECONDS", min=0, help="At most so long.")
    ] = None,
    run: Annotated[bool, typer.Option("--run", help="Run tasks here meanwhile, as a worker does.")] = False,
    home: options.Home = None,
    store: options.Store = None,
    json: options.Json = False,
) -> Report:
    """Wait until tasks have ended. Exit code 0: all completed; 1: one did not; 124: time is out."""

    async def main() -> Report:
        settings = options.settings_of(home, store)
        async with _existing(home, store) as tasks:
            found = [await tasks.resolve(name) for name in ids or ["-"]]
            broker = make_broker(tasks, settings)
            if run:
                async with broker:
                    ended = await _wait_all(broker, found, timeout)
            else:
                ended = await _wait_all(broker, found, timeout)
                await broker.aclose()
            return _report_ended(ended)

    return asyncio.run(main())


def cancel(
    ids: TaskIds = None,
    all: Annotated[bool, typer.Option("--all", help="Every task that has not ended.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    home: options.Home = None,
    store: options.Store = None,
    json: options.Json = False,
) -> Report:
    """Cancel tasks, and those that they started."""
    if bool(ids) == all:
        raise InvalidInput("name tasks, or give --all", hint="bough tasks cancel ID…")

    async def main() -> Report:
        async with _existing(home, store) as tasks:
            broker = make_broker(tasks, options.settings_of(home, store))
            found = await _open_ids(tasks) if all else [await tasks.resolve(name) for name in ids or ()]
            if found and not yes:
                _require_consent(f"cancel {len(found)} task{'s' if len(found) > 1 else ''}?")
            cancelled = [await broker.cancel(task_id) for task_id in found]
            await broker.aclose()
            return _changed("tasks cancel", cancelled)

    return asyncio.run(main())


def retry(
    id: TaskId = "-",
    home: options.Home = None,
    store: options.Store = None,
    json: options.Json = False,
) -> Report:
    """Go on with a task that failed or was cancelled, in a new task of the same conversation."""

    async def main() -> Report:
        async with _existing(home, store) as tasks:
            broker = make_broker(tasks, options.settings_of(home, store))
            again = await broker.retry(await tasks.resolve(id))
            task = await broker.poll(again)
            await broker.aclose()
            return _changed("tasks retry", [task])

    return asyncio.run(main())


def input_(
    id: TaskId = "-",
    answer: Annotated[str | None, typer.Argument(metavar="ANSWER", help="What is answered to its question.")] = None,
    approve: Annotated[list[str] | None, typer.Option("--approve", metavar="CALL", help="Let this call run.")] = None,
    reject: Annotated[list[str] | None, typer.Option("--reject", metavar="CALL", help="Refuse this call.")] = None,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why it is refused, for the model.")] = "",
    home: options.Home = None,
    store: options.Store = None,
    json: options.Json = False,
) -> Report:
    """Answer what a task asks; a worker goes on with it. Without an answer it shows the question and asks."""

    async def main() -> Report:
        async with _existing(home, store) as tasks:
            broker = make_broker(tasks, options.settings_of(home, store))
            task = await broker.poll(await tasks.resolve(id))
            given: Any = answer
            if approve or reject:
                given = {"approve": approve or [], "reject": reject or [], "reason": reason}
            elif answer is None:
                given = _ask(task)
            elif (task.request or {}).get("kind") == "approval":
                given = _yes_or_no(answer)
            answered = await broker.provide_input(task.id, given)
            await broker.aclose()
            return _changed("tasks input", [answered])

    return asyncio.run(main())


def task_json(task: Task) -> JsonObject:
    """Return a task as programs see it; its events are what `bough tasks logs` gives."""
    return task.model_dump(mode="json", exclude={"events"})


@asynccontextmanager
async def _opened(home: str | None, store: str | None) -> AsyncGenerator[RelationalTaskStore | None]:
    """Open the tasks of the settings' store; None where there is no store yet."""
    from bough.tasks.stores.named import has_store, open_task_store

    url = options.settings_of(home, store).store
    if not has_store(url):
        yield None
        return
    tasks = open_task_store(url)
    try:
        yield tasks
    finally:
        await tasks.aclose()


@asynccontextmanager
async def _existing(home: str | None, store: str | None) -> AsyncGenerator[RelationalTaskStore]:
    async with _opened(home, store) as tasks:
        if tasks is None:
            raise NotFound("there are no tasks yet", hint='bough run --detach "…" submits one')
        yield tasks


async def _get(tasks: RelationalTaskStore, name: str) -> Task:
    task = await tasks.get(await tasks.resolve(name))
    assert task is not None  # noqa: S101 - it was there a moment ago
    return task


async def _filter(
    tasks: RelationalTaskStore, state: str | None, agent: str | None, queue: str | None, parent: str | None
) -> Any:
    from bough.tasks import TaskFilter, TaskState

    try:
        states = frozenset[TaskState]() if state is None else frozenset({TaskState(state.lower())})
    except ValueError as error:
        known = ", ".join(each.value for each in TaskState)
        raise InvalidInput(f"no state is called {state!r}", hint=f"choose one of: {known}") from error
    cid = None if parent is None else await tasks.log.resolve(parent)
    return TaskFilter(states=states, agent=agent, queue=queue, parent=cid)


def _listing(tasks: list[Task], cursor: str | None) -> Report:
    rows: tuple[tuple[Span, ...], ...] = tuple(
        (
            (task.id.replace("-", "")[-8:], "id"),
            (task.state.value, _STYLES.get(task.state.value, "")),
            (task.agent_name or "", ""),
            (_age(task.created_at), "dim"),
            (one_line(task.input, 60), ""),
        )
        for task in tasks
    )
    blocks: list[Block] = [line("no tasks")]
    if rows:
        blocks = [Table(head=("task", "state", "agent", "age", "input"), rows=rows, flexible=4)]
    return Report(
        command="tasks list",
        data={"tasks": [task_json(task) for task in tasks], "next_cursor": cursor},
        blocks=blocks,
        next=(f"bough tasks show {rows[0][0][0]}",) if rows else ('bough run --detach "…"',),
    )


async def _watch(tasks: RelationalTaskStore, wanted: Any, limit: int, renderer: Renderer, *, json: bool) -> int:
    """Show what changes after every commit of any process, until no listed task is open."""
    log = await tasks.open()
    known: dict[str, int] = {}
    commits = log.commits()
    try:
        while True:
            page = await tasks.list(wanted, limit=limit)
            for task in reversed(page.items):
                if known.get(task.id) != task.version:
                    known[task.id] = task.version
                    _show_change(task, renderer, json=json)
            if all(task.is_terminal for task in page.items):
                return 0
            await anext(commits)
    finally:
        await commits.aclose()  # pyright: ignore


def _show_change(task: Task, renderer: Renderer, *, json: bool) -> None:
    if json:
        renderer.record({"task": task_json(task)})
    else:
        state = task.state.value
        renderer.result(
            line(
                (task.id.replace("-", "")[-8:], "id"),
                "  ",
                (state, _STYLES.get(state, "")),
                f"  {one_line(task.input, 60)}",
            )
        )


def _describe(task: Task) -> Iterator[Line]:
    state = task.state.value
    yield line((task.id, "id"), "  ", (state, _STYLES.get(state, "")))
    facts = {
        "agent": task.agent_name,
        "queue": task.queue,
        "attempts": f"{task.attempts} of {task.max_attempts}" if task.attempts else None,
        "submitted": task.created_at.isoformat(timespec="seconds"),
        "changed": task.updated_at.isoformat(timespec="seconds"),
        "used": f"{task.usage.requests} requests, {task.usage.input_tokens + task.usage.output_tokens} tokens",
        "error": task.error,
    }
    for name, value in facts.items():
        if value:
            yield line((f"{name:<10}", "dim"), str(value))
    yield line((f"{'input':<10}", "dim"), one_line(task.input, 200))
    yield from _request_lines(task)
    if task.result:
        yield line()
        yield from paragraph(task.result)


def _request_lines(task: Task) -> Iterator[Line]:
    request = task.request or {}
    if request.get("kind") == "question":
        yield line((f"{'asks':<10}", "warn"), str(request.get("question", "")))
        if choices := request.get("choices"):
            yield line((f"{'choices':<10}", "dim"), ", ".join(map(str, choices)))
    for call in request.get("calls", ()):
        said = f"{call['tool']} {call.get('arguments') or ''}"
        yield line((f"{'approve?':<10}", "warn"), (call["id"], "id"), "  ", one_line(said, 120))
        if call.get("reason"):
            yield line(" " * 10, (str(call["reason"]), "dim"))
    if request.get("kind") == "task":
        yield line((f"{'waits for':<10}", "warn"), (str(request.get("task_id", "")), "id"))


async def _children(tasks: RelationalTaskStore, task: Task) -> list[Any]:
    """Return the tasks that a task's conversation started, each with those below it."""
    from bough.tasks import TaskFilter

    page = await tasks.list(TaskFilter(parent=task.conversation), limit=100)
    return [(child, await _children(tasks, child)) for child in reversed(page.items)]


def _tree(nodes: list[Any], depth: int = 1) -> Iterator[Line]:
    for child, below in nodes:
        state = child.state.value
        short = child.id.replace("-", "")[-8:]
        yield line("  " * depth, (short, "id"), "  ", (state, _STYLES.get(state, "")), f"  {one_line(child.input, 60)}")
        yield from _tree(below, depth + 1)


def _node_json(node: Any) -> JsonObject:
    child, below = node
    return {"task": task_json(child), "children": [_node_json(each) for each in below]}


def _event_line(event: TaskEvent) -> Line:
    said = event.payload.get("state") or event.payload.get("message") or event.payload.get("tool") or event.payload
    kind = event.event_type.value
    return line((f"{event.seq:>5}", "dim"), f"  {kind:<13}", one_line(str(said), 100))


async def _wait_all(broker: Any, ids: list[str], timeout: float | None) -> list[Task]:
    return list(await asyncio.gather(*(broker.wait(task_id, timeout) for task_id in ids)))


def _report_ended(tasks: list[Task]) -> Report:
    from bough.tasks import TaskState

    if any(not task.is_terminal for task in tasks):
        code = 124
    else:
        code = 0 if all(task.state is TaskState.COMPLETED for task in tasks) else 1
    blocks = [each for task in tasks for each in (*_describe(task), line())]
    return Report(
        command="tasks wait", data={"tasks": [task_json(task) for task in tasks]}, blocks=blocks[:-1], exit_code=code
    )


def _changed(command: str, tasks: list[Task]) -> Report:
    blocks = [line((task.id, "id"), "  ", (task.state.value, _STYLES.get(task.state.value, ""))) for task in tasks]
    data: JsonObject = {"tasks": [task_json(task) for task in tasks]}
    if command == "tasks input":
        data = {"task": task_json(tasks[0])}
    return Report(command=command, data=data, blocks=blocks or [line("nothing to cancel")])


def _next(task: Task) -> tuple[str, ...]:
    short = task.id.replace("-", "")[-8:]
    if task.state.value == "input_required":
        return (f"bough tasks input {short}",)
    if task.state.value in ("failed", "cancelled"):
        return (f"bough tasks retry {short}", f"bough tasks logs {short}")
    return (f"bough tasks logs {short}", f"bough conv show {str(task.conversation).replace('-', '')[-8:]}")


async def _open_ids(tasks: RelationalTaskStore) -> list[str]:
    from bough.tasks import TERMINAL_STATES, TaskState

    states = [state for state in TaskState if state not in TERMINAL_STATES]
    return [task.id for state in states for task in await tasks.list_by_state(state)]


def _require_consent(question: str) -> None:
    if not sys.stdin.isatty():
        raise InvalidInput("nothing was cancelled: there is no terminal to ask", hint="pass --yes")
    if not typer.confirm(question, default=False):
        raise InvalidInput("nothing was cancelled", hint="pass --yes to cancel without being asked")


def _ask(task: Task) -> Any:
    """Show what a task asks and return what is typed."""
    if not sys.stdin.isatty():
        raise InvalidInput(f"task {task.id} waits for an answer", hint="give it: bough tasks input ID ANSWER")
    renderer = renderer_for(json=False)
    for asked in _request_lines(task):
        renderer.note(asked)
    if (task.request or {}).get("kind") == "approval":
        return typer.confirm("let them run?", default=False)
    return typer.prompt("answer")


def _yes_or_no(answer: str) -> bool:
    if answer.lower() in ("yes", "y", "true"):
        return True
    if answer.lower() in ("no", "n", "false"):
        return False
    raise InvalidInput(
        f"{answer!r} is neither yes nor no", hint="this task waits for an approval: yes, no, or --approve CALL"
    )


def _age(moment: datetime) -> str:
    seconds = (datetime.now(UTC) - moment).total_seconds()
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"
