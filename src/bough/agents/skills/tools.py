"""Skills as tools for a model. The catalogue is in the prompt; the model loads texts and files and runs scripts.

Source: ADK (`SkillToolset`, executor chain, error codes), agentic_patterns (`activate_skill`).
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, cast

from pydantic_ai import RunContext
from pydantic_ai.messages import InstructionPart
from pydantic_ai.tools import Tool
from pydantic_ai.toolsets import AbstractToolset, FunctionToolset, ToolsetTool

from bough.agents.context import ToolContext, as_tool_context
from bough.agents.skills.activation import find_always_active, make_activation_event, render_update
from bough.agents.writes import WRITES, report_execution
from bough.errors import BoughError, InvalidInput, NotFound
from bough.events.private_folder import PrivateFolder
from bough.execution.base import CodeExecutor, File
from bough.skills import Skill, SkillRegistry
from bough.skills.find.catalog import Catalog, cut, extract_first_sentence, render_catalog
from bough.skills.match.activation import Activation, activate, require_reviewed
from bough.skills.model import is_skill_file
from bough.skills.read.resources import read_part, suggest_nearest
from bough.skills.run.scripts import ScriptRefused, ScriptResult, make_refusal, resolve_script, run_script, shorten
from bough.skills.run.tools import choose_error_code, make_script_event
from bough.skills.trust.snapshot import SkillSnapshot
from bough.types import Json, JsonObject

SYSTEM_INSTRUCTION = """\
You have skills: folders of instructions, files and scripts for particular jobs.
1. When a job fits a skill, call load_skill with its name and follow the instructions it returns.
2. Read a file that the instructions name with load_skill_resource.
3. Run a script that the instructions name with run_skill_script; args is a list of arguments, passed on verbatim.
4. Answer from what the scripts really printed. When a script fails, say so."""
"""The instructions before the catalogue."""

SKILL_TOOLS = ("list_skills", "search_skills", "load_skill", "load_skill_resource", "run_skill_script")
"""The names of the tools in this module. `allowed-tools` of a skill never forbids them."""

READS_SKILLS = "reads_skills"
"""The key in the metadata of tools that only read the agent's skills; see `ToolRequest.reads_skills`."""

_OUTPUT_PREFIX = "bough-output-"
_MAX_ENUM = 50
_MAX_ANSWER_BYTES = 16 << 10
_MAX_RESULTS = 50
_MAX_RESULT_DESCRIPTION = 512
_MAX_RESOURCE_BYTES = 256 << 10

ToolContextRun = RunContext[Any]


