"""Skills as tools of a model: the catalogue in its prompt, the text and the files on demand, the scripts on call.

Source: seed 003 (`SkillToolset`, executor chain, error codes), seed 004 (`activate_skill`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from pydantic_ai import RunContext
from pydantic_ai.tools import Tool
from pydantic_ai.toolsets import FunctionToolset

from bough.agents.context import ToolContext
from bough.errors import BoughError, NotFound
from bough.events.model import ScriptRan, SkillActivated
from bough.execution.base import CodeExecutionResult, CodeExecutor
from bough.skills import Skill, SkillRegistry
from bough.skills.activation import activate
from bough.skills.catalog import render_catalog
from bough.skills.resources import read_resource
from bough.skills.scripts import ScriptResult, run_script
from bough.types import Json, JsonObject

SYSTEM_INSTRUCTION = """\
You have skills: folders of instructions, files and scripts for particular jobs.
1. When a job fits a skill, call load_skill with its name and follow the instructions it returns.
2. Read a file that the instructions name with load_skill_resource.
3. Run a script that the instructions name with run_skill_script; args is a list of arguments, passed on verbatim.
4. Answer from what the scripts really printed. When a script fails, say so."""
"""What a model with skills is told before the catalogue."""

SKILL_TOOLS = ("list_skills", "search_skills", "load_skill", "load_skill_resource", "run_skill_script")
"""Names of the tools here; a skill may always use its own files and scripts."""

_MAX_ENUM = 200
_MAX_RESOURCE_BYTES = 1 << 20

ToolContextRun = RunContext[ToolContext | None]


class SkillToolset:
    """The tools through which a model uses skills.

    Args:
        skills: A registry, or the skills themselves.
        code_executor: Runs scripts; None takes the run's, and `NO_CODE_EXECUTOR` is answered where it has none.
        script_timeout: Seconds a script may take; None takes the run's, then the executor's default.
        catalog_tokens: Budget of the catalogue; beyond it `search_skills` is offered.

    Source: seed 003, `SkillToolset`.
    """

    def __init__(
        self,
        skills: SkillRegistry | Sequence[Skill],
        *,
        code_executor: CodeExecutor | None = None,
        script_timeout: float | None = None,
        catalog_tokens: int = 2000,
    ) -> None:
        self.registry = skills if isinstance(skills, SkillRegistry) else registered(skills)
        self.code_executor = code_executor
        self.script_timeout = script_timeout
        self.catalog = render_catalog(self.registry.list_all(), budget_tokens=catalog_tokens)

    @property
    def instructions(self) -> str:
        """What belongs into the system prompt; empty without skills."""
        return f"{SYSTEM_INSTRUCTION}\n\n{self.catalog.text}" if self.catalog.text else ""

    def toolset(self) -> FunctionToolset[Any]:
        """Return the PydanticAI toolset; empty without skills."""
        if not self.registry.list_all():
            return FunctionToolset()
        tools = [
            self._tool(self.list_skills, "List the skills there are, with their descriptions.", {}),
            self._tool(
                self.load_skill,
                "Load a skill: its instructions and the files it has. Do this before using it.",
                {"skill_name": self._name_schema()},
            ),
            self._tool(
                self.load_skill_resource,
                "Read a text file of a skill.",
                {
                    "skill_name": self._name_schema(),
                    "path": {"type": "string", "description": "As listed by load_skill, e.g. references/format.md"},
                },
            ),
            self._tool(
                self.run_skill_script,
                "Run a script of a skill in the sandbox, in the working folder, and return what it printed.",
                {
                    "skill_name": self._name_schema(),
                    "script_path": {"type": "string", "description": "As listed by load_skill, e.g. scripts/run.py"},
                    "args": _ARGS_SCHEMA,
                },
                required=("skill_name", "script_path"),
            ),
        ]
        if not self.catalog.complete:
            query = {"type": "string", "description": "What the job is about, in a few words"}
            tools.append(self._tool(self.search_skills, "Find skills for a job.", {"query": query}))
        return FunctionToolset(tools)

    # The tools. Arguments come unchecked from the model, so that every mistake gets its own error code.

    async def list_skills(self, _: ToolContextRun) -> Json:
        """Return name and description of every skill."""
        return [{"name": skill.name, "description": skill.description} for skill in self.registry.list_all()]

    async def search_skills(self, _: ToolContextRun, query: Json = None) -> Json:
        """Return the skills that fit `query` best, best first."""
        found = self.registry.search(str(query or ""), limit=10)
        return [{"name": skill.name, "description": skill.description} for skill in found]

    async def load_skill(self, ctx: ToolContextRun, skill_name: Json = None) -> Json:
        """Return a skill's text and record that it is active."""
        skill = self._find(skill_name)
        if not isinstance(skill, Skill):
            return skill
        activation = activate(skill)
        if ctx.deps is not None:
            known = ctx.deps.active_skills().get(skill.name) == activation.content_hash
            await ctx.deps.emit(
                SkillActivated(
                    name=skill.name,
                    content_hash=activation.content_hash,
                    trigger="tool",
                    rendered="" if known else activation.rendered,
                    allowed_tools=skill.allowed_tools,
                )
            )
        return activation.rendered

    async def load_skill_resource(self, _: ToolContextRun, skill_name: Json = None, path: Json = None) -> Json:
        """Return the text of one of the skill's files, at most 1 MiB of it."""
        skill = self._find(skill_name)
        if not isinstance(skill, Skill):
            return skill
        if skill.folder is None:
            return _error("RESOURCE_NOT_FOUND", NotFound(f"the skill {skill.name!r} has no files"))
        try:
            data = read_resource(skill.folder, str(path or ""), max_bytes=_MAX_RESOURCE_BYTES)
        except BoughError as error:
            return _error("RESOURCE_NOT_FOUND", error)
        return data.decode("utf-8", "replace")

    async def run_skill_script(
        self, ctx: ToolContextRun, skill_name: Json = None, script_path: Json = None, args: Json = None
    ) -> Json:
        """Run a script and return its result; the full figures go to the log."""
        skill = self._find(skill_name)
        if not isinstance(skill, Skill):
            return skill
        deps = ctx.deps or ToolContext()
        executor = self.code_executor or deps.executor
        timeout = self.script_timeout if self.script_timeout is not None else deps.timeout_seconds
        result = await run_script(
            skill,
            executor,
            str(script_path or ""),
            args,
            workspace=deps.workspace,
            timeout_seconds=timeout,
            env=deps.secrets(_declared(skill)),
        )
        script = result.script or str(script_path or "")
        await deps.emit(_script_ran(result, skill=skill.name, script=script, tool_call_id=ctx.tool_call_id))
        return result.as_dict()

    def _find(self, name: Json) -> Skill | JsonObject:
        if not isinstance(name, str) or not name.strip():
            return {"status": "error", "error_code": "MISSING_SKILL_NAME", "error": "skill_name is missing"}
        try:
            return self.registry.get(name.strip())
        except NotFound as error:
            return _error("SKILL_NOT_FOUND", error)

    def _name_schema(self) -> JsonObject:
        names = sorted(skill.name for skill in self.registry.list_all())
        return {"type": "string", "enum": names} if len(names) <= _MAX_ENUM else {"type": "string"}

    def _tool(
        self,
        function: Callable[..., Awaitable[Json]],
        description: str,
        properties: JsonObject,
        *,
        required: Sequence[str] | None = None,
    ) -> Tool[Any]:
        return Tool.from_schema(
            function,
            name=function.__name__,
            description=description,
            takes_ctx=True,
            json_schema={
                "type": "object",
                "properties": properties,
                "required": list(properties if required is None else required),
                "additionalProperties": False,
            },
        )


