"""Every name of seed 004's API reference, where it is promised, with the parameters that the seed shows."""

from __future__ import annotations

import enum
import importlib
import inspect
from abc import ABC
from typing import Any

import pytest
from pydantic import BaseModel

import bough
from bough.tasks import TERMINAL_STATES, EventType, TaskState

ROOMS = {
    "bough.orchestrator": ["AgentSpec", "OrchestratorAgent", "NodeHook"],
    "bough.agents": ["get_agent", "run_agent"],
    "bough.skills": [
        "SkillMetadata",
        "Skill",
        "SkillRegistry",
        "list_available_skills",
        "get_skill_instructions",
        "get_all_tools",
        "create_skill_sandbox_manager",
        "run_skill_script",
    ],
    "bough.tasks": [
        "TaskState",
        "TERMINAL_STATES",
        "EventType",
        "Task",
        "TaskEvent",
        "TaskStore",
        "TaskStoreMemory",
        "TaskBroker",
        "Worker",
    ],
}
ONLY_IN_THEIR_ROOM = {
    "list_available_skills",
    "get_skill_instructions",
    "get_all_tools",
    "create_skill_sandbox_manager",
    "run_skill_script",
}

CALLS: list[tuple[str, str, list[str]]] = [
    ("bough.orchestrator", "OrchestratorAgent", ["spec", "verbose", "on_node"]),
    ("bough.orchestrator", "OrchestratorAgent.run", ["self", "prompt"]),
    (
        "bough.orchestrator",
        "AgentSpec.from_config",
        [
            "name",
            "model_name",
            "system_prompt_path",
            "tool_names",
            "mcp_server_names",
            "a2a_client_names",
            "skill_roots",
            "skill_names",
        ],
    ),
    ("bough.skills", "SkillRegistry.discover", ["self", "roots"]),
    ("bough.skills", "SkillRegistry.get", ["self", "name"]),
    ("bough.skills", "SkillRegistry.list_all", ["self"]),
    ("bough.skills", "list_available_skills", ["registry"]),
    ("bough.skills", "get_skill_instructions", ["registry", "name"]),
    ("bough.skills", "get_all_tools", ["registry"]),
    ("bough.skills", "create_skill_sandbox_manager", ["registry"]),
    (
        "bough.skills",
        "run_skill_script",
        ["manager", "registry", "user_id", "session_id", "skill_name", "script_name", "args"],
    ),
    ("bough.tasks", "TaskBroker", ["store", "poll_interval", "model", "activity"]),
    ("bough.tasks", "TaskBroker.submit", ["self", "input"]),
    ("bough.tasks", "TaskBroker.poll", ["self", "task_id"]),
    ("bough.tasks", "TaskBroker.wait", ["self", "task_id"]),
    ("bough.tasks", "TaskBroker.stream", ["self", "task_id"]),
    ("bough.tasks", "TaskBroker.cancel", ["self", "task_id"]),
    ("bough.tasks", "TaskBroker.cancel_all", ["self"]),
    ("bough.tasks", "TaskBroker.notify", ["self", "task_id", "states", "callback"]),
    ("bough.tasks", "TaskBroker.register_agents", ["self", "specs"]),
    ("bough.tasks", "Worker", ["store", "model"]),
    ("bough.tasks", "Worker.execute", ["self", "task_id"]),
    *(("bough.tasks", f"TaskStore.{name}", ["self"]) for name in ("create", "get", "update_state", "list_by_state")),
    *(("bough.tasks", f"TaskStore.{name}", ["self"]) for name in ("next_pending", "add_event")),
]


@pytest.mark.parametrize(("room", "name"), [(room, name) for room, names in ROOMS.items() for name in names])
def test_a_name_of_the_seed_is_importable(room: str, name: str) -> None:
    found = getattr(importlib.import_module(room), name)
    if name not in ONLY_IN_THEIR_ROOM:
        assert getattr(bough, name) is found
        assert name in bough.__all__


@pytest.mark.parametrize(("room", "path", "parameters"), CALLS)
def test_a_call_of_the_seed_takes_its_parameters_by_place_and_by_name(
    room: str, path: str, parameters: list[str]
) -> None:
    found: Any = importlib.import_module(room)
    for part in path.split("."):
        found = getattr(found, part)
    known = list(inspect.signature(found).parameters.values())
    assert [each.name for each in known[: len(parameters)]] == parameters
    assert all(each.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for each in known[: len(parameters)])


def test_the_kinds_are_those_of_the_seed() -> None:
    for name in ("AgentSpec", "Task", "TaskEvent"):
        assert issubclass(getattr(bough, name), BaseModel)
    assert issubclass(bough.TaskStore, ABC)
    assert issubclass(TaskState, enum.Enum)
    assert {state.name for state in TERMINAL_STATES} == {"COMPLETED", "FAILED", "CANCELLED"}
    assert {kind.name for kind in EventType} == {"STATE_CHANGE", "PROGRESS", "LOG"}
    names = ["PENDING", "RUNNING", "COMPLETED", "FAILED", "INPUT_REQUIRED", "CANCELLED"]
    assert {state.name for state in TaskState} == set(names)
    fields = {"id", "state", "input", "result", "error", "events", "metadata"}
    assert fields <= set(bough.Task.model_fields)
    assert {"task_id", "event_type", "payload", "timestamp"} <= set(bough.TaskEvent.model_fields)


def test_a_task_begins_pending_and_empty() -> None:
    task = bough.Task(input="Analyze this dataset")
    assert (task.state, task.result, task.error, task.events, task.metadata) == (TaskState.PENDING, None, None, [], {})