class SkillToolset(AbstractToolset[Any]):
    """A PydanticAI toolset with which a model uses skills, and the instructions about them.

    `Agent(model, toolsets=[SkillToolset(skills, code_executor=...)])` needs no other setup. Scripts run in the executor
    of the toolset, else of the run (`deps.code_executor` or `deps.executor`); without an executor, the result is
    `NO_CODE_EXECUTOR`. They work in `deps.workspace`. Without a workspace, each script run gets a new folder, and its
    output files are stored below `output_folder`.

    Args:
        skills: A registry, or the skills themselves.
        code_executor: Runs scripts; None uses the run's.
        script_timeout: Time limit of a script in seconds; None uses the run's, then the executor's default.
        catalog_tokens: Budget of the catalogue, in tokens; if it is exceeded, there is also the tool `search_skills`.
        output_folder: Where output files of scripts without a workspace are stored, in one folder per run; they are
            never deleted. None creates a temporary folder for the first file, and deletes it with the toolset, at the
            latest when the process exits.

    Attributes:
        always_active: The always-active skills; their texts are part of `instructions`.

    Source: ADK `SkillToolset`.
    """

    def __init__(
        self,
        skills: SkillRegistry | Sequence[Skill],
        *,
        code_executor: CodeExecutor | None = None,
        script_timeout: float | None = None,
        catalog_tokens: int = 2000,
        output_folder: Path | None = None,
    ) -> None:
        self.registry = skills if isinstance(skills, SkillRegistry) else make_registry(skills)
        self.code_executor = code_executor
        self.script_timeout = script_timeout
        self.output_folder = output_folder
        self._temporary_folder: PrivateFolder | None = None
        self.always_active = find_always_active(self.registry)
        self._catalogued = self.registry.list_catalogued()
        self._names_with_files = [
            skill.name for skill in self.registry.list_all() if is_skill_file(skill.file.rpartition("/")[2])
        ]
        self._catalog_tokens = catalog_tokens
        self.catalog, tools = self._fit_catalog()
        self._functions: FunctionToolset[Any] = FunctionToolset(tools)

    @property
    def id(self) -> str:
        """A name for logs."""
        return "skills"

    @property
    def instructions(self) -> str:
        """The text for the system prompt: always-active skills, then the catalogue; empty without skills."""
        return "\n\n".join(filter(None, (self.always_active.text, self.usage_instructions)))

    @property
    def usage_instructions(self) -> str:
        """The instructions for using skills, and the catalogue; empty if the catalogue is empty."""
        return f"{SYSTEM_INSTRUCTION}\n\n{self.catalog.text}" if self.catalog.text else ""

    def rank_catalog(self, request: str) -> Catalog:
        """Return the catalogue ranked for a request; a complete catalogue is the same for every request."""
        return self.catalog if self.catalog.complete else self._render(request, is_complete=False)

    def _render(self, request: str = "", *, is_complete: bool) -> Catalog:
        schema_bytes = _count_schema_bytes(self._tools(is_complete=is_complete))
        return render_catalog(
            self._catalogued, budget_tokens=self._catalog_tokens, schema_bytes=schema_bytes, request=request
        )

    def _fit_catalog(self) -> tuple[Catalog, list[Tool[Any]]]:
        """Return a catalogue and tools that fit the budget together; a partial one needs `search_skills`."""
        catalog = self._render(is_complete=True)
        if not catalog.complete:
            catalog = self._render(is_complete=False)
        return catalog, self._tools(is_complete=catalog.complete)

    async def get_instructions(self, ctx: RunContext[Any]) -> InstructionPart | None:
        """Return `instructions`, which never change."""
        return InstructionPart(self.instructions) if self.instructions else None

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        """Return the tools; none without skills."""
        return await self._functions.get_tools(ctx)

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> Any:
        """Call one of the tools."""
        return await self._functions.call_tool(name, tool_args, ctx, tool)

    def toolset(self) -> FunctionToolset[Any]:
        """Return the tools without instructions, for an agent whose own instructions include `instructions`."""
        return self._functions

    def _tools(self, *, is_complete: bool) -> list[Tool[Any]]:
        """Return the tools that the skills need; `search_skills` only if the catalogue is not complete."""
        # In bytes. At four characters a token, this is a quarter of the catalogue's budget.
        max_enum_bytes = self._catalog_tokens
        skill_with_files = {"skill_name": _make_name_schema(self._names_with_files, max_enum_bytes)}
        path_schema = {"type": "string", "description": "As listed by load_skill, e.g. references/format.md"}
        script_schema = {"type": "string", "description": "As listed by load_skill, e.g. scripts/run.py"}
        tools: list[Tool[Any]] = []
        if self._catalogued:
            load_properties: JsonObject = {
                "skill_name": _make_name_schema([skill.name for skill in self._catalogued], max_enum_bytes)
            }
            if any(skill.inputs for skill in self._catalogued):
                load_properties["inputs"] = _INPUTS_SCHEMA
            tools += [
                _make_tool(
                    self.list_skills,
                    "List the available skills, page by page.",
                    {"offset": {"type": "integer"}, "limit": {"type": "integer"}},
                    required=(),
                ),
                _make_tool(
                    self.load_skill,
                    "Load a skill: its instructions and the list of its files. Do this before using it.",
                    load_properties,
                    required=("skill_name",),
                ),
            ]
        if self._names_with_files:
            tools += [
                _make_tool(
                    self.load_skill_resource,
                    "Read a text file of a skill.",
                    skill_with_files | {"path": path_schema, "start_line": {"type": "integer"}},
                    required=("skill_name", "path"),
                ),
                _make_tool(
                    self.run_skill_script,
                    "Run a script of a skill in the sandbox, in the working folder, and return what it printed.",
                    skill_with_files | {"script_path": script_schema, "args": _ARGS_SCHEMA},
                    required=("skill_name", "script_path"),
                ),
            ]
        if not is_complete:
            query_schema = {"type": "string", "description": "What the job is about, in a few words"}
            search_properties: JsonObject = {"query": query_schema, "limit": {"type": "integer"}}
            tools.append(
                _make_tool(self.search_skills, "Find skills for a job.", search_properties, required=("query",))
            )
        return tools

    # The tools. They validate their arguments themselves, so that each mistake has its own error code.

    async def list_skills(self, _: ToolContextRun, offset: Json = 0, limit: Json = 50) -> Json:
        """Return one page of skills, each with its name and first sentence; at most 16 KiB."""
        page_start = _clamp_number(offset, 0, len(self._catalogued))
        page_size = _clamp_number(limit, _MAX_RESULTS, _MAX_RESULTS)
        page: list[Json] = []
        page_bytes = 0
        for skill in self._catalogued[page_start : page_start + page_size]:
            entry: JsonObject = {"name": skill.name, "description": extract_first_sentence(skill.description)}
            page_bytes += len(json.dumps(entry, ensure_ascii=False).encode("utf-8", "replace")) + 2
            if page_bytes > _MAX_ANSWER_BYTES:
                break
            page.append(entry)
        next_offset = page_start + len(page)
        return {
            "skills": page,
            "total": len(self._catalogued),
            "next_offset": next_offset if next_offset < len(self._catalogued) else None,
        }

    async def search_skills(self, _: ToolContextRun, query: Json = None, limit: Json = 10) -> Json:
        """Return the skills that match `query`, best match first."""
        max_results = _clamp_number(limit, 10, _MAX_RESULTS)
        skills = [skill for skill in self.registry.search(str(query or ""), limit=4 * max_results) if skill.catalogued]
        return [
            {"name": skill.name, "description": cut(skill.description, _MAX_RESULT_DESCRIPTION)}
            for skill in skills[:max_results]
        ]

    async def load_skill(self, ctx: ToolContextRun, skill_name: Json = None, inputs: Json = None) -> Json:
        """Return a skill's text with `inputs` substituted, and record its activation."""
        deps = as_tool_context(ctx.deps)
        loaded = await asyncio.to_thread(self._activate, skill_name, inputs, deps)
        if isinstance(loaded, dict):  # an error result
            return loaded
        skill, values, activation = loaded
        previous_hash = deps.active_skills().get(skill.name)
        allowed = skill.allowed_tools
        await deps.emit(
            make_activation_event(
                activation, trigger="tool", previous_hash=previous_hash, inputs=values, allowed_tools=allowed
            )
        )
        return render_update(activation, previous_hash)

    async def load_skill_resource(
        self, ctx: ToolContextRun, skill_name: Json = None, path: Json = None, start_line: Json = 1
    ) -> Json:
        """Return the text of a skill's file from `start_line` on, at most 256 KiB."""
        deps = as_tool_context(ctx.deps)
        return await asyncio.to_thread(
            self._read_resource, skill_name, path, deps, _clamp_number(start_line, 1, 1 << 40)
        )

    async def run_skill_script(
        self, ctx: ToolContextRun, skill_name: Json = None, script_path: Json = None, args: Json = None
    ) -> Json:
        """Run a script, record it in the log, and return its result."""
        deps = as_tool_context(ctx.deps)
        active = await asyncio.to_thread(self._find_active, skill_name, deps)
        if isinstance(active, dict):  # an error result
            return active
        skill, snapshot = active
        result = await self._run_script(skill, snapshot, script_path, args, deps)
        script = result.script or str(script_path or "")
        report_execution(False if result.execution is None else result.execution.changed)
        # Recorded first: when the model sees a result, the log must already contain the script that produced it.
        await deps.emit(make_script_event(result, skill=skill.name, script=script, tool_call_id=ctx.tool_call_id))
        answer: JsonObject = result.as_dict()
        if result.output_files and deps.workspace is None:
            answer["output_folder"] = str(await asyncio.to_thread(self._save_output_files, result.output_files))
        return answer

    async def _run_script(
        self, skill: Skill, snapshot: SkillSnapshot | None, script_path: Json, args: Json, deps: ToolContext
    ) -> ScriptResult:
        """Run a script with the settings of the toolset and the run."""
        name = script_path if isinstance(script_path, str) else ""
        executor = self.code_executor or deps.executor
        if executor is None:
            try:
                await asyncio.to_thread(resolve_script, skill, name)
            except ScriptRefused as error:  # an invalid script name is reported instead of the missing executor
                return make_refusal(error.error_code, error.message, skill=skill.name, script=name)
        return await run_script(
            skill,
            executor,
            name,
            args,
            workspace=None if deps.readonly else deps.workspace,
            timeout_seconds=self.script_timeout if self.script_timeout is not None else deps.timeout_seconds,
            env=await asyncio.to_thread(deps.secrets, _list_declared_secrets(skill)),
            snapshot=snapshot,
            guards=deps.guards,
            execution_id=None if deps.conversation is None else str(deps.conversation),
        )

    def _save_output_files(self, files: Iterable[File]) -> Path:
        """Write a script's output files into a new folder, and return the folder."""
        if self.output_folder is None:
            self._temporary_folder = PrivateFolder(_OUTPUT_PREFIX)
            self.output_folder = self._temporary_folder.path
        self.output_folder.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix="run-", dir=self.output_folder))
        for file in files:
            # Normalized as an absolute path, so that a `..` from the sandbox cannot lead out of the folder.
            target = folder / os.path.normpath(f"/{file.path}")[1:]
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(file.content)
        return folder

    def _activate(
        self, name: Json, inputs: Json, deps: ToolContext
    ) -> tuple[Skill, dict[str, str], Activation] | JsonObject:
        """Return (skill, inputs, activation) for a call of `load_skill`, or an error result."""
        skill = self._find_skill(name, deps)
        if not isinstance(skill, Skill):
            return skill
        if inputs is not None and not isinstance(inputs, dict):
            return _make_refusal_result(
                "INVALID_ARGS_TYPE", "invalid inputs: expected an object with the value of each input by name"
            )
        values = {str(key): str(value) for key, value in cast("JsonObject", inputs or {}).items() if value is not None}
        try:
            # Taken now: scripts and files are read from this snapshot later, even if the folder has changed by then.
            snapshot = self.registry.snapshot(skill)
            return skill, values, activate(skill, values, tree="" if snapshot is None else snapshot.digest)
        except InvalidInput as error:
            return _make_error_result("INVALID_INPUT_ARGS", error)
        except BoughError as error:
            return _make_error_result(choose_error_code(error), error)

    def _read_resource(self, name: Json, path: Json, deps: ToolContext, start_line: int = 1) -> Json:
        """Return a part of a skill's file with a note on how to continue, or an error result."""
        active = self._find_active(name, deps)
        if isinstance(active, dict):  # an error result
            return active
        skill, snapshot = active
        folder = skill.folder if snapshot is None else snapshot.folder
        if folder is None:
            return _make_error_result("RESOURCE_NOT_FOUND", NotFound(f"skill {skill.name!r} has no files"))
        try:
            part = read_part(folder, str(path or ""), start_line=start_line, max_bytes=_MAX_RESOURCE_BYTES)
        except BoughError as error:
            return _make_error_result("RESOURCE_NOT_FOUND", error)
        if part.is_binary:
            return _make_refusal_result(
                "RESOURCE_NOT_TEXT", f"{path} is not text ({part.size} bytes); read it with a script"
            )
        if part.next_line is None:
            return part.text
        next_call = f"load_skill_resource({skill.name!r}, {str(path)!r}, start_line={part.next_line})"
        return f"{part.text}\n[truncated; continue with {next_call}]"

    def _find_active(self, name: Json, deps: ToolContext) -> tuple[Skill, SkillSnapshot | None] | JsonObject:
        """Return the skill and snapshot that the conversation activated, else the current ones; or an error result."""
        skill_name = name.strip() if isinstance(name, str) else ""
        tree = deps.skill_trees().get(skill_name, "")
        try:
            if tree:
                return self.registry.get_active(skill_name, tree)
            skill = self._find_skill(name, deps)
            return (skill, self.registry.snapshot(skill)) if isinstance(skill, Skill) else skill
        except BoughError as error:
            return _make_error_result(choose_error_code(error), error)

    def _find_skill(self, name: Json, deps: ToolContext) -> Skill | JsonObject:
        """Return a skill, or an error result. A skill that only users may call must already be active."""
        if not isinstance(name, str) or not name.strip():
            return _make_refusal_result("MISSING_SKILL_NAME", "skill_name is missing")
        try:
            skill = self.registry.get(name.strip())
            # Rules are checked too: otherwise a tool could write a rule, and the model's next call could load it.
            require_reviewed(self.registry, skill, deps.changed_rules())
        except BoughError as error:
            return _make_error_result(choose_error_code(error), error)
        if skill.invocable or skill.name in deps.active_skills():
            return skill
        offered_names = tuple(skill.name for skill in self._catalogued)
        return _make_refusal_result(
            "SKILL_NOT_FOUND", f"only the user may call {skill.name!r}; {suggest_nearest(name, offered_names)}"
        )


