"""The functions of agentic_patterns under their original names, on top of the registry and an executor.

Source: agentic_patterns (`list_available_skills`, `get_skill_instructions`, `get_all_tools`,
`create_skill_sandbox_manager`, `run_skill_script`).
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bough.errors import BoughError, Conflict, PermissionDenied
from bough.execution.base import CodeExecutor
from bough.portal import portal
from bough.skills.match.activation import activate
from bough.skills.registry import SkillRegistry
from bough.skills.run.scripts import ErrorCode, ScriptResult, make_refusal, run_script

if TYPE_CHECKING:
    from bough.events.model import ScriptRan


def list_available_skills(registry: SkillRegistry) -> str:
    """Return one line `name: description` per skill, sorted by name; empty if there are none."""
    return "\n".join(f"{skill.name}: {' '.join(skill.description.split())}" for skill in registry.list_all())


def get_skill_instructions(registry: SkillRegistry, name: str) -> str:
    """Return the instructions of a skill.

    Raises:
        NotFound: No skill has that name; the hint names the nearest.
    """
    return registry.get(name).body


def get_all_tools(registry: SkillRegistry) -> list[Callable[[str], str]]:
    """Return `activate_skill` as a list, the only tool an agent needs to use the registry's skills."""

    def activate_skill(skill_name: str) -> str:
        """Return the full instructions of a skill in the catalogue, with the list of its files.

        Args:
            skill_name: A name from the catalogue.
        """
        try:
            return activate(registry.get(skill_name)).rendered
        except BoughError as error:
            return f"Error: {error.message}. {error.hint}".strip()

    return [activate_skill]


@dataclass(frozen=True)
class SkillSandbox:
    """Runs the scripts of a registry's skills; each script sees its own skill read-only.

    Attributes:
        executor: The sandbox that runs them.
    """

    registry: SkillRegistry
    executor: CodeExecutor

    async def run(self, skill_name: str, script_name: str, args: Any = None) -> ScriptResult:
        """Run a script of a skill; any failure is a result with an error code."""
        return await run_named_script(self.registry, self.executor, skill_name, script_name, args)


def create_skill_sandbox_manager(registry: SkillRegistry, executor: CodeExecutor | None = None) -> SkillSandbox:
    """Return an object that runs the scripts of the registry's skills, by default in the local sandbox."""
    if executor is None:
        from bough.execution.local import LocalSandboxCodeExecutor

        executor = LocalSandboxCodeExecutor()
    return SkillSandbox(registry, executor)


def run_skill_script(
    manager: SkillSandbox,
    registry: SkillRegistry,
    user_id: str,
    session_id: str,
    skill_name: str,
    script_name: str,
    args: Any = None,
) -> tuple[int, str]:
    """Run a script of a skill and return its exit code and its output, stderr after stdout. Blocks.

    Returns -1 and the reason if the script was not run. An executor with warm interpreters uses a separate one for each
    `user_id` and `session_id`.
    """
    # Without the NUL, ("a", "bc") and ("ab", "c") would be the same caller and share an interpreter.
    caller_id = hashlib.sha256(f"{user_id}\0{session_id}".encode()).hexdigest()[:32]
    loop = portal()
    loop.hold_weakly(manager.executor)
    result = loop.call(
        run_named_script, registry, manager.executor, skill_name, script_name, args, execution_id=caller_id
    )
    output = result.stdout + result.stderr
    if result.execution is None:  # nothing was run, so there is no output either
        return -1, f"{result.error_code}: {result.error}"
    return -1 if result.exit_code is None else result.exit_code, output


async def run_named_script(
    registry: SkillRegistry,
    executor: CodeExecutor | None,
    skill_name: str,
    script_path: str,
    args: Any = None,
    **options: Any,
) -> ScriptResult:
    """Run a script of the named skill; a missing or unknown name is a result with an error code.

    Args:
        options: Further keyword arguments of `run_script`.
    """
    if not isinstance(skill_name, str) or not skill_name.strip():  # pyright: ignore[reportUnnecessaryIsInstance]
        return make_refusal("MISSING_SKILL_NAME", "no skill name was given")
    try:
        # In threads: both read files, and a snapshot hashes and copies the whole folder.
        skill = await asyncio.to_thread(registry.get, skill_name.strip())
        snapshot = await asyncio.to_thread(registry.snapshot, skill)
    except BoughError as error:
        return make_refusal(choose_error_code(error), f"{error.message}; {error.hint}", skill=skill_name)
    return await run_script(skill, executor, script_path, args, snapshot=snapshot, **options)


def choose_error_code(error: BoughError) -> ErrorCode:
    """Return the error code for a script whose skill raised `error` when it was looked up."""
    if isinstance(error, PermissionDenied):
        return "SKILL_NOT_TRUSTED"
    return "SKILL_CHANGED" if isinstance(error, Conflict) else "SKILL_NOT_FOUND"


def make_script_event(result: ScriptResult, *, skill: str, script: str, tool_call_id: str | None) -> ScriptRan:
    """Return the event of a script that was run or refused. It records the script's figures, not its output."""
    from bough.events.model import ScriptRan
    from bough.execution.base import CodeExecutionResult

    execution = result.execution or CodeExecutionResult()
    return ScriptRan(
        tool_call_id=tool_call_id,
        skill=skill,
        script=script,
        argv=result.argv,
        status=result.status,
        exit_code=result.exit_code,
        signal=execution.signal,
        timed_out=result.timed_out,
        killed_by=execution.killed_by,
        isolation=result.isolation,
        wall_seconds=round(execution.wall_seconds, 6),
        cpu_seconds=round(execution.cpu_seconds, 6),
        max_rss_bytes=execution.max_rss_bytes,
        stdout_bytes=execution.stdout_bytes,
        stderr_bytes=execution.stderr_bytes,
        output_files=tuple(file.path for file in result.output_files),
        error=result.details or None,
    )
