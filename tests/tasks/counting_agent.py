"""An agent for processes of their own: every model request and tool run is a line of a ledger outside the store.

`LEDGER` names the file. A tool `step` blocks for ever where `LEDGER`.gate holds its number, so that its process can be
killed at a known place.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from bough.agents.spec import AgentSpec
from bough.effects import effect_key

STEPS = 4


def note(line: str) -> None:
    """Append a line to the ledger, whole, with the process that writes it."""
    with Path(os.environ["LEDGER"]).open("a") as file:
        file.write(f"{line}\t{os.getpid()}\n")


def _task_of(messages: list[ModelMessage]) -> str:
    first = messages[0].parts[0]
    return str(getattr(first, "content", ""))


def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Ask for one step after the other, then say that it is done."""
    results = [part for message in messages for part in message.parts if isinstance(part, ToolReturnPart)]
    task = _task_of(messages)
    note(f"model {task} {len(results)}")
    if len(results) < STEPS:
        return ModelResponse([ToolCallPart("step", {"task": task, "number": len(results)})])
    return ModelResponse([TextPart(f"done {task}")])


def _read_gate() -> str:
    """Return the number at which steps block; empty if they do not. A test removes the file at any moment."""
    try:
        return Path(os.environ["LEDGER"] + ".gate").read_text()
    except FileNotFoundError:
        return ""


def step(task: str, number: int) -> str:
    """Do one step of a task."""
    with Path(os.environ["LEDGER"] + ".keys").open("a") as keys:
        keys.write(f"{task} {number} {effect_key()}\n")
    note(f"begin {task} {number}")
    while _read_gate() == str(number):
        time.sleep(0.01)
    note(f"end {task} {number}")
    return "ok"


agent = AgentSpec(name="counter", model=FunctionModel(respond), tools=(step,), skills=())
