"""Running a program, such as a skill's MCP server, in the sandbox and talking to it over its input and output.

A separate process on the host stands in between: a client starts it like
any other program, and its input and output are the program's. When it ends, or the process that started it ends, so
does everything in the sandbox.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from bough.errors import BoughError
from bough.execution.base import USUAL_GUARDS, CodeExecutionInput, Guards, Isolation, Mount, Network
from bough.execution.local import LocalSandboxCodeExecutor
from bough.execution.request import MAX_TIMEOUT_SECONDS

_REQUEST_VARIABLE: Final = "BOUGH_SERVE"
_MAIN_CODE: Final = "import sys; sys.path[:] = {path!r}; from bough.execution.serve import main; main()"
"""Looks for modules where this process does: the very bough that runs is to be found."""

_START_SCRIPT: Final = 'cd "$1" && shift && exec "$@"'


def serve_command(
    command: Sequence[str],
    *,
    mounts: Sequence[Mount],
    folder: str,
    workspace: str | None = None,
    env: Mapping[str, str] | None = None,
    domains: Sequence[str] = (),
    guards: Guards = USUAL_GUARDS,
) -> tuple[list[str], dict[str, str]]:
    """Return the command and the environment of the process that runs `command` in the sandbox.

    Args:
        command: The program and its arguments, as seen inside; never seen by a shell.
        mounts: Host folders to mount.
        folder: The working folder inside.
        workspace: A host folder to use as `/work`; None for a new one.
        env: Its environment in addition to the fixed names.
        domains: The domains that it may reach; empty for none.
        guards: The names in the workspace that must not change.
    """
    request = {
        "command": [folder, *command],
        "mounts": [[mount.source, mount.target, mount.writable] for mount in mounts],
        "workspace": workspace,
        "env": dict(env or {}),
        "domains": list(domains),
        "guards": [sorted(guards.names), sorted(guards.top), guards.paths],
    }
    own = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR", "LANG") if name in os.environ}
    # By a variable, because arguments of a process are shown to everybody on the machine.
    return [sys.executable, "-I", "-c", _MAIN_CODE.format(path=sys.path)], {
        **own,
        _REQUEST_VARIABLE: json.dumps(request),
    }


def _read_request(text: str) -> CodeExecutionInput:
    fields: dict[str, Any] = json.loads(text)
    names, top, paths = fields["guards"]
    return CodeExecutionInput(
        code=_START_SCRIPT,
        language="sh",
        argv=tuple(fields["command"]),
        mounts=tuple(
            Mount(source=source, target=target, writable=writable) for source, target, writable in fields["mounts"]
        ),
        workspace=fields["workspace"],
        env=fields["env"],
        network=Network(domains=tuple(fields["domains"])),
        timeout_seconds=MAX_TIMEOUT_SECONDS,
        guards=Guards(names=frozenset(names), top=frozenset(top), paths=tuple(paths)),
    )


async def _serve(request: CodeExecutionInput) -> int:
    """Run the program until it ends, this process gets a signal, or the process that started it has exited."""
    executor = LocalSandboxCodeExecutor(min_isolation=Isolation.NAMESPACES)
    task = asyncio.ensure_future(executor.run_connected(request, stdin=0, stdout=1))
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    loop.add_reader(parent := os.pidfd_open(os.getppid()), task.cancel)  # readable once the process has ended
    try:
        result = await task
    except asyncio.CancelledError:
        return 0
    except BoughError as error:
        sys.stderr.write(f"{error.message} {error.hint}\n")
        return 1
    finally:
        loop.remove_reader(parent)
        await executor.aclose()
    sys.stderr.write(result.stderr.decode("utf-8", "replace"))
    return 1 if result.exit_code is None else result.exit_code


def main() -> None:
    """Run the program described by the environment, and exit with its exit code."""
    sys.exit(asyncio.run(_serve(_read_request(os.environ.pop(_REQUEST_VARIABLE)))))