def _declared(skill: Skill) -> list[str]:
    """Return the names of the secrets that a skill asks for: `metadata: {secrets: "NAME OTHER"}`."""
    return skill.metadata.get("secrets", "").replace(",", " ").split()


def registered(skills: Iterable[Skill]) -> SkillRegistry:
    """Return a registry of exactly these skills."""
    registry = SkillRegistry()
    for skill in skills:
        registry.add(skill)
    return registry


_ARGS_SCHEMA: JsonObject = {
    "description": "Arguments: a list, passed on verbatim; or an object, {'name': 'x', 'all': true} for --name x --all",
    "anyOf": [
        {"type": "array", "items": {"type": "string"}},
        {"type": "object", "additionalProperties": True},
        {"type": "string"},
    ],
}


def _error(code: str, error: BoughError) -> JsonObject:
    text = f"{error.message}; {error.hint}" if error.hint else error.message
    return {"status": "error", "error_code": code, "error": text[:200]}


def _script_ran(result: ScriptResult, *, skill: str, script: str, tool_call_id: str | None) -> ScriptRan:
    ran = result.execution or CodeExecutionResult()
    return ScriptRan(
        tool_call_id=tool_call_id,
        skill=skill,
        script=script,
        argv=result.argv,
        status=result.status,
        exit_code=result.exit_code,
        signal=ran.signal,
        timed_out=result.timed_out,
        killed_by=ran.killed_by,
        isolation=result.isolation,
        wall_seconds=round(ran.wall_seconds, 6),
        cpu_seconds=round(ran.cpu_seconds, 6),
        max_rss_bytes=ran.max_rss_bytes,
        stdout_bytes=ran.stdout_bytes,
        stderr_bytes=ran.stderr_bytes,
        output_files=tuple(file.path for file in result.output_files),
        error=result.details or None,
    )
