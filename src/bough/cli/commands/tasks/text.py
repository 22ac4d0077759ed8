"""Output of tasks: reports, lines and JSON."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from bough.cli.render import Renderer, Report
from bough.cli.target import short
from bough.cli.text import Block, Line, Span, Style, Table, line, one_line, paragraph
from bough.types import JsonObject

if TYPE_CHECKING:
    from bough.tasks import Task, TaskEvent

STATE_STYLES: dict[str, Style] = {"running": "good", "failed": "bad", "input_required": "warn", "cancelled": "dim"}


def task_json(task: Task) -> JsonObject:
    """Return a task as JSON, without its events, which `bough tasks logs` prints."""
    return task.model_dump(mode="json", exclude={"events"})


def report_list(tasks: list[Task], cursor: str | None) -> Report:
    """Return the report of a page of tasks, the newest first."""
    rows: tuple[tuple[Span, ...], ...] = tuple(
        (
            (short(task.id), "id"),
            (task.state.value, STATE_STYLES.get(task.state.value, "")),
            (task.agent_name or "", ""),
            (_age(task.created_at), "dim"),
            (one_line(task.input, 60), ""),
        )
        for task in tasks
    )
    blocks: list[Block] = [line("no tasks")]
    if rows:
        blocks = [Table(head=("task", "state", "agent", "age", "input"), rows=rows, flexible=(4,), drop=(3, 2))]
    return Report(
        command="tasks list",
        data={"tasks": [task_json(task) for task in tasks], "next_cursor": cursor},
        blocks=blocks,
        next=(f"bough tasks show {rows[0][0][0]}",) if rows else ('bough run --detach "…"',),
    )


def show_change(task: Task, renderer: Renderer, *, json: bool) -> None:
    """Write one line, or one JSON object, about a changed task."""
    if json:
        renderer.record({"task": task_json(task)})
    else:
        state = task.state.value
        renderer.result(
            line(
                (short(task.id), "id"),
                "  ",
                (state, STATE_STYLES.get(state, "")),
                f"  {one_line(task.input, 60)}",
            )
        )


def describe_task(task: Task) -> Iterator[Line]:
    """Yield the lines about one task: its state, facts, question and result."""
    state = task.state.value
    yield line((task.id, "id"), "  ", (state, STATE_STYLES.get(state, "")))
    facts = {
        "agent": task.agent_name,
        "conversation": task.conversation,
        "parent": task.parent_id,
        "queue": task.queue,
        "attempts": f"{task.attempts} of {task.max_attempts}" if task.attempts else None,
        "submitted": task.created_at.isoformat(timespec="seconds"),
        "changed": task.updated_at.isoformat(timespec="seconds"),
        "used": f"{task.usage.requests} requests, {task.usage.input_tokens + task.usage.output_tokens} tokens",
        "error": task.error,
    }
    for name, value in facts.items():
        if value:
            yield line((f"{name:<14}", "dim"), str(value))
    yield line((f"{'input':<14}", "dim"), one_line(task.input, 200))
    yield from describe_request(task)
    if task.result:
        yield line()
        yield from paragraph(task.result)


def describe_request(task: Task) -> Iterator[Line]:
    """Yield the lines about the question of a task; no lines if the task asks nothing."""
    request = task.request or {}
    if request.get("kind") == "question":
        yield line((f"{'asks':<14}", "warn"), str(request.get("question", "")))
        if choices := request.get("choices"):
            yield line((f"{'choices':<14}", "dim"), ", ".join(map(str, choices)))
    for call in request.get("calls", ()):
        call_text = f"{call['tool']} {call.get('arguments') or ''}"
        yield line((f"{'approve?':<14}", "warn"), (call["id"], "id"), "  ", one_line(call_text, 120))
        if call.get("reason"):
            yield line(" " * 14, (str(call["reason"]), "dim"))
    if request.get("kind") == "task":
        yield line((f"{'waits for':<14}", "warn"), (str(request.get("task_id", "")), "id"))


def draw_tree(nodes: list[Any], depth: int = 1) -> Iterator[Line]:
    """Yield a line for each task of a tree. A node is `(task, child nodes)`."""
    for child, child_nodes in nodes:
        state = child.state.value
        yield line(
            "  " * depth,
            (short(child.id), "id"),
            "  ",
            (state, STATE_STYLES.get(state, "")),
            f"  {one_line(child.input, 60)}",
        )
        yield from draw_tree(child_nodes, depth + 1)


def node_json(node: Any) -> JsonObject:
    """Return a node of a tree of tasks as JSON."""
    task, child_nodes = node
    return {"task": task_json(task), "children": [node_json(child) for child in child_nodes]}


def event_line(event: TaskEvent) -> Line:
    """Return the line of a task event."""
    summary = event.payload.get("state") or event.payload.get("message") or event.payload.get("tool") or event.payload
    kind = event.event_type.value
    return line((f"{event.seq:>5}", "dim"), f"  {kind:<13}", one_line(str(summary), 100))


def report_ended(tasks: list[Task]) -> Report:
    """Return the report of `bough tasks wait`: exit code 0 if all tasks completed, 1 if not, 124 after a timeout."""
    from bough.tasks import TaskState

    if any(not task.is_terminal for task in tasks):
        code = 124
    else:
        code = 0 if all(task.state is TaskState.COMPLETED for task in tasks) else 1
    blocks = [output_line for task in tasks for output_line in (*describe_task(task), line())]
    return Report(
        command="tasks wait", data={"tasks": [task_json(task) for task in tasks]}, blocks=blocks[:-1], exit_code=code
    )


def report_changed(command: str, tasks: list[Task]) -> Report:
    """Return the report of a command that changed tasks."""
    blocks = [line((task.id, "id"), "  ", (task.state.value, STATE_STYLES.get(task.state.value, ""))) for task in tasks]
    data: JsonObject = {"tasks": [task_json(task) for task in tasks]}
    if command == "tasks input":
        data = {"task": task_json(tasks[0])}
    return Report(command=command, data=data, blocks=blocks or [line("nothing to cancel")])


def suggest_next(task: Task) -> tuple[str, ...]:
    """Return the commands that a user may want to run after `bough tasks show`."""
    name = short(task.id)
    if task.state.value == "input_required":
        return (f"bough tasks input {name}",)
    if task.state.value in ("failed", "cancelled"):
        return (f"bough tasks retry {name}", f"bough tasks logs {name}")
    shows = () if task.conversation is None else (f"bough conv show {short(task.conversation)}",)
    return (f"bough tasks logs {name}", *shows)


def _age(moment: datetime) -> str:
    seconds = (datetime.now(UTC) - moment).total_seconds()
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"
