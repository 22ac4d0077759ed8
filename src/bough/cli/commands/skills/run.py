"""`bough skills run`: runs a skill's script in the sandbox, as for a model."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bough.cli import options
from bough.cli.commands.skills.look import open_registry, require_folder
from bough.cli.render import Report, renderer_for
from bough.cli.turns.ran import choose_exit_code, ran_json, ran_notes, write_streams
from bough.errors import BoughError, ExecutorError, InvalidInput, NotFound, SandboxUnavailable
from bough.settings import Settings

if TYPE_CHECKING:
    from bough.skills import Skill
    from bough.skills.run.scripts import ScriptResult
    from bough.skills.trust.snapshot import SkillSnapshot


def run(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the skill.")],
    script: Annotated[str, typer.Argument(metavar="SCRIPT", help="Script of the skill, with or without scripts/.")],
    args: Annotated[list[str] | None, typer.Argument(metavar="[ARGS]...", help="Arguments of the script.")] = None,
    workspace: options.Workspace = Path(),
    skills: options.SkillRoots = None,
    timeout: Annotated[
        float | None, typer.Option("--timeout", metavar="SECONDS", min=0, help="Time limit. Default: 30.")
    ] = None,
    network: options.Network = None,
    env: options.Env = None,
    executor: options.Executor = None,
    home: options.Home = None,
    store: options.Store = None,
    json: options.Json = False,
) -> Report | int:
    """Run a skill's script in the sandbox. Exits with the script's exit code; 124: timeout, 6: no sandbox.

    bough's options go before NAME; everything after SCRIPT is passed to the script.
    """
    settings = options.load_settings(
        home, store, executor=executor, skill_roots=skills, script_timeout=timeout, cwd=workspace
    )
    registry = open_registry(workspace, settings)
    skill = registry.get(name)
    # A trusted skill runs from its reviewed copy, because its files may have changed since the review.
    snapshot = registry.snapshot(skill)
    result = asyncio.run(
        _run(
            skill, snapshot, script, args or [], settings, workspace, domains=network or [], env=options.parse_env(env)
        )
    )
    execution = result.execution
    if execution is None:
        raise _make_refusal_error(result)
    if json:
        data = ran_json(execution) | {"skill": result.skill, "script": result.script, "status": result.status}
        return Report(command="skills run", data=data, exit_code=choose_exit_code(execution))
    write_streams(execution)
    renderer = renderer_for(json=False)
    for note in ran_notes(execution):
        renderer.note(note)
    return choose_exit_code(execution)


async def _run(
    skill: Skill,
    snapshot: SkillSnapshot | None,
    script: str,
    args: list[str],
    settings: Settings,
    workspace: Path,
    *,
    domains: list[str],
    env: dict[str, str],
) -> ScriptResult:
    from bough.execution.base import Network
    from bough.execution.named import executor_named
    from bough.skills.run.scripts import run_script

    executor = executor_named(settings.executor, packages=settings.packages)
    try:
        # Checked here for exit code 6, because the executor reports a missing sandbox as a result of the script.
        if settings.executor == "sandbox" and not await executor.healthy():
            raise SandboxUnavailable("no sandbox works here", hint="run `bough doctor`")
        return await run_script(
            skill,
            executor,
            script,
            args,
            workspace=require_folder(workspace),
            timeout_seconds=settings.timeout_seconds,
            network=Network(domains=tuple(domains)),
            env=env,
            snapshot=snapshot,
        )
    finally:
        await executor.aclose()


def _make_refusal_error(result: ScriptResult) -> BoughError:
    """Return the error for a script that did not run."""
    message, details = result.details or str(result.error), {"error_code": result.error_code}
    hint = f"`bough skills show {result.skill}` lists its files"
    match result.error_code:
        case "SCRIPT_NOT_FOUND":
            return NotFound(message, hint=hint, details=details)
        case "EXECUTION_ERROR":
            return ExecutorError(message, details=details)
        case _:
            return InvalidInput(message, hint=hint, details=details)
