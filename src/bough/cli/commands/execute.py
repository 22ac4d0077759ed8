"""`bough exec`: runs a file or a piece of code in the sandbox."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bough.cli import options
from bough.cli.render import Report, renderer_for
from bough.cli.turns.ran import choose_exit_code, ran_json, ran_notes, write_streams
from bough.errors import InvalidInput

if TYPE_CHECKING:
    from bough.execution.base import CodeExecutionInput, CodeExecutionResult
    from bough.execution.script_program import Language
    from bough.settings import Settings

_LANGUAGES: Mapping[str, Language] = {"python": "python", "bash": "bash", "sh": "sh", "node": "node"}


def exec_(
    file: Annotated[str | None, typer.Argument(metavar="[FILE]", help="Script to run.")] = None,
    args: Annotated[list[str] | None, typer.Argument(metavar="[ARGS]...", help="Arguments of the script.")] = None,
    code: Annotated[
        str | None, typer.Option("--code", "-c", metavar="CODE", help="Code to run instead of FILE.")
    ] = None,
    language: Annotated[
        str | None,
        typer.Option("--language", metavar="python|bash|sh|node", help="Default: from FILE's extension or #! line."),
    ] = None,
    timeout: Annotated[
        float | None, typer.Option("--timeout", metavar="SECONDS", min=0, help="Time limit. Default: 30.")
    ] = None,
    network: options.Network = None,
    memory: Annotated[
        int | None, typer.Option("--memory", metavar="MB", min=1, help="Memory limit. Default: 512.")
    ] = None,
    workspace: Annotated[
        Path | None,
        typer.Option("--workspace", "-C", metavar="DIR", help="Working folder. Default: a new, empty one."),
    ] = None,
    env: options.Env = None,
    stdin: Annotated[
        Path | None, typer.Option("--stdin", metavar="FILE", help="File to read as stdin; - for bough's stdin.")
    ] = None,
    executor: options.Executor = None,
    packages: options.Packages = None,
    home: options.Home = None,
    store: options.Store = None,
    json: options.Json = False,
) -> Report | int:
    """Run a script in the sandbox. Exits with the script's exit code; 124: timeout, 6: no sandbox.

    bough's options go before FILE; everything after FILE is passed to the script.
    """
    argv = tuple(args or ())
    script = None if file is None else Path(file)
    if code is not None and file is not None:
        # With -c, the first argument is not a file, but is passed to the code.
        argv, script = (file, *argv), None
    request = _make_request(script, code, language)
    request = replace(
        request,
        argv=argv,
        timeout_seconds=timeout,
        env=options.parse_env(env),
        stdin=b"" if stdin is None else _read_stdin(stdin),
    )
    request = _limit_request(request, network=network, memory=memory, workspace=workspace)
    settings = options.load_settings(home, store, executor=executor, packages=packages)
    result = asyncio.run(_execute(settings, request))
    if json:
        return Report(command="exec", data=ran_json(result), exit_code=choose_exit_code(result))
    write_streams(result)
    renderer = renderer_for(json=False)
    for note in ran_notes(result):
        renderer.note(note)
    return choose_exit_code(result)


def _make_request(file: Path | None, code: str | None, language: str | None) -> CodeExecutionInput:
    """Return the request to run a file or code. Only the text of the file enters the sandbox, not its folder.

    Raises:
        InvalidInput: File and code are both missing, the file is not text, or its language is unknown.
    """
    from bough.execution.base import CodeExecutionInput
    from bough.execution.script_program import find_script_program

    if language is not None and language not in _LANGUAGES:
        raise InvalidInput(f"the language {language!r} is not known", hint=f"choose one of: {', '.join(_LANGUAGES)}")
    chosen_language = None if language is None else _LANGUAGES[language]
    if file is None:
        if code is None:
            raise InvalidInput("there is nothing to run", hint="bough exec FILE, or bough exec -c CODE")
        return CodeExecutionInput(code=code, language=chosen_language or "python")
    try:
        text = file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{file} cannot be read: {error}", hint="give a script that is text in UTF-8") from error
    if chosen_language is not None:
        return CodeExecutionInput(code=text, language=chosen_language)
    program = find_script_program(file.name, text.encode())
    if program is None:
        raise InvalidInput(f"unknown file type: {file}", hint=f"--language {'|'.join(_LANGUAGES)}")
    return CodeExecutionInput(code=text, language=program.language, command=program.command)


def _limit_request(
    request: CodeExecutionInput, *, network: list[str] | None, memory: int | None, workspace: Path | None
) -> CodeExecutionInput:
    """Return the request with the limits and the workspace of the options."""
    from bough.execution.base import ExecutionLimits, Network

    limits = ExecutionLimits() if memory is None else ExecutionLimits(memory_bytes=memory << 20)
    request = replace(request, limits=limits, network=Network(domains=tuple(network or ())))
    if workspace is None:
        return request
    return replace(request, workspace=workspace.expanduser().absolute())


def _read_stdin(file: Path) -> bytes:
    try:
        return sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        raise InvalidInput(f"{file} cannot be read: {error.strerror}", hint="give a file, or -") from error


async def _execute(settings: Settings, request: CodeExecutionInput) -> CodeExecutionResult:
    from bough.execution.named import executor_named

    executor = executor_named(settings.executor, packages=settings.packages)
    try:
        return await executor.execute(request)
    finally:
        await executor.aclose()