def _make_name_schema(names: Sequence[str], max_bytes: int) -> JsonObject:
    """Return the JSON schema of a skill's name: an enum if the names are few and short."""
    is_short = 0 < len(names) <= _MAX_ENUM and len(json.dumps(list(names))) <= max_bytes
    return {"type": "string", "enum": list(names)} if is_short else {"type": "string"}


def _clamp_number(value: Json, default: int, largest: int) -> int:
    """Return a number from the model, limited to the range from 0 to `largest`; `default` if it is not a number."""
    return max(0, min(int(value), largest)) if isinstance(value, int | float) else default


def _count_schema_bytes(tools: Sequence[Tool[Any]]) -> int:
    """Return the size of the tools as JSON, in bytes."""
    return sum(
        len(json.dumps([tool.name, tool.description, tool.function_schema.json_schema]).encode()) for tool in tools
    )


def _make_tool(
    function: Callable[..., Awaitable[Json]],
    description: str,
    properties: JsonObject,
    *,
    required: Sequence[str] | None = None,
) -> Tool[Any]:
    """Return a tool whose schema has these properties; a call with unknown arguments gets an error result."""
    name = function.__name__

    async def call(ctx: RunContext[Any], **arguments: Json) -> Json:
        if unknown := [name for name in arguments if name not in properties]:
            available = ", ".join(properties) or "none"
            return _make_refusal_result(
                "INVALID_INPUT_ARGS", f"{name} has no argument {unknown[0][:60]!r}; available: {available}"
            )
        return await function(ctx, **arguments)

    tool: Tool[Any] = Tool.from_schema(
        call,
        name=name,
        description=description,
        takes_ctx=True,
        json_schema={
            "type": "object",
            "properties": properties,
            "required": list(properties if required is None else required),
            "additionalProperties": False,
        },
    )
    tool.metadata = None if name == "run_skill_script" else {WRITES: False, READS_SKILLS: True}
    return tool


def _list_declared_secrets(skill: Skill) -> list[str]:
    """Return the names of the secrets that a skill declares: `metadata: {secrets: "NAME OTHER"}`."""
    return skill.metadata.get("secrets", "").replace(",", " ").split()


def make_registry(skills: Iterable[Skill]) -> SkillRegistry:
    """Return a registry of exactly these skills.

    Raises:
        InvalidInput: Two skills have the same name. (Of discovered skills, the first one is used.)
    """
    registry = SkillRegistry()
    names: set[str] = set()
    for skill in skills:
        if skill.name in names:
            raise InvalidInput(f"two skills are named {skill.name!r}", hint="give one of them another name")
        names.add(skill.name)
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


_INPUTS_SCHEMA: JsonObject = {
    "type": "object",
    "description": "Values of the inputs that the skill asks for, by name, as the user gave them",
    "additionalProperties": {"type": "string"},
}


def _make_error_result(code: str, error: BoughError) -> JsonObject:
    return _make_refusal_result(code, f"{error.message}; {error.hint}" if error.hint else error.message)


def _make_refusal_result(code: str, text: str) -> JsonObject:
    return {"status": "error", "error_code": code, "error": shorten(text)}
