"""`bough tasks`: what people say to work that was submitted."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def test_a_task_is_cancelled_and_retried(cli: Any) -> None:
    """Answering a task that does not ask is a conflict; cancelling needs consent; a retry is a new task."""
    task_id = cli.data("run", "--detach", "bake a cake")["task"]
    asked = cli("tasks", "input", task_id, "yes")
    assert asked.returncode != 0
    assert "does not ask for input: it is pending" in asked.stderr
    (cancelled,) = cli.data("tasks", "cancel", task_id, "--yes")["tasks"]
    assert (cancelled["id"], cancelled["state"]) == (task_id, "cancelled")
    (again,) = cli.data("tasks", "retry", task_id)["tasks"]
    assert (again["state"], again["conversation"]) == ("pending", cancelled["conversation"])
    assert again["id"] != task_id


CONFIG = """
models: {default: offline}
agents:
  head: {description: Coordinates, sub_agents: [weather]}
  weather: {description: Answers questions about the weather of a city, system_prompt: You know the weather.}
"""


def test_a_tree_of_conversations_names_their_tasks_and_a_task_its_parent(cli: Any, bough_home: Path) -> None:
    """The task that ran a conversation, and the one that the conversation started; `doctor` has read the file."""
    bough_home.mkdir(parents=True, exist_ok=True)
    (bough_home / "config.yaml").write_text(CONFIG)
    submitted = cli.data("run", "--detach", "--agent", "head", "What is the weather of the city?")
    (ended,) = cli.data("tasks", "wait", "--run", submitted["task"])["tasks"]
    assert ended["state"] == "completed"
    tasks = cli.data("conv", "tree", submitted["conversation"])["tasks"]
    child = next(each for each in tasks if each["parent"] == submitted["conversation"])
    assert [each["id"] for each in tasks if each["conversation"]] == [submitted["task"]]
    assert (child["agent"], child["state"]) == ("weather", "completed")
    shown = cli("tasks", "show", submitted["task"]).stdout
    assert child["id"].replace("-", "")[-8:] in shown.partition("started by it")[2]
    assert cli.data("tasks", "show", child["id"])["task"]["parent_id"] == submitted["conversation"]
    started = cli.data("tasks", "list", "--parent", submitted["conversation"])["tasks"]
    assert [task["id"] for task in started] == [child["id"]]
    config = next(each for each in cli.data("doctor")["checks"] if each["part"] == "config")
    assert (config["state"], "2 agents" in config["said"]) == ("ok", True)


def test_the_heading_of_a_conversation_names_its_task(cli: Any, bough_home: Path) -> None:
    """Also where the task has not begun; a mistake in the file is a row of `doctor`, and no more."""
    task_id = cli.data("run", "--detach", "bake a cake")["task"]
    (bough_home / "config.yaml").write_text("agents: {a: {modl: x}}\n")
    assert f"run as task {task_id.replace('-', '')[-8:]}  pending" in cli("conv", "show").stdout
    found = cli.data("doctor")
    config = next(each for each in found["checks"] if each["part"] == "config")
    assert (config["state"], found["works"]) == ("broken", True)
