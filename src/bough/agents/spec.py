"""What an agent is, as data. A conversation records it at its start and builds its agent from it.

Source: seed 004, `AgentSpec`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, SkipValidation, field_serializer, model_validator
from pydantic_ai.agent import AbstractAgent
from pydantic_ai.models import Model

from bough.agents.workspace_tools import WorkspaceAccess
from bough.errors import InvalidInput
from bough.execution.base import CodeExecutor
from bough.skills import Skill
from bough.types import JsonObject

DEFAULT_PROMPT = (
    "You help with the files in the current working folder. Prefer a skill that fits over doing the work by hand: "
    "load it, follow its instructions, run its scripts. Say plainly when nothing fits; never invent a result."
)


MODEL_OBJECT = "object:"
"""How a snapshot marks a model that was given as an object and cannot be made again from its name."""

_NAME = r"^[\w.-]+$"


class AgentSpec(BaseModel):
    """A declarative agent.

    Attributes:
        name: How people and other agents call it.
        model: A model string, for example `openai:gpt-5`, or a PydanticAI model; None takes the configured or
            offline one.
        base_url: Address of an OpenAI-format server for `openai:` models.
        system_prompt: What it is told first. Its own text stays as it is, braces included.
        system_prompt_path: A file to read it from; not together with `system_prompt`.
        tools: Functions as PydanticAI takes them.
        skills: Exactly these; None names none, `[]` means none.
        skill_roots: Folders to discover skills in.
        discover_skills: Look in the usual places too (project, user, installed); False never reads a folder
            behind the caller's back.
        executor: Runs scripts; None takes the conversation's.
        workspace_access: Tools of its own for the workspace: `none`, `read`, `write`, or `run` commands in the sandbox.
        catalog_tokens: How much of the prompt the skill catalogue may take, in tokens.
        agent: A PydanticAI agent to run as it is, with its instructions, tools and settings; prompt, skills and tools
            that the spec gives are added, its `model` goes first. It answers with text.
        deps: What the tools of `agent` get as their deps; never recorded.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    name: str = Field(default="default", min_length=1, max_length=64, pattern=_NAME)
    description: str = ""
    model: str | Model | None = None
    base_url: str | None = None
    system_prompt: str = DEFAULT_PROMPT
    system_prompt_path: Path | None = None
    tools: tuple[Callable[..., Any], ...] = ()
    skills: tuple[Skill, ...] | None = None
    skill_roots: tuple[Path, ...] = ()
    discover_skills: bool = False
    executor: SkipValidation[CodeExecutor | None] = None
    workspace_access: WorkspaceAccess = "none"
    catalog_tokens: int = 2000
    agent: SkipValidation[AbstractAgent[Any, str] | None] = None
    deps: Any = Field(default=None, exclude=True, repr=False)

    @classmethod
    def of(cls, agent: AbstractAgent[Any, str], *, deps: Any = None) -> AgentSpec:
        """Return the spec of a PydanticAI agent that is run as it is.

        Raises:
            InvalidInput: It has no model, or answers with something else than text.
        """
        if agent.output_type is not str:
            raise InvalidInput(
                f"the agent {agent.name or 'given'!r} answers with {agent.output_type}, a conversation with text",
                hint="make it with output_type=str; let a tool take what has a structure",
            )
        name = agent.name if agent.name and re.match(_NAME, agent.name) else "agent"
        return cls(name=name[:64], agent=agent, deps=deps)

    @model_validator(mode="before")
    @classmethod
    def _with_model_of_agent(cls, given: dict[str, Any]) -> dict[str, Any]:
        agent: object = given.get("agent")
        if isinstance(agent, AbstractAgent) and given.get("model") is None:
            return {**given, "model": agent.model}
        return given

    @model_validator(mode="after")
    def _fits(self) -> AgentSpec:
        if self.executor is not None and not hasattr(self.executor, "execute"):
            raise ValueError("an executor has an `execute` method")
        if self.system_prompt_path is not None and "system_prompt" in self.model_fields_set:
            raise ValueError("give system_prompt or system_prompt_path, not both")
        return self

    @field_serializer("model")
    def _model_name(self, model: str | Model | None) -> str | None:
        return f"{MODEL_OBJECT}{model.model_name}" if isinstance(model, Model) else model

    @field_serializer("tools")
    def _tool_names(self, tools: tuple[Callable[..., Any], ...]) -> list[str]:
        return [f"{tool.__module__}:{tool.__qualname__}" for tool in tools]

    @field_serializer("skills")
    def _skill_names(self, skills: tuple[Skill, ...] | None) -> list[str] | None:
        return None if skills is None else [skill.name for skill in skills]

    @field_serializer("executor")
    def _executor_name(self, executor: CodeExecutor | None) -> str | None:
        return None if executor is None else executor.name

    @field_serializer("agent")
    def _agent_name(self, agent: AbstractAgent[Any, str] | None) -> str | None:
        return None if agent is None else agent.name or type(agent).__name__

    @property
    def model_name(self) -> str | None:
        """The model's name, whether it was given by name or as an object."""
        return self.model.model_name if isinstance(self.model, Model) else self.model

    def prompt(self) -> str:
        """Return the system prompt's text; none for a PydanticAI agent, unless one was given for it.

        Raises:
            InvalidInput: `system_prompt_path` cannot be read.
        """
        if self.agent is not None and not self.model_fields_set & {"system_prompt", "system_prompt_path"}:
            return ""
        if self.system_prompt_path is None:
            return self.system_prompt
        try:
            return self.system_prompt_path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidInput(
                f"the system prompt of agent {self.name!r} cannot be read: {error}",
                hint=f"check system_prompt_path: {self.system_prompt_path}",
            ) from error

    def snapshot(self) -> JsonObject:
        """Return the spec as JSON for the log: tools, skills and executor by name; never a secret."""
        return self.model_dump(mode="json")
