"""`bough tasks cancel`, `retry` and `input`: cancel, retry and answer tasks."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bough.cli import options
from bough.cli.commands.tasks.text import describe_request, report_changed
from bough.cli.render import Report, renderer_for
from bough.cli.tasks import TaskId, TaskIds, make_broker, open_existing
from bough.errors import InvalidInput

if TYPE_CHECKING:
    from bough.tasks import Task
    from bough.tasks.stores.relational import RelationalTaskStore


def cancel(
    ids: TaskIds = None,
    all: Annotated[bool, typer.Option("--all", help="Cancel every task that has not ended.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    home: options.Home = None,
    store: options.Store = None,
    json: options.Json = False,
) -> Report:
    """Cancel tasks and their subtasks."""
    if bool(ids) == all:
        raise InvalidInput("name tasks, or pass --all", hint="bough tasks cancel ID…")

    async def main() -> Report:
        async with open_existing(home, store) as tasks:
            broker = make_broker(tasks, options.load_settings(home, store))
            task_ids = await _list_open_ids(tasks) if all else [await tasks.resolve(name) for name in ids or ()]
            if task_ids and not yes:
                _confirm_cancel(f"cancel {len(task_ids)} task{'s' if len(task_ids) > 1 else ''}?")
            cancelled = [await broker.cancel(task_id) for task_id in task_ids]
            await broker.aclose()
            return report_changed("tasks cancel", cancelled)

    return asyncio.run(main())


def retry(
    id: TaskId = "-",
    home: options.Home = None,
    store: options.Store = None,
    json: options.Json = False,
) -> Report:
    """Retry a failed or cancelled task. A new task continues its conversation."""

    async def main() -> Report:
        async with open_existing(home, store) as tasks:
            broker = make_broker(tasks, options.load_settings(home, store))
            task = await broker.poll(await broker.retry(await tasks.resolve(id)))
            await broker.aclose()
            return report_changed("tasks retry", [task])

    return asyncio.run(main())


def input_(
    id: TaskId = "-",
    answer: Annotated[str | None, typer.Argument(metavar="ANSWER", help="Answer to the task's question.")] = None,
    approve: Annotated[
        list[str] | None, typer.Option("--approve", metavar="CALL", help="Approve this tool call; repeatable.")
    ] = None,
    reject: Annotated[
        list[str] | None, typer.Option("--reject", metavar="CALL", help="Reject this tool call; repeatable.")
    ] = None,
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="Reason for the rejection, shown to the model.")
    ] = "",
    home: options.Home = None,
    store: options.Store = None,
    json: options.Json = False,
) -> Report:
    """Answer a task's question. A worker then continues it. Without ANSWER, shows the question and asks."""

    async def main() -> Report:
        async with open_existing(home, store) as tasks:
            broker = make_broker(tasks, options.load_settings(home, store))
            task = await broker.poll(await tasks.resolve(id))
            value: Any = answer
            if approve or reject:
                value = {"approve": approve or [], "reject": reject or [], "reason": reason}
            elif answer is None:
                value = _ask(task)
            elif (task.request or {}).get("kind") == "approval":
                value = _parse_yes_or_no(answer)
            answered = await broker.provide_input(task.id, value)
            await broker.aclose()
            return report_changed("tasks input", [answered])

    return asyncio.run(main())


async def _list_open_ids(tasks: RelationalTaskStore) -> list[str]:
    from bough.tasks import TERMINAL_STATES, TaskState

    states = [state for state in TaskState if state not in TERMINAL_STATES]
    return [task.id for state in states for task in await tasks.list_by_state(state)]


def _confirm_cancel(question: str) -> None:
    # Checked before the prompt, because in a script the prompt would read the script's input as the answer.
    if not sys.stdin.isatty():
        raise InvalidInput("no terminal to ask on: nothing was cancelled", hint="pass --yes")
    if not typer.confirm(question, default=False):
        raise InvalidInput("nothing was cancelled", hint="pass --yes to cancel without a question")


def _ask(task: Task) -> Any:
    """Show the question of a task and return the typed answer."""
    if not sys.stdin.isatty():
        raise InvalidInput(f"task {task.id} waits for an answer", hint="pass one: bough tasks input ID ANSWER")
    renderer = renderer_for(json=False)
    for output_line in describe_request(task):
        renderer.note(output_line)
    if (task.request or {}).get("kind") == "approval":
        return typer.confirm("approve?", default=False)
    return typer.prompt("answer")


def _parse_yes_or_no(answer: str) -> bool:
    if answer.lower() in ("yes", "y", "true"):
        return True
    if answer.lower() in ("no", "n", "false"):
        return False
    raise InvalidInput(
        f"{answer!r} is neither yes nor no", hint="this task waits for an approval: yes, no, or --approve CALL"
    )
