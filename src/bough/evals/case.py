"""A case of an eval set: its messages and the expected behaviour of the agent.

Source: Google ADK eval sets.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from bough.types import JsonObject

if TYPE_CHECKING:
    from pydantic_evals.evaluators import Evaluator


CaseSetup: TypeAlias = Literal["chat", "skill", "data", "harbor"]
"""The setup of an attempt: none, an evaluated skill, data query tools, or a task's container."""


_STRICT = ConfigDict(frozen=True, extra="forbid")


class _Frozen(BaseModel):
    model_config = _STRICT


@dataclass(frozen=True)
class ToolUse:
    """An expected tool call, with bough's tool names.

    Attributes:
        args: The arguments to compare; other arguments may have any value.
    """

    __pydantic_config__: ClassVar = _STRICT

    name: Annotated[str, Field(min_length=1)]
    args: JsonObject = field(default_factory=dict[str, Any])


@dataclass(frozen=True)
class Rubric:
    """A property that the judge checks.

    Attributes:
        property: The property as a statement.
        kind: The set's name for the kind of rubric; stored, without effect.
    """

    __pydantic_config__: ClassVar = _STRICT

    id: Annotated[str, Field(min_length=1)]
    property: Annotated[str, Field(min_length=1)]
    kind: str = ""


class TurnInput(_Frozen):
    """One user message and its expected effects.

    Attributes:
        tool_uses: The expected tool calls.
        reference: The expected answer; None if there is none.
        rubrics: Judged on this turn of the trace.
    """

    user: str = Field(min_length=1)
    tool_uses: tuple[ToolUse, ...] = ()
    reference: str | None = None
    rubrics: tuple[Rubric, ...] = ()


class FileInput(_Frozen):
    """A file or folder to copy into the workspace of an attempt.

    Attributes:
        target: Path relative to the workspace.
    """

    source: Path
    target: str = Field(min_length=1)


class CaseInput(_Frozen):
    """The inputs of an attempt at a case.

    Attributes:
        turns: User messages in order; each is sent after the previous one is answered.
        skill_roots: Additional folders of skills for the agent.
        offer_skills: Whether the agent gets any skills.
        rubrics: Judged on the whole trace.
        expect: Thresholds of this case by metric, for example `{"steps": 5, "order": 1.0}`.
        should_trigger: Whether the skill should be used; None if the case does not check it.
        skill: Name of the evaluated skill.
        state: Content of `state.json` in the workspace; None for no file.
        expected: Description of a good outcome, for the judge only.
        checks: Assertions about the outcome: mechanical forms, or statements for the judge.
    """

    turns: tuple[TurnInput, ...] = Field(min_length=1)
    files: tuple[FileInput, ...] = ()
    skill_roots: tuple[Path, ...] = ()
    offer_skills: bool = True
    rubrics: tuple[Rubric, ...] = ()
    expect: dict[str, float] = {}
    should_trigger: bool | None = None
    skill: str | None = None
    state: JsonObject | None = None
    expected: str = ""
    checks: tuple[str, ...] = ()
    setup: CaseSetup = "chat"

    @classmethod
    def of(cls, inputs: CaseInput | str) -> CaseInput:
        """Return the inputs of a pydantic-evals case; a string becomes one message."""
        return inputs if isinstance(inputs, CaseInput) else cls(turns=(TurnInput(user=inputs),))

    @property
    def tool_uses(self) -> tuple[ToolUse, ...]:
        """The expected calls of all turns, in order."""
        return tuple(use for turn in self.turns for use in turn.tool_uses)

    @property
    def reference(self) -> str | None:
        """The reference of the last turn with a reference; None if there is none."""
        return next((turn.reference for turn in reversed(self.turns) if turn.reference is not None), None)

    @property
    def all_rubrics(self) -> tuple[Rubric, ...]:
        """The rubrics of the case and of its turns."""
        return (*self.rubrics, *(rubric for turn in self.turns for rubric in turn.rubrics))


@dataclass(frozen=True, kw_only=True)
class SetCase:
    """One case of a set.

    Attributes:
        id: Id, unique in the set.
        evaluators: The case's own evaluators, in addition to the metrics that apply to it.
        metadata: Other fields of the case in the file.
        split: For trigger queries: `train` or `validation`.
    """

    id: str
    input: CaseInput
    evaluators: tuple[Evaluator[Any, Any, Any], ...] = ()
    metadata: JsonObject = field(default_factory=dict[str, Any])
    split: str = ""

    @property
    def sha256(self) -> str:
        """Hexadecimal digest of inputs and evaluators; independent of where files and skills are."""
        inputs = self.input.model_dump(mode="json", exclude={"files": {"__all__": {"source"}}, "skill_roots": True})
        specs = [repr(evaluator) for evaluator in self.evaluators]
        return sha256(json.dumps([inputs, specs], sort_keys=True).encode()).hexdigest()
