"""Run a program in the sandbox for a client that talks to it over stdin and stdout, such as a skill's MCP server.

The client starts a separate process on the host, which runs the program with its own stdin and stdout. When this
process or the client exits, every process in the sandbox is killed.
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
"""The code of the process: it uses the module paths of this process, so that it imports the same bough."""

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
        command: The program and its arguments, with paths inside the sandbox; never interpreted by a shell.
        mounts: Host folders to mount.
        folder: The working folder inside the sandbox.
        workspace: A host folder to use as `/work`; None for a new one.
        env: The program's environment, in addition to the fixed variables.
        domains: The domains that the program may connect to; empty for none.
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
    inherited = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR", "LANG") if name in os.environ}
    # In a variable, because other users of the machine can read a process's arguments, but not its environment.
    environment = {**inherited, _REQUEST_VARIABLE: json.dumps(request)}
    return [sys.executable, "-I", "-c", _MAIN_CODE.format(path=sys.path)], environment


def _read_request(text: str) -> CodeExecutionInput:
    """Return the request of `serve_command` from its JSON."""
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
    """Run the program until it ends, this process gets SIGTERM, or its parent exits; return the exit code."""
    executor = LocalSandboxCodeExecutor(min_isolation=Isolation.NAMESPACES)
    task = asyncio.ensure_future(executor.run_connected(request, stdin=0, stdout=1))
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    parent_pidfd = os.pidfd_open(os.getppid())  # becomes readable when the parent exits
    loop.add_reader(parent_pidfd, task.cancel)
    try:
        result = await task
    except asyncio.CancelledError:
        return 0
    except BoughError as error:
        sys.stderr.write(f"{error.message} {error.hint}\n")
        return 1
    finally:
        loop.remove_reader(parent_pidfd)
        await executor.aclose()
    sys.stderr.write(result.stderr.decode("utf-8", "replace"))
    return 1 if result.exit_code is None else result.exit_code


def main() -> None:
    """Run the program described by the environment, and exit with its exit code."""
    sys.exit(asyncio.run(_serve(_read_request(os.environ.pop(_REQUEST_VARIABLE)))))
