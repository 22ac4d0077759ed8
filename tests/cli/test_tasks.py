"""`bough tasks`: what people say to work that was submitted."""

from __future__ import annotations

from typing import Any


def test_a_task_is_cancelled_and_retried(cli: Any) -> None:
    """An answer to a task that asks nothing is a conflict; cancelling needs consent; a retry is a new task."""
    task_id = cli.data("run", "--detach", "bake a cake")["task"]
    asked = cli("tasks", "input", task_id, "yes")
    assert asked.returncode != 0
    assert "asks nothing: it is pending" in asked.stderr
    (cancelled,) = cli.data("tasks", "cancel", task_id, "--yes")["tasks"]
    assert (cancelled["id"], cancelled["state"]) == (task_id, "cancelled")
    (again,) = cli.data("tasks", "retry", task_id)["tasks"]
    assert (again["state"], again["conversation"]) == ("pending", cancelled["conversation"])
    assert again["id"] != task_id
